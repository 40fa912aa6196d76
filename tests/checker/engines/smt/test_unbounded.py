"""Proofs for any size: what is right is proved, what is wrong is refuted or open, and never the other way."""

from collections.abc import Callable

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Engine, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.smt import solve, unbounded
from kvfence.checker.engines.smt.conditions import Question
from kvfence.checker.engines.smt.solve import Answer, Outcome, ask
from kvfence.checker.engines.smt.unbounded import Unbounded
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Bool, Elem, Enum, Expr, ForAll, Iff, Index, Int, Machine, Not, State
from kvfence.spec.machines import MACHINES


@pytest.mark.parametrize("name", MACHINES)
def test_every_condition_of_a_machine_is_proved_for_any_size_and_proved_again(name: str) -> None:
    result = Unbounded().run(MACHINES[name](frozenset()))
    assert {f.name: f.verdict for f in result.findings.values() if f.verdict is not Verdict.holds} == {}
    assert result.verdict is Verdict.holds
    assert result.proof is not None
    assert result.proof.rechecked == result.proof.questions > 50
    stated = {f.id for f in result.findings.values()}
    assert {p.id for p in MACHINES[name](frozenset()).invariants.values()} <= stated


REFUTED = [
    pytest.param(d.name, m, marks=[pytest.mark.slow] if m == "transfer" else [])
    for d in DESIGNS.values()
    for m in d.machines
    if d.breaks and (m == "transfer" or set(d.machines) & {"block_pool", "lookup"})
]


@pytest.mark.parametrize(("design", "machine"), REFUTED)
def test_a_faulty_design_of_pool_lookup_or_transfers_is_refuted(design: str, machine: str) -> None:
    row = DESIGNS[design]
    built = MACHINES[machine](row.faults)
    sizes = {sort: size for sort, size in row.sizes.items() if sort in built.sorts}
    result = Unbounded(search_seconds=300).run(built, sizes, until="first")
    assert result.verdict is Verdict.violated
    assert row.breaks in {path.id for path in result.violated}
    explored = Explore().run(built, sizes, until="first")
    assert len(result.violated[0]) == len(explored.violated[0])
    assert {f.kind for f in result.findings.values()} <= {"invariant", "check", "range"}


def test_without_its_lemma_an_invariant_is_open_and_the_reason_is_a_smallest_state() -> None:
    result = Unbounded(search_seconds=5).run(small.lock())
    assert result.verdict is Verdict.undetermined
    assert result.findings["one_client_has_it"].verdict is Verdict.undetermined
    why = small.proof_of(result).open["one_client_has_it"]
    assert all(part in why for part in ("take(c=", "Client 2", "has["))


def test_with_its_lemma_the_same_invariant_is_proved() -> None:
    assert Unbounded().run(small.with_the_lemma(small.lock())).verdict is Verdict.holds


def test_a_real_violation_is_a_counterexample_and_not_only_open() -> None:
    result = Unbounded().run(small.lock(forgetful=True))
    assert result.verdict is Verdict.violated
    assert [len(path) for path in result.violated] == [2]


@pytest.mark.parametrize("engine", [Unbounded(search_seconds=10), Explore(), Interpret()])
def test_a_wrong_lemma_is_violated_and_what_uses_it_is_not_proved(engine: Engine) -> None:
    result = engine.run(small.with_a_wrong_lemma(small.lock()))
    found = result.findings["it_is_always_free"]
    assert (found.kind, found.verdict) == ("lemma", Verdict.violated)
    assert result.verdict is Verdict.violated
    if isinstance(engine, Unbounded):
        assert result.findings["one_client_has_it"].verdict is not Verdict.holds


def test_a_counter_is_proved_to_count_sets_of_any_size() -> None:
    assert Unbounded().run(small.counted()).verdict is Verdict.holds


def test_a_counter_that_counts_wrongly_is_refuted() -> None:
    result = Unbounded().run(small.counted(wrong_by=1))
    assert [path.id for path in result.violated] == ["COUNT"]


def test_a_state_without_a_successor_is_found() -> None:
    result = Unbounded().run(small.stuck())
    assert (result.deadlock and len(result.deadlock)) == 4
    assert result.findings["not_negative"].verdict is Verdict.holds


def late(question: Question, seconds: float = 0.0) -> Answer:  # noqa: ARG001
    """The answer of a solver that needs more time."""
    return Answer(question, Outcome.unknown, 0.0, "z3 gave up: timeout")


def lie(question: Question, seconds: float = 4.0) -> Answer:
    """The answer of a solver that says yes to everything."""
    honest = ask(question, seconds)
    return Answer(question, Outcome.yes, honest.seconds, "", honest.text)


@pytest.mark.parametrize(("answer", "lemma"), [(late, True), (lie, False)])
def test_a_solver_that_gives_up_or_lies_proves_nothing(
    answer: Callable[..., Answer], lemma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unbounded, "ask", answer)
    machine = small.with_the_lemma(small.lock()) if lemma else small.lock()
    result = Unbounded(search_seconds=2).run(machine)
    assert result.verdict is Verdict.undetermined
    assert Verdict.holds not in {f.verdict for f in result.findings.values()}


def test_a_machine_that_numbers_its_elements_is_undetermined() -> None:
    m = Machine("numbered")
    Thing = m.sort("Thing", default=2)  # noqa: N806
    m.function("top", Thing, value=Int(), init=0)

    @m.action(x=Thing)
    def mark(s: State, x: Elem) -> None:
        s.top[x] = Index(x)

    @m.invariant("LOW")
    def never_negative(s: State) -> Expr:
        return ForAll(Thing, lambda x: s.top[x] >= 0)

    result = Unbounded(search_seconds=1).run(m)
    assert result.verdict is Verdict.undetermined
    assert "numbers the elements" in small.proof_of(result).open["never_negative"]


def test_a_question_with_no_answer_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "ATTEMPTS", ())
    result = Unbounded(search_seconds=1).run(small.lock())
    assert result.verdict is Verdict.undetermined


def test_a_state_of_endless_numbers_is_shown_as_near_the_start_as_z3_can() -> None:
    """Asking for one more usual value may take z3's model away: it is read before."""
    two = Enum("Two", "one other")
    m = Machine("endless", doc="Numbers without end, of which one is set.")
    m.function("flag", two, Int(2, 5), value=Bool, init=False)
    m.function("number", two, value=Int(), init=-2)

    @m.action()
    def setting(s: State) -> None:
        """Two."""
        s.number[two.other] = 2

    @m.invariant("ONCE")
    def stated(s: State) -> Expr:
        """It is not kept by every step, wherever it begins."""
        met = Not(s.flag[two.other, 4]) | (s.number[two.other] < 2)
        return Iff(met, s.number[two.one] != -1)

    result = Unbounded().run(m, bounds={"number": (-4, 2)})
    assert result.findings["stated"].verdict is Verdict.undetermined
    assert "is not kept by setting()" in small.proof_of(result).open["stated"]
