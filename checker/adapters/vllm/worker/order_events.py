"""Tells what a worker does as events of :mod:`kvfence.spec.order`, with a range for each slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kvfence.checker.order.slot_races import Row
from kvfence.spec.order import (
    Copy,
    Declare,
    Get,
    Header,
    Host,
    Kernel,
    OrderEvent,
    Put,
    Query,
    Range,
    Record,
    Region,
    RegionKind,
    SourceOrder,
    Spawn,
    Stream,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
)

APART: Final = 48
"""Bits between the addresses of two pools: where they really are does not matter, only that they differ."""


class OrderEmitter:
    """Has the methods of :class:`kvfence.checker.order.slot_races.SlotChecker`; ``sink`` gets the events."""

    def __init__(self, sink: Callable[[OrderEvent | Header], None], producer: str) -> None:
        self._sink = sink
        self._pools: list[tuple[int, int]] = []
        """Slots, and bytes of a slot."""
        sink(Header(producer=producer))

    def add_pool(self, name: str, count: int, kind: RegionKind, slot_bytes: int = 1) -> int:
        """A pool is a region."""
        number = len(self._pools)
        self._pools.append((count, slot_bytes))
        at, nbytes = (number + 1) << APART, count * slot_bytes
        self._sink(Declare(regions=(Region(number, at, nbytes, kind, name=name, slot=slot_bytes),)))
        return number

    def add_stream(self, stream: Stream) -> None:
        """A stream is declared."""
        self._sink(Declare(streams=(stream,)))

    def forget_event(self, event: int) -> None:
        """An order trace gives each event a number of its own."""

    def spawn(self, thread: int, child: int) -> None:
        """See :class:`Spawn`."""
        self._sink(Spawn(thread, child))

    def put(self, thread: int, queue: int, item: int) -> None:
        """See :class:`Put`."""
        self._sink(Put(thread, queue, item))

    def get(self, thread: int, queue: int, item: int) -> None:
        """See :class:`Get`."""
        self._sink(Get(thread, queue, item))

    def record(self, thread: int, stream: int, event: int) -> None:
        """See :class:`Record`."""
        self._sink(Record(thread, stream, event))

    def wait(self, thread: int, stream: int, event: int) -> None:
        """See :class:`Wait`."""
        self._sink(Wait(thread, stream, event))

    def query(self, thread: int, event: int, done: bool) -> None:
        """See :class:`Query`."""
        self._sink(Query(thread, event, done))

    def sync_event(self, thread: int, event: int) -> None:
        """See :class:`SyncEvent`."""
        self._sink(SyncEvent(thread, event))

    def sync_stream(self, thread: int, stream: int) -> None:
        """See :class:`SyncStream`."""
        self._sink(SyncStream(thread, stream))

    def sync_device(self, thread: int, device: int) -> None:
        """See :class:`SyncDevice`."""
        self._sink(SyncDevice(thread, device))

    def kernel(
        self, thread: int, stream: int, reads: Sequence[Row], writes: Sequence[Row], name: str, by: str = ""
    ) -> tuple[int, int]:
        """See :class:`Kernel`."""
        self._sink(Kernel(thread, stream, self._ranges(reads), self._ranges(writes), name, by))
        return 0, 0

    def copy(
        self,
        thread: int,
        stream: int,
        src: Row,
        dst: Row,
        order: SourceOrder = "stream",
        name: str = "",
        by: str = "",
    ) -> None:
        """See :class:`Copy`."""
        sources, targets = self._ranges([src]), self._ranges([dst])
        size = min(self._pools[src[0]][1], self._pools[dst[0]][1])
        sources, targets = _cut(sources, size), _cut(targets, size)
        self._sink(Copy(thread, stream, sources, targets, order, name, by))

    def host(self, thread: int, reads: Sequence[Row], writes: Sequence[Row], name: str = "") -> None:
        """See :class:`Host`."""
        self._sink(Host(thread, self._ranges(reads), self._ranges(writes), name))

    def _ranges(self, rows: Sequence[Row]) -> list[Range]:
        found: list[Range] = []
        for pool, slots in rows:
            size = self._pools[pool][1]
            found += [(pool, slot * size, size) for slot in slots.tolist()]
        return found


def _cut(ranges: list[Range], size: int) -> list[Range]:
    """``ranges`` in pieces of ``size`` bytes: a slot of one pool may be several of another."""
    if not ranges or ranges[0][2] == size:
        return ranges
    return [
        (pool, at, size)
        for pool, start, nbytes in ranges
        for at in range(start, start + nbytes - size + 1, size)
    ]
