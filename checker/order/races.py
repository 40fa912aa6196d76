"""The race checker: takes order events one by one and reports each pair of accesses that has no order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final, TypeAlias, get_args

import msgspec

from kvfence.checker.order.clocks import Clock, Clocks, OrderTraceError
from kvfence.checker.order.missing import broken_by, invariant_broken, missing_edge
from kvfence.checker.order.ranges import Piece, Shadow, Site, What, owner_of
from kvfence.spec import order as od

MOST_PIECES: Final = 1 << 18
"""Pieces of memory that are remembered, at most."""
KEPT_RACES: Final = 1000
_MOST_OWNED: Final = 1 << 16
INVARIANTS: Final = ("FREEZE", "LOAD-ORDER", "STORE-READY", "USE-READY", "")
"""What two accesses without order can break; "" if no copy is among them."""

_SITE_FIELDS: Final = ("what", "write", "thread", "stream", "name", "by", "order")
"""What a report says of an access just as it is remembered."""
_WHATS: Final[tuple[What, ...]] = get_args(What)
_Pairs: TypeAlias = dict[What, int]
"""By what an earlier access was: pairs with it that were compared."""
_Table: TypeAlias = dict[What, dict[od.RegionKind, tuple[_Pairs, _Pairs]]]
"""By what the later access is, and where: pairs with earlier writes, and with earlier reads."""


def _table() -> _Table:
    zeros = dict.fromkeys(_WHATS, 0)
    kinds: tuple[od.RegionKind, ...] = get_args(od.RegionKind)
    return {what: {kind: (dict(zeros), dict(zeros)) for kind in kinds} for what in _WHATS}


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two accesses of a race.

    ``number`` counts events from 0: in a trace file the event is on line ``number + 2``.
    """

    number: int
    what: What
    write: bool
    thread: int
    stream: int
    """-1: on the host."""
    name: str
    by: str
    stack: tuple[str, ...]
    """Frames of the call stack, innermost first."""
    order: od.SourceOrder


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """Two accesses to the same bytes, at least one of them a write, that nothing orders."""

    invariant: str
    """Id of the invariant that this breaks; "" for memory that no copy touches."""
    region: str
    """Name of the region, as the second access calls it."""
    region_id: int
    offset: int
    bytes: int
    slots: tuple[int, ...]
    """First and last slot, if the region has slots."""
    owner: str
    """Whom the bytes belong to, if the trace says so."""
    first: Access
    second: Access
    missing: str
    """Which order is missing and what would make it."""

    def __str__(self) -> str:
        one, other = ("write" if access.write else "read" for access in (self.first, self.second))
        name = f"{self.invariant}: " if self.invariant else ""
        return f"{name}{one} and {other} of {self.bytes} bytes of {self.region} race: {self.missing}"


