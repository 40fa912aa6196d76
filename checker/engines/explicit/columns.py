"""numpy source for grounded expressions: one statement per node, over columns of a chunk of states.

A column holds one value per state, in the narrowest signed type its interval fits; truth values are ``bool``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kvfence.checker.engines.explicit.pack import WORD_BITS, Packing, Slot
from kvfence.spec.language.nodes import Node

_TYPES = ((8, "i8"), (16, "i16"), (32, "i32"))
_WIDE_JUNCTION = 8  # longer junctions are not searched for common pairs
SCOPE: dict[str, Any] = {
    "np": np,
    "where": np.where,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}


class Unit:
    """Statements that run together, with the names they define and use."""

    def __init__(self, lines: Sequence[str], defines: str | None, uses: Iterable[str]) -> None:
        self.lines, self.defines, self.uses = list(lines), defines, set(uses)


class Columns:
    """A program over the columns of a chunk ``w`` (words by states, ``n`` states)."""

    def __init__(self, packing: Packing, roots: Iterable[Node]) -> None:
        self.packing = packing
        self.units: list[Unit] = []
        self.names: dict[object, str] = {}
        self._serial = itertools.count()
        self._pairs = _common_pairs(roots)

    def column(self, n: Node) -> str:
        """The name of the node's column over the whole chunk, defined on first use."""
        if n.id in self.names:
            return self.names[n.id]
        if n.op == "const":
            return self.define(
                n.id, f"np.full(n, {bool(n.value) if n.boolean else n.value}, {column_type(n)})", ()
            )
        if n.op == "cell":
            return self._cell(n)
        return self.define(n.id, *_formula(n, self.column, self._folded))

    def within(self, n: Node, names: dict[int, str], lines: list[str], uses: set[str]) -> str:
        """The name of the node's column over the states ``i``; adds statements to ``lines``."""
        if n.id in names:
            return names[n.id]
        name = f"s{next(self._serial)}"
        if n.id in self.names or n.op in ("cell", "const"):
            whole = self.column(n)
            uses.add(whole)
            lines.append(f"{name} = {whole}.take(i)")
        else:

            def part(a: Node) -> str:
                return self.within(a, names, lines, uses)

            def fold(op: str, parts: Sequence[Node]) -> list[str]:  # noqa: ARG001
                return [part(p) for p in parts]

            text, _ = _formula(n, part, fold)
            lines.append(f"{name} = {text}")
        names[n.id] = name
        return name

    def source(self, head: str) -> str:
        """The program as a function, forgetting each column after its last use."""
        last: dict[str, int] = {}
        for k, unit in enumerate(self.units):
            for name in (*unit.uses, *([unit.defines] if unit.defines else [])):
                last[name] = k
        gone: dict[int, list[str]] = {}
        for name, k in last.items():
            gone.setdefault(k, []).append(name)
        out = [head, "    n = w.shape[1]"]
        for k, unit in enumerate(self.units):
            out += [f"    {line}" for line in unit.lines]
            if k in gone:
                out.append(f"    del {', '.join(gone[k])}")
        return "\n".join([*out, "    return None"])

    def define(self, key: object, text: str, uses: Iterable[str]) -> str:
        """Add the statement that computes a column over the whole chunk; its name."""
        name = f"x{next(self._serial)}"
        self.units.append(Unit([f"{name} = {text}"], name, uses))
        self.names[key] = name
        return name

    def _cell(self, n: Node) -> str:
        slot = self.packing.slots[n.value]
        lane = self._lane(slot)
        if n.boolean:
            return self.define(n.id, f"({lane} & {1 << slot.shift}) != 0", (lane,))
        text = f"({lane} >> {slot.shift})" if slot.shift else lane
        if slot.shift + slot.bits < slot.lane_bits:
            text = f"({text} & {(1 << slot.bits) - 1})"
        kind = column_type(n)
        text += ".view(i8)" if kind == "i8" and slot.bits < 8 else f".astype({kind})"
        return self.define(n.id, f"{text} + {kind}({slot.lo})" if slot.lo else text, (lane,))

    def _lane(self, slot: Slot) -> str:
        key = ("lane", slot.word, slot.lane_bits, slot.lane)
        if key in self.names:
            return self.names[key]
        lanes = WORD_BITS // slot.lane_bits
        view = f"w[{slot.word}].view(u{slot.lane_bits})"
        text = f"{view}.reshape(n, {lanes})[:, {slot.lane}].copy()" if lanes > 1 else view
        return self.define(key, text, ())

    def _folded(self, op: str, parts: Sequence[Node]) -> list[str]:
        """Columns whose junction is that of ``parts``, with pairs that occur elsewhere too joined first."""
        ids = [p.id for p in parts]
        names = {p.id: self.column(p) for p in parts}
        while len(ids) > 1 and len(ids) <= _WIDE_JUNCTION:
            pairs = [(self._pairs[op, a, b], a, b) for a, b in itertools.combinations(sorted(ids), 2)]
            count, a, b = max(pairs)
            if count < 2:
                break
            key = (op, a, b)
            joined = self.names.get(key) or self.define(
                key, f"{names[a]} {_SIGNS[op]} {names[b]}", (names[a], names[b])
            )
            ids = [i for i in ids if i not in (a, b)]
            ids.append(-len(ids) - 1)
            names[ids[-1]] = joined
        return [names[i] for i in ids]


