"""Block tables over the GPU pool: prefix hits, allocation, window slides, and the fence behind which blocks
leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvfence.reference.blocks.changes import Added, Change, Closed, Cut, Opened
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import BlockTables, GroupSpec, Rows, common_blocks


@dataclass(frozen=True, slots=True)
class LocalHit:
    """``tokens`` of a request are in the GPU prefix cache: for each group, ``slots`` from block ``at`` on."""

    tokens: int
    parts: tuple[tuple[int, Slots], ...]


@dataclass(slots=True)
class _Fenced:
    """Blocks of a request that is gone, and the step that may still read them."""

    step: int
    slots: Slots


class _Index(Protocol):
    def get(self, key: int, /) -> int | None: ...


class Indexed(Protocol):
    """Whatever can be asked for keys: a pool, or several as one."""

    @property
    def index(self) -> Sequence[_Index]:
        """Per group: key -> slot."""

    def longest_prefix(self, keys: Sequence[int], group: int = 0) -> list[int]:
        """The slots of the longest run of ``keys``, from the first on."""


class KVCacheManager:
    """Who has which GPU block. All groups share one pool.

    Two rules keep kernels in flight safe. A window gives blocks back by *confirmed* tokens: a step that was
    dispatched but not processed reads by the counts of its own dispatch. And a request that ends while steps
    of it are unprocessed leaves its blocks behind a fence, held under its own name, until the last of those
    steps is processed.
    """

    def __init__(self, pool: BlockPool, tables: BlockTables, depth: int = 1, step_tokens: int = 8192) -> None:
        self.pool = pool
        self.hits: Indexed = pool
        """Where hits are looked for: in the pool, and maybe in what is on its way there."""
        self.tables = tables
        self.groups = tables.groups
        self.unit = common_blocks(self.groups)
        """Tokens of which each hit is a multiple."""
        self.depth = depth
        self.step_tokens = step_tokens
        """Most tokens that one step computes."""
        self.processed = -1
        self._fence: dict[str, _Fenced] = {}
        """Holder -> what it keeps until its last step is processed."""
        self.zeroes = False
        """Whether slots are filled with zeros before they are computed into."""
        self._to_zero: dict[str, list[Slots]] = {}
        """Holder -> slots that no step has computed into yet."""
        self.changes: list[Change] = []
        """What the model runner gets with the next step: rows opened and closed, blocks added and
        cut.
        """

    # Prefix hits.

    def get_computed_blocks(self, request: Request) -> LocalHit:
        """The longest prefix that every group has; at least one token is left to compute. Changes nothing."""
        tokens, parts = self.longest_hit(self.hits, request, 0, (request.total - 1) // self.unit * self.unit)
        return LocalHit(tokens, tuple(parts))

    def longest_hit(
        self, pool: Indexed, request: Request, lowest: int, most: int
    ) -> tuple[int, list[tuple[int, Slots]]]:
        """The greatest hit of ``lowest`` .. ``most`` tokens of which ``pool`` has what every group reads
        behind it, above the first ``lowest`` tokens. For each group the first block, and its slots.

        All are whole numbers of blocks of each group.
        """
        found: list[list[int]] = []
        for group, spec in enumerate(self.groups):
            first, size = lowest // spec.block_size, spec.block_size
            if not spec.forgets:
                found.append(pool.longest_prefix(request.key_lists[group][first : most // size], group))
                most = min(most, (first + len(found[-1])) * size)
                most -= (most - lowest) % self.unit
            else:
                found.append([])
        again = True
        while again:
            # A shorter hit has another window in each of the groups that forget.
            again = False
            for group, spec in enumerate(self.groups):
                if spec.forgets:
                    end, found[group] = self._longest_window(
                        pool, request.key_lists[group], lowest, most, group
                    )
                    again |= end < most and sum(other.forgets for other in self.groups) > 1
                    most = end
        parts = []
        for spec, slots in zip(self.groups, found, strict=True):
            end = most // spec.block_size
            at = end - len(slots) if spec.forgets else lowest // spec.block_size
            parts.append((at, np.array(slots[: end - at], np.int64)))
        return most, parts

    def _longest_window(
        self, pool: Indexed, keys: list[int], lowest: int, most: int, group: int
    ) -> tuple[int, list[int]]:
        """The greatest of ``lowest`` .. ``most`` tokens behind which ``pool`` has what the group reads, above
        ``lowest``; and the slots of that.
        """
        index, spec = pool.index[group], self.groups[group]
        size, floor = spec.block_size, lowest // spec.block_size
        end = most
        run: list[int] = []
        at = end // size
        while end > lowest:
            need = max(spec.first_block(end), floor)
            while at > need and (slot := index.get(keys[at - 1])) is not None:
                run.append(slot)
                at -= 1
            if at <= need:
                break
            # Block at - 1 is missing: each hit that ends behind it needs it.
            end = lowest + max(0, (at - 1) * size - lowest) // self.unit * self.unit
            run.clear()
            at = end // size
        return end, run[::-1]

    # Allocation.

    def blocks_wanted(self, request: Request, hit: LocalHit, external: int) -> int:
        """Free slots to have before ``request`` is admitted, so that its prompt can run to its end."""
        wanted = 0
        for spec, (_, slots) in zip(self.groups, hit.parts, strict=True):
            first = max(spec.first_block(hit.tokens + external), hit.tokens // spec.block_size)
            revived = int(np.count_nonzero(self.pool.ref[slots] == 0))
            # The blocks of the hit are part of the table, which has no more than so many at a time.
            most = self.most_blocks(spec) - slots.size
            wanted += min(-(-request.total // spec.block_size) - first, most) + revived
        return wanted

    def fits(self, tokens: int) -> bool:
        """Whether a request of ``tokens`` tokens can run when it has the pool to itself."""
        wanted = (min(-(-tokens // spec.block_size), self.most_blocks(spec)) for spec in self.groups)
        return sum(wanted) <= self.pool.usable

    def most_blocks(self, spec: GroupSpec) -> int:
        """The longest that a table of ``spec`` gets: a window slides only when the steps in flight are
        processed.
        """
        if not spec.forgets:
            return self.pool.slots
        return -(-(spec.reach + (self.depth + 1) * self.step_tokens) // spec.block_size) + 1

    def admit(self, request: Request, hit: LocalHit, external: int, tokens: int) -> None:
        """Give ``request`` its hit, and blocks for ``external`` loaded and ``tokens`` computed tokens.
        Raises OutOfBlocks.
        """
        fresh = []
        for spec, (at, slots) in zip(self.groups, hit.parts, strict=True):
            have = at + slots.size
            start = max(have, spec.first_block(hit.tokens + external))
            fresh.append((start, -(-(hit.tokens + external + tokens) // spec.block_size)))
        asked = sum(end - start for start, end in fresh)
        revived = sum(int(np.count_nonzero(self.pool.ref[slots] == 0)) for _, slots in hit.parts)
        if asked + revived > self.pool.num_free:
            self.pool.refuse(request.holder, asked + revived)
        row = self.tables.open_row(request, self.depth)
        self.changes.append(Opened(row, request))
        for group, (at, slots) in enumerate(hit.parts):
            if slots.size:
                self.pool.touch(request.holder, slots, group, at)
            self._append(row, group, at, slots)
        for group, (start, end) in enumerate(fresh):
            if end > start:
                slots = self.pool.get_new_blocks(request.holder, end - start, group, start)
                self._append(row, group, start, slots)
                if self.zeroes and tokens:
                    self._to_zero.setdefault(request.holder, []).append(slots)
            # What nothing reads is left out, also where that is all of the hit.
            self.tables.blocks[group, row] = max(start, end)
            self.tables.first[group, row] = hit.parts[group][0] if hit.parts[group][1].size else start

    def allocate_slots(self, request: Request, tokens: int) -> None:
        """Make the tables reach ``tokens`` tokens, all groups or none. Raises OutOfBlocks."""
        row = request.row
        lengths = self.tables.blocks[:, row].tolist()
        asked = [
            max(0, -(-tokens // spec.block_size) - length)
            for spec, length in zip(self.groups, lengths, strict=True)
        ]
        if self._demand(asked) > self.pool.num_free:
            self.pool.refuse(request.holder, self._demand(asked))
        for group, n in enumerate(asked):
            if n:
                slots = self.pool.get_new_blocks(request.holder, n, group, lengths[group])
                self._append(row, group, lengths[group], slots)
                if self.zeroes:
                    self._to_zero.setdefault(request.holder, []).append(slots)

    def take_to_zero(self, holder: str) -> list[Slots]:
        """Slots of ``holder`` that the step which is dispatched now fills with zeros first."""
        return self._to_zero.pop(holder, [])

    def _demand(self, asked: list[int]) -> int:
        """Free slots that the groups need between them: they share one pool."""
        return sum(asked)

    def truncate(self, request: Request, tokens: int) -> None:
        """Give back the blocks behind the first ``tokens`` tokens (a whole number of blocks); no step has
        used them.
        """
        row = request.row
        gone = []
        for group, spec in enumerate(self.groups):
            keep = tokens // spec.block_size
            tail = self.tables.table(row, group)[keep:]
            gone.append(tail[tail != self.tables.null][::-1].copy())
            tail[:] = self.tables.null
            self.tables.blocks[group, row] = min(keep, int(self.tables.blocks[group, row]))
            self.tables.first[group, row] = min(keep, int(self.tables.first[group, row]))
            self.changes.append(Cut(row, group, keep, None))
        slots = np.concatenate(gone)
        if slots.size:
            self.pool.free_blocks(request.holder, slots)

    def _append(self, row: int, group: int, at: int, slots: Slots) -> None:
        if slots.size:
            self.tables.slots[group][row, at : at + slots.size] = slots
            self.changes.append(Added(row, group, at, slots))
        self.tables.blocks[group, row] = max(int(self.tables.blocks[group, row]), at + slots.size)

    # Caching.

    def cache_blocks(self, rows: Rows) -> None:
        """Enter the blocks of ``rows`` that confirmed tokens have filled into the prefix index."""
        tables = self.tables
        confirmed, before = tables.confirmed[rows], tables.cached[rows]
        size = -1
        for group, (spec, slots) in enumerate(zip(self.groups, tables.slots, strict=True)):
            if spec.block_size != size:
                size = spec.block_size
                start = before // size
                counts = confirmed // size - start
                np.maximum(counts, 0, out=counts)
                due = np.flatnonzero(counts)
                counts, start = counts[due], start[due]
                each = np.repeat(rows[due], counts)
                ends = np.cumsum(counts)
                block = np.arange(each.size) - np.repeat(ends - counts - start, counts)
            if not each.size:
                continue
            mine, keys = slots[each, block], tables.keys[group][each, block]
            real = mine != tables.null
            if real.all():
                self.pool.cache_full_blocks(mine, keys, group)
            elif real.any():
                self.pool.cache_full_blocks(mine[real], keys[real], group)
        tables.cached[rows] = np.maximum(confirmed, before)

    # Leaving.

    def slide_windows(self, rows: Rows) -> None:
        """Give back what no later step of ``rows`` can read."""
        if not rows.size:
            return
        tables = self.tables
        for group, spec in enumerate(self.groups):
            if not spec.forgets:
                continue
            first = np.minimum(spec.first_blocks(self._passed(rows)), tables.blocks[group, rows])
            for i in np.flatnonzero(first > tables.first[group, rows]).tolist():
                row, to = int(rows[i]), int(first[i])
                request = tables.requests[row]
                assert request is not None
                since = int(tables.first[group, row])
                out = tables.slots[group][row, since:to]
                slots = out[out != tables.null]
                out[:] = tables.null
                tables.first[group, row] = to
                self.changes.append(Cut(row, group, since, to))
                if slots.size:
                    self.pool.free_blocks(request.holder, slots)

    def _passed(self, rows: Rows) -> Rows:
        """Tokens by which a window may slide: the confirmed ones, whatever has been dispatched since."""
        return self.tables.confirmed[rows]

    def release(self, request: Request) -> None:
        """Take the request's table away; while a step in flight may still use the blocks, the fence keeps
        them.
        """
        tables, row = self.tables, request.row
        parts = [tables.table(row, group)[::-1] for group in range(len(self.groups))]
        slots = np.concatenate([part[part != tables.null] for part in parts])
        step = self._last_use(request)
        self._to_zero.pop(request.holder, None)
        self.changes.append(Closed(row))
        for group in range(len(self.groups)):
            tables.table(row, group)[:] = tables.null
        tables.close_row(request)
        if step > self.processed and slots.size:
            self._fence[request.holder] = _Fenced(step, slots)
        elif slots.size:
            self.pool.free_blocks(request.holder, slots)

    def _last_use(self, request: Request) -> int:
        """The last step that may use the request's blocks."""
        return int(self.tables.last_step[request.row])

    @property
    def fenced(self) -> bool:
        """Whether blocks are on their way back to the pool behind a step in flight."""
        return bool(self._fence)

    def is_fenced(self, holder: str) -> bool:
        """Whether the fence keeps blocks of ``holder``."""
        return holder in self._fence

    def step_processed(self, step: int) -> None:
        """Step ``step`` is over: free what waited for it."""
        self.processed = step
        for holder in [holder for holder, fenced in self._fence.items() if fenced.step <= step]:
            self.pool.free_blocks(holder, self._fence.pop(holder).slots)

    def take_changes(self) -> list[Change]:
        """The changes since the last call."""
        changes, self.changes = self.changes, []
        return changes
