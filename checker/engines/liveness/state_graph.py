"""The explored graph as arrays: what questions about whole runs are asked of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.core.c_build import CannotCompile
from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.columns import below
from kvfence.checker.engines.explicit.interpret import Interpreter, failed
from kvfence.checker.engines.native.exploration import Exploration, Model
from kvfence.checker.engines.native.layout import Dense
from kvfence.checker.engines.word_size import TooWide, is_word, word_bounds
from kvfence.spec.language.nodes import Node

Explored = Callable[[Interpreter, base.Bounds | None, int, base.Reporter], "StateGraph"]
Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]
PIECE = 4096  # states whose steps are listed at a time


class StateGraph:
    """States 0 to ``count`` - 1, the initial one first, and the steps between them.

    ``source``, ``instance`` and ``target`` describe the steps, by rising source and instance; those of state
    k are ``offsets[k]`` to ``offsets[k + 1]``. Steps out of the range of a value are left out.
    """

    def __init__(
        self, columns: Callable[[int], Numbers], count: int, steps: tuple[Numbers, Numbers, Numbers]
    ) -> None:
        self.count, self._columns = count, columns
        order = np.lexsort((steps[1], steps[0]))
        self.source, self.instance, self.target = (a[order] for a in steps)
        self.offsets = np.searchsorted(self.source, np.arange(count + 1))

    def where(self, node: Node) -> Truths:
        """The states in which a condition holds."""
        known: dict[int, NDArray[Any]] = {}
        nodes = below([node])
        number = np.int64 if all(map(is_word, nodes)) else object  # the latter: Python's integers
        for n in nodes:
            known[n.id] = self._value(n, [known[a.id] for a in n.args], number)
        return np.broadcast_to(known[node.id], self.count).astype(np.bool_)

    def _value(self, n: Node, args: Sequence[NDArray[Any]], number: type) -> NDArray[Any]:
        if n.op == "const":
            return np.array(bool(n.value)) if n.boolean else np.array(n.value, number)
        if n.op == "cell":
            column = np.asarray(self._columns(n.value))
            return np.not_equal(column, 0) if n.boolean else column
        if n.op in ("and", "or"):
            join = np.logical_and if n.op == "and" else np.logical_or
            return np.asarray(join.reduce(np.broadcast_arrays(*args), axis=0))
        if n.op == "not":
            return np.asarray(np.logical_not(args[0]))
        if n.op == "ite":
            return np.asarray(np.where(*args))
        operation = {
            "eq": np.equal,
            "lt": np.less,
            "le": np.less_equal,
            "add": np.add,
            "sub": np.subtract,
        }[n.op]
        return np.asarray(operation(*(x.astype(number) for x in args)))

    def steps_from(self, states: Numbers) -> Numbers:
        """The numbers of the steps out of some states."""
        first, end = self.offsets[states], self.offsets[states + 1]
        lengths = end - first
        starts = np.repeat(first - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        return starts + np.arange(lengths.sum())


def explored(
    interpreter: Interpreter, bounds: base.Bounds | None, max_states: int, report: base.Reporter | None = None
) -> StateGraph:
    """The graph of all reachable states, found in C, or in Python without a compiler or beyond 64 bits.

    Stop when there are more than ``max_states``.
    """
    limits = base.cell_bounds(interpreter.grounded, bounds, required=True)
    try:
        word_bounds(interpreter.grounded, bounds)
        model = Model(interpreter, limits)
    except (CannotCompile, TooWide):
        return _in_python(interpreter, limits, max_states)
    return _in_c(model, base.RunOptions(max_states=max_states, report=report or base.Reporter()))


def _in_c(model: Model, options: base.RunOptions) -> StateGraph:
    exploration = Exploration(model, base.Log(model.grounded), 1, options)
    try:
        exploration.open()
        exploration.explore("end")
        search = exploration.search
        assert search is not None
        search.number_states()
        parts: list[tuple[NDArray[Any], ...]] = []
        levels, first = search.levels(), 0
        words = np.empty((sum(levels), model.packing.words), np.uint64)
        for depth, count in enumerate(levels):
            words[first : first + count] = search.states_of(depth, count)
            first += count
        for a in range(0, len(words), PIECE):
            source, *rest = search.steps(words[a : a + PIECE], len(model.grounded.instances))
            parts.append((source.astype(np.int64) + a, *rest))
    finally:
        exploration.close()
    whole = [np.concatenate([part[k] for part in parts]).astype(np.int64) for k in range(3)]
    return level_graph(model.packing, words, levels, *whole)


def level_graph(
    packing: Dense,
    words: NDArray[np.uint64],
    levels: Sequence[int],
    source: Numbers,
    instance: Numbers,
    target: Numbers,
) -> StateGraph:
    """The graph of states found level by level, so many in each, given as dense words in any order within.

    They are numbered level by level, and by their words within: whoever finds them, and in whichever order,
    counterexamples are the same.
    """
    depth = np.repeat(np.arange(len(levels)), levels)
    order = np.lexsort((*words.T[::-1], depth))
    number = np.empty(len(words), np.int64)
    number[order] = np.arange(len(words))
    words = words[order]

    def column(cell: int) -> Numbers:
        s = packing.slots[cell]
        bits = (words[:, s.word] >> np.uint64(s.offset)) & np.uint64(s.mask >> s.offset)
        return bits.astype(np.int64) + s.lo

    return StateGraph(column, len(words), (number[source], instance, number[target]))


def _in_python(interpreter: Interpreter, limits: base.CellBounds, max_states: int) -> StateGraph:
    number = {interpreter.initial(): 0}
    states = [interpreter.initial()]
    steps: list[tuple[int, int, int]] = []
    for k, state in enumerate(states):  # grows
        for index, after, failing in interpreter.successors(state):
            checks = failed(interpreter.instances[index], failing)
            if any(c.cell is not None for c in checks):
                continue
            for cell, (lo, hi) in limits.items():
                if not lo <= after[cell] <= hi:
                    raise base.Stop(base.bounds_left(interpreter.grounded, cell, limits))
            if after not in number:
                number[after] = len(states)
                states.append(after)
                if len(states) > max_states:
                    raise base.Stop(f"more than {max_states} states")
            steps.append((k, index, number[after]))
    table = np.array(states, object).reshape(len(states), -1)  # Python's integers, of any length
    listed = np.array(steps, np.int64).reshape(-1, 3)
    return StateGraph(lambda cell: table[:, cell], len(states), (listed[:, 0], listed[:, 1], listed[:, 2]))
