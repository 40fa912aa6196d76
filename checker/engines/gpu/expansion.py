"""Expanding levels on the device: launches, the room they need, and what goes to other ranks meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvfence.checker.engines.base import Progress, Reporter, Stop
from kvfence.checker.engines.gpu import checksums as sums
from kvfence.checker.engines.gpu.device.ranks import Ranks, Transfer
from kvfence.checker.engines.gpu.device.search_device import Device, OutOfMemory, Params, Words
from kvfence.checker.engines.gpu.device.source import MOST_RANKS, SENT_LOG2, GpuSource
from kvfence.checker.engines.gpu.host_levels import MakeStore, PlainStore
from kvfence.checker.engines.gpu.levels import Levels, Memory, Piece, Segment
from kvfence.checker.engines.gpu.state_table import StateTable
from kvfence.checker.engines.native.library import Sight

USABLE = 0.96  # of the memory that is free
BATCH = 1 << 26  # states expanded between two looks at the clock and at Ctrl-C
SMALLEST_SEGMENT, LARGEST_SEGMENT = 1 << 14, 1 << 27  # states
BOX_ROOM = 1 << 25  # keys on their way to another rank, besides those that may come in any case
UPLOAD = 1 << 22  # states copied back to the device at a time, at most,
UPLOAD_SHARE = 512  # or as many as fill this part of the memory
C_WORK, C_OUT, C_SPILL, C_LOST, C_DEAD, C_BOXES = 0, 1, 2, 3, 4, 8
C_TAKEN = C_BOXES + MOST_RANKS


@dataclass
class Limits:
    """What a search may take. ``memory`` of the device and ``host_memory``, for levels, in bytes.

    Old levels that have no place are let go. To search up to them again takes no longer than to copy them
    would have, and is only needed for a counterexample.
    """

    memory: int | None = None
    host_memory: int = 0
    max_states: int | None = None
    batch: int = BATCH
    narrow: bool = True


class Full(Exception):  # noqa: N818 (a reason to stop)
    """This rank can take no more states: for lack of ``memory``, or because there are enough."""

    def __init__(self, memory: bool) -> None:
        self.memory = memory


class Expansion:
    """The states found so far, and the step from one level to the next. Sights are kept for its subclass."""

    def __init__(
        self,
        source: GpuSource,
        device: Device,
        limits: Limits | None = None,
        ranks: Ranks | None = None,
        report: Reporter | None = None,
        store: MakeStore = PlainStore,
    ) -> None:
        self.source, self.device, self.ranks = source, device, ranks or Ranks()
        self.limits, self.report = limits or Limits(), report or Reporter()
        self.before = 0.0  # seconds of the runs that this one goes on from
        device.compile(source, "search")
        self._traces = False
        properties, checks = source.properties, source.checks
        self.key_words, self.dense_words = source.keys.words, source.words
        self._boxes: list[int] = []
        if self.ranks.count > 1:
            most = self.limits.batch * source.instances
            self._box_room = self._slack(self.limits.batch) + min(BOX_ROOM, most)
            self._boxes = self.ranks.boxes(self._box_room, self.key_words)
        self._box_counts = [0] * self.ranks.count
        budget = int(device.free_bytes() * USABLE)
        self.memory = Memory(device, min(budget, self.limits.memory or budget))
        self.levels = Levels(self.memory, self.key_words, partial(store, device, self.limits.host_memory))
        self.table = StateTable(device, self.memory, source, self.limits.narrow)
        self.states = 0
        self.taken = [0] * source.instances
        self.looked: list[Sight | None] = [None] * properties
        self.failed: list[Sight | None] = [None] * checks
        self.dead: Sight | None = None
        self.outside: list[int] = []
        self.finished = False
        self.sight = self.dense_words + 1
        self.most_sights = max(properties, checks + 1)
        self._counted = C_TAKEN + source.instances + checks + source.cells
        self.complete = 0  # levels all of whose states are known,
        self.complete_taken = self.taken  # and how often each instance was taken in expanding those before
        self.known_levels: list[int] = []  # of all ranks, as last agreed on
        self.known_taken = self.taken
        self._full: Full | None = None
        self.first = np.empty(0, np.uint64)
        self.upload_room = max(1024, min(UPLOAD, self.memory.budget // UPLOAD_SHARE // (8 * self.key_words)))
        self.levels.block = sums.block_of(self.key_words * self.upload_room)
        try:
            self.counters = self.memory.take(8 * self._counted)
            self.levels.scratch = self.memory.take(sums.BYTES)
            self.sights = self.memory.take(8 * self.sight * self.most_sights)
            self.closed = self.memory.take(properties)
            self.trace_closed = self.memory.take(checks + 1)
            self.targets = self.memory.take(8 * self.key_words * self.most_sights)
            self.upload = self.memory.take(8 * (self.key_words * self.upload_room + 2 * self.levels.block))
            self.sent = 0
            if self.ranks.count > 1 and self.key_words == 1:
                self.sent = self.memory.take(8 << SENT_LOG2)
                device.clear(self.sent, 8 << SENT_LOG2)
            self.table.open(4096)
            short = 0
        except OutOfMemory:
            short = 1
        if self.ranks.total([short])[0]:
            raise Stop("the device has too little memory to begin: ran out of memory with 0 states")
        device.clear(self.counters, 8 * self._counted)
        self._pending: Transfer | None = None
        self._which = 0

    def all_states(self) -> int:
        """States of all ranks."""
        return self.ranks.total([self.states])[0]

    def elapsed(self) -> float:
        """Seconds spent, those before a checkpoint included."""
        return self.before + self.report.seconds()

    def _fill_next(self) -> None:
        """Expand the last level into a new one. The ranks have yet to agree whether any of them is full."""
        depth = self.levels.depth
        self.levels.begin()
        batches = self._batches(self.levels.levels[depth])
        more = True
        while more:
            self.report(self._progress)
            try:
                more = self._full is None and next(batches, False)
            except Full as full:
                self._full, more = full, False
            if self.ranks.count > 1:
                more = self._exchange(more)
            elif self._full is not None:
                self._agree()

    def _agree(self) -> None:
        """Ask all ranks whether any is full."""
        self._agreed(*self.ranks.total(kinds_of(self._full)))

    def _agreed(self, memory: int, too_many: int) -> None:
        """Stop, on all ranks, when any of them is full."""
        if memory:
            own = f" within the limit of {self.limits.memory} bytes" if self.limits.memory else ""
            depth = max(0, self.levels.depth)
            self._count_taken()
            raise Stop(f"ran out of memory{own} at depth {depth} with {self.all_states()} states")
        if too_many:
            self._count_taken()
            raise Stop(f"more than {self.limits.max_states} states")

    def _count_taken(self) -> None:
        """What was taken in a level that is not complete."""
        counts = self._read(C_TAKEN + self.source.instances)
        self.taken = [int(x) for x in counts[C_TAKEN:]]

    def params(self, **more: int) -> Params:
        """What a kernel is launched with."""
        return Params(
            table=self.table.now,
            counters=self.counters,
            sights=self.sights,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
            **more,
        )

    def _slack(self, batch: int) -> int:
        """New states that may come of what a launch over so many states has taken up."""
        active = min(self.device.lanes, -(-batch // 32) * 32)
        return active * (self.source.instances + 3) + 64

    def _batches(self, pieces: list[Piece]) -> Iterator[bool]:
        """Expands pieces launch by launch; after each, whether anything is left."""
        for k, piece in enumerate(pieces):
            at = 0
            while at < piece.count:
                at += self._expand(piece, at, min(self.limits.batch, piece.count - at))
                if at >= piece.count:
                    self.levels.expanded += 1
                yield at < piece.count or k + 1 < len(pieces)

    def _expand(self, piece: Piece, at: int, count: int) -> int:
        """Expand ``count`` states of a piece from ``at`` on, or fewer; how many."""
        if not piece.segment.address:
            count = min(count, self.upload_room)
            there = self.levels.copy_back(Piece(piece.segment, piece.start + at, count), self.upload)
        else:
            there = piece.segment.address + 8 * self.key_words * (piece.start + at)
        slack = self._slack(count)
        segment, limit = self._room(slack, count)
        self.device.clear(self.counters, 16)
        boxes = 0
        if self.ranks.count > 1:
            boxes = self._boxes[self._which]
            self.device.clear(self.counters + 8 * C_BOXES, 8 * self.ranks.count)
        params = self.params(
            into=there,
            in_count=count,
            out=segment.address + 8 * self.key_words * segment.used,
            out_limit=limit,
            slack=slack,
            boxes=boxes,
            box_room=self._box_room if boxes else 0,
            box_slack=slack,
            sent=self.sent,
        )
        self.device.launch("expand_level", params, count)
        counters = self._read(C_TAKEN)
        self._added(segment, counters)
        self._box_counts = [int(x) for x in counters[C_BOXES : C_BOXES + self.ranks.count]]
        return min(int(counters[C_WORK]), count)

    def _added(self, segment: Segment, counters: Words) -> None:
        if counters[C_LOST]:
            raise Full(memory=True)
        new = int(counters[C_OUT])
        self.levels.add(segment, new)
        self.states += new
        if self.limits.max_states is not None and self.states > self.limits.max_states:
            raise Full(memory=False)

    def _room(self, slack: int, count: int) -> tuple[Segment, int]:
        """A segment for new states, and how many it and the table may take."""
        if self.states + slack > self.table.grow_at():
            self.table.grow(self.states + slack, self.levels, self.counters)
        if self.states + slack > self.table.full_at() or self._spill_is_full():
            raise Full(memory=True)
        # the last ``slack`` states of a segment stay unused: large levels get segments that are much larger
        level = self.levels.count(self.levels.depth - 1) if self.levels.depth else 1
        wanted = max(SMALLEST_SEGMENT, 2 * count + slack, min(2 * level, max(LARGEST_SEGMENT, 8 * slack)))
        try:
            segment = self.levels.room(slack, wanted)
        except OutOfMemory:
            raise Full(memory=True) from None
        return segment, min(segment.room - segment.used, self.table.full_at() - self.states)

    def _spill_is_full(self) -> bool:
        if not self.table.now.reach:
            return False
        if int(self.device.read(self.counters + 8 * C_SPILL, 1)[0]) <= 1 << self.table.now.spill_log2:
            return False
        return not self.table.grow(self.states, self.levels, self.counters)

    def _enter(self, keys: Words) -> None:
        """Enter keys of this rank into the table and the level being filled."""
        if not len(keys):
            return
        address = self.memory.take(keys.nbytes)
        self.device.write(address, keys)
        self._enter_from(address, len(keys) // self.key_words)
        self.memory.give(address)

    def _enter_from(self, address: int, count: int) -> None:
        """The same for keys that are on the device."""
        at = 0
        while at < count:
            n = min(count - at, self.limits.batch)
            segment, _ = self._room(n, n)
            self.device.clear(self.counters, 16)
            params = self.params(
                into=address + 8 * self.key_words * at,
                in_count=n,
                out=segment.address + 8 * self.key_words * segment.used,
            )
            self.device.launch("enter_keys", params, n)
            self._added(segment, self._read(C_TAKEN))
            at += n

    def _read(self, count: int) -> Words:
        return self.device.read(self.counters, count)

    def _progress(self) -> Progress:
        depth, ranks = self.levels.depth - 1, self.ranks.count
        load = self.states / self.table.capacity(self.table.now.log2)
        room = max(0, self.table.most() - self.states) * ranks
        states = self.states * ranks
        rate = states / self.elapsed()
        return Progress(states, self.levels.count(depth), depth, rate, load, room)

    def _exchange(self, more: bool) -> bool:
        """Send what was found for others while the next batch is expanded; whether any rank goes on."""
        counts, self._box_counts = self._box_counts, [0] * self.ranks.count
        (going, sent, *full), coming = self.ranks.agree(
            [int(more), sum(counts), *kinds_of(self._full)], counts
        )
        self._agreed(*full)
        arrived, self._pending = self._pending, None
        if sent:
            self._pending = self.ranks.exchange(self._which, counts, coming)
            self._which = 1 - self._which
        self._enter_arrived(arrived)
        if not going:
            arrived, self._pending = self._pending, None
            self._enter_arrived(arrived)
        return going > 0

    def _enter_arrived(self, arrived: Transfer | None) -> None:
        if arrived is None:
            return
        try:
            for address, count in arrived.wait():
                if self._full is None:
                    self._enter_from(address, count)
        except Full as full:
            self._full = full


def kinds_of(full: Full | None) -> list[int]:
    """Two numbers, of which the ranks' sums say whether any is full, and how."""
    return [int(full is not None and full.memory), int(full is not None and not full.memory)]
