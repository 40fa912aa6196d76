"""Which slots a step of the model writes and reads, from what the scheduler hands to the workers.

Written are the blocks of the tokens that the step computes. Read is every block of a request that attention
looks at, step after step; only the first and the last of these reads can be in a race that no other of them
is in, so the first is reported at once, and the last when the request loses the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Slots: TypeAlias = npt.NDArray[np.int64]
Reader: TypeAlias = tuple[int, int]
"""A kernel, as :meth:`SlotChecker.kernel` returned it."""
ReadEarlier: TypeAlias = Callable[[Slots, Reader], None]

NULL: Final = 0
"""vLLM's block that stands for no block."""
_NONE: Final[Slots] = np.zeros(0, np.int64)


class GroupKind:
    """How the layers of a KV-cache group use their blocks. ``span``: tokens that attention looks back.

    ``chunk``: attention looks back to the last multiple of this, 0: not in chunks.
    """

    def __init__(self, block_size: int, span: int = 0, chunk: int = 0) -> None:
        self.block_size, self.span, self.chunk = block_size, span, chunk

    def first(self, start: int) -> int:
        """The first block that a step reads whose first token is ``start``."""
        if self.chunk:
            return (start // self.chunk) * self.chunk // self.block_size
        return max(0, start - self.span + 1) // self.block_size if self.span else 0


def group_kinds(config: Any, widened: int = 1) -> tuple[list[GroupKind | None], list[str]]:
    """The kinds of the groups of a KVCacheConfig; None for one whose use of blocks is not known.

    ``widened``: workers among which the tokens of a block are split. Also returns what is not known, in
    words.
    """
    kinds: list[GroupKind | None] = []
    unknown = []
    for number, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        size = int(spec.block_size) * widened
        inner = getattr(spec, "kv_cache_specs", None)
        of = next(iter(inner.values())) if isinstance(inner, dict) and inner else spec
        name = type(of).__name__
        if "SlidingWindow" in name:
            kinds.append(GroupKind(size, span=int(of.sliding_window)))
        elif "ChunkedLocal" in name:
            kinds.append(GroupKind(size, chunk=int(of.attention_chunk_size)))
        elif "FullAttention" in name or name == "MLAAttentionSpec":
            kinds.append(GroupKind(size))
        else:
            kinds.append(None)
            unknown.append(f"which blocks of group {number} ({name}) a step writes is not known")
    return kinds, unknown


def widened_by(config: Any) -> int:
    """Workers among which the tokens of a block are split, by a VllmConfig."""
    parallel = getattr(config, "parallel_config", None)
    sizes = ("decode_context_parallel_size", "prefill_context_parallel_size")
    return math.prod(max(int(getattr(parallel, size, 1) or 1), 1) for size in sizes)


class _Row:
    """A request's blocks in one group: those from ``first`` to before ``end`` were reported as read."""

    __slots__ = ("blocks", "end", "first")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.first = self.end = 0

    def slots(self, start: int, end: int) -> Slots:
        """Slots of the blocks from ``start`` to before ``end``."""
        if start >= end:
            return _NONE
        found = np.array(self.blocks[start:end], np.int64)
        return found[found != NULL] if NULL in self.blocks[start:end] else found


class _Request:
    __slots__ = ("reader", "rows")

    def __init__(self, tables: list[list[int]]) -> None:
        self.rows = [_Row(table) for table in tables]
        self.reader: Reader | None = None


class BatchTables:
    """The block tables of a worker, kept as a model runner keeps them."""

    def __init__(self, kinds: list[GroupKind | None], slots: int, read_earlier: ReadEarlier) -> None:
        self.kinds, self.slots = kinds, slots
        self._read_earlier = read_earlier
        self._requests: dict[str, _Request] = {}
        self._readers: npt.NDArray[np.int32] = np.zeros(slots, np.int32)
        """Of each slot: rows of live requests in which it was reported as read."""
        self._step: list[tuple[str, int, int]] = []

    def follow(self, output: Any) -> None:
        """A step arrives: requests that ended or were preempted lose their blocks, others get more."""
        self._step = []
        for name in output.finished_req_ids:
            self._leave(name)
        for name in getattr(output, "preempted_req_ids", None) or ():
            self._leave(name)
        counts = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            self._leave(new.req_id)
            self._requests[new.req_id] = _Request([list(ids) for ids in new.block_ids])
            self._step.append((new.req_id, new.num_computed_tokens, counts.get(new.req_id, 0)))
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", None)
        if resumed is None:
            flags = cached.resumed_from_preemption
            resumed = {name for name, flag in zip(cached.req_ids, flags, strict=True) if flag}
        for number, name in enumerate(cached.req_ids):
            ids = cached.new_block_ids[number]
            if name in resumed or name not in self._requests:
                self._leave(name)
                self._requests[name] = _Request([list(each) for each in ids or ()])
            elif ids is not None:
                for row, more in zip(self._requests[name].rows, ids, strict=True):
                    row.blocks.extend(more)
            self._step.append((name, cached.num_computed_tokens[number], counts.get(name, 0)))

    def _leave(self, name: str) -> None:
        """A request loses its blocks."""
        request = self._requests.pop(name, None)
        if request is None:
            return
        for row in request.rows:
            self._slide(request, row, row.end)

    def _slide(self, request: _Request, row: _Row, first: int) -> None:
        """Blocks before ``first`` are read no more."""
        first = min(first, row.end)
        if first <= row.first:
            return
        slots = row.slots(row.first, first)
        np.subtract.at(self._readers, slots, 1)
        if request.reader is not None and len(slots):
            self._read_earlier(slots, request.reader)
        row.first = first

    def accesses(self) -> tuple[Slots, Slots]:
        """Slots that the step reads for the first time, and those that it writes."""
        reads: list[Slots] = []
        writes: list[Slots] = []
        for name, start, count in self._step:
            request = self._requests[name]
            for row, kind in zip(request.rows, self.kinds, strict=False):
                if kind is None or not count:
                    continue
                end = -(-(start + count) // kind.block_size)
                end = min(end, len(row.blocks))
                first = kind.first(start)
                self._slide(request, row, first)
                if first > row.end:
                    row.first = row.end = first
                new = row.slots(row.end, end)
                if len(new):
                    reads.append(new)
                    np.add.at(self._readers, new, 1)
                row.end = max(row.end, end)
                writes.append(row.slots(start // kind.block_size, end))
        return _joined(reads), _joined(writes)

    def launched(self, reader: Reader) -> None:
        """The step was launched as ``reader``."""
        for name, _, count in self._step:
            if count:
                self._requests[name].reader = reader
        self._step = []

    def all_reads(self) -> Slots:
        """All slots that the step reads."""
        found = []
        for name, start, count in self._step:
            for row, kind in zip(self._requests[name].rows, self.kinds, strict=False):
                if kind is not None and count:
                    end = min(-(-(start + count) // kind.block_size), len(row.blocks))
                    found.append(row.slots(kind.first(start), end))
        return np.unique(_joined(found))

    def about_to_write(self, slots: Slots) -> None:
        """Something other than a step writes ``slots``: the last reads of live requests matter now."""
        hit = slots[self._readers[slots] > 0]
        if not len(hit):
            return
        for request, row in self._live():
            mine = row.slots(row.first, row.end)
            here = mine[np.isin(mine, hit)]
            if len(here) and request.reader is not None:
                self._read_earlier(here, request.reader)

    def _live(self) -> Iterator[tuple[_Request, _Row]]:
        for request in self._requests.values():
            for row in request.rows:
                yield request, row


def _joined(rows: list[Slots]) -> Slots:
    if len(rows) == 1:
        return rows[0]
    return np.concatenate(rows) if rows else _NONE
