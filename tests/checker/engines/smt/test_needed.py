"""Proofs of some conditions: they use what is proved, say what, and fail when that is taken away."""

import time

import pytest
import smt_machines as small

from kvfence.checker.engines.smt import needed, recheck
from kvfence.checker.engines.smt.needed import Prover, named
from kvfence.spec.language import Elem, Expr, ForAll, Machine, Not, State
from kvfence.spec.machines import MACHINES


@pytest.fixture
def lemma_lock() -> Machine:
    """The lock with the lemma that its proof needs."""
    return small.with_the_lemma(small.lock())


@pytest.mark.parametrize("name", ["block_pool", "tiers"])
def test_every_invariant_of_a_machine_is_proved_with_less_than_all_of_it(name: str) -> None:
    machine = MACHINES[name](frozenset())
    prover = Prover(machine)
    ids = {p.id for p in machine.invariants.values()} | {"DEADLOCK"}
    everything = {*machine.invariants, *machine.lemmas}
    used = []
    for id_ in sorted(ids):
        found = prover.prove(named(machine, id_))
        assert found.open == ""
        assert found.questions > 0
        assert {n for n in found.needs if not n.startswith("range of ")} <= everything
        used.append(len(found.needs))
    assert min(used) < len(everything)


def test_the_lemma_that_a_proof_needs_is_named(lemma_lock: Machine) -> None:
    found = Prover(lemma_lock).prove(["one_client_has_it"])
    assert found.open == ""
    assert set(found.needs) == {"one_client_has_it", "nobody_has_a_free_lock"}
    assert found.questions == 6  # each holds initially, and both actions keep it


def test_without_its_lemma_it_is_open_and_a_smallest_state_says_why() -> None:
    found = Prover(small.lock()).prove(["one_client_has_it"])
    assert "one_client_has_it is not kept by take(c=" in found.open
    assert found.questions == 0


def test_a_lemma_that_is_not_kept_is_used_by_nothing() -> None:
    found = Prover(small.with_a_wrong_lemma(small.lock())).prove(["one_client_has_it"])
    assert "one_client_has_it" in found.open
    assert "lemmas that are not kept: it_is_always_free" in found.open


def test_what_is_known_to_be_false_is_used_by_nothing(lemma_lock: Machine) -> None:
    assert Prover(lemma_lock, false=["nobody_has_a_free_lock"]).prove(["one_client_has_it"]).open


def test_a_condition_that_fails_leaves_what_does_not_use_it_proved(lemma_lock: Machine) -> None:
    @lemma_lock.invariant("WRONG")
    def nobody_ever_has_it(s: State) -> Expr:
        return ForAll(lemma_lock.sorts["Client"], lambda c: Not(s.has[c]))

    prover = Prover(lemma_lock)
    assert "nobody_ever_has_it" in prover.prove(["nobody_ever_has_it"]).open
    assert prover.prove(["one_client_has_it"]).open == ""


def test_counts_of_any_size_are_proved_and_wrong_ones_are_not() -> None:
    assert Prover(small.counted()).prove(["the_counter_counts"]).open == ""
    assert Prover(small.counted(wrong_by=1)).prove(["the_counter_counts"]).open


def test_a_state_without_a_successor_is_not_proved_away() -> None:
    assert Prover(small.stuck()).prove(["deadlock"]).open
    assert Prover(small.stuck()).prove(["not_negative"]).open == ""


def test_a_step_that_a_check_forbids_is_not_proved_away() -> None:
    def walker(most: int) -> Machine:
        m = Machine("walker")
        place = m.sort("Place", default=2)
        m.relation("been", place)

        @m.action(p=place)
        def go(s: State, p: Elem) -> None:
            if most:
                s.require(Not(s.been[p]))
            s.check("ONCE", Not(s.been[p]))
            s.been[p] = True

        return m

    assert Prover(walker(1)).prove(["go.ONCE"]).open == ""
    assert "go.ONCE" in Prover(walker(0)).prove(["go.ONCE"]).open


def test_what_time_does_not_suffice_for_is_open(lemma_lock: Machine) -> None:
    found = Prover(lemma_lock, deadline=time.perf_counter()).prove(["one_client_has_it"])
    assert found.open == "the time for proofs was over"


def test_an_answer_that_a_fresh_z3_does_not_confirm_proves_nothing(
    lemma_lock: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed.recheck, "by_z3", lambda _text, _seconds: None)
    found = Prover(lemma_lock).prove(["one_client_has_it"])
    assert "a fresh z3 did not confirm" in found.open


def test_cvc5_decides_the_questions_again(lemma_lock: Machine) -> None:
    pytest.importorskip("cvc5")
    found = Prover(lemma_lock, second="cvc5").prove(["one_client_has_it"])
    assert (found.open, found.second_open) == ("", ())


@pytest.mark.parametrize("answer", [False, None])
def test_a_second_solver_that_objects_leaves_nothing_proved_and_one_that_gives_up_is_reported(
    lemma_lock: Machine, answer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recheck, "second_solver", lambda _name: lambda _text, _seconds: answer)
    found = Prover(lemma_lock, second="cvc5").prove(["one_client_has_it"])
    if answer is False:
        assert "cvc5 says that" in found.open
    else:
        assert found.open == ""
        assert len(found.second_open) == found.questions
