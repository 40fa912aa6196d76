"""The graph after grounding: expressions over the cells of a finite state.

A node is one of ``const`` and ``cell`` (value: the integer, the cell's number), ``not``, ``and``, ``or``
(two or more arguments, oldest first), ``eq``, ``lt``, ``le``, ``add``, ``sub`` and ``ite``. Truth values are
0 and 1 and may be added. Every node knows the interval it lies in; ``None`` is no bound on that side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

INF = float("inf")
Ends = tuple[float, float]
WORD = -(1 << 62), (1 << 62) - 1  # beyond, two's complement words of 64 bits may wrap
BOOLEAN = {"not", "and", "or", "eq", "lt", "le"}


class Node:
    """A node of a ``Graph``; two nodes of one graph are equal exactly when they are the same object."""

    __slots__ = ("args", "boolean", "hi", "id", "lo", "op", "value")

    def __init__(
        self, id_: int, op: str, args: tuple[Node, ...], value: int, boolean: bool, *, ends: Ends
    ) -> None:
        self.id, self.op, self.args, self.value, self.boolean = id_, op, args, value, boolean
        self.lo, self.hi = ends

    def __repr__(self) -> str:
        if self.op in ("const", "cell"):
            return f"{'c' if self.op == 'cell' else ''}{self.value}"
        return f"{self.op}({', '.join(map(repr, self.args))})"


class Graph:
    """A pool of nodes with simplifying constructors."""

    def __init__(self) -> None:
        self._pool: dict[tuple[object, ...], Node] = {}
        self.wide = False  # whether some node can be beyond WORD
        self.true = self.const(1, boolean=True)
        self.false = self.const(0, boolean=True)

    def __len__(self) -> int:
        return len(self._pool)

    def _make(self, op: str, args: tuple[Node, ...], value: int, boolean: bool, ends: Ends) -> Node:
        key = (op, value, boolean, *[a.id for a in args])
        node = self._pool.get(key)
        if node is None:
            node = self._pool[key] = Node(len(self._pool), op, args, value, boolean, ends=ends)
            self.wide = self.wide or ends[0] < WORD[0] or ends[1] > WORD[1]
        return node

    def const(self, value: int, boolean: bool = False) -> Node:
        """A constant."""
        return self._make("const", (), value, boolean, (value, value))

    def cell(self, number: int, boolean: bool, ends: Ends) -> Node:
        """The value of a cell before the step."""
        return self._make("cell", (), number, boolean, ends)

    def truth(self, value: bool) -> Node:
        """The constant true or false."""
        return self.true if value else self.false

    def negation(self, a: Node) -> Node:
        """Not."""
        if a.op == "const":
            return self.truth(not a.value)
        if a.op == "not":
            return a.args[0]
        return self._make("not", (a,), 0, True, (0, 1))

    def junction(self, op: str, xs: Iterable[Node]) -> Node:
        """``and`` or ``or`` of any number of nodes; stops reading them once the result is certain."""
        unit, zero = (self.true, self.false) if op == "and" else (self.false, self.true)
        parts: dict[int, Node] = {}
        for x in xs:
            for p in x.args if x.op == op else (x,):
                opposite = p.args[0] if p.op == "not" else self._pool.get(("not", 0, True, p.id))
                if p is zero or (opposite is not None and opposite.id in parts):
                    return zero
                if p is not unit:
                    parts[p.id] = p
        if not parts:
            return unit
        ordered = tuple(parts[i] for i in sorted(parts))
        return ordered[0] if len(ordered) == 1 else self._make(op, ordered, 0, True, (0, 1))

    def equal(self, a: Node, b: Node) -> Node:
        """``a == b``."""
        if a is b:
            return self.true
        if a.hi < b.lo or b.hi < a.lo:
            return self.false
        if a.op == "const":
            a, b = b, a
        if b.op == "const":
            if a.op == "const":
                return self.truth(a.value == b.value)
            if a.boolean:
                return a if b.value else self.negation(a)
            if a.op == "ite":
                c, x, y = a.args
                if x.op == "const" or y.op == "const":
                    return self.ite(c, self.equal(x, b), self.equal(y, b))
        if a.id > b.id:
            a, b = b, a
        return self._make("eq", (a, b), 0, True, (0, 1))

    def less(self, a: Node, b: Node) -> Node:
        """``a < b``."""
        if a.hi < b.lo:
            return self.true
        if a.lo >= b.hi or a is b:
            return self.false
        return self._make("lt", (a, b), 0, True, (0, 1))

    def at_most(self, a: Node, b: Node) -> Node:
        """``a <= b``."""
        if a.hi <= b.lo or a is b:
            return self.true
        if a.lo > b.hi:
            return self.false
        return self._make("le", (a, b), 0, True, (0, 1))

    def add(self, a: Node, b: Node) -> Node:
        """``a + b``; constants gather on the right."""
        if a.op == "const":
            a, b = b, a
        if b.op == "const":
            if a.op == "const":
                return self.const(a.value + b.value)
            if b.value == 0 and not a.boolean:
                return a
            if a.op == "add" and a.args[1].op == "const":
                return self.add(a.args[0], self.const(a.args[1].value + b.value))
        return self._make("add", (a, b), 0, False, (a.lo + b.lo, a.hi + b.hi))

    def subtract(self, a: Node, b: Node) -> Node:
        """``a - b``; minus a constant is plus its negative."""
        if b.op == "const":
            return self.add(a, self.const(-b.value))
        if a is b:
            return self.const(0)
        return self._make("sub", (a, b), 0, False, (a.lo - b.hi, a.hi - b.lo))

    def total(self, xs: list[Node]) -> Node:
        """The sum, as a balanced tree."""
        if not xs:
            return self.const(0)
        while len(xs) > 1:
            xs = [self.add(*xs[i : i + 2]) if i + 1 < len(xs) else xs[i] for i in range(0, len(xs), 2)]
        return self.add(xs[0], self.const(0))

    def ite(self, c: Node, a: Node, b: Node) -> Node:
        """``a`` if ``c`` else ``b``."""
        if c.op == "const":
            return a if c.value else b
        if a is b:
            return a
        if c.op == "not":
            return self.ite(c.args[0], b, a)
        if a.boolean and b.boolean:
            if a.op == "const":
                return self.junction("or", (c, b)) if a.value else self.junction("and", (self.negation(c), b))
            if b.op == "const":
                return self.junction("or", (self.negation(c), a)) if b.value else self.junction("and", (c, a))
        if b.op == "ite" and b.args[1] is a:
            return self.ite(self.junction("or", (c, b.args[0])), a, b.args[2])
        ends = min(a.lo, b.lo), max(a.hi, b.hi)
        return self._make("ite", (c, a, b), 0, a.boolean and b.boolean, ends)


Facts = dict[int, Ends]


def ends_under(node: Node, facts: Facts, effort: int = 200) -> Ends:
    """The interval of a node when ``facts`` (by node id) hold; wider than need be past some effort."""
    left = [effort]

    def go(n: Node, known: Facts) -> Ends:
        lo, hi = n.lo, n.hi
        left[0] -= 1
        if left[0] > 0:
            if n.op == "add":
                (a, b), (c, d) = go(n.args[0], known), go(n.args[1], known)
                lo, hi = a + c, b + d
            elif n.op == "sub":
                (a, b), (c, d) = go(n.args[0], known), go(n.args[1], known)
                lo, hi = a - d, b - c
            elif n.op == "ite":
                yes, no = dict(known), dict(known)
                learn(n.args[0], True, yes)
                learn(n.args[0], False, no)
                (a, b), (c, d) = go(n.args[1], yes), go(n.args[2], no)
                lo, hi = min(a, c), max(b, d)
        a, b = known.get(n.id, (-INF, INF))
        return max(lo, a, n.lo), min(hi, b, n.hi)

    return go(node, facts)


def learn(condition: Node, truth: bool, facts: Facts) -> None:
    """Add to ``facts`` what follows from ``condition`` being ``truth``."""
    learn_bounds(condition, truth, facts, _ends, _narrow)


def learn_bounds(
    condition: Any,
    truth: bool,
    facts: Facts,
    ends: Callable[[Any, Facts], Ends],
    narrow: Callable[[Any, float, float, Facts], None],
) -> None:
    """See :func:`learn`: for nodes and expressions; ``ends`` gives bounds and ``narrow`` changes them."""
    op, args = condition.op, condition.args
    if op == "not":
        learn_bounds(args[0], not truth, facts, ends, narrow)
    elif op == ("and" if truth else "or"):
        for a in args:
            learn_bounds(a, truth, facts, ends, narrow)
    elif op in ("lt", "le"):
        small, big = args if truth else (args[1], args[0])
        gap = 1 if (op == "lt") == truth else 0
        narrow(small, -INF, ends(big, facts)[1] - gap, facts)
        narrow(big, ends(small, facts)[0] + gap, INF, facts)
    elif op == "eq":
        known = ends(args[0], facts), ends(args[1], facts)
        for e, (lo, hi) in ((args[0], known[1]), (args[1], known[0])):
            if truth:
                narrow(e, lo, hi, facts)
            elif lo == hi:
                mine = ends(e, facts)
                narrow(e, mine[0] + (mine[0] == lo), mine[1] - (mine[1] == lo), facts)
    elif op == "cell" and condition.boolean:
        facts[condition.id] = (truth, truth)


def _ends(n: Node, facts: Facts) -> Ends:
    lo, hi = facts.get(n.id, (-INF, INF))
    return max(lo, n.lo), min(hi, n.hi)


def _narrow(n: Node, lo: float, hi: float, facts: Facts) -> None:
    old = facts.get(n.id, (-INF, INF))
    facts[n.id] = max(old[0], lo), min(old[1], hi)
    if n.op == "add" and n.args[1].op == "const":
        _narrow(n.args[0], lo - n.args[1].value, hi - n.args[1].value, facts)