_SIGNS = {"and": "&", "or": "|", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


def column_type(n: Node) -> str:
    """The numpy type of a node's column."""
    if n.boolean:
        return "bool"
    lo, hi = n.lo, n.hi
    if n.op in ("add", "sub", "ite"):
        values = n.args[1:] if n.op == "ite" else n.args
        lo, hi = min(lo, *(a.lo for a in values)), max(hi, *(a.hi for a in values))
    for bits, name in _TYPES:
        if -(1 << (bits - 1)) <= lo and hi < 1 << (bits - 1):
            return name
    return "i64"


def _formula(n: Node, column: Any, fold: Any) -> tuple[str, list[str]]:
    """The text of a node over the columns of its arguments, and the names it uses."""
    if n.op in ("and", "or"):
        names = fold(n.op, n.args)
        return f" {_SIGNS[n.op]} ".join(names), names
    uses: list[str] = []

    def plain(a: Node) -> str:
        if a.op == "const":
            return str(a.value) if a.value >= 0 else f"({a.value})"
        uses.append(column(a))
        return uses[-1]

    def typed(a: Node, to: str) -> str:
        text = plain(a)
        if a.op == "const":
            return f"{to}({text})"
        have = column_type(a)
        if have == to:
            return text
        return f"{text}.view(i8)" if (have, to) == ("bool", "i8") else f"{text}.astype({to})"

    if n.op == "not":
        return f"~{plain(n.args[0])}", uses
    if n.op == "ite":
        return _choice(n, plain, typed), uses
    if n.op in ("add", "sub"):
        to = column_type(n)
        return f"{typed(n.args[0], to)} {_SIGNS[n.op]} {typed(n.args[1], to)}", uses
    return f"{plain(n.args[0])} {_SIGNS[n.op]} {plain(n.args[1])}", uses


def _choice(n: Node, plain: Any, typed: Any) -> str:
    """An ``ite``, without the slow general selection where the arms differ by a constant."""
    c, a, b = n.args
    if n.boolean:
        test = plain(c)
        return f"({test} & {plain(a)}) | (~{test} & {plain(b)})"
    to = column_type(n)
    for sign, base, moved in (("", b, a), ("~", a, b)):
        shift = moved.args[1].value if moved.op == "add" and moved.args[0] is base else None
        if shift is None and moved.op == "const" and base.op == "const":
            shift = moved.value - base.value
        if moved.op == "add" and shift is not None and moved.args[1].op != "const":
            shift = None
        if shift is not None and to == "i8" and -128 <= shift < 128:
            flag = f"({sign}{plain(c)}).view(i8)"
            if shift in (1, -1):
                return f"{typed(base, to)} {'+' if shift == 1 else '-'} {flag}"
            return f"{typed(base, to)} + {flag} * i8({shift})"
    return f"where({plain(c)}, {typed(a, to)}, {typed(b, to)})"


def _common_pairs(roots: Iterable[Node]) -> Counter[tuple[str, int, int]]:
    """How often two nodes are joined by the same operation, over all junctions under ``roots``."""
    pairs: Counter[tuple[str, int, int]] = Counter()
    for n in below(roots):
        if n.op in ("and", "or") and len(n.args) <= _WIDE_JUNCTION:
            pairs.update((n.op, a.id, b.id) for a, b in itertools.combinations(n.args, 2))
    return pairs


def below(roots: Iterable[Node]) -> list[Node]:
    """Every node under ``roots``, arguments first."""
    done: set[int] = set()
    out: list[Node] = []
    todo = [(r, False) for r in reversed(list(roots))]
    while todo:
        n, ready = todo.pop()
        if ready:
            out.append(n)
        elif n.id not in done:
            done.add(n.id)
            todo.append((n, True))
            todo += [(a, False) for a in n.args]
    return out
