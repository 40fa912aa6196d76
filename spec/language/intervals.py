"""What the guards say about integers: the smallest and largest value an expression can have.

Used while an action is traced, before the sizes are known; bounds that depend on them are unknown here.
"""

from __future__ import annotations

from kvfence.spec.language.expr import Expr
from kvfence.spec.language.nodes import INF, learn_bounds
from kvfence.spec.language.types import INTEGER, Int

Interval = tuple[float, float]
Facts = dict[int, Interval]  # by uid of the expression
ANY: Interval = (-INF, INF)


def interval(e: Expr, facts: Facts) -> Interval:
    """Bounds of an Int expression under ``facts``; infinite ends where nothing is known."""
    lo, hi = _structural(e, facts)
    known = facts.get(e.uid, ANY)
    return max(lo, known[0]), min(hi, known[1])


def depends_on_size(e: Expr) -> bool:
    """Whether an integer in ``e`` has bounds that are functions of the sort sizes."""
    if isinstance(e.type, Int) and e.type.bounded and e.type.literal is None:
        return True
    return e.op in ("count", "index") or any(depends_on_size(a) for a in e.args)


def _structural(e: Expr, facts: Facts) -> Interval:
    if e.op == "const" and isinstance(e.value, int):
        return e.value, e.value
    if e.op in ("add", "sub"):
        (a, b), (c, d) = interval(e.args[0], facts), interval(e.args[1], facts)
        return (a + c, b + d) if e.op == "add" else (a - d, b - c)
    if e.op == "ite":
        yes, no = dict(facts), dict(facts)
        learn(e.args[0], True, yes)
        learn(e.args[0], False, no)
        (a, b), (c, d) = interval(e.args[1], yes), interval(e.args[2], no)
        return min(a, c), max(b, d)
    if e.op in ("count", "index"):
        return 0, ANY[1]
    if e.type is not INTEGER and isinstance(e.type, Int) and e.type.literal:
        return e.type.literal
    return ANY


def learn(condition: Expr, truth: bool, facts: Facts) -> None:
    """Add to ``facts`` what follows from ``condition`` being ``truth``."""
    learn_bounds(condition, truth, facts, interval, _narrow)


def _narrow(e: Expr, lo: float, hi: float, facts: Facts) -> None:
    if not isinstance(e.type, Int):
        return
    known = facts.get(e.uid, ANY)
    facts[e.uid] = max(known[0], lo), min(known[1], hi)
    for part, other in (e.args, e.args[::-1]) if e.op == "add" else (e.args,) if e.op == "sub" else ():
        if isinstance(other.value, int):
            shift = other.value if e.op == "add" else -other.value
            _narrow(part, lo - shift, hi - shift, facts)
            return
