"""The table of states on the device: its size, its kind of entries, and its growth."""

from __future__ import annotations

from kvfence.checker.engines.gpu.device.search_device import Device, OutOfMemory, Params, Table
from kvfence.checker.engines.gpu.device.source import GpuSource
from kvfence.checker.engines.gpu.levels import Levels, Memory

SECTOR = 32  # bytes of a bucket of short keys
MOST_REACH, LEAST_REACH = 64, 4  # buckets in which a narrow entry may lie
GROW_AT = 0.6  # a table fuller than this is doubled,
FULLEST = {"whole": 0.88, "narrow": 0.92, "long": 0.8}  # or, where memory forbids that, filled up to here
GROW_LATE = 0.85  # where the next table has to be the largest one, and levels have to leave for it
BOTH = 0.98  # of the memory may be taken by the old and the new table
LEVEL_SHARE = 0.14  # of the memory is left to levels when the last table is chosen


class StateTable:
    """The table, and the memory it takes. ``narrow`` permits entries of 32 bits."""

    def __init__(self, device: Device, memory: Memory, source: GpuSource, narrow: bool) -> None:
        self.device, self.memory, self.source, self.narrow = device, memory, source, narrow
        self.now = Table()

    def open(self, states: int) -> None:
        """Begin with a table for so many states. OutOfMemory."""
        log2 = 6
        while self.capacity(log2) * GROW_AT < states:
            log2 += 1
        self.now = self._new(log2)

    def capacity(self, log2: int) -> int:
        """Entries of a table of so many buckets."""
        if self.source.keys.words > 1:
            return (2 if self.source.keys.words == 2 else 1) << log2
        return (8 if self.reach(log2) else 4) << log2

    def nbytes(self, log2: int) -> int:
        """Memory that a table of so many buckets takes."""
        words = self.source.keys.words
        return (SECTOR if words <= 2 else -(-words // 4) * SECTOR) << log2

    def reach(self, log2: int) -> int:
        """How many buckets a narrow entry may lie from home; 0 where keys are kept whole."""
        low = self.source.keys.bits - log2
        if not self.narrow or self.source.keys.words > 1 or not 0 < low < 32:
            return 0
        reach = min(MOST_REACH, ((1 << 32) - 1) >> low)
        return reach if reach >= LEAST_REACH and reach < 1 << log2 else 0

    @property
    def kind(self) -> str:
        """How keys are kept."""
        if self.source.keys.words > 1:
            return "long"
        return "narrow" if self.now.reach else "whole"

    def grow_at(self) -> int:
        """States at which the table should grow."""
        leap = self._next(self.now.log2 + 1) > self.now.log2 + 1
        return int(self.capacity(self.now.log2) * (GROW_LATE if leap and self.kind != "long" else GROW_AT))

    def full_at(self) -> int:
        """States at which nothing more fits."""
        return int(self.capacity(self.now.log2) * FULLEST[self.kind])

    def most(self) -> int:
        """States that the largest table would hold for which there is memory."""
        return int(self.capacity(self._largest(self.now.log2)) * FULLEST[self.kind])

    def _largest(self, log2: int) -> int:
        """The largest table that leaves enough memory to levels; not smaller than the given one."""
        while self.nbytes(log2 + 1) <= (1 - LEVEL_SHARE) * self.memory.budget:
            log2 += 1
        return log2

    def _next(self, log2: int) -> int:
        """The table to take for one of this size: the largest, if that could not be reached from it later."""
        largest = self._largest(log2)
        # the old and the new one have to fit at the same time
        return log2 if self.nbytes(log2) + self.nbytes(largest) <= BOTH * self.memory.budget else largest

    def grow(self, states: int, levels: Levels, counters: int) -> bool:
        """A larger table, for so many states if possible; false when there is no memory."""
        log2 = self.now.log2 + 1
        while self.capacity(log2) * GROW_AT < states:
            log2 += 1
        log2 = self._next(log2)
        fresh = None
        while fresh is None and log2 > self.now.log2:
            fresh = self._new_beside_levels(log2, levels)
            log2 -= 1
        if fresh is None:
            return False
        self.device.clear(counters + 8 * 2, 8)  # C_SPILL
        params = Params(table=fresh, old=self.now, counters=counters)
        self.device.launch("move_table", params, self.capacity(self.now.log2))
        self._drop()
        self.now = fresh
        return True

    def _new_beside_levels(self, log2: int, levels: Levels) -> Table | None:
        """A new table, for which states may have to leave the device; None where even that makes no room."""
        needed = self.nbytes(log2) + (SECTOR << self._spill_log2(log2))
        if needed + self.nbytes(self.now.log2) > self.memory.budget:
            return None
        try:
            return self._new(log2)
        except OutOfMemory:
            pass
        levels.make_space(needed)
        try:
            return self._new(log2)
        except OutOfMemory:
            return None

    def clear(self) -> None:
        """Forget every state."""
        self.device.clear(self.now.entries, self.nbytes(self.now.log2))
        if self.now.spill:
            self.device.clear(self.now.spill, SECTOR << self.now.spill_log2)

    def _new(self, log2: int) -> Table:
        reach = self.reach(log2)
        entries = self.memory.take(self.nbytes(log2))
        self.device.clear(entries, self.nbytes(log2))
        spill, spill_log2 = 0, self._spill_log2(log2)
        if reach:
            try:
                spill = self.memory.take(SECTOR << spill_log2)
            except OutOfMemory:
                self.memory.give(entries)
                raise
            self.device.clear(spill, SECTOR << spill_log2)
        return Table(entries=entries, log2=log2, reach=reach, spill=spill, spill_log2=spill_log2)

    @staticmethod
    def _spill_log2(log2: int) -> int:
        """Buckets for the few keys that find no room within reach."""
        return max(6, log2 - 7)

    def _drop(self) -> None:
        self.memory.give(self.now.entries)
        if self.now.spill:
            self.memory.give(self.now.spill)
