"""Symmetry is found where elements are interchangeable, and only there; representatives are exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kvfence.checker.engines import Interpreter, Native
from kvfence.checker.engines.explicit.symmetry import exchanges, plain_changes, symmetry
from kvfence.spec.language import Elem, Exists, Expr, If, Index, Int, Machine, State, ground
from kvfence.spec.machines import MACHINES


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_plain_changes_pass_through_every_permutation_once(n: int) -> None:
    order = list(range(n))
    seen = {tuple(order)}
    for k in plain_changes(n):
        order[k], order[k + 1] = order[k + 1], order[k]
        assert tuple(order) not in seen
        seen.add(tuple(order))
    assert len(seen) == len(list(itertools.permutations(range(n))))


def sorted_machine(fault: str = "") -> Machine:
    """People and seats; ``fault`` makes the people tell themselves apart in one way."""
    m = Machine("seats")
    person, seat = m.sort("Person", default=3), m.sort("Seat", default=2)
    m.relation("on", person, seat, init=False)
    m.function("friend", person, value=person, init=lambda p: p)
    m.function("rank", person, value=Int(0, 3), init=lambda p: Index(p) if fault == "init" else 0)
    m.function("at", Int(0, 1), value=Int(0, 1), init=0)

    @m.action(p=person, c=seat)
    def sit(s: State, p: Elem, c: Elem) -> None:
        s.require(~Exists(person, lambda q: s.on[q, c]), ~Exists(seat, lambda d: s.on[p, d]))
        s.on[p, c] = True
        s.rank[p] = Index(p) if fault == "update" else If(s.rank[p] < 3, s.rank[p] + 1, 0)

    @m.action(p=person, q=person)
    def befriend(s: State, p: Elem, q: Elem) -> None:
        s.require(Index(p) < Index(q) if fault == "guard" else p != q, s.friend[p] != q)
        s.friend[p] = q

    @m.action(p=person)
    def rise(s: State, p: Elem) -> None:
        s.require(Exists(seat, lambda d: s.on[p, d]))
        s.on.update(lambda q, d: s.on[q, d] & (q != p))

    @m.invariant("ONCE")
    def ranks_are_low(s: State) -> Expr:
        return Exists(person, lambda p: s.rank[p] < (3 - Index(p) if fault == "invariant" else 3))

    return m


def test_a_machine_that_only_compares_elements_is_symmetric() -> None:
    found = symmetry(ground(sorted_machine()))
    assert found.sorts == ("Person", "Seat")
    assert found.left_out == {}
    assert len(found.walk) == 6 * 2 - 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("init", "the initial state tells its elements apart"),
        ("update", "action sit takes the number of an element"),
        ("guard", "action befriend takes the number of an element"),
        ("invariant", "invariant ranks_are_low takes the number of an element"),
    ],
)
def test_a_sort_whose_elements_are_told_apart_is_left_out_with_the_reason(fault: str, why: str) -> None:
    found = symmetry(ground(sorted_machine(fault)))
    assert found.sorts == ("Seat",)
    assert found.left_out == {"Person": why}


def test_one_symmetric_sort_is_enough(kvlife: Callable[..., Machine]) -> None:
    found = symmetry(ground(kvlife()))
    assert found.sorts == ("Request",)
    assert "Block" in found.left_out


def test_too_many_permutations_are_left_out_and_said() -> None:
    found = symmetry(ground(sorted_machine(), {"Person": 9, "Seat": 3}))
    assert found.sorts == ("Seat",)
    assert found.left_out == {"Person": "there are too many permutations"}


def orbit(run: Interpreter, state: tuple[int, ...], sorts: tuple[str, ...]) -> frozenset[tuple[int, ...]]:
    """Every renaming of a state, by brute force."""
    moves = [e for s in sorts for e in exchanges(run.grounded, run.machine.sorts[s])]
    found, todo = {state}, [state]
    while todo:
        x = todo.pop()
        for e in moves:
            y = e.apply(x)
            if y not in found:
                found.add(y)
                todo.append(y)
    return frozenset(found)


def reachable(run: Interpreter) -> set[tuple[int, ...]]:
    seen, todo = {run.initial()}, [run.initial()]
    while todo:
        for _, after, _ in run.successors(todo.pop()):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return seen


@pytest.mark.parametrize(
    ("machine", "sizes"),
    [
        (sorted_machine(), {"Person": 3, "Seat": 2}),
        (MACHINES["lookup"](frozenset()), {"Request": 2, "Block": 2}),
        (MACHINES["block_pool"](frozenset()), {"Block": 3, "Holder": 2, "Key": 2}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_there_is_one_state_for_each_set_of_renamings(machine: Machine, sizes: dict[str, int]) -> None:
    run = Interpreter(machine, sizes)
    states = reachable(run)
    found = symmetry(run.grounded)
    orbits = {orbit(run, s, found.sorts) for s in states}
    assert set().union(*orbits) == states  # renaming a reachable state gives a reachable one
    reduced = Native(symmetry=True, threads=2).run(machine, sizes)
    assert (reduced.states, reduced.symmetry) == (len(orbits), found.sorts)
    assert len(orbits) < len(states)


def test_a_counterexample_found_under_symmetry_is_a_run_of_the_machine() -> None:
    m = sorted_machine()
    r = Native(symmetry=True).run(m)
    (path,) = (p for p in r.violated if p.name == "ranks_are_low")
    run = Interpreter(m)
    state = run.initial()
    for step in path.steps:
        state, _ = run.step(state, run.find(step.action, **step.args))
        assert run.view(state) == step.after
    assert [p.name for p in run.violated(state)] == ["ranks_are_low"]
    assert len(path) == len(Native().run(m).findings["ranks_are_low"].path or ())


def test_nothing_to_reduce_is_said_and_changes_nothing() -> None:
    m = Machine("plain")
    m.function("n", value=Int(0, 3), init=0)
    one = m.sort("One", default=1)

    @m.action(x=one)
    def up(s: State, x: Elem) -> None:  # noqa: ARG001
        s.require(s.n < 3)
        s.n = s.n + 1

    m.terminal(lambda s: s.n == 3)
    said: list[str] = []
    r = Native(symmetry=True, note=said.append).run(m)
    assert (r.states, r.symmetry) == (4, ())
    assert said == ["no symmetry to reduce plain by (One: it has one element)"]
