"""Symmetry: which sorts have interchangeable elements, and what exchanging two of them does to a state.

Elements are interchangeable when the machine only ever compares them: it never takes the number of one
(``Index``), and its initial state stays the same when any two are exchanged. Both are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvfence.spec.language import Grounded, Machine, Sort
from kvfence.spec.language.expr import Expr

MOST_PERMUTATIONS = 50_000


@dataclass(frozen=True)
class Exchange:
    """Exchanging elements ``i`` and ``i + 1`` of a sort: which cells change places, and which values change.

    ``pairs`` are cell numbers. A cell of ``values`` holds an element: ``i`` becomes ``i + 1`` and back, after
    the cells have changed places.
    """

    sort: str
    i: int
    pairs: tuple[tuple[int, int], ...]
    values: tuple[int, ...]

    def apply(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The state with the elements exchanged."""
        out = list(state)
        for a, b in self.pairs:
            out[a], out[b] = out[b], out[a]
        for c in self.values:
            if out[c] in (self.i, self.i + 1):
                out[c] = 2 * self.i + 1 - out[c]
        return tuple(out)


@dataclass(frozen=True)
class Symmetry:
    """The sorts searched up to a renaming of their elements.

    ``walk`` lists exchanges by their position in ``exchanges``: carried out one after another they pass
    through every permutation of the elements. ``left_out`` gives the reason for every other sort.
    """

    sorts: tuple[str, ...]
    exchanges: tuple[Exchange, ...]
    walk: tuple[int, ...]
    left_out: dict[str, str]


def symmetry(g: Grounded) -> Symmetry:
    """The symmetry of a machine at given sizes, as far as it can be shown."""
    ordered = numbered_sorts(g.machine)
    left_out, kept = {}, []
    permutations = 1
    for name, sort in sorted(g.machine.sorts.items(), key=lambda item: g.sizes[item[0]]):
        size = g.sizes[name]
        if size == 1:
            left_out[name] = "it has one element"
        elif name in ordered:
            left_out[name] = f"{ordered[name]} takes the number of an element"
        elif any(e.apply(g.initial) != g.initial for e in exchanges(g, sort)):
            left_out[name] = "the initial state tells its elements apart"
        elif permutations * math.factorial(size) > MOST_PERMUTATIONS:
            left_out[name] = "there are too many permutations"
        else:
            permutations *= math.factorial(size)
            kept.append(sort)
    all_exchanges = [exchanges(g, sort) for sort in kept]
    flat = tuple(e for each in all_exchanges for e in each)
    walk: list[int] = []
    start = 0
    for each, sort in zip(all_exchanges, kept, strict=True):
        # between any two steps of this sort's walk, the walk of the sorts before it
        steps = [start + k for k in plain_changes(g.sizes[sort.name])]
        walk = walk + [k for step in steps for k in (step, *walk)]
        start += len(each)
    return Symmetry(tuple(sorted(s.name for s in kept)), flat, tuple(walk), left_out)


def numbered_sorts(m: Machine) -> dict[str, str]:
    """Sorts of which the machine takes the number of an element, with the place that does."""
    found: dict[str, str] = {}
    for where, e in _expressions(m):
        for node in _below(e):
            if node.op == "index" and isinstance(node.args[0].type, Sort):
                found.setdefault(node.args[0].type.name, where)
            if node.op == "const" and isinstance(node.type, Sort):
                found.setdefault(node.type.name, where)
    return found


def exchanges(g: Grounded, sort: Sort) -> list[Exchange]:
    """The exchanges of neighbouring elements of a sort."""
    return [_exchange(g, sort, i) for i in range(g.sizes[sort.name] - 1)]


def _exchange(g: Grounded, sort: Sort, i: int) -> Exchange:
    moved = {i: i + 1, i + 1: i}
    pairs, values = [], []
    for field in g.layout.fields.values():
        for k, at in enumerate(field.indices()):
            other = tuple(
                moved.get(x, x) if t is sort else x for x, (t, _, _) in zip(at, field.domain, strict=True)
            )
            cell = field.cell(other)
            assert cell is not None
            if field.base + k < cell:
                pairs.append((field.base + k, cell))
            if field.value is sort:
                values.append(field.base + k)
    return Exchange(sort.name, i, tuple(pairs), tuple(values))


def plain_changes(n: int) -> list[int]:
    """Exchanges of neighbours that pass through every permutation of ``n`` things, each once."""
    if n < 2:
        return []
    inner = plain_changes(n - 1)
    out: list[int] = []
    for k in range(math.factorial(n - 1)):
        # the last thing wanders down, then up, with one step of the others in between
        down = k % 2 == 0
        out += range(n - 2, -1, -1) if down else range(n - 1)
        if k < len(inner):
            out.append(inner[k] + (1 if down else 0))
    return out


def _expressions(m: Machine) -> Iterator[tuple[str, Expr]]:
    for a in m.actions.values():
        where = f"action {a.name}"
        yield from ((where, g.expr) for g in a.guards)
        yield from ((where, e) for e in a.updates.values())
        yield from ((where, c.expr) for c in a.checks)
    for properties, what in ((m.invariants, "invariant"), (m.lemmas, "lemma"), (m.goals, "goal")):
        yield from ((f"{what} {p.name}", p.expr) for p in properties.values())
    if m.terminal_states is not None:
        yield "terminal", m.terminal_states.expr


def _below(e: Expr) -> Iterator[Expr]:
    done: set[int] = set()
    todo = [e]
    while todo:
        node = todo.pop()
        if node.uid not in done:
            done.add(node.uid)
            yield node
            todo += node.args
