"""C for grounded expressions: one statement for each node, computed for all lanes of ``lanes.h``."""

from __future__ import annotations

from collections.abc import Sequence

from kvfence.checker.engines.explicit.pack import Slot
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language.nodes import Node

Literal = tuple[int, int, int]  # word, mask, value of the bits under it


class Scope:
    """Statements of one C block. A node is computed before its first use: once, for blocks inside too."""

    def __init__(self, packing: Dense, indent: int, outer: Scope | None = None) -> None:
        self.packing, self.indent = packing, indent
        self.lines: list[str] = []
        self._names: dict[int, str] = dict(outer._names) if outer else {}

    def fresh(self, kind: str, text: str) -> str:
        """A new name for a text."""
        name = f"x{len(self._names)}_{self.indent}_{len(self.lines)}"
        self.lines.append(f"{'  ' * self.indent}const {kind} {name} = {text};")
        return name

    def name(self, n: Node) -> str:
        """C for a node: a mask if it is a truth value, else a number for each lane."""
        todo = [n]
        while todo:
            x = todo[-1]
            if x.id in self._names or x.op == "const":
                todo.pop()
                continue
            missing = [a for a in self._parts(x) if a.op != "const" and a.id not in self._names]
            if missing:
                todo += missing
                continue
            todo.pop()
            kind = "M" if x.boolean else "V"
            name = self._names[x.id] = f"n{x.id}"
            self.lines.append(f"{'  ' * self.indent}const {kind} {name} = {self._formula(x)};")
        return self._ref(n)

    def number(self, n: Node) -> str:
        """C for a node as a number for each lane, truth values as 0 and 1."""
        text = self.name(n)
        return f"NUMBER({text})" if n.boolean and n.op != "const" else self._as_number(n, text)

    def is_literal(self, n: Node) -> bool:
        """Whether the node compares bits of one word with a constant."""
        return self._literal(n) is not None

    def _as_number(self, n: Node, text: str) -> str:
        return f"K({n.value})" if n.op == "const" else text

    def _ref(self, n: Node) -> str:
        if n.op != "const":
            return self._names[n.id]
        if n.boolean:
            return "ALL" if n.value else "0u"
        return f"K({n.value})"

    def _num(self, n: Node) -> str:
        if n.op == "const":
            return f"K({n.value})"
        return f"NUMBER({self._ref(n)})" if n.boolean else self._ref(n)

    def _literal(self, n: Node) -> Literal | None:
        if n.op == "not":
            inner = n.args[0]
            if inner.op == "cell" and inner.boolean:
                s = self.packing.slots[inner.value]
                return s.word, s.mask, 0
            return None
        if n.op == "cell" and n.boolean:
            s = self.packing.slots[n.value]
            return s.word, s.mask, s.mask
        if n.op == "eq":
            cell, value = n.args
            if cell.op == "cell" and value.op == "const" and not cell.boolean:
                s = self.packing.slots[cell.value]
                if not 0 <= value.value - s.lo < 1 << s.bits:
                    return None
                return s.word, s.mask, (value.value - s.lo) << s.offset
        return None

    def _merged(self, n: Node) -> tuple[list[Literal], list[Node]]:
        """Arguments of a junction that compare bits with constants, by word, and the others.

        For ``or``, the comparisons are those of the negated arguments.
        """
        merged: dict[int, Literal] = {}
        others = []
        for a in n.args:
            found = self._literal(a if n.op == "and" else _negated(a))
            if found is None:
                others.append(a)
                continue
            word, mask, value = found
            known = merged.get(word, (word, 0, 0))
            if known[1] & mask:
                others.append(a)
            else:
                merged[word] = (word, known[1] | mask, known[2] | value)
        return list(merged.values()), others

    def _parts(self, n: Node) -> Sequence[Node]:
        if n.op == "cell" or self._literal(n) is not None:
            return ()
        if n.op in ("and", "or"):
            return self._merged(n)[1]
        if n.op == "not" and self._literal(n.args[0]) is not None:
            return ()
        return n.args

    def _formula(self, n: Node) -> str:
        literal = self._literal(n)
        if literal is not None:
            return _match(literal)
        if n.op == "cell":
            return self._cell(self.packing.slots[n.value])
        if n.op == "not":
            inner = self._literal(n.args[0])
            return f"NOT({_match(inner) if inner is not None else self._ref(n.args[0])})"
        if n.op in ("and", "or"):
            literals, others = self._merged(n)
            tests = [_match(x) for x in literals]
            if n.op == "or":
                tests = [f"NOT({x})" for x in tests]
            return (" & " if n.op == "and" else " | ").join([*tests, *(self._ref(a) for a in others)])
        if n.op == "ite":
            c, a, b = n.args
            if n.boolean:
                return f"CHOOSE({self._ref(c)}, {self._ref(a)}, {self._ref(b)})"
            return f"SELECT({self._ref(c)}, {self._num(a)}, {self._num(b)})"
        a, b = n.args
        if n.op == "eq" and a.boolean and b.boolean:
            return f"NOT({self._ref(a)} ^ {self._ref(b)})"
        if n.op in ("eq", "lt", "le"):
            return f"{n.op.upper()}({self._num(a)}, {self._num(b)})"
        return f"{self._num(a)} {'+' if n.op == 'add' else '-'} {self._num(b)}"

    def _cell(self, s: Slot) -> str:
        if not s.bits:
            return f"K({s.lo})"
        text = f"CELL(w[{s.word}], {s.offset}, {s.mask >> s.offset}ull)"
        return f"{text} + K({s.lo})" if s.lo else text


def _match(literal: Literal) -> str:
    word, mask, value = literal
    if mask == value and mask & (mask - 1) == 0 and mask:
        return f"TEST(w[{word}], {mask}ull)"
    return f"MATCH(w[{word}], {mask}ull, {value}ull)"


def _negated(n: Node) -> Node:
    """A stand-in for the negation of a truth value that is a cell or a negated cell."""
    if n.op == "not":
        return n.args[0]
    return Node(-1, "not", (n,), 0, True, ends=(0, 1))