class OrderChecker:
    """Judges order events as they come; call it with each event, or :meth:`apply_all` with many.

    Memory is bounded: at most ``most_pieces`` pieces of memory are remembered. Races alike (same operations,
    streams, stacks and region) are counted together and the first of each is kept, up to ``keep`` of them.
    ``on_race`` is called with each race that is kept. Raises OrderTraceError for events that make no sense.
    """

    def __init__(
        self,
        header: od.Header,
        *,
        keep: int = KEPT_RACES,
        most_pieces: int = MOST_PIECES,
        on_race: Callable[[Race], None] | None = None,
    ) -> None:
        self.keep = keep
        self.on_race = on_race
        self.events = 0
        self.accesses = 0
        """Ranges judged."""
        self.races: list[Race] = []
        self.found = 0
        """All races, also those alike."""
        self.violation_counts: Counter[str] = Counter()
        """The same by the invariant that they break."""
        self.clocks = Clocks()
        self.shadow = Shadow(most_pieces)
        self._alike: dict[tuple[object, ...], list[int]] = {}
        self._regions: dict[int, od.Region] = {}
        self._spans: dict[int, tuple[int, int, od.RegionKind]] = {}
        """First address, bytes and kind of each region."""
        self._read_pairs, self._write_pairs = _table(), _table()
        """Pairs that were compared, whose later access reads, or writes."""
        self._owned: dict[tuple[int, int], str] = {}
        self._stacks: dict[int, od.Stack] = {}
        for thread in header.threads:
            self.clocks.add_thread(thread)
        self._declare(header, 0)

    def __call__(self, event: od.OrderEvent) -> None:
        """Judge ``event``."""
        self.events = number = self.events + 1
        _HANDLERS[type(event)](self, event, number)

    def apply_all(self, events: Iterable[od.OrderEvent]) -> None:
        """Judge ``events`` in order."""
        handlers = _HANDLERS
        number = self.events
        try:
            for event in events:
                number += 1
                handlers[type(event)](self, event, number)
        finally:
            self.events = number

    @property
    def complete(self) -> bool:
        """Whether no race can have been missed for want of memory."""
        return not (self.shadow.forgotten or self.clocks.guessed)

    def checks(self) -> dict[str, int]:
        """For each of INVARIANTS, the pairs of accesses that were compared, and break it without order."""
        counts = dict.fromkeys(INVARIANTS, 0)
        for writes, table in ((False, self._read_pairs), (True, self._write_pairs)):
            for what, kind in product(_WHATS, get_args(od.RegionKind)):
                for wrote, pairs in zip((True, False), table[what][kind], strict=True):
                    for first, count in pairs.items():
                        counts[broken_by(first, wrote, what, writes, kind)] += count
        return counts

    def times(self) -> list[int]:
        """How often each of ``races`` was found."""
        return [cell[0] for cell in self._alike.values()][: len(self.races)]

    # What exists.

    def _declare(self, event: od.Declare | od.Header, _number: int) -> None:
        for stream in event.streams:
            self.clocks.add_stream(stream)
        for region in event.regions:
            if region.bytes < 1 or region.at < 0:
                raise OrderTraceError(f"region {region.id} has no bytes, or a negative address")
            if self._regions.setdefault(region.id, region) != region:
                raise OrderTraceError(f"region {region.id} was declared before, and differently")
            self._spans[region.id] = (region.at, region.bytes, region.kind)
        for stack in event.stacks:
            self._stacks[stack.id] = stack

    def _own(self, event: od.Own, _number: int) -> None:
        for region, offset, nbytes in event.ranges:
            start, end = self._span(region, offset, nbytes)
            self._owned.pop((start, end), None)
            if event.owner:
                self._owned[start, end] = event.owner
        while len(self._owned) > _MOST_OWNED:
            del self._owned[next(iter(self._owned))]

    def _release(self, event: od.Release, number: int) -> None:
        self._span(event.region, 0, 1)
        nbytes = self._spans[event.region][1]
        thread = self.clocks.thread(event.thread)
        thread.clock[thread.index] = number
        site = Site(thread.index, number, "release", True, event.thread, -1, "", event.by, event.stack)
        self._write(site, thread.clock, ((event.region, 0, nbytes),))
        del self._spans[event.region], self._regions[event.region]

    # Calls that only order.

    def _query(self, event: od.Query, number: int) -> None:
        if event.done:
            self.clocks.sync_event(self.clocks.thread(event.thread), event.event, number)

    # Accesses.

    def _host(self, event: od.Host, number: int) -> None:
        thread = self.clocks.thread(event.thread)
        clock = thread.clock
        clock[thread.index] = number
        for write, ranges in ((False, event.reads), (True, event.writes)):
            if ranges:
                site = Site(
                    thread.index, number, "host", write, event.thread, -1, event.name, event.by, event.stack
                )
                (self._write if write else self._read)(site, clock, ranges)

    def _kernel(self, event: od.Kernel, number: int) -> None:
        clocks = self.clocks
        lane = clocks.launch(clocks.thread(event.thread), event.stream, number)
        clocks.launched(lane, number)
        index, clock = lane.index, lane.clock
        if event.reads:
            site = Site(
                index, number, "kernel", False, event.thread, event.stream, event.name, event.by, event.stack
            )
            self._read(site, clock, event.reads)
        if event.writes:
            site = Site(
                index, number, "kernel", True, event.thread, event.stream, event.name, event.by, event.stack
            )
            self._write(site, clock, event.writes)

    def _copy(self, event: od.Copy, number: int) -> None:
        src, dst = event.src, event.dst
        if len(src) != len(dst):
            raise OrderTraceError(f"the copy has {len(src)} sources and {len(dst)} destinations")
        for one, other in zip(src, dst, strict=True):
            if one[2] != other[2]:
                raise OrderTraceError(f"the copy reads {one[2]} bytes into {other[2]}")
        clocks = self.clocks
        thread = clocks.thread(event.thread)
        lane = clocks.launch(thread, event.stream, number)
        # Reads and writes of different parts are unordered: they enter the clocks when all are judged.
        in_call = event.order == "call"
        thread.clock[thread.index] = lane.clock[thread.index] = number - 1
        source = (event.thread, event.stream, event.name, event.by, event.stack, event.order)
        read = Site(thread.index if in_call else lane.index, number, "copy", False, *source)
        self._read(read, lane.clock if event.order == "stream" else thread.clock, src)
        write = Site(lane.index, number, "copy", True, *source)
        self._write(write, lane.clock, dst)
        thread.clock[thread.index] = number
        clocks.launched(lane, number)

    def _span(self, region: int, offset: int, nbytes: int) -> tuple[int, int]:
        """First address and the one after the last. Raises OrderTraceError."""
        span = self._spans.get(region)
        if span is None:
            raise OrderTraceError(f"region {region} was not declared, or released before")
        if offset < 0 or nbytes < 1 or offset + nbytes > span[1]:
            raise OrderTraceError(
                f"{nbytes} bytes from {offset} on are not in region {region} of {span[1]} bytes"
            )
        return span[0] + offset, span[0] + offset + nbytes

    def _read(self, site: Site, clock: Clock, ranges: Sequence[od.Range]) -> None:
        shadow = self.shadow
        by_start, spans = shadow.by_start, self._spans
        lane, table = site.lane, self._read_pairs[site.what]
        self.accesses += len(ranges)
        for region, offset, nbytes in ranges:
            span = spans.get(region)
            if span is None or offset < 0 or nbytes < 1 or offset + nbytes > span[1]:
                self._span(region, offset, nbytes)
                raise AssertionError
            start = span[0] + offset
            piece = by_start.get(start)
            if piece is not None and piece.end == start + nbytes:
                pieces: Iterable[Piece] = (piece,)
            else:
                pieces = shadow.cut(start, start + nbytes)
            after_write = table[span[2]][0]
            for piece in pieces:
                write = piece.write
                if write is not None:
                    after_write[write.what] += 1
                    if clock[write.lane] < write.number:
                        self._race(write, site, piece, region, clock)
                if piece.reads is None:
                    read = piece.read
                    if read is None or clock[read.lane] >= read.number or read.lane == lane:
                        piece.read = site
                    else:
                        piece.read = None
                        piece.reads = {read.lane: read, lane: site}
                else:
                    piece.reads[lane] = site
        if len(by_start) > shadow.threshold:
            shadow.prune(self.clocks.everywhere())

    def _write(self, site: Site, clock: Clock, ranges: Sequence[od.Range]) -> None:
        shadow = self.shadow
        by_start, spans, table = shadow.by_start, self._spans, self._write_pairs[site.what]
        self.accesses += len(ranges)
        for region, offset, nbytes in ranges:
            span = spans.get(region)
            if span is None or offset < 0 or nbytes < 1 or offset + nbytes > span[1]:
                self._span(region, offset, nbytes)
                raise AssertionError
            start = span[0] + offset
            piece = by_start.get(start)
            if piece is not None and piece.end == start + nbytes:
                pieces: Iterable[Piece] = (piece,)
            else:
                pieces = shadow.cut(start, start + nbytes)
            after_write, after_read = table[span[2]]
            for piece in pieces:
                write, read = piece.write, piece.read
                if write is not None:
                    after_write[write.what] += 1
                    if clock[write.lane] < write.number:
                        self._race(write, site, piece, region, clock)
                if read is not None:
                    after_read[read.what] += 1
                    if clock[read.lane] < read.number:
                        self._race(read, site, piece, region, clock)
                    piece.read = None
                elif piece.reads is not None:
                    for one in piece.reads.values():
                        after_read[one.what] += 1
                        if clock[one.lane] < one.number:
                            self._race(one, site, piece, region, clock)
                    piece.reads = None
                piece.write = site
        if len(by_start) > shadow.threshold:
            shadow.prune(self.clocks.everywhere())

    # Reporting.

    def _race(self, first: Site, second: Site, piece: Piece, region_id: int, clock: Clock) -> None:
        self.found += 1
        region = self._regions[region_id]
        invariant = invariant_broken(first, second, region.kind)
        self.violation_counts[invariant] += 1
        key = (*_likeness(first), *_likeness(second), region_id)
        cell = self._alike.get(key)
        if cell is not None:
            cell[0] += 1
            return
        if len(self.races) >= self.keep:
            return
        self._alike[key] = [1]
        start, end = max(piece.start, region.at), min(piece.end, region.at + region.bytes)
        offset = start - region.at
        race = Race(
            invariant=invariant,
            region=region.name or f"region {region.id}",
            region_id=region_id,
            offset=offset,
            bytes=end - start,
            slots=(offset // region.slot, (offset + end - start - 1) // region.slot) if region.slot else (),
            owner=owner_of(self._owned, start, end),
            first=self._access(first),
            second=self._access(second),
            missing=missing_edge(first, second, clock, self.clocks),
        )
        self.races.append(race)
        if self.on_race is not None:
            self.on_race(race)

    def _access(self, site: Site) -> Access:
        stack = self._stacks.get(site.stack)
        return access_of(site, tuple(stack.frames) if stack else ())


_HANDLERS: Final[dict[type[od.OrderEvent], Callable[[OrderChecker, Any, int], None]]] = {
    od.Declare: OrderChecker._declare,
    od.Release: OrderChecker._release,
    od.Own: OrderChecker._own,
    od.Spawn: lambda c, e, n: c.clocks.spawn(c.clocks.thread(e.thread), e.child, n),
    od.Join: lambda c, e, n: c.clocks.join(c.clocks.thread(e.thread), e.child, n),
    od.Put: lambda c, e, n: c.clocks.put(c.clocks.thread(e.thread), e.queue, e.item, n),
    od.Get: lambda c, e, n: c.clocks.get(c.clocks.thread(e.thread), e.queue, e.item, n),
    od.Host: OrderChecker._host,
    od.Kernel: OrderChecker._kernel,
    od.Copy: OrderChecker._copy,
    od.Record: lambda c, e, n: c.clocks.record(c.clocks.thread(e.thread), e.stream, e.event, n),
    od.Wait: lambda c, e, n: c.clocks.wait(c.clocks.thread(e.thread), e.stream, e.event, n),
    od.SyncEvent: lambda c, e, n: c.clocks.sync_event(c.clocks.thread(e.thread), e.event, n),
    od.Query: OrderChecker._query,
    od.SyncStream: lambda c, e, n: c.clocks.sync_stream(c.clocks.thread(e.thread), e.stream, n),
    od.SyncDevice: lambda c, e, n: c.clocks.sync_device(c.clocks.thread(e.thread), e.device, n),
}
"""What judges each kind of event."""


def access_of(site: Site, stack: tuple[str, ...] = ()) -> Access:
    """What a report says of the access ``site``."""
    same = {name: getattr(site, name) for name in _SITE_FIELDS}
    return Access(number=site.number - 1, stack=stack, **same)


def _likeness(site: Site) -> Iterator[object]:
    """What two accesses have in common that come from the same place."""
    return iter((site.what, site.write, site.thread, site.stream, site.name, site.stack, site.order))
