"""The stream order machine: sound at any size, each design with its story, and what must stay possible."""

from __future__ import annotations

import pytest

from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
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


def steps(story: tuple[str, ...], order: str = "stream") -> list[tuple[str, dict[str, object]]]:
    """The story with its arguments filled in."""
    out = []
    for told in story:
        name, _, rest = told.rstrip(")").partition("(")
        said: dict[str, object] = {}
        for argument in filter(None, rest.split(", ")):
            parameter, value = argument.split("=")
            said[parameter] = int(value) if value.isdigit() else value
        arguments = ARGUMENTS[name] | said
        if "order" in arguments and "order" not in said:
            arguments = arguments | {"order": order}
        out.append((name, arguments))
    return out


def test_there_is_a_story_for_every_design() -> None:
    named = {name for name, row in DESIGNS.items() if row.breaks and "stream_order" in row.machines}
    assert named == set(STORIES)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    invariant, story = STORIES[design]
    row = DESIGNS[design]
    assert row.breaks == invariant
    machine = stream_order.build(row.faults)
    order = "any" if design == "barrier_with_any" else "stream"
    machine.assert_discovers(invariant, steps(story, order), sizes={"Host": 2})
    found = Explore().run(machine, row.sizes, until="first")
    assert min(len(path) for path in found.violated if path.id == invariant) == len(story)


@pytest.mark.parametrize("design", STORIES)
def test_the_sound_twin_refuses_the_story_or_is_not_broken_by_it(design: str) -> None:
    interpreter = Interpreter(stream_order.build(), {"Slot": 2, "Host": 2, "Operation": 2})
    state = interpreter.initial()
    order = "any" if design == "barrier_with_any" else "stream"
    refused = None
    for name, arguments in steps(STORIES[design][1], order):
        instance = interpreter.find(name, **arguments)  # type: ignore[arg-type]
        if instance not in interpreter.enabled(state):
            refused = name
            break
        state, failed = interpreter.step(state, instance)
        assert not failed
    assert refused == {"flush_misses_queued": "free_after_flush", "barrier_with_any": "launch_store"}.get(
        design
    )


def test_the_sound_design_holds_at_a_small_size_and_can_do_what_it_is_for() -> None:
    found = Explore().run(stream_order.build(), {"Slot": 1})
    assert found.verdict is Verdict.holds
    assert not found.vacuous
    assert all(depth is not None for depth in found.goals.values())
    assert all(times > 0 for times in found.coverage.values())


def test_the_sound_design_is_proved_for_any_size_and_any_number_of_steps() -> None:
    pytest.importorskip("z3")
    found = verify(machine="stream_order", engine="smt")
    assert found.verdict == "holds"
    assert found.machines[0].proof is not None
    assert not found.machines[0].proof.open


def test_without_its_lemmas_the_proof_does_not_go_through() -> None:
    pytest.importorskip("z3")
    from kvfence.checker.engines.smt.unbounded import Unbounded

    machine = stream_order.build()
    machine.lemmas.clear()
    assert Unbounded(search_seconds=1).run(machine, {"Slot": 1}).verdict is Verdict.undetermined


@pytest.mark.parametrize("order", ["stream", "during_api_call", "any"])
def test_every_source_access_order_is_harmless_once_the_copy_thread_has_waited(order: str) -> None:
    interpreter = Interpreter(stream_order.build(), {"Slot": 1})
    state = interpreter.initial()
    story = ("allocate", "compute", "queue_store", "take", "synchronise_with_barrier", "launch_store")
    for name, arguments in steps(story, order):
        state, failed = interpreter.step(state, interpreter.find(name, **arguments))  # type: ignore[arg-type]
        assert not failed
    seen = not interpreter.view(state).unordered["copier", "stored", 0]
    assert seen == (order == "during_api_call"), "only a read in the call is over when the call returns"


def test_a_wait_is_for_the_last_record_at_the_time_of_the_call() -> None:
    """Recorded again by another transfer, the event no longer stands for the kernel."""
    interpreter = Interpreter(stream_order.build(frozenset({"event_reused"})), {"Host": 2})
    state = interpreter.initial()
    behind = []
    for name, arguments in steps(STORIES["event_reused"][1][:-1]):
        state, _ = interpreter.step(state, interpreter.find(name, **arguments))  # type: ignore[arg-type]
        behind.append(not interpreter.view(state).barrier[0, "written", 0])
    recorded, again = 3, 5
    assert behind[recorded]
    assert not behind[again]
