"""What the guards say about integers: the smallest and largest value an expression can have.

Used while an action is traced, before the sizes are known; bounds that depend on them are unknown here.
"""

from __future__ import annotations

from kvfence.spec.language.expr import Expr
from kvfence.spec.language.types import INTEGER, Int

Interval = tuple[float, float]
Facts = dict[int, Interval]  # by uid of the expression
ANY: Interval = (float("-inf"), float("inf"))


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
    op, args = condition.op, condition.args
    if op == "not":
        learn(args[0], not truth, facts)
    elif op == ("and" if truth else "or"):
        for a in args:
            learn(a, truth, facts)
    elif op in ("lt", "le"):
        small, big = args if truth else (args[1], args[0])
        gap = 1 if (op == "lt") == truth else 0
        _narrow(small, (ANY[0], interval(big, facts)[1] - gap), facts)
        _narrow(big, (interval(small, facts)[0] + gap, ANY[1]), facts)
    elif op == "eq" and isinstance(args[0].type, Int):
        ends = interval(args[0], facts), interval(args[1], facts)
        for e, (lo, hi) in ((args[0], ends[1]), (args[1], ends[0])):
            if truth:
                _narrow(e, (lo, hi), facts)
            elif lo == hi:
                mine = interval(e, facts)
                _narrow(e, (mine[0] + (mine[0] == lo), mine[1] - (mine[1] == lo)), facts)


def _narrow(e: Expr, to: Interval, facts: Facts) -> None:
    known = facts.get(e.uid, ANY)
    facts[e.uid] = max(known[0], to[0]), min(known[1], to[1])
    if e.op in ("add", "sub") and isinstance(e.args[1].value, int):
        shift = e.args[1].value if e.op == "add" else -e.args[1].value
        _narrow(e.args[0], (to[0] - shift, to[1] - shift), facts)
    elif e.op == "add" and isinstance(e.args[0].value, int):
        _narrow(e.args[1], (to[0] - e.args[0].value, to[1] - e.args[0].value), facts)
