"""Failing loads and late verdicts: each design with its story, and what the sound machines do instead."""

import pytest
from stories import (
    assert_breaks_by,
    assert_holds_and_does_all,
    faulty_designs,
    follow,
    refused_by_the_sound_twin,
)

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.machines import MACHINES, loads, loads_verdicts

ONE_GROUP = ("take(r=0, b=0, i=0, g=0)", "take(r=0, b=1, i=1, g=0)", "admit(r=0)")
SHARED = (*ONE_GROUP, "share(r=1, b=0)", "share(r=1, b=1)", "admit(r=1)")
TWO_GROUPS = (*(f"take(r=0, b={2 * g + i}, i={i}, g={g})" for g in (0, 1) for i in (0, 1)), "admit(r=0)")
ASKED = ("store()", "ask(r=0)", "ask(r=1)", "look(r=0, g=0)", "look(r=1, g=0)", "answer(r=0, g=0, q=0)")
STORIES: dict[str, tuple[str, ...]] = {
    "block_ids_unique_only_in_group": (*TWO_GROUPS, "fail(r=0, b=0, c=2)"),
    "partial_load_counted_whole": (*ONE_GROUP, "land(r=0, b=0)", "fail(r=0, b=1, c=1)", "complete(r=0)"),
    "invalid_in_one_group_only": (
        *TWO_GROUPS,
        *(f"land(r=0, b={b})" for b in (0, 1, 2)),
        "fail(r=0, b=3, c=3)",
        "roll_back(r=0)",
    ),
    "sharer_not_rolled_back": (
        *SHARED,
        "land(r=0, b=0)",
        "fail(r=0, b=1, c=1)",
        "roll_back(r=0)",
        "resume(r=1)",
        "finish(r=1)",
    ),
    "count_not_rolled_back": (*ONE_GROUP, "land(r=0, b=0)", "fail(r=0, b=1, c=1)", "roll_back(r=0)"),
    "shared_before_landing": (*ONE_GROUP, "resume(r=0)", "finish(r=0)"),
    "unpinned_verdict": ("store()", "ask(r=0)", "look(r=0, g=0)", "evict()"),
    "answers_by_key": ("ask(r=0)", "ask(r=1)", "look(r=0, g=0)", "answer(r=0, g=0, q=1)"),
    "dropped_answer_keeps_pin": (
        "store()",
        "ask(r=0)",
        "look(r=0, g=0)",
        "abort(r=0)",
        "drop(r=0, g=0)",
        "abort(r=1)",
        "rest()",
    ),
    "verdict_kept_after_failure": (*ASKED, "answer(r=1, g=0, q=1)", "load(r=0)", "fail(r=0)", "load(r=1)"),
    "answer_on_its_way_kept": (*ASKED, "load(r=0)", "fail(r=0)", "answer(r=1, g=0, q=1)"),
}
"""The steps to each violation."""

REFUSED = {
    "block_ids_unique_only_in_group": "fail(r=0, b=0, c=2)",
    "partial_load_counted_whole": "complete(r=0)",
    "invalid_in_one_group_only": None,
    "sharer_not_rolled_back": "finish(r=1)",
    "count_not_rolled_back": None,
    "shared_before_landing": "resume(r=0)",
    "unpinned_verdict": "evict()",
    "answers_by_key": "answer(r=0, g=0, q=1)",
    "dropped_answer_keeps_pin": None,
    "verdict_kept_after_failure": "load(r=1)",
    "answer_on_its_way_kept": None,
}
"""The step that the sound twin does not take; None where it takes all of them and does something else."""


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("loads", "verdicts") == set(STORIES) == set(REFUSED)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    assert_breaks_by(design, STORIES[design])


@pytest.mark.parametrize("design", STORIES)
def test_the_sound_twin_refuses_the_story_or_is_not_broken_by_it(design: str) -> None:
    assert refused_by_the_sound_twin(design, STORIES[design]) == REFUSED[design]


@pytest.mark.parametrize(
    ("name", "sizes"), [("loads", {"Block": 3, "Group": 1}), ("verdicts", {"Request": 2})]
)
def test_the_sound_design_holds_and_can_do_what_it_is_for(name: str, sizes: dict[str, int]) -> None:
    assert_holds_and_does_all(MACHINES[name](frozenset()), sizes)


def test_a_failed_block_takes_its_place_away_in_every_group_and_the_places_behind_it() -> None:
    run = Interpreter(loads.build(), {"Request": 1})
    landed = (*TWO_GROUPS, *(f"land(r=0, b={b})" for b in (1, 2, 3)), "fail(r=0, b=0, c=0)")
    view = run.view(follow(run, (*landed, "roll_back(r=0)"))[0])
    assert (view.counted[0], view.to_compute[0]) == (0, 2)
    assert [view.label[b] for b in range(4)] == [False, True, True, True]


def test_under_either_policy_a_sharer_fares_like_the_owner() -> None:
    run = Interpreter(loads.build(), {"Block": 2, "Group": 1})
    failed = (*SHARED, "land(r=0, b=0)", "fail(r=0, b=1, c=1)")
    view = run.view(follow(run, (*failed, "roll_back(r=0)"))[0])
    assert [view.counted[r] for r in (0, 1)] == [1, 1]
    assert [view.to_compute[r] for r in (0, 1)] == [1, 1]
    view = run.view(follow(run, (*failed, "give_up(r=0)"))[0])
    assert [view.status[r] for r in (0, 1)] == ["gone", "gone"]
    assert not any(view.table.values())


def test_who_still_gathers_blocks_lets_go_of_one_whose_load_has_failed() -> None:
    run = Interpreter(loads.build(), {"Block": 2, "Group": 1})
    story = (*ONE_GROUP, "share(r=1, b=0)", "share(r=1, b=1)", "land(r=0, b=0)", "fail(r=0, b=1, c=1)")
    view = run.view(follow(run, (*story, "roll_back(r=0)"))[0])
    assert [view.table[1, b] for b in (0, 1)] == [True, False]


def test_an_answer_for_an_older_generation_is_dropped_and_the_newer_one_gets_its_own() -> None:
    run = Interpreter(loads_verdicts.build(), {"Request": 1})
    again = ("store()", "ask(r=0)", "abort(r=0)", "come_again(r=0)", "ask(r=0)", "look(r=0, g=0)")
    assert follow(run, (*again, "answer(r=0, g=0, q=0)"))[1] == "answer(r=0, g=0, q=0)"
    own = ("drop(r=0, g=0)", "look(r=0, g=1)", "answer(r=0, g=1, q=0)")
    view = run.view(follow(run, (*again, *own))[0])
    assert view.verdict[0] == "hit"
    assert [view.pin[0, g] for g in (0, 1)] == [False, True]


def test_an_answer_on_its_way_becomes_a_miss_when_a_load_from_the_tier_fails() -> None:
    run = Interpreter(loads_verdicts.build())
    view = run.view(follow(run, STORIES["answer_on_its_way_kept"])[0])
    assert view.verdict[1] == "miss"
    assert not any(view.pin.values())
