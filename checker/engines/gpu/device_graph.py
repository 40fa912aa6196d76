"""The explored graph of a machine, found on a GPU: what questions about whole runs are asked of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.base import Bounds, Reporter, Stop
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.gpu.device.search_device import Device, OutOfMemory, Words
from kvfence.checker.engines.gpu.expansion import C_OUT, Limits
from kvfence.checker.engines.gpu.exploration import GpuModel
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.liveness.state_graph import Numbers, StateGraph, level_graph
from kvfence.checker.engines.word_size import word_bounds

ROOM = 1 << 20  # steps listed at a time


def graph_on(
    device: Device, interpreter: Interpreter, bounds: Bounds | None, limits: Limits, report: Reporter | None
) -> StateGraph:
    """The graph of all reachable states, its states in the same order as in the native engine's.

    NoGpu; Stop when there are more states than ``limits`` allow, or too many for the memory of the device.
    """
    ranges = word_bounds(interpreter.grounded, bounds)
    model = GpuModel(interpreter, ranges)
    search = Search(model.printed, device, limits, report=report)
    search.begin(model.pack(model.grounded.initial))
    search.explore("end")
    model.stop_if_outside(search.outside)
    depths = range(len(search.levels.levels))
    if not all(search.levels.has(depth) for depth in depths):
        raise Stop("the graph does not fit the memory of the device: give it more")
    device.compile(search.source, "graph")
    levels: list[Words] = []
    steps: list[tuple[Numbers, Numbers, Words]] = []
    for depth in depths:
        pieces = [search.levels.states(piece) for piece in search.levels.levels[depth]]
        keys = np.concatenate([np.empty(0, np.uint64), *pieces]).reshape(-1, search.key_words)
        first = sum(len(level) for level in levels)
        steps += [(s + first, i, k) for s, i, k in _steps(search, depth)]
        levels.append(keys)
    keys = np.concatenate(levels)
    places = _Places(keys)
    return level_graph(
        model.packing,
        model.printed.keys.decode_all(keys),
        [len(level) for level in levels],
        np.concatenate([s for s, _, _ in steps]),
        np.concatenate([i for _, i, _ in steps]),
        np.concatenate([places.of(k) for _, _, k in steps]),
    )


def _steps(search: Search, depth: int) -> Iterator[tuple[Numbers, Numbers, Words]]:
    """Steps out of a level, some at a time: positions in the level, instances, keys of the next states."""
    record = 1 + search.key_words
    most = max(1, ROOM // search.source.instances)
    try:
        out = search.memory.take(8 * record * most * search.source.instances)
    except OutOfMemory:
        raise Stop("the graph does not fit the memory of the device: give it more") from None
    before = 0
    for address, count in search.where(depth):
        for at in range(0, count, most):
            n = min(most, count - at)
            search.device.clear(search.counters + 8 * C_OUT, 8)
            params = search.params(into=address + 8 * search.key_words * at, in_count=n, out=out)
            search.device.launch("list_steps", params, n)
            found = int(search.device.read(search.counters + 8 * C_OUT, 1)[0])
            rows = search.device.read(out, record * found).reshape(found, record)
            source = (rows[:, 0] >> np.uint64(32)).astype(np.int64) + before + at
            yield source, (rows[:, 0] & np.uint64(0xFFFFFFFF)).astype(np.int64), rows[:, 1:]
        before += count
    search.memory.give(out)


class _Places:
    """Where each of some keys is among them."""

    def __init__(self, keys: Words) -> None:
        self._rows = np.ascontiguousarray(keys)
        self._order = np.argsort(self._sortable(self._rows), kind="stable")
        self._sorted = self._sortable(self._rows)[self._order]

    def of(self, keys: Words) -> Numbers:
        """The numbers of keys that are all there."""
        return self._order[np.searchsorted(self._sorted, self._sortable(np.ascontiguousarray(keys)))]

    @staticmethod
    def _sortable(keys: Words) -> NDArray[np.void] | Words:
        if keys.shape[1] == 1:
            return keys[:, 0]
        return keys.view([(f"w{k}", np.uint64) for k in range(keys.shape[1])])[:, 0]
