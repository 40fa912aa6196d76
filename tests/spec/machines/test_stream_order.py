"""The stream order machine: sound at any size, each design with its story, and what must stay possible."""

import pytest
from stories import (
    assert_breaks_by,
    assert_holds_and_does_all,
    assert_proof_needs_lemmas,
    faulty_designs,
    follow,
    refused_by_the_sound_twin,
)

from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import stream_order

LAUNCHED_STORE = ("compute", "queue_store", "take", "launch_store")
STORIES = {
    "store_without_barrier": ("STORE-READY", ("allocate", *LAUNCHED_STORE)),
    "barrier_before_compute": ("STORE-READY", ("allocate", *LAUNCHED_STORE)),
    "barrier_with_any": ("STORE-READY", ("allocate", *LAUNCHED_STORE)),
    "load_without_barrier": (
        "LOAD-ORDER",
        ("allocate", "compute", "free", "queue_load", "take", "launch_load"),
    ),
    "zero_fill_after_load": (
        "LOAD-ORDER",
        ("allocate", "zero_fill", "free", "queue_load", "take", "launch_load"),
    ),
    "flush_misses_queued": (
        "FREEZE",
        (
            "allocate",
            "compute",
            "queue_store",
            "free_after_flush",
            "take",
            "launch_store",
            "allocate",
            "zero_fill",
        ),
    ),
    "completion_on_wrong_stream": (
        "USE-READY",
        ("queue_load", "take", "launch_load", "hear_of_launch", "complete", "attend"),
    ),
    "event_reused": (
        "STORE-READY",
        (
            "allocate",
            "queue_load(x=1, h=1, o=1)",
            "compute",
            "queue_store",
            "take(o=1)",
            "launch_load(o=1)",
            "take",
            "launch_store",
        ),
    ),
}
"""What breaks first, and the steps to it: slot 0, host slot 0, operation 0, in stream order, if not said."""

ARGUMENTS: dict[str, dict[str, object]] = {
    **{name: {"x": 0} for name in ("allocate", "zero_fill", "compute", "attend", "free", "free_after_flush")},
    **{name: {"x": 0, "h": 0, "o": 0} for name in ("queue_store", "queue_load")},
    **{name: {"o": 0} for name in ("take", "synchronise_with_barrier", "hear_of_launch", "complete")},
    **{name: {"o": 0, "order": "stream"} for name in ("launch_store", "launch_load")},
}


def printed(story: tuple[str, ...], order: str = "stream") -> tuple[str, ...]:
    """The story's steps with all of their arguments."""
    steps = []
    for step in story:
        name, _, rest = step.rstrip(")").partition("(")
        own = dict(argument.split("=") for argument in rest.split(", ") if argument)
        known = ARGUMENTS[name] | ({"order": order} if "order" in ARGUMENTS[name] else {}) | own
        steps.append(f"{name}({', '.join(f'{parameter}={value}' for parameter, value in known.items())})")
    return tuple(steps)


def story_of(design: str) -> tuple[str, ...]:
    return printed(STORIES[design][1], "any" if design == "barrier_with_any" else "stream")


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("stream_order") == set(STORIES)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    assert DESIGNS[design].breaks == STORIES[design][0]
    assert_breaks_by(design, story_of(design), {"Host": 2})


REFUSED = {
    "flush_misses_queued": "free_after_flush(x=0)",
    "barrier_with_any": "launch_store(o=0, order=any)",
}


@pytest.mark.parametrize("design", STORIES)
def test_the_sound_twin_refuses_the_story_or_is_not_broken_by_it(design: str) -> None:
    sizes = {"Slot": 2, "Host": 2, "Operation": 2}
    assert refused_by_the_sound_twin(design, story_of(design), sizes) == REFUSED.get(design)


def test_the_sound_design_holds_at_a_small_size_and_can_do_what_it_is_for() -> None:
    assert_holds_and_does_all(stream_order.build(), {"Slot": 1})


def test_the_sound_design_is_proved_for_any_size_and_any_number_of_steps() -> None:
    pytest.importorskip("z3")
    found = verify(machine="stream_order", engine="smt")
    assert found.verdict == "holds"
    assert found.machines[0].proof is not None
    assert not found.machines[0].proof.open


def test_without_its_lemmas_the_proof_does_not_go_through() -> None:
    assert_proof_needs_lemmas(stream_order.build(), {"Slot": 1})


@pytest.mark.parametrize("order", ["stream", "during_api_call", "any"])
def test_every_source_access_order_is_harmless_once_the_copy_thread_has_waited(order: str) -> None:
    run = Interpreter(stream_order.build(), {"Slot": 1})
    story = ("allocate", "compute", "queue_store", "take", "synchronise_with_barrier", "launch_store")
    state, refused = follow(run, printed(story, order))
    assert refused is None
    past = not run.view(state).unordered["copier", "stored", 0]
    assert past == (order == "during_api_call"), "only a read in the call is over when the call returns"


def test_a_wait_is_for_the_last_record_at_the_time_of_the_call() -> None:
    """Recorded again by another transfer, the event no longer stands for the kernel."""
    run = Interpreter(stream_order.build(frozenset({"event_reused"})), {"Host": 2})
    story = story_of("event_reused")
    recorded, again = 4, 6
    for taken, behind in ((recorded, True), (again, False)):
        state, refused = follow(run, story[:taken])
        assert refused is None
        assert run.view(state).barrier[0, "written", 0] != behind
