"""The search on one device, or on one of several: level by level, and back again for counterexamples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvfence.checker.engines.base import FIRST, Stop, Until
from kvfence.checker.engines.gpu.device.keys import mix
from kvfence.checker.engines.gpu.device.search_device import Words
from kvfence.checker.engines.gpu.device.source import SENT_LOG2
from kvfence.checker.engines.gpu.expansion import C_DEAD, C_TAKEN, Expansion, Full, kinds_of
from kvfence.checker.engines.gpu.levels import Piece
from kvfence.checker.engines.native.library import Sight

NOTHING = (1 << 64) - 1


class Search(Expansion):
    """All states of a machine, breadth first. States are dense words here, and keys on the device.

    ``at_level_end`` is called at the end of each level: the place for a checkpoint.
    """

    at_level_end: Callable[[Search], None] | None = None
    fresh = 0
    """States of the last level, of all ranks."""
    something_seen = 0
    """Ranks that have a state there in which a property is seen for the first time."""
    _taken_by_all: list[int]

    def begin(self, initial: Sequence[int]) -> None:
        """Enter the initial state, given as dense words, as level 0."""
        self.levels.begin()
        key = self.source.keys.encode(initial)
        mine = self.source.keys.owner(key, self.ranks.count) == self.ranks.rank
        self.first = np.array(key if mine else (), np.uint64)
        try:
            self._enter(self.first)
        except Full as full:
            self._full = full
        self._agree()
        self._judge()

    def explore(self, until: Until) -> None:
        """Level by level until nothing is new. Stop says why it ended early."""
        while not self.finished:
            depth = self.levels.depth
            if until != "end" and self.seen_up_to(depth):
                self.levels.begin()
                raise Stop(FIRST)
            self.expand_level()
            if until != "end" and self.seen_up_to(depth):
                raise Stop(FIRST)
            if not self.fresh:
                self.finished = True
            elif self.something_seen:
                self._judge()
            self.complete, self.complete_taken = len(self.levels.levels), self.taken
            self._agree_on_totals()
            if self.at_level_end is not None:
                self.at_level_end(self)

    def put_back(self, keys: Words) -> None:
        """Enter keys of this rank into the level being filled: those of a checkpoint."""
        try:
            self._enter(keys)
        except Full:
            raise Stop("ran out of memory while going on from a checkpoint") from None

    def put_back_taken(self, taken: list[int]) -> None:
        """Set how often each instance was taken."""
        self.taken = taken
        self.device.write(self.counters + 8 * C_TAKEN, np.array(taken, np.uint64))

    def expand_level(self) -> None:
        """Expand the last level into a new one, and say what happened on the way."""
        depth = self.levels.depth
        self._fill_next()
        self._gather(depth)
        if self.levels.depth == depth:  # what was seen on the way took searching again up to this level
            self._fill_next()
            self._agree()

    def _agree_on_totals(self) -> None:
        """Know what all ranks have found, should one of them be lost."""
        if len(self.known_levels) == len(self.levels.levels) - 1:
            self.known_levels.append(self.fresh)
            self.known_taken = self._taken_by_all
            return
        levels = [self.levels.count(d) for d in range(len(self.levels.levels))]
        sums = self.ranks.total([*levels, *self.taken])
        self.known_levels, self.known_taken = sums[: len(levels)], sums[len(levels) :]

    def seen_up_to(self, depth: int) -> bool:
        """Whether something is violated in a state up to this depth, or in a step out of one."""
        invariants = self.looked[: self.source.invariants]
        return any(s is not None and s.depth <= depth for s in (*invariants, *self.failed, self.dead))

    def _judge(self) -> None:
        """Look at the states of the last level."""
        depth = self.levels.depth
        self._close_what_was_seen()
        found = self._sightings(
            "judge_level", depth, len(self.looked), rounds=self.dense_words, closed=self.closed
        )
        for k, sight in enumerate(found):
            if sight is not None and self.looked[k] is None:
                self.looked[k] = sight

    def _close_what_was_seen(self) -> None:
        self.device.write(self.closed, np.array([s is not None for s in self.looked], np.uint8))

    def _something_seen(self) -> bool:
        """Whether this rank's share of the last level has a state that is worth another look of all ranks."""
        self._close_what_was_seen()
        self._clear_sights()
        self._offer("judge_level", self.levels.depth, round=0, closed=self.closed)
        first = self.device.read(self.sights, self.sight * len(self.looked))[:: self.sight]
        return bool((first != NOTHING).any())

    def _gather(self, depth: int) -> None:
        """What the steps out of a level did, and what the new level has: as much as one question can ask."""
        source = self.source
        counters = self._read(self._counted)
        checks = C_TAKEN + source.instances
        cells = checks + source.checks
        self.taken = [int(x) for x in counters[C_TAKEN:checks]]
        flags = [int(counters[C_DEAD]), *(int(x) for x in counters[checks : checks + source.checks])]
        outside = [int(x) for x in counters[cells : cells + source.cells]]
        more = [*kinds_of(self._full), self.levels.count(depth + 1), int(self._something_seen())]
        sums = self.ranks.total([*more, *flags, *outside, *self.taken])
        memory, too_many, self.fresh, self.something_seen = sums[: len(more)]
        self._agreed(memory, too_many)
        del sums[: len(more)]
        self.outside = [k for k, left in enumerate(sums[len(flags) : len(flags) + len(outside)]) if left]
        self._taken_by_all = sums[len(flags) + len(outside) :]
        known = [self.dead, *self.failed]
        if any(flag and s is None for flag, s in zip(sums, known, strict=False)):
            self._trace()
            self.device.write(self.trace_closed, np.array([s is not None for s in known], np.uint8))
            found = self._sightings(
                "trace_level", depth, len(known), rounds=self.sight, closed=self.trace_closed
            )
            for k, sight in enumerate(found):
                if sight is None or known[k] is not None:
                    continue
                if k:
                    self.failed[k - 1] = sight
                else:
                    self.dead = Sight(sight.words, sight.depth, 0)

    def predecessors(self, depth: int, targets: list[tuple[int, ...]]) -> list[Sight | None]:
        """For each target the smallest state at ``depth``, with its instance, that leads there."""
        self._trace()
        out: list[Sight | None] = []
        for k in range(0, len(targets), self.most_sights):
            keys = [self.source.keys.encode(t) for t in targets[k : k + self.most_sights]]
            self.device.write(self.targets, np.array(keys, np.uint64))
            bits = 0
            for key in keys:
                bits |= 1 << (mix(key[0]) & 63)
            more = {"targets": self.targets, "target_count": len(keys), "target_filter": bits}
            out += self._sightings(
                "trace_level", depth, len(keys), rounds=self.sight, closed=self.trace_closed, **more
            )
        return out

    def _trace(self) -> None:
        if not self._traces:
            self.device.compile(self.source, "trace")
            self._traces = True

    def _sightings(
        self, kernel: str, depth: int, count: int, *, rounds: int, closed: int, **more: int
    ) -> list[Sight | None]:
        """The smallest sights that a kernel offers in the states of a level, one component a round."""
        if self.ranks.total([int(not self.levels.has(depth))])[0]:
            self._again(depth)
        self._clear_sights()
        rows = np.empty((0, self.sight), np.uint64)
        for k in range(rounds):
            self._offer(kernel, depth, round=k, closed=closed, **more)
            rows = self.device.read(self.sights, self.sight * count).reshape(count, self.sight)
            if self.ranks.count > 1:
                rows = self.ranks.lowest(rows, self.sight)
                self.device.write(self.sights, rows)
            if k == 0 and (rows[:, 0] == NOTHING).all():
                return [None] * count
        return [
            Sight(tuple(int(x) for x in row[:-1]), depth, int(row[-1]) if rounds == self.sight else 0)
            if row[0] != NOTHING
            else None
            for row in rows
        ]

    def _clear_sights(self) -> None:
        self.device.clear(self.sights, 8 * self.sight * self.most_sights, 0xFF)

    def _offer(self, kernel: str, depth: int, **more: int) -> None:
        """Let a kernel look at this rank's states of a level once."""
        for address, n in self.where(depth):
            self.device.launch(kernel, self.params(into=address, in_count=n, **more), n)  # type: ignore[arg-type]

    def where(self, depth: int) -> Iterator[tuple[int, int]]:
        """Address and number of the states of a level, copied back to the device where they left it."""
        for piece in self.levels.levels[depth]:
            if piece.segment.address:
                yield piece.segment.address + 8 * self.key_words * piece.start, piece.count
                continue
            for at in range(0, piece.count, self.upload_room):
                n = min(self.upload_room, piece.count - at)
                yield self.levels.copy_back(Piece(piece.segment, piece.start + at, n), self.upload), n

    def _again(self, depth: int) -> None:
        """Search again up to a level whose states were let go; what was found stays."""
        self._full, self._pending, self._which = None, None, 0
        self._box_counts = [0] * self.ranks.count
        if self.sent:
            self.device.clear(self.sent, 8 << SENT_LOG2)
        self.levels.clear()
        self.table.clear()
        self.device.clear(self.counters, 8 * self._counted)
        self.states = 0
        self.levels.begin()
        self._enter(self.first)
        for _ in range(depth):
            self._fill_next()
            self._agree()
