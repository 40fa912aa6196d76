"""numpy source for a machine: all successors of a chunk of states, and the properties that fail in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvfence.checker.engines.base import CellBounds
from kvfence.checker.engines.explicit.columns import SCOPE, Columns, Unit, below, column_type
from kvfence.checker.engines.explicit.pack import Packing, Slot
from kvfence.checker.engines.explicit.updates import ALL_BITS, constant_part, is_computed, limits_kept
from kvfence.spec.language import Grounded, Instance
from kvfence.spec.language.nodes import Node

Lane = tuple[int, int, int]  # word, bits of a lane, number of the lane


def look(packing: Packing, properties: Sequence[tuple[int, Node]]) -> Callable[..., None]:
    """``look(w, found)``: calls ``found(position, state)`` for each property that is false in the chunk.

    ``state`` is the first such state's number in the chunk.
    """
    program = Columns(packing, [n for _, n in properties])
    for position, n in properties:
        ok = program.column(n)
        line = f"if not {ok}.all(): found({position}, int({ok}.argmin()))"
        program.units.append(Unit([line], None, [ok]))
    return _compiled("look", program.source("def look(w, found):"), SCOPE)


def expand(g: Grounded, packing: Packing, limits: CellBounds, traced: bool = False) -> Callable[..., None]:
    """``expand(w, out, lanes, room, taken, failed, outside, mark, live)``: all successors of a chunk.

    ``room(k)`` gives the place of ``k`` states in the words ``out``, which ``lanes`` (by bits) shows by lane.
    ``taken`` counts steps by instance, ``failed(instance, position, state)`` and ``outside(cell)`` report,
    and ``live`` becomes true where some instance is enabled. If ``traced``, ``mark(instance, states, place)``
    says which states of the chunk the successors come from. ``limits`` bounds the cells of unbounded Ints.
    """
    writer = _Writer(g, packing, limits, traced)
    for i in g.instances:
        writer.instance(i)
    head = "def expand(w, out, lanes, room, taken, failed, outside, mark, live):"
    constants = {f"K{v}": np.uint64(v) for v in writer.constants}
    return _compiled("expand", writer.program.source(head), {**SCOPE, **constants})


def _compiled(name: str, text: str, scope: Mapping[str, Any]) -> Callable[..., None]:
    names = dict(scope)
    exec(compile(text, f"<{name}>", "exec"), names)
    function: Callable[..., None] = names[name]
    return function


class _Writer:
    """Writes ``expand``: a guard over the whole chunk, then everything else over the states it holds in."""

    def __init__(self, g: Grounded, packing: Packing, limits: CellBounds, traced: bool) -> None:
        self.packing, self.traced = packing, traced
        self.limits = {i.index: limits_kept(g.graph, i, limits) for i in g.instances} if limits else {}
        self.constants: set[int] = set()
        self.program = Columns(packing, [i.guard for i in g.instances])
        # what several instances need is computed once, over the whole chunk
        nodes: Counter[int] = Counter()
        lanes: Counter[tuple[object, ...]] = Counter()
        for i in g.instances:
            by_lane = self._by_lane(i)
            nodes.update(
                n.id for n in below([*self._tests(i), *(n for ns in by_lane.values() for _, n in ns)])
            )
            lanes.update(_key(lane, values) for lane, values in by_lane.items())
        self.shared_nodes = {k for k, times in nodes.items() if times > 1}
        self.shared_lanes = {k for k, times in lanes.items() if times > 1}

    def _tests(self, i: Instance) -> list[Node]:
        return [c.holds for c in (*i.checks, *i.ranges)] + [n for _, n in self.limits.get(i.index, [])]

    def instance(self, i: Instance) -> None:
        """Add the steps of one instance."""
        guard = self.program.column(i.guard)
        body, uses = _Body(self), {guard}
        body.uses = uses
        body.lines += [f"taken[{i.index}] += i.size", f"live |= {guard}"]
        inside: list[str] = []
        for position, check in enumerate((*i.checks, *i.ranges)):
            ok = body.value(check.holds)
            body.lines.append(f"if not {ok}.all():")
            body.lines.append(f"    failed({i.index}, {position}, int(i[{ok}.argmin()]))")
            if check.cell is not None:
                inside.append(ok)
        if inside:  # a step may leave several ranges at once: each is reported before the step is dropped
            ok = " & ".join(inside)
            body.lines.append(f"if not ({ok}).all():")
            body.keep(ok)
        for cell, node in self.limits.get(i.index, []):
            ok = body.value(node)
            body.lines += [f"if not {ok}.all():", f"    outside({cell})"]
            body.keep(ok)
        self._successors(i, body)
        lines = [f"i = {guard}.nonzero()[0]", "if i.size:", *(f"    {line}" for line in body.lines)]
        self.program.units.append(Unit(lines, None, uses))

    def _successors(self, i: Instance, body: _Body) -> None:
        body.lines += ["p = room(i.size)", "q = p + i.size"]
        if self.traced:
            body.lines.append(f"mark({i.index}, i, p)")
        keep, plus = constant_part(self.packing, i)
        for k in range(self.packing.words):
            body.lines += [f"o = out[{k}, p:q]", f"w[{k}].take(i, 0, o, 'clip')"]
            for sign, value, idle in (("&", keep[k], ALL_BITS), ("+", plus[k], 0)):
                if value != idle:
                    self.constants.add(value)
                    body.lines.append(f"o {sign}= K{value}")
        for lane, values in self._by_lane(i).items():
            word, bits, number = lane
            body.lines.append(f"lanes[{bits}][{word}, p:q, {number}] |= {self._lane(lane, values, body)}")

    def _by_lane(self, i: Instance) -> dict[Lane, list[tuple[Slot, Node]]]:
        """The cells with computed next values, by lane."""
        out: dict[Lane, list[tuple[Slot, Node]]] = {}
        for cell, n in i.updates.items():
            s = self.packing.slots[cell]
            if is_computed(self.packing, cell, n):
                out.setdefault((s.word, s.lane_bits, s.lane), []).append((s, n))
        return out

    def _lane(self, lane: Lane, values: list[tuple[Slot, Node]], body: _Body) -> str:
        key = _key(lane, values)
        if key not in self.shared_lanes:
            return " | ".join(_placed(s, n, body.value(n)) for s, n in values)
        whole = self.program.names.get(key)
        if whole is None:
            columns = [self.program.column(n) for _, n in values]
            text = " | ".join(_placed(s, n, x) for (s, n), x in zip(values, columns, strict=True))
            whole = self.program.define(key, text, columns)
        body.uses.add(whole)
        return f"{whole}.take(i)"


class _Body:
    """The statements of an instance over its states ``i``."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.uses: set[str] = set()

    def value(self, n: Node) -> str:
        """The name of the node's column over ``i``."""
        if n.id in self.writer.shared_nodes:
            self.writer.program.column(n)
        return self.writer.program.within(n, self.names, self.lines, self.uses)

    def keep(self, ok: str) -> None:
        """Drop the states in which the column ``ok`` is false, inside the ``if`` just opened."""
        self.lines.append(f"    i = i[{ok}]")
        self.names.clear()


def _key(lane: Lane, values: list[tuple[Slot, Node]]) -> tuple[object, ...]:
    return ("next", lane, *((s.shift, n.id) for s, n in values))


def _placed(slot: Slot, n: Node, name: str) -> str:
    """A column of values as bits of their lane."""
    kind, bits = column_type(n), slot.lane_bits
    if kind in ("bool", "i8") and bits == 8 and -128 <= slot.lo < 128:
        text = f"({name} - i8({slot.lo})).view(u8)" if slot.lo else f"{name}.view(u8)"
    else:
        text = f"({name}.astype(i64) - {slot.lo}).astype(u{bits})" if slot.lo else f"{name}.astype(u{bits})"
    return f"({text} << {slot.shift})" if slot.shift else text
