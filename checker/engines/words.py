"""Whether a machine can be computed in 64-bit words, as C, CUDA and numpy do, and where it cannot.

Every value on the way to a result has to fit 62 bits and a sign, so that differences of two of them still fit
a word. What each expression can be is known from the ranges of the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kvfence.checker.engines.base import Bounds, Log, Path, Result, Sighting, Stop, cell_bounds
from kvfence.spec.language import Grounded
from kvfence.spec.language.nodes import INF, WORD_LEAST, WORD_MOST, Ends, Node

_LONGEST = 120  # characters of an expression in a message
_SIGNS = {"and": "and", "or": "or", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
Limits = Mapping[int, tuple[int, int]]


class TooWide(Stop):
    """A value that 64-bit engines cannot compute; the text names the expression, its place and its range."""


def word_bounds(g: Grounded, bounds: Bounds | None) -> dict[int, tuple[int, int]]:
    """Bounds of the cells of unbounded Ints, for an engine that computes in 64-bit words.

    TooWide when that is not enough for the machine, SpecError as ``cell_bounds`` raises it.
    """
    limits = cell_bounds(g, bounds, required=True)
    for cell in g.cells:
        lo, hi = limits.get(cell.number, (cell.lo, cell.hi))
        if lo is not None and hi is not None and _wide((min(lo, cell.init), max(hi, cell.init))):
            raise TooWide(f"{cell.label} can be {lo} to {hi}")
    if g.graph.wide:  # else no expression at all is
        fits_words(g, _roots(g), limits)
    return limits


def fits_words(g: Grounded, roots: Iterable[tuple[str, Node]], limits: Limits) -> None:
    """TooWide when an expression under the named ``roots`` can be beyond a word."""
    ends: dict[int, Ends] = {}
    for what, root in roots:
        todo = [root]
        while todo:
            n = todo[-1]
            missing = [a for a in n.args if a.id not in ends] if n.id not in ends else []
            todo += missing
            if missing:
                continue
            todo.pop()
            ends[n.id] = _ends(n, ends, limits)
            if _wide(ends[n.id]):
                lo, hi = ends[n.id]
                raise TooWide(f"{spelled(g, n)} ({what}) can be {lo} to {hi}")


def is_word(n: Node) -> bool:
    """Whether an expression fits a word whatever the bounds of unbounded Ints are."""
    return not _wide((n.lo, n.hi))


def _wide(ends: Ends) -> bool:
    return ends[0] < WORD_LEAST or ends[1] > WORD_MOST


def _ends(n: Node, known: Mapping[int, Ends], limits: Limits) -> Ends:
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


def _roots(g: Grounded) -> Iterator[tuple[str, Node]]:
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
    nothing = log.result(engine, 0.0, _no_path)
    return replace(nothing, coverage={}, goals={}, premises={}, overflow=str(why))


def _no_path(sighting: Sighting, id_: str, name: str, text: str) -> Path:
    raise AssertionError((sighting, id_, name, text))
