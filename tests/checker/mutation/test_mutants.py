"""Mutants are small faults, made without running a machine's Python again, and weaken guards only."""

import itertools
from collections.abc import Callable

import pytest

from kvfence.checker.analysis.mutation.mutants import Kind, mutants, shrinks, weakened
from kvfence.spec.language import Bool, Int, Machine, State, ground
from kvfence.spec.language.evaluate import Evaluator
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, Not, Or, apply
from kvfence.spec.machines import MACHINES

Condition = Callable[[State, Expr], Expr]


def shelf(condition: Condition | None = None) -> Machine:
    """Books that readers take from a shelf and bring back."""
    m = Machine("shelf")
    Reader, Book = m.sort("Reader", default=2), m.sort("Book", default=2)  # noqa: N806
    m.relation("reads", Reader, Book, init=False)
    m.function("out", value=Int(0, 2), init=0)

    @m.action(r=Reader, b=Book)
    def take(s: State, r: Elem, b: Elem) -> None:
        s.require(s.out < 2, ForAll(Reader, lambda q: Not(s.reads[q, b])))
        if condition is not None:
            s.require(condition(s, r))
        s.reads[r, b] = True
        s.out = s.out + 1

    @m.action(r=Reader, b=Book)
    def bring_back(s: State, r: Elem, b: Elem) -> None:
        s.require(s.reads[r, b])
        s.reads.update(lambda q, c: s.reads[q, c] & Not((q == r) & (c == b)))
        s.out = s.out - 1

    return m


def test_each_guard_conjunct_is_dropped_once() -> None:
    names = [m.name for m in mutants(shelf()) if m.kind is Kind.guard]
    assert names == [
        "take: without guard out < 2",
        "take: without guard all(Reader q: not reads[q, b])",
        "bring_back: without guard reads[r, b]",
    ]


def test_a_fence_is_weakened_inside() -> None:
    names = {m.name for m in mutants(shelf()) if m.kind is Kind.fence}
    assert names == {
        "take: guard: out < 2 -> out <= 2",
        "take: guard: all(Reader q: not reads[q, b]) -> some(Reader q: not reads[q, b])",
    }


def test_an_assignment_that_only_lets_go_is_a_release() -> None:
    kinds = {m.name: m.kind for m in mutants(shelf())}
    assert kinds["bring_back: reads is not released"] is Kind.release
    assert kinds["take: reads is not assigned"] is Kind.update
    assert kinds["bring_back: out is not assigned"] is Kind.update


def test_values_are_changed_one_at_a_time() -> None:
    names = {m.name for m in mutants(shelf()) if m.kind is Kind.value}
    assert {"take: out: out + 1 -> out - 1", "take: reads: true -> false"} <= names
    assert "take: reads: as if always (i0 == r) and (i1 == b)" in names


@pytest.mark.parametrize("machine", [shelf(), *(build(frozenset()) for build in MACHINES.values())])
def test_every_mutant_has_a_name_of_its_own_and_differs_in_one_action(machine: Machine) -> None:
    found = mutants(machine)
    assert len({m.name for m in found}) == len(found) > 10
    for m in found:
        same = [n for n, a in machine.actions.items() if m.machine.actions[n] is a]
        assert set(machine.actions) - set(same) == {m.action}


def test_the_machine_itself_is_left_as_it_is() -> None:
    machine = shelf()
    before = [(a, a.guards, dict(a.updates)) for a in machine.actions.values()]
    mutants(machine)
    assert before == [(a, a.guards, a.updates) for a in machine.actions.values()]


CONDITIONS: list[Condition] = [
    lambda s, _: s.out <= 1,
    lambda s, _: Or(s.out < 1, And(s.out == 1, Not(s.out < 0))),
    lambda s, _: Not(Or(s.out == 2, And(s.out < 1, s.out <= 0))),
    lambda s, r: Count(s._machine.sorts["Book"], lambda b: s.reads[r, b]) <= 1,
    lambda s, r: Exists(s._machine.sorts["Book"], lambda b: s.reads[r, b] & (s.out < 2)),
    lambda s, r: Not(Exists(s._machine.sorts["Book"], lambda b: s.reads[r, b] & (s.out < 2))),
    lambda s, r: ForAll(s._machine.sorts["Book"], lambda b: Not(s.reads[r, b]) | (s.out <= 1)),
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_weakened_guard_holds_wherever_the_guard_does(condition: Condition) -> None:
    machine = shelf(condition)
    action, g = machine.actions["take"], ground(machine)
    guard, evaluator = action.guards[-1].expr, Evaluator(g.layout, g.sizes)
    states = list(itertools.product((0, 1), (0, 1), (0, 1), (0, 1), (0, 1, 2)))
    envs = [{action.params[0].uid: r, action.params[1].uid: 0} for r in (0, 1)]
    more = 0
    for text, weak in weakened(guard):
        assert weak is not guard
        for state, env in itertools.product(states, envs):
            strict, loose = evaluator.value(guard, state, env), evaluator.value(weak, state, env)
            assert strict <= loose, text
            more += loose - strict
    assert more > 0, "nothing is weakened in any state"


def test_only_what_takes_elements_out_shrinks_a_relation() -> None:
    machine = shelf()
    reads = machine.functions["reads"]
    old = apply(reads, reads.formals)
    assert shrinks(machine.actions["bring_back"].updates[reads], old)
    assert not shrinks(machine.actions["take"].updates[reads], old)
    assert reads.value is Bool
