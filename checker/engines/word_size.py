"""Whether a machine can be computed in 64-bit words, as C, CUDA and numpy do, and where it cannot.

Every value on the way to a result has to fit 62 bits and a sign, so that differences of two of them still fit
a word. What each expression can be is known from the ranges of the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kvfence.checker.engines.base import Bounds, CellBounds, Log, Result, Stop, cell_bounds
from kvfence.spec.language import Grounded
from kvfence.spec.language.nodes import INF, WORD, Ends, Node

_LONGEST = 120  # characters of an expression in a message
_SIGNS = {"and": "and", "or": "or", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


class TooWide(Stop):
    """A value that 64-bit engines cannot compute; the text names the expression, its place and its range."""


def word_bounds(g: Grounded, bounds: Bounds | None) -> CellBounds:
    """Bounds of the cells of unbounded Ints, for an engine that computes in 64-bit words.

    TooWide when that is not enough for the machine, SpecError as ``cell_bounds`` raises it.
    """
    limits = cell_bounds(g, bounds, required=True)
    fits(g, roots(g) if g.graph.wide else (), limits)  # else no expression at all is beyond a word
    return limits


def fits(g: Grounded, under: Iterable[tuple[str, Node]], limits: CellBounds, most: Ends = WORD) -> None:
    """TooWide when a cell, or an expression ``under`` the named ones, can be outside ``most``."""
    for cell in g.cells:
        lo, hi = limits.get(cell.number, (cell.lo, cell.hi))
        if lo is not None and hi is not None and not _inside((min(lo, cell.init), max(hi, cell.init)), most):
            raise TooWide(f"{cell.label} can be {lo} to {hi}")
    ends: dict[int, Ends] = {}
    for what, root in under:
        todo = [root]
        while todo:
            n = todo[-1]
            missing = [a for a in n.args if a.id not in ends] if n.id not in ends else []
            todo += missing
            if missing:
                continue
            todo.pop()
            ends[n.id] = _ends(n, ends, limits)
            if not _inside(ends[n.id], most):
                least, largest = ends[n.id]
                raise TooWide(f"{spelled(g, n)} ({what}) can be {least} to {largest}")


def is_word(n: Node) -> bool:
    """Whether an expression fits a word whatever the bounds of unbounded Ints are."""
    return _inside((n.lo, n.hi), WORD)


def _inside(ends: Ends, most: Ends) -> bool:
    return most[0] <= ends[0] and ends[1] <= most[1]


def _ends(n: Node, known: Mapping[int, Ends], limits: CellBounds) -> Ends:
    lo, hi = n.lo, n.hi
    if lo > -INF and hi < INF:
        return lo, hi
    if n.op == "cell":
        return limits[n.value]
    a, *rest = (known[x.id] for x in n.args)
    if n.op == "ite":
        (c, d), (e, f) = rest
        return max(lo, min(c, e)), min(hi, max(d, f))
    ((c, d),) = rest
    return (a[0] + c, a[1] + d) if n.op == "add" else (a[0] - d, a[1] - c)


def roots(g: Grounded) -> Iterator[tuple[str, Node]]:
    """Every expression that a search of the machine evaluates, with what it belongs to."""
    yield from ((f"invariant {p.name}", n) for p, n in g.invariants)
    yield from ((p.name if p.id else f"goal {p.name}", n) for p, n in g.goals)
    yield "terminal", g.terminal
    for i in g.instances:
        nodes = (i.guard, *i.updates.values(), *(c.holds for c in (*i.checks, *i.ranges)))
        yield from ((f"action {i}", n) for n in nodes)


def spelled(g: Grounded, n: Node) -> str:
    """An expression over cells, in words of a message; what is too long ends in dots."""
    room = [_LONGEST]

    def go(n: Node) -> str:
        if room[0] <= 0:
            return "…"
        if n.op in ("const", "cell"):
            text = str(n.value) if n.op == "const" else g.cells[n.value].label
            room[0] -= len(text)
            return text
        room[0] -= 4
        if n.op == "not":
            return f"not {go(n.args[0])}"
        if n.op == "ite":
            c, a, b = map(go, n.args)
            return f"(if {c} then {a} else {b})"
        return f"({f' {_SIGNS[n.op]} '.join(map(go, n.args))})"

    text = go(n)
    return text[1:-1] if text.startswith("(") else text


def refused(engine: str, g: Grounded, why: TooWide) -> Result:
    """The result of an engine that cannot compute the machine: nothing is decided, and it says why."""
    log = Log(g)
    log.stopped = (
        f"{why}, and engine {engine} computes in 64 bits, of which 62 may be used: give --engine interpret, "
        "which has no limit, or smt"
    )
    nothing = log.result(engine, 0.0)
    return replace(nothing, coverage={}, goals={}, premises={}, overflow=str(why))
