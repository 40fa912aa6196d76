"""The race checker for running engines: memory as pools of slots, and many slots judged at once.

It judges like :class:`kvfence.checker.order.races.OrderChecker` does if every access is of whole slots. What
is remembered of a slot is a few numbers in arrays: memory is flat, and a row of thousands of slots costs
some microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kvfence.checker.order.clocks import Clock, Clocks
from kvfence.checker.order.missing import invariant_broken, missing_edge
from kvfence.checker.order.races import Race, access_of
from kvfence.checker.order.ranges import Site, What
from kvfence.spec import order as od

Slots: TypeAlias = npt.NDArray[np.int64]
Row: TypeAlias = tuple[int, Slots]
"""The number of a pool, and slots of it."""

KEPT: Final = 64
"""Races that are kept, each of another kind."""
SITES: Final = 1 << 14
"""Operations whose names are remembered."""
_UNKNOWN: Final = "an operation long ago"


class Pool:
    """A memory of equal slots: for each, its last write and the last read of each lane since then."""

    def __init__(self, name: str, count: int, kind: od.RegionKind, slot_bytes: int) -> None:
        self.name, self.count, self.kind, self.slot_bytes = name, count, kind, slot_bytes
        self.write_lane: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self.written: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        """Number of the last write of each slot; 0: none."""
        self.read: dict[int, npt.NDArray[np.int64]] = {}
        """By lane: number of the last read of each slot since it was written; 0: none."""

    def reads_of(self, lane: int) -> npt.NDArray[np.int64]:
        """The last reads of ``lane``."""
        found = self.read.get(lane)
        if found is None:
            found = self.read[lane] = np.zeros(self.count, np.int64)
        return found


class SlotChecker:
    """Judges accesses in the order of the calls; threads are numbered as in an order trace.

    ``on_race`` gets the first race of each kind: same operations, streams, threads and pool. ``found`` counts
    all. Not for several threads at once. Raises OrderTraceError for what makes no sense.
    """

    def __init__(
        self, threads: Sequence[int] = (0,), *, on_race: Callable[[Race], None] | None = None
    ) -> None:
        self.clocks = Clocks()
        for thread in threads:
            self.clocks.add_thread(thread)
        self.on_race = on_race
        self.events = 0
        self.accesses = 0
        """Slots judged, each time they were."""
        self.found = 0
        self.races: list[Race] = []
        self.pools: list[Pool] = []
        self._alike: dict[tuple[object, ...], int] = {}
        self._sites: dict[int, Site] = {}
        """By number of the event: the accesses of the last operations, as far as their names are needed."""

    # What exists.

    def add_pool(self, name: str, count: int, kind: od.RegionKind, slot_bytes: int = 1) -> int:
        """A pool of ``count`` slots; returns its number."""
        self.pools.append(Pool(name, count, kind, slot_bytes))
        return len(self.pools) - 1

    def add_stream(self, stream: od.Stream) -> None:
        """A stream that may be used from here on."""
        self.clocks.add_stream(stream)

    def forget_event(self, event: int) -> None:
        """A device event exists no more; its number may stand for another one."""
        self.clocks.forget_event(event)

    # What orders.

    def _next(self) -> int:
        self.events += 1
        return self.events

    def spawn(self, thread: int, child: int) -> None:
        """``thread`` started ``child``."""
        self.clocks.spawn(self.clocks.thread(thread), child, self._next())

    def put(self, thread: int, queue: int, item: int) -> None:
        """``thread`` put ``item`` into ``queue``."""
        self.clocks.put(self.clocks.thread(thread), queue, item, self._next())

    def get(self, thread: int, queue: int, item: int) -> None:
        """``thread`` took ``item`` out of ``queue``."""
        self.clocks.get(self.clocks.thread(thread), queue, item, self._next())

    def record(self, thread: int, stream: int, event: int) -> None:
        """``thread`` recorded ``event`` on ``stream``."""
        self.clocks.record(self.clocks.thread(thread), stream, event, self._next())

    def wait(self, thread: int, stream: int, event: int) -> None:
        """``thread`` made ``stream`` wait for ``event``."""
        self.clocks.wait(self.clocks.thread(thread), stream, event, self._next())

    def query(self, thread: int, event: int, done: bool) -> None:
        """``thread`` asked whether ``event`` is over."""
        number = self._next()
        if done:
            self.clocks.sync_event(self.clocks.thread(thread), event, number)

    def sync_event(self, thread: int, event: int) -> None:
        """``thread`` waited for ``event``."""
        self.clocks.sync_event(self.clocks.thread(thread), event, self._next())

    def sync_stream(self, thread: int, stream: int) -> None:
        """``thread`` waited for what is on ``stream``."""
        self.clocks.sync_stream(self.clocks.thread(thread), stream, self._next())

    def sync_device(self, thread: int, device: int) -> None:
        """``thread`` waited for what is on any stream of ``device``."""
        self.clocks.sync_device(self.clocks.thread(thread), device, self._next())

    # Accesses.

    def kernel(
        self, thread: int, stream: int, reads: Sequence[Row], writes: Sequence[Row], name: str, by: str = ""
    ) -> tuple[int, int]:
        """``thread`` launched a kernel on ``stream``; its lane and number, for :meth:`read_earlier`."""
        number = self._next()
        launcher = self.clocks.thread(thread)
        lane = self.clocks.launch(launcher, stream, number)
        self.clocks.launched(lane, number)
        site = Site(lane.index, number, "kernel", False, thread, stream, name, by, -1)
        self._access(site, lane.clock, reads, writes)
        return lane.index, number

    def read_earlier(self, pool: int, slots: Slots, reader: tuple[int, int]) -> None:
        """The kernel that ``reader`` stands for read ``slots`` too, which is reported when it may matter.

        Nothing is judged: of the same request's rows every slot is reported as read when it is read
        for the first time.
        """
        lane, number = reader
        read = self.pools[pool].reads_of(lane)
        read[slots] = np.maximum(read[slots], number)

    def copy(
        self,
        thread: int,
        stream: int,
        src: Row,
        dst: Row,
        order: od.SourceOrder = "stream",
        name: str = "",
        by: str = "",
    ) -> None:
        """``thread`` launched a copy of the slots ``src`` to the slots ``dst`` on ``stream``."""
        number = self._next()
        clocks = self.clocks
        launcher = clocks.thread(thread)
        lane = clocks.launch(launcher, stream, number)
        # Reads and writes of different parts are unordered: they enter the clocks when all are judged.
        launcher.clock[launcher.index] = lane.clock[launcher.index] = number - 1
        reader = launcher.index if order == "call" else lane.index
        site = Site(reader, number, "copy", False, thread, stream, name, by, -1, order)
        self._read(site, lane.clock if order == "stream" else launcher.clock, *src)
        write = Site(lane.index, number, "copy", True, thread, stream, name, by, -1, order)
        self._remember(site)
        self._write(write, lane.clock, *dst)
        launcher.clock[launcher.index] = number
        clocks.launched(lane, number)

    def host(self, thread: int, reads: Sequence[Row], writes: Sequence[Row], name: str = "") -> None:
        """``thread`` itself read and wrote memory."""
        number = self._next()
        by = self.clocks.thread(thread)
        by.clock[by.index] = number
        site = Site(by.index, number, "host", False, thread, -1, name, "", -1)
        self._access(site, by.clock, reads, writes)

    def _access(self, site: Site, clock: Clock, reads: Sequence[Row], writes: Sequence[Row]) -> None:
        """Judge all that the operation ``site`` read and then wrote."""
        for pool, slots in reads:
            self._read(site, clock, pool, slots)
        for pool, slots in writes:
            self._write(replace(site, write=True), clock, pool, slots)
        self._remember(site)

    def _read(self, site: Site, clock: Clock, pool_number: int, slots: Slots) -> None:
        if not len(slots):
            return
        pool = self.pools[pool_number]
        self.accesses += len(slots)
        known = np.array(clock, np.int64)
        self._writes_unknown(pool, slots, known, site, clock)
        pool.reads_of(site.lane)[slots] = site.number

    def _write(self, site: Site, clock: Clock, pool_number: int, slots: Slots) -> None:
        if not len(slots):
            return
        pool = self.pools[pool_number]
        self.accesses += len(slots)
        known = np.array(clock, np.int64)
        self._writes_unknown(pool, slots, known, site, clock)
        for lane, read in pool.read.items():
            last = read[slots]
            unknown = last > known[lane]
            if unknown.any():
                self._race(pool, slots[unknown], last[unknown], lane, False, site, clock)
            read[slots] = 0
        pool.write_lane[slots] = site.lane
        pool.written[slots] = site.number
        if site.what == "copy" and len(slots) > 1 and len(np.unique(slots)) < len(slots):
            twice = np.sort(slots)
            twice = twice[1:][twice[1:] == twice[:-1]]
            number = np.full(len(twice), site.number)
            self._race(pool, twice, number, site.lane, True, site, clock)

    def _writes_unknown(self, pool: Pool, slots: Slots, known: Slots, site: Site, clock: Clock) -> None:
        lanes, last = pool.write_lane[slots], pool.written[slots]
        unknown = last > known[lanes]
        if unknown.any():
            for lane in np.unique(lanes[unknown]).tolist():
                here = unknown & (lanes == lane)
                self._race(pool, slots[here], last[here], lane, True, site, clock)

    def _remember(self, site: Site) -> None:
        self._sites[site.number] = site
        if len(self._sites) > SITES:
            del self._sites[next(iter(self._sites))]

    # Reporting.

    def _race(
        self, pool: Pool, slots: Slots, numbers: Slots, lane: int, write: bool, second: Site, clock: Clock
    ) -> None:
        """``slots`` were accessed by ``lane`` in the events ``numbers``, and ``second`` does not know."""
        self.found += len(slots)
        number = int(numbers[0])
        first = self._site(number, lane, write)
        key = (*_likeness(first), *_likeness(second), pool.name)
        if key in self._alike:
            self._alike[key] += len(slots)
            return
        if len(self.races) >= KEPT:
            return
        self._alike[key] = len(slots)
        start = int(slots[0])
        end = start
        for slot in slots[1:].tolist():
            if slot != end + 1:
                break
            end = slot
        race = Race(
            invariant=invariant_broken(first, second, pool.kind),
            region=pool.name,
            region_id=self.pools.index(pool),
            offset=start * pool.slot_bytes,
            bytes=(end - start + 1) * pool.slot_bytes,
            slots=(start, end),
            owner="",
            first=access_of(first),
            second=access_of(second),
            missing=missing_edge(first, second, clock, self.clocks),
        )
        self.races.append(race)
        if self.on_race is not None:
            self.on_race(race)

    def _site(self, number: int, lane: int, write: bool) -> Site:
        """The access that event ``number`` was."""
        known = self._sites.get(number)
        if known is not None:
            return replace(known, lane=lane, write=True) if write else known
        stream = self.clocks.lanes[lane]
        what: What = "host" if stream is None else "kernel"
        of = -1 if stream is None else stream.stream.id
        return Site(lane, number, what, write, self.clocks.owners[lane].id, of, _UNKNOWN, "", -1)

    def times(self) -> list[int]:
        """How many slots each of ``races`` was found in."""
        return list(self._alike.values())[: len(self.races)]


def _likeness(site: Site) -> tuple[Any, ...]:
    """What two accesses have in common that come from the same place."""
    return (site.what, site.write, site.thread, site.stream, site.name, site.order)
