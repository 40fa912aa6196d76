"""Several tiers, and host memory: each design with its story, and what the sound machines do instead."""

import pytest
from stories import (
    assert_breaks_by,
    assert_holds_and_does_all,
    faulty_designs,
    follow,
    refused_by_the_sound_twin,
)

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.machines import MACHINES, tiers, tiers_host_memory

FOUND = ("store(o=0, t=0, k=0)", "land(o=0, p=0)", "land(o=0, p=1)", "complete(o=0)")
LOST = (*FOUND, "promote(o=0, a=0, t=1, k=0)", "lose(t=0, k=0, p=0)", "read_fails(o=0, p=0)")
ALL_RESET = ("begin_reset()", "clear(t=0)", "clear(t=1)", "end_reset()")
PINNED = (
    *(f"register(k={k}, p={p})" for k in (0, 1) for p in (0, 1)),
    *(f"{step}(k={k})" for step in ("agree", "use_pinned") for k in (0, 1)),
)
STORIES: dict[str, tuple[str, ...]] = {
    "events_before_landing": ("store(o=0, t=0, k=0)",),
    "removed_not_published": (*FOUND, "evict(t=0, k=0, p=0)"),
    "reset_not_published": (*FOUND, "begin_reset()", "clear(t=0)"),
    "lost_file_still_listed": (*LOST, "complete_failed(o=0)"),
    "lost_file_still_found": (*LOST, "complete_failed(o=0)", "look_up(t=0, k=0)"),
    "store_resurrects_key": (*FOUND[:-1], *ALL_RESET, "complete(o=0)"),
    "reset_skips_a_tier": (*FOUND, "begin_reset()", "clear(t=1)", "end_reset()"),
    "promotion_during_reset": (*FOUND, "begin_reset()", "promote(o=0, a=0, t=1, k=0)"),
    "reset_forgets_transfers": ("store(o=0, t=0, k=0)", *ALL_RESET, "rest()"),
    "ranks_disagree_on_pinning": (
        "register(k=1, p=0)",
        "register(k=1, p=1)",
        "fail_to_register(k=0, p=0)",
        "agree(k=1)",
        "use_pinned(k=1)",
        "use_plain(k=0)",
    ),
    "partial_registration_kept": ("register(k=0, p=1)", "fail_to_register(k=0, p=0)", "use_plain(k=0)"),
    "descriptor_reused_early": (
        *PINNED,
        *(f"{step}(o={o})" for step in ("queue", "issue") for o in (0, 1)),
        "describe(o=0, k=0, d=0)",
        "describe(o=1, k=0, d=0)",
    ),
}
"""The steps to each violation."""

REFUSED = {
    "store_resurrects_key": None,
    "events_before_landing": None,
    "removed_not_published": None,
    "reset_not_published": None,
    "lost_file_still_listed": None,
    "lost_file_still_found": "look_up(t=0, k=0)",
    "reset_skips_a_tier": "end_reset()",
    "promotion_during_reset": "promote(o=0, a=0, t=1, k=0)",
    "reset_forgets_transfers": "rest()",
    "ranks_disagree_on_pinning": "use_pinned(k=1)",
    "partial_registration_kept": "use_plain(k=0)",
    "descriptor_reused_early": "describe(o=1, k=0, d=0)",
}
"""The step that the sound twin does not take; None where it takes all of them and does something else."""


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("tiers", "host_memory") == set(STORIES) == set(REFUSED)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    assert_breaks_by(design, STORIES[design])


@pytest.mark.parametrize("design", STORIES)
def test_the_sound_twin_refuses_the_story_or_is_not_broken_by_it(design: str) -> None:
    assert refused_by_the_sound_twin(design, STORIES[design]) == REFUSED[design]


@pytest.mark.parametrize(("name", "sizes"), [("tiers", {"Operation": 1}), ("host_memory", {})])
def test_the_sound_design_holds_and_can_do_what_it_is_for(name: str, sizes: dict[str, int]) -> None:
    assert_holds_and_does_all(MACHINES[name](frozenset()), sizes)


def test_a_key_of_which_one_part_is_gone_is_not_listed_although_the_rest_is_there() -> None:
    run = Interpreter(tiers.build(), {"Operation": 1})
    view = run.view(follow(run, FOUND)[0])
    assert view.listed[0, 0]
    view = run.view(follow(run, (*FOUND, "evict(t=0, k=0, p=1)"))[0])
    assert view.part[0, 0, 0]
    assert not view.listed[0, 0]


def test_a_store_that_lands_after_a_reset_lets_go_of_everything_and_registers_nothing() -> None:
    run = Interpreter(tiers.build(), {"Operation": 1})
    view = run.view(follow(run, (*FOUND[:-1], *ALL_RESET, "complete(o=0)", "rest()"))[0])
    assert not any(view.part.values())
    assert not any(view.pin.values())


def test_one_failure_makes_every_rank_give_back_what_it_registered() -> None:
    run = Interpreter(tiers_host_memory.build())
    story = ("register(k=0, p=0)", "register(k=0, p=1)", "agree(k=0)", "fail_to_register(k=1, p=0)")
    assert follow(run, (*story, "use_plain(k=0)"))[1] == "use_plain(k=0)"
    back = ("roll_back(k=0, p=0)", "roll_back(k=0, p=1)", "use_plain(k=0)", "use_plain(k=1)")
    view = run.view(follow(run, (*story, *back))[0])
    assert set(view.use.values()) == {"plain"}
    assert not any(view.registered.values())


def test_a_buffer_is_free_on_the_rank_that_has_reported_only() -> None:
    run = Interpreter(tiers_host_memory.build())
    busy = (*PINNED, "queue(o=0)", "issue(o=0)", "describe(o=0, k=0, d=0)", "describe(o=0, k=1, d=0)")
    half = (*busy, "report(o=0, k=0)", "queue(o=1)", "issue(o=1)", "describe(o=1, k=0, d=0)")
    assert follow(run, half)[1] is None
    assert follow(run, (*half, "describe(o=1, k=1, d=0)"))[1] == "describe(o=1, k=1, d=0)"
