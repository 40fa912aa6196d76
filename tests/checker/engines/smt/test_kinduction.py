"""k-induction: proofs of the machines at their sizes, and no proof from states that nothing leads to."""

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.smt.kinduction import KInduction
from kvfence.spec.language import Expr, If, Int, Machine, State
from kvfence.spec.machines import MACHINES


@pytest.mark.parametrize("name", MACHINES)
def test_a_sound_machine_is_proved_at_its_sizes(name: str) -> None:
    result = KInduction(length=2).run(MACHINES[name](frozenset()))
    assert result.verdict is Verdict.holds


def test_a_proof_may_need_more_states_in_a_row() -> None:
    m = Machine("ring")
    m.function("n", value=Int(0, 5), init=0)

    @m.action()
    def go(s: State) -> None:  # 0 1 2 0 …, and apart from it 3 4 5
        s.n = If(s.n == 2, 0, If(s.n == 5, 5, s.n + 1))

    @m.invariant("NEVER")
    def never_the_end(s: State) -> Expr:
        return s.n != 5

    one, two, three = (KInduction(length=k).run(m) for k in (1, 2, 3))
    assert (one.verdict, two.verdict) == (Verdict.undetermined, Verdict.undetermined)
    assert "in a row" in (one.stopped or "")
    assert three.verdict is Verdict.holds
    assert Explore().run(m).verdict is Verdict.holds


@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_a_machine_that_gets_stuck_early_is_not_proved_for_want_of_long_runs(length: int) -> None:
    result = KInduction(length=length).run(small.dead_end())
    assert result.verdict is not Verdict.holds
    assert result.findings["never_two"].verdict is not Verdict.holds
    if length >= 3:
        assert {p.id for p in result.violated} == {"SMALL", "DEADLOCK"}


def test_a_state_without_a_successor_is_a_violation() -> None:
    result = KInduction(length=8).run(small.stuck(), {"Walker": 1})
    assert (result.deadlock and len(result.deadlock)) == 2


def test_a_lemma_saves_states_in_a_row() -> None:
    assert KInduction(length=1).run(small.lock()).verdict is Verdict.undetermined
    assert KInduction(length=2).run(small.lock()).verdict is Verdict.holds
    assert KInduction(length=1).run(small.with_the_lemma(small.lock())).verdict is Verdict.holds


def test_a_violation_is_found_on_the_way() -> None:
    result = KInduction(length=5).run(small.lock(forgetful=True))
    assert [len(p) for p in result.violated] == [2]


def test_what_turns_out_to_be_violated_is_no_longer_assumed_for_the_rest() -> None:
    m = Machine("up", doc="It counts, and leaves its range in the end.")
    m.function("n", value=Int(0, 3), init=0)

    @m.action()
    def more(s: State) -> None:
        """One more."""
        s.n = s.n + 1

    @m.invariant("PIN")
    def none(s: State) -> Expr:
        """Kept at first, and assumed as long."""
        return s.n < 1

    found = KInduction().run(m)
    assert {name: f.path and len(f.path) for name, f in found.findings.items()} == {
        "none": 1,
        "range of n": 4,
    }
