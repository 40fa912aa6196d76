"""The ranks machine: one decision, one completion, for any number of ranks; each design with its story."""

import pytest
from stories import assert_breaks_by, assert_proof_needs_lemmas, faulty_designs, refused_by_the_sound_twin

from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import ranks

ONE = {"Operation": 1, "Rank": 2}
COMMITTED = ("own", "ask", "reserve k=0", "reserve k=1", "commit")
STORIES = {
    "one_rank_enough": ("RANKS", (*COMMITTED, "begin_copy k=0", "report k=0", "complete")),
    "decide_alone": (
        "RANKS",
        ("own", "ask", "reserve k=0", "give_up", "hear_of_abort k=1", "decide_alone k=0"),
    ),
    "repeat_counts": (
        "ONCE",
        (*COMMITTED, "begin_copy k=0", "report k=0", "repeat k=0", "repeated_report k=0"),
    ),
    "failure_after_completion": (
        "FAIL-CLOSED",
        (*COMMITTED, "begin_copy k=0", "report_failure k=0", "hear_of_failure k=0"),
    ),
    "noop_flush_on_one_rank": ("FREEZE", (*COMMITTED, "begin_copy k=0", "report k=0", "let_go")),
    "dropped_leader_slot": ("ONCE", (*COMMITTED, "begin_copy k=0", "drop_record", "ignore_report k=0")),
}
"""What breaks first, and the fewest steps to it, of operation 0."""


def printed(story: tuple[str, ...]) -> tuple[str, ...]:
    """The story's steps with all of their arguments."""
    steps = (step.partition(" ") for step in story)
    return tuple(f"{name}(o=0, {rank})" if rank else f"{name}(o=0)" for name, _, rank in steps)


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("ranks") == set(STORIES)


@pytest.mark.parametrize("design", STORIES)
def test_each_design_breaks_its_invariant_by_its_story_and_no_shorter_one(design: str) -> None:
    invariant, story = STORIES[design]
    assert DESIGNS[design].breaks == invariant
    assert_breaks_by(design, printed(story), alone=False)


REFUSED = {
    "one_rank_enough": "complete(o=0)",
    "decide_alone": "decide_alone(o=0, k=0)",
    "repeat_counts": None,  # the report arrives, and is not counted
    "failure_after_completion": "hear_of_failure(o=0, k=0)",
    "noop_flush_on_one_rank": "let_go(o=0)",
    "dropped_leader_slot": "drop_record(o=0)",
}


@pytest.mark.parametrize("design", STORIES)
def test_the_sound_twin_refuses_the_step_that_breaks_the_design(design: str) -> None:
    assert refused_by_the_sound_twin(design, printed(STORIES[design][1])) == REFUSED[design]


def test_a_lost_record_keeps_an_operation_open_for_ever() -> None:
    found = Liveness().run(ranks.build(frozenset({"dropped_leader_slot"})), ONE)
    assert found.findings["every_operation_ends"].verdict is Verdict.violated


def test_every_operation_ends_since_each_rank_answers_and_reports() -> None:
    kept, unfair = (Liveness(fair=fair).run(ranks.build(), ONE) for fair in (True, False))
    assert kept.verdict is Verdict.holds
    assert unfair.verdict is Verdict.violated


def test_two_operations_that_reserve_on_different_ranks_do_not_wait_for_each_other_for_ever() -> None:
    assert Liveness().run(ranks.build()).verdict is Verdict.holds


@pytest.mark.parametrize(
    "sizes", [{"Operation": 1}, {"Operation": 1, "Rank": 3}, {"Operation": 1, "Rank": 4}]
)
def test_the_sound_design_holds_whatever_the_number_of_ranks(sizes: dict[str, int]) -> None:
    found = Explore().run(ranks.build(), sizes)
    assert not found.violated
    assert not found.vacuous
    missed = {goal for goal, depth in found.goals.items() if depth is None}
    assert missed == {"two_operations_have_reserved_on_some_ranks_each"}, "it takes two operations"


@pytest.mark.slow
def test_the_sound_design_is_proved_for_any_number_of_ranks_and_operations() -> None:
    pytest.importorskip("z3")
    found = verify(machine="ranks", engine="smt")
    assert found.verdict == "holds"
    assert found.machines[0].proof is not None
    assert not found.machines[0].proof.open


def test_without_its_lemmas_the_proof_does_not_go_through() -> None:
    assert_proof_needs_lemmas(ranks.build(), ONE)
