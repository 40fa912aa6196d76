"""Levels of a search: segments of device memory. Where it is short they move to the host, or are let go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from kvfence.checker.engines.gpu import checksums as sums
from kvfence.checker.engines.gpu.device.search_device import Device, OutOfMemory, Words
from kvfence.checker.engines.gpu.host_levels import LevelStore

SHARE = 32  # a segment takes one part in so many of the memory, at most
FEWEST = 8  # times the states that one launch may add: a segment for which others leave the device


@dataclass
class Segment:
    """Room for so many states. ``address`` is 0 once it left the device; ``kept`` is its copy's number.

    ``starts`` are the first states of its pieces, each of one level, and ``sums`` those of their copies.
    """

    address: int
    room: int
    used: int = 0
    kept: int | None = None
    starts: list[int] = field(default_factory=list)
    sums: list[sums.Sums] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """States of one level that lie together."""

    segment: Segment
    start: int
    count: int


@dataclass
class Memory:
    """Memory of the device, of which at most ``budget`` bytes are taken."""

    device: Device
    budget: int
    used: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    def take(self, nbytes: int) -> int:
        """The address of new memory. OutOfMemory."""
        if self.used + nbytes > self.budget:
            raise OutOfMemory
        address = self.device.allocate(nbytes)
        self.sizes[address] = nbytes
        self.used += nbytes
        return address

    def give(self, address: int) -> None:
        """Give memory back."""
        self.used -= self.sizes.pop(address)
        self.device.free(address)

    def left(self) -> int:
        """Bytes that may still be taken."""
        return min(self.budget - self.used, self.device.free_bytes())


class Levels:
    """The levels found so far, of states of so many words; the last one is being filled.

    ``make_store`` is called when the first states leave the device: few searches need a store.
    """

    def __init__(self, memory: Memory, words: int, make_store: Callable[[], LevelStore]) -> None:
        self.memory, self.words, self._make_store = memory, words, make_store
        self.segments: list[Segment] = []
        self.levels: list[list[Piece]] = []
        self.expanded = 0  # pieces of the last level but one that are not needed any more
        self.scratch = 0  # memory of the device in which sums are computed,
        self.block = sums.RUN  # each of so many words
        self.save_first: Callable[[], None] | None = None  # called before states are let go

    @cached_property
    def store(self) -> LevelStore:
        """Where states go that leave the device."""
        return self._make_store()

    def close(self) -> None:
        """Give back what the store holds, if there is one."""
        if "store" in vars(self):
            self.store.close()

    @property
    def depth(self) -> int:
        """Of the level being filled."""
        return len(self.levels) - 1

    def count(self, depth: int) -> int:
        """States of a level."""
        return sum(p.count for p in self.levels[depth])

    def begin(self) -> None:
        """Begin the next level."""
        self.levels.append([])
        self.expanded = 0

    def room(self, least: int, wanted: int) -> Segment:
        """A segment with room for ``least`` more states, ``wanted`` if there is memory. OutOfMemory.

        States that will be needed again soon leave the device only for a segment that is not too small.
        """
        if self.segments:
            last = self.segments[-1]
            if last.address and last.room - last.used >= least:
                return last
        wanted = max(least, min(wanted, self.memory.budget // SHARE // (8 * self.words)))
        for size, even_new in ((wanted, False), (min(wanted, FEWEST * least), True), (least, True)):
            try:
                return self._new(size)
            except OutOfMemory:
                if self.make_space(8 * self.words * size, even_new=even_new):
                    return self._new(size)
        raise OutOfMemory

    def _new(self, size: int) -> Segment:
        made = Segment(self.memory.take(8 * self.words * size), size)
        self.segments.append(made)
        return made

    def add(self, segment: Segment, count: int) -> None:
        """The next ``count`` states of the segment belong to the level being filled."""
        if not count:
            return
        level = self.levels[-1]
        if level and level[-1].segment is segment:
            level[-1] = Piece(segment, level[-1].start, level[-1].count + count)
        else:
            level.append(Piece(segment, segment.used, count))
            segment.starts.append(segment.used)
        segment.used += count

    def make_space(self, nbytes: int, *, even_new: bool = True) -> bool:
        """Move segments off the device until ``nbytes`` are free; whether they are.

        The oldest go first. With ``even_new`` those of the level being filled follow, then what is to be
        expanded last; these have to find room on the host. What is being expanded and written to stays.
        """
        filling, waiting = self._ahead()
        needed = {id(s) for s in (*filling, *waiting)}
        for s in self.segments[:-1]:
            if self.memory.left() >= nbytes:
                return True
            if s.address and id(s) not in needed and not self._move(s):
                if self.save_first is not None:
                    self.save_first()
                self._leave(s)
        new = [*filling, *reversed(waiting[1:])]
        for s in new if even_new else ():
            if self.memory.left() >= nbytes:
                return True
            if not s.address or s is self.segments[-1] or s in waiting[:1]:
                continue
            while not self._move(s):
                if not self._forget_oldest(needed):
                    return False
        return self.memory.left() >= nbytes

    def _ahead(self) -> tuple[list[Segment], list[Segment]]:
        """Segments of the level being filled, and those to be expanded; the first of these is in work."""
        filling = [p.segment for p in self.levels[-1]]
        waiting = [p.segment for p in self.levels[-2][self.expanded :]] if len(self.levels) > 1 else []
        return filling, waiting

    def _move(self, s: Segment) -> bool:
        """Move a segment to the host, if there is room."""
        if s.used:
            s.sums = [self._sums(s, *ends) for ends in pairwise([*s.starts, s.used])]
            s.kept = self.store.keep(s.address, 8 * self.words * s.used)
            if s.kept is None:
                return False
        self._leave(s)
        return True

    def _sums(self, s: Segment, start: int, end: int) -> sums.Sums:
        words, address = self.words * (end - start), s.address + 8 * self.words * start
        found = sums.on_device(self.memory.device, self.scratch, address, words, self.block)
        return sums.Sums(words, self.block, found)

    def _leave(self, s: Segment) -> None:
        self.memory.give(s.address)
        s.address = 0

    def _forget_oldest(self, needed: set[int]) -> bool:
        """Let go of the oldest states on the host that are not needed ahead; whether there were any."""
        for s in self.segments:
            if s.kept is not None and id(s) not in needed:
                if self.save_first is not None:
                    self.save_first()
                self.store.drop(s.kept)
                s.kept = None
                return True
        return False

    def has(self, depth: int) -> bool:
        """Whether the states of a level are still known."""
        return all(p.segment.address or p.segment.kept is not None for p in self.levels[depth])

    def states(self, piece: Piece) -> Words:
        """The keys of a piece, one after another, on the host. DamagedStates."""
        kept, first, size = piece.segment.kept, self.words * piece.start, self.words * piece.count
        if kept is None or not size:
            return self.memory.device.read(piece.segment.address + 8 * first, size)
        known, base, begin, count = self._around(piece)
        found = self.store.look(kept, 8 * (base + begin), 8 * count)
        known.check(begin, sums.on_host(found, self.block))
        return found[first - base - begin :][:size]

    def copy_back(self, piece: Piece, address: int) -> int:
        """Copy a piece that left the device back to it, with what shares sums with it. DamagedStates.

        There must be room for two blocks more than the piece. Where the piece begins.
        """
        assert piece.segment.kept is not None, "these states were let go"
        known, base, begin, count = self._around(piece)
        self.store.copy_back(piece.segment.kept, 8 * (base + begin), 8 * count, address)
        found = sums.on_device(self.memory.device, self.scratch, address, count, self.block)
        known.check(begin, found)
        return address + 8 * (self.words * piece.start - base - begin)

    def _around(self, piece: Piece) -> tuple[sums.Sums, int, int, int]:
        """Sums of the level's piece that holds this one, where that begins in the segment, and the blocks."""
        k = bisect_right(piece.segment.starts, piece.start) - 1
        known, base = piece.segment.sums[k], self.words * piece.segment.starts[k]
        return known, base, *known.around(self.words * piece.start - base, self.words * piece.count)

    def clear(self) -> None:
        """Forget everything."""
        for s in self.segments:
            if s.address:
                self._leave(s)
            if s.kept is not None:
                self.store.drop(s.kept)
        self.segments, self.levels = [], []


def available_memory() -> int:
    """Bytes of the host's memory that are free."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
            free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 31
    return free << 10
