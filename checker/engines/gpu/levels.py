"""Levels of a search: segments of device memory. Old ones move to the host, or are let go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvfence.checker.engines.gpu.device import Device, OutOfMemory, Words


@dataclass
class Segment:
    """Room for so many states. ``address`` is 0 once it left the device; ``kept`` is its copy on the host."""

    address: int
    room: int
    used: int = 0
    kept: Words | None = None


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
    """The levels found so far; the last one is being filled. ``host_bytes`` may be kept on the host."""

    def __init__(self, memory: Memory, words: int, host_bytes: int) -> None:
        self.memory, self.words, self.host_bytes = memory, words, host_bytes
        self.segments: list[Segment] = []
        self.levels: list[list[Piece]] = []
        self.on_host = 0
        self.expanded = 0  # pieces of the last level but one that are not needed any more
        self.save_first: Callable[[], None] | None = None  # called before states are let go

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
        """A segment with room for ``least`` more states, ``wanted`` if there is memory. OutOfMemory."""
        if self.segments:
            last = self.segments[-1]
            if last.address and last.room - last.used >= least:
                return last
        for size in (max(least, wanted), least):
            try:
                return self._new(size)
            except OutOfMemory:
                if self.make_space(8 * self.words * size):
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
        segment.used += count

    def make_space(self, nbytes: int) -> bool:
        """Move the oldest segments off the device until ``nbytes`` are free; whether they are.

        What is still to be expanded and the level being filled stay.
        """
        ahead = list(self.levels[-1])
        if len(self.levels) > 1:
            ahead += self.levels[-2][self.expanded :]
        needed = {id(p.segment) for p in ahead}
        for s in self.segments:
            if self.memory.left() >= nbytes:
                break
            if not s.address or id(s) in needed or s is self.segments[-1]:
                continue
            size = 8 * self.words * s.used
            if self.on_host + size <= self.host_bytes:
                s.kept = self.memory.device.read(s.address, self.words * s.used)
                self.on_host += size
            elif self.save_first is not None:
                self.save_first()
            self.memory.give(s.address)
            s.address = 0
        return self.memory.left() >= nbytes

    def has(self, depth: int) -> bool:
        """Whether the states of a level are still known."""
        return all(p.segment.address or p.segment.kept is not None for p in self.levels[depth])

    def states(self, piece: Piece) -> Words:
        """The keys of a piece, one after another, on the host."""
        first, size = self.words * piece.start, self.words * piece.count
        if piece.segment.kept is not None:
            return piece.segment.kept[first : first + size]
        return self.memory.device.read(piece.segment.address + 8 * first, size)

    def clear(self) -> None:
        """Forget everything."""
        for s in self.segments:
            if s.address:
                self.memory.give(s.address)
        self.segments, self.levels, self.on_host = [], [], 0


def available_memory() -> int:
    """Bytes of the host's memory that are free."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
            free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 31
    return free << 10
