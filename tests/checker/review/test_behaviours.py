"""Behaviours of one side only: shortest, checked by running them on both sides."""

import pytest
import two_tier

from kvfence.checker.analysis.review import behaviours as module
from kvfence.checker.analysis.review.behaviours import behaviours
from kvfence.checker.analysis.review.facts import Behaviour
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES


def shortest_by_hand(own: Machine, other: Machine, most: int = 9) -> int | None:
    """The length of a shortest sequence that ``own`` can take and ``other`` cannot, by trying them all."""
    ours, theirs = Interpreter(own), Interpreter(other)
    frontier = {(ours.initial(), theirs.initial())}
    seen = set(frontier)
    for length in range(1, most + 1):
        fresh = set()
        for a, b in frontier:
            able = {(i.name, i.values): i for i in theirs.enabled(b)}
            for step in ours.enabled(a):
                same = able.get((step.name, step.values))
                if same is None:
                    return length
                fresh.add((ours.step(a, step)[0], theirs.step(b, same)[0]))
        frontier = fresh - seen
        seen |= fresh
    return None


def runs(machine: Machine, found: Behaviour, length: int) -> bool:
    run = Interpreter(machine)
    state = run.initial()
    for taken in found.steps[:length]:
        step = next(
            (i for i in run.enabled(state) if i.name == taken.action and i.args == taken.arguments), None
        )
        if step is None:
            return False
        state, _ = run.step(state, step)
    return True


@pytest.mark.parametrize("compiler", [True, False])
def test_what_only_a_lookup_without_a_pin_can_do(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler:

        def none(*_: object) -> None:
            raise module.CannotCompile("no compiler")

        monkeypatch.setattr(module, "Model", none)
    base, change = two_tier.build(), two_tier.build(frozenset({"no_pin"}))
    new, lost = behaviours(base, change, {})
    (first,) = new.found
    assert [str(s) for s in first.steps][-1].startswith("evict(")
    assert len(first.steps) == shortest_by_hand(change, base) == 3
    assert runs(change, first, 3)
    assert runs(base, first, 2)
    assert not runs(base, first, 3)
    assert "pinned" in first.refused[0]
    assert (lost.found, lost.complete) == ((), True)


def test_what_only_one_that_evicts_can_do() -> None:
    base, change = two_tier.build(), two_tier.build(frozenset({"no_evict"}))
    new, lost = behaviours(base, change, {})
    assert (new.found, new.complete, new.states) == ((), True, 0)
    (first,) = lost.found
    assert [s.action for s in first.steps] == ["store", "evict"]
    assert shortest_by_hand(base, change) == 2


@pytest.mark.parametrize("name", ["evict_pinned", "over_pop"])
def test_the_shortest_is_shortest_in_the_block_pool(name: str) -> None:
    base, change = MACHINES["block_pool"](frozenset()), MACHINES["block_pool"](frozenset({name}))
    new, lost = behaviours(base, change, {})
    for these, own, other in ((new, change, base), (lost, base, change)):
        assert these.complete
        lengths = {len(b.steps) for b in these.found}
        expected = shortest_by_hand(own, other, most=6)
        assert lengths == ({expected} if expected else set())
        for found in these.found:
            assert runs(own, found, len(found.steps))
            assert not runs(other, found, len(found.steps))


def test_a_search_that_ends_early_says_so() -> None:
    base, change = MACHINES["lookup"](frozenset()), MACHINES["lookup"](frozenset({"count_promised"}))
    new, _ = behaviours(base, change, {}, most=1000)
    assert (new.found, new.complete) == ((), False)
    assert "1000 states" in new.why
