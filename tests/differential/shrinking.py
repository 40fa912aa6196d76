"""Makes a machine smaller while it shows the same difference: fewer parts, smaller sizes, simpler terms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from recipes import FALSE, INT, TRUE, Action, Node, Recipe, T, mapped, nodes, variants, within


def shrunk(r: Recipe, shows: Callable[[Recipe], bool], seconds: float) -> Recipe:
    """The smallest machine found within some seconds that still shows what ``r`` does."""
    deadline = time.perf_counter() + seconds
    going = True
    while going:
        going = False
        for smaller in reductions(r):
            if time.perf_counter() > deadline:
                return r
            if weight(smaller) < weight(r) and _shows(shows, smaller):
                r, going = smaller, True
                break
    return r


def _shows(shows: Callable[[Recipe], bool], r: Recipe) -> bool:
    try:
        return shows(r)
    except Exception:
        return False


def weight(r: Recipe) -> int:
    """How much there is to read."""
    total = sum(
        10 for _ in (*r.fields, *r.actions, *r.invariants, *r.lemmas, *r.goals, *r.liveness, *r.enums)
    )
    total += sum(sum(1 for _ in nodes(e)) + (0 if e.op in ("lit", "var") else 1) for e in within(r, Node))
    total += sum(4 + 3 * size for _, size in r.sorts) + sum(len(t.labels) for t in r.enums)
    total += sum(4 * len(a.params) + 4 * len(a.body) + (2 if a.fair else 0) for a in r.actions)
    total += 3 * len(r.ghosts) + 5 * len(r.bounds) + (3 if r.terminal is not None else 0)
    total += sum(4 * len(q.params) for q in r.liveness)
    return total + sum(
        5 * len(f.domain) + (f.value.ends(r.sizes)[1] - f.value.ends(r.sizes)[0]).bit_length()
        for f in r.fields
        if f.value.bounded
    )


def reductions(r: Recipe) -> Iterator[Recipe]:
    """Smaller machines, the much smaller ones first; not all of them are machines."""
    if r.noise:
        yield r.parts()[0]
    for what in ("liveness", "invariants", "lemmas", "goals", "actions", "ghosts"):
        parts = getattr(r, what)
        for some in _fewer(parts):
            yield replace(r, **{what: some})
    if r.terminal is not None:
        yield replace(r, terminal=None)
        yield replace(r, terminal=TRUE)
    for f in r.fields:
        gone = _without_field(r, f.name)
        if gone is not None:
            yield gone
    types = set(within(replace(r, enums=()), T))
    for name, size in r.sorts:
        if size > 1:
            yield replace(r, sorts=tuple((n, s - 1 if n == name else s) for n, s in r.sorts))
        if not any(name in (t.name, *(b[0] for b in (t.lo, t.hi) if isinstance(b, tuple))) for t in types):
            yield replace(r, sorts=tuple(x for x in r.sorts if x[0] != name))
    for t in r.enums:
        if not any(x.kind == "enum" and x.name == t.name for x in types):
            yield replace(r, enums=tuple(x for x in r.enums if x is not t))
    for k, a in enumerate(r.actions):
        for smaller in _actions(a):
            yield replace(r, actions=_put(r.actions, k, smaller))
    for k, f in enumerate(r.fields):
        for t in _narrower(f.value):
            yield replace(r, fields=_put(r.fields, k, replace(f, value=t)))
    for k, q in enumerate(r.liveness):
        for j in range(len(q.params)):
            less = replace(q, params=_put(q.params, j))
            yield replace(r, liveness=_put(r.liveness, k, less))
    yield from variants(r, _simpler)


def _fewer(parts: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if len(parts) > 2:
        half = len(parts) // 2
        yield parts[:half]
        yield parts[half:]
    for k in range(len(parts)):
        yield _put(parts, k)


def _put(parts: tuple[Any, ...], k: int, *instead: object) -> tuple[Any, ...]:
    """The parts with others instead of the ``k``-th."""
    return (*parts[:k], *instead, *parts[k + 1 :])


def _without_field(r: Recipe, name: str) -> Recipe | None:
    """The machine without a field: reads give its initial constant, assignments are left out."""
    f = next(f for f in r.fields if f.name == name)
    if f.value.kind == "sort":
        return None
    value = next((n for n in nodes(f.init) if n.op == "lit" and n.type.same(f.value)), None)
    if value is None:
        return None
    stand_in = (INT if f.value.kind == "int" else f.value).lit(int(str(value.data)))

    def go(e: Node) -> Node:
        if e.op in ("read", "get") and e.data == name:
            return stand_in
        return replace(e, args=tuple(map(go, e.args)))

    def kept(a: Action) -> Action:
        return replace(a, body=tuple(s for s in a.body if s.kind not in ("set", "update") or s.name != name))

    smaller: Recipe = mapped(replace(r, actions=tuple(map(kept, r.actions))), go)
    return replace(
        smaller,
        fields=tuple(x for x in r.fields if x is not f),
        ghosts=tuple(g for g in r.ghosts if g != name),
        bounds=tuple(b for b in r.bounds if b[0] != name),
        noise=r.noise - {name},
    )


def _actions(a: Action) -> Iterator[Action]:
    for body in _fewer(a.body):
        yield replace(a, body=body)
    if a.fair:
        yield replace(a, fair=None)
    for k in range(len(a.params)):
        yield replace(a, params=_put(a.params, k))


def _narrower(t: T) -> Iterator[T]:
    if t.kind == "int" and isinstance(t.lo, int) and isinstance(t.hi, int):
        for hi in {t.lo + 1, (t.lo + t.hi) // 2, t.hi - 1}:
            if t.lo <= hi < t.hi:
                yield replace(t, hi=hi)


def _simpler(e: Node) -> Iterator[Node]:
    """Terms of the same type: constants, then parts of the term, then the term with a part made simpler."""
    if e.type.kind == "bool" and e.op != "lit":
        yield TRUE
        yield FALSE
    if e.type.kind == "int" and e.op != "lit":
        yield from (INT.lit(v) for v in (0, 1))
    if e.type.kind == "enum" and e.op != "lit":
        yield e.type.lit(0)
    for n in nodes(e):
        if n is not e and n.type.same(e.type):
            yield n
    if e.op in ("and", "or") and len(e.args) > 2:
        for k in range(len(e.args)):
            yield replace(e, args=_put(e.args, k))
    for k, a in enumerate(e.args):
        for simpler in _simpler(a):
            yield replace(e, args=_put(e.args, k, simpler))
