"""Reports what a worker does as events of :mod:`kvfence.spec.order`, with a range for each slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Final

from kvfence.checker.order.slot_races import Row
from kvfence.spec import order as od

APART: Final = 48
"""Bits between the addresses of two pools: where they really are does not matter, only that they differ."""


class OrderEmitter:
    """Has the methods of :class:`kvfence.checker.order.slot_races.SlotChecker`; ``sink`` gets the events."""

    def __init__(self, sink: Callable[[od.OrderEvent | od.Header], None], producer: str) -> None:
        self._sink = sink
        self._pools: list[tuple[int, int]] = []
        """Slots, and bytes of a slot."""
        sink(od.Header(producer=producer))

    def add_pool(self, name: str, count: int, kind: od.RegionKind, slot_bytes: int = 1) -> int:
        """A pool is a region."""
        number = len(self._pools)
        self._pools.append((count, slot_bytes))
        at, nbytes = (number + 1) << APART, count * slot_bytes
        self._sink(od.Declare(regions=(od.Region(number, at, nbytes, kind, name=name, slot=slot_bytes),)))
        return number

    def add_stream(self, stream: od.Stream) -> None:
        """A stream is declared."""
        self._sink(od.Declare(streams=(stream,)))

    def forget_event(self, event: int) -> None:
        """An order trace gives each event a number of its own."""

    def _event(self, kind: Callable[..., od.OrderEvent], *fields: int) -> None:
        self._sink(kind(*fields))

    spawn = partialmethod(_event, od.Spawn)
    put = partialmethod(_event, od.Put)
    get = partialmethod(_event, od.Get)
    record = partialmethod(_event, od.Record)
    wait = partialmethod(_event, od.Wait)
    query = partialmethod(_event, od.Query)
    sync_event = partialmethod(_event, od.SyncEvent)
    sync_stream = partialmethod(_event, od.SyncStream)
    sync_device = partialmethod(_event, od.SyncDevice)

    def kernel(
        self, thread: int, stream: int, reads: Sequence[Row], writes: Sequence[Row], name: str, by: str = ""
    ) -> tuple[int, int]:
        """See :class:`Kernel`."""
        self._sink(od.Kernel(thread, stream, self._ranges(reads), self._ranges(writes), name, by))
        return 0, 0

    def copy(
        self, thread: int, stream: int, src: Row, dst: Row, order: od.SourceOrder, name: str, by: str
    ) -> None:
        """See :class:`Copy`."""
        sources, targets = self._ranges([src]), self._ranges([dst])
        size = min(self._pools[src[0]][1], self._pools[dst[0]][1])
        sources, targets = _cut(sources, size), _cut(targets, size)
        self._sink(od.Copy(thread, stream, sources, targets, order, name, by))

    def host(self, thread: int, reads: Sequence[Row], writes: Sequence[Row], name: str = "") -> None:
        """See :class:`Host`."""
        self._sink(od.Host(thread, self._ranges(reads), self._ranges(writes), name))

    def _ranges(self, rows: Sequence[Row]) -> list[od.Range]:
        found: list[od.Range] = []
        for pool, slots in rows:
            size = self._pools[pool][1]
            found += [(pool, slot * size, size) for slot in slots.tolist()]
        return found


def _cut(ranges: list[od.Range], size: int) -> list[od.Range]:
    """``ranges`` in pieces of ``size`` bytes: a slot of one pool may be several of another."""
    if not ranges or ranges[0][2] == size:
        return ranges
    return [
        (pool, at, size)
        for pool, start, nbytes in ranges
        for at in range(start, start + nbytes - size + 1, size)
    ]
