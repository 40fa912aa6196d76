"""The model runner: computing writes KV, attention reads it and compares. Here on memory of the CPU."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvfence.reference.blocks.changes import Added, Change, Closed, Cut, Opened
from kvfence.reference.blocks.content import ContentOracle, Tokens
from kvfence.reference.blocks.errors import GarbledBlock
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import GroupSpec, Rows

Cells = npt.NDArray[np.int64]


@dataclass(slots=True)
class OracleReads:
    """Blocks that attention read and compared: all their tokens after a change, or as a sample in between."""

    in_full: int = 0
    sampled: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Attention's read of block ``blocks[i]`` of row ``rows[i]`` (or of the one row) in slot ``slots[i]``.

    Only the tokens at positions ``lowest`` .. ``highest`` count, which are columns if they differ by block.
    """

    rows: Rows | int
    group: int
    blocks: Rows
    slots: Slots
    lowest: Rows | int
    highest: Rows | int

    def counts(self, offsets: Rows) -> npt.NDArray[np.bool_]:  # offsets: 0 .. block size - 1
        """Which tokens count, [blocks, block size]."""
        positions = self.blocks[:, None] * offsets.size + offsets
        return (positions <= self.highest) & (positions >= self.lowest)


class ModelRunner:
    """Executes steps in order on block tables of its own, which follow the scheduler's with each executed
    step.

    Attention compares a block in full when it is new in a table, and again when anything but its owner's
    next token was written to its slot; a decode step compares the block it writes and a sample of the
    others.
    """

    def __init__(self, memory: torch.Tensor, groups: tuple[GroupSpec, ...], rows: int) -> None:
        self.groups = groups
        self.cells = int(memory.shape[1])
        """Tokens that a slot has room for; a block of a group takes the first ``block_size`` of them."""
        self.block_size = groups[0].block_size
        self.reads = OracleReads()
        self._use(memory)
        self._oracle = ContentOracle(rows)
        self._requests: list[Request | None] = [None] * rows
        self._tables = [np.zeros((rows, 64), np.int64) for _ in groups]
        self._unread = np.zeros((len(groups), rows), np.int64)
        """First block that was not compared in full since it came or changed."""
        self._users = np.zeros(memory.shape[0], np.int32)
        """In how many tables a slot is."""
        self._offsets_of = [np.arange(group.block_size, dtype=np.int64) for group in groups]
        self._offsets = self._offsets_of[0]
        self._dirty: list[Slots] = []

    # Memory. A device whose memory is elsewhere replaces these four.

    def _use(self, memory: torch.Tensor) -> None:
        self._memory = memory.numpy()
        self._flat = self._memory.reshape(-1)
        self._blocks = [self._memory[:, : group.block_size] for group in self.groups]

    def _write(self, cells: Cells, content: Tokens) -> None:
        """Token ``cells[i]`` of the memory, counted through all slots, becomes ``content[i]``."""
        self._flat[cells] = content

    def _write_blocks(self, slots: Slots, content: Tokens) -> None:
        self._memory[slots] = content.reshape(-1, self.cells)

    def _compare(self, read: Read, expected: Tokens) -> None:
        """Raises GarbledBlock."""
        size = self.groups[read.group].block_size
        wrong = self._blocks[read.group][read.slots] != expected.reshape(-1, size)
        if wrong.any():
            wrong &= read.counts(self._offsets_of[read.group])
            if wrong.any():
                i, offset = (int(x) for x in np.argwhere(wrong)[0])
                self._garbled(read, i, offset, int(self._memory[read.slots[i], offset]))

    def settle(self) -> None:
        """Wait for the steps executed so far. Raises GarbledBlock."""

    # Following the scheduler.

    def memory_written(self, slots: list[Slots]) -> None:
        """Copies wrote ``slots``: whoever has read them reads them again."""
        self._dirty.extend(slots)

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Opened(row, request):
                    self._requests[row] = request
                    self._unread[:, row] = 0
                    self._widen(max(keys.size for keys in request.keys_of) + 8)
                    self._oracle.open_row(row, request.spec)
                case Added(row, group, at, slots):
                    self._tables[group][row, at : at + slots.size] = slots
                    self._users[slots] += 1
                    self._unread[group, row] = min(int(self._unread[group, row]), at)
                case Cut(row, group, start, end):
                    self._leave(row, group, start, end)
                case Closed(row):
                    for group in range(len(self.groups)):
                        self._leave(row, group, 0, None)
                    self._requests[row] = None

    def _leave(self, row: int, group: int, start: int, end: int | None) -> None:
        part = self._tables[group][row, start:end]
        gone = part[part > 0]
        self._users[gone] -= 1
        part[:] = 0

    def _widen(self, width: int) -> None:
        have = self._tables[0].shape[1]
        if width > have:
            more = max(width, 2 * have) - have
            self._tables = [np.pad(table, ((0, 0), (0, more))) for table in self._tables]

    def _read_again(self, slots: Slots) -> None:
        """Blocks in ``slots`` were written by others: compare them in full with the next step."""
        changed = np.zeros(self._users.size, bool)
        changed[slots] = True
        changed[0] = False
        rows = np.array([row for row, request in enumerate(self._requests) if request is not None], np.int64)
        for group, table in enumerate(self._tables):
            width = int(self._unread[group, rows].max(initial=0))
            if not width:
                continue
            hit = changed[table[rows, :width]]
            some = hit.any(axis=1)
            first = np.where(some, hit.argmax(axis=1), width)
            self._unread[group, rows] = np.minimum(self._unread[group, rows], first)

    # Steps.

    def zero(self, slots: Slots) -> None:
        """The next step fills ``slots`` with zeros before it does anything else."""
        self._write_blocks(slots, np.zeros(slots.size * self.cells, np.int64))

    def execute(self, changes: list[Change], rows: Rows, start: Rows, tokens: Rows) -> None:
        """Run a step: row ``rows[i]`` computes its tokens ``start[i]`` .. ``start[i] + tokens[i] - 1``.
        Raises GarbledBlock.
        """
        self._apply(changes)
        if self._dirty:
            slots = np.concatenate(self._dirty)
            self._dirty.clear()
            if self._users[slots].any():
                self._read_again(slots)
        single = tokens == 1
        one, at = rows[single], start[single]
        many = np.flatnonzero(~single).tolist()
        for group in range(len(self.groups)):
            if one.size:
                self._write_tokens(one, at, group)
            for i in many:
                self._write_chunk(int(rows[i]), int(start[i]), int(tokens[i]), group)
        for group in range(len(self.groups)):
            if one.size:
                self._decode_attention(one, at, group)
            for i in many:
                self._attend(int(rows[i]), int(start[i]), int(start[i] + tokens[i]), group)

    def _write_tokens(self, rows: Rows, at: Rows, group: int) -> None:
        size = self.groups[group].block_size
        slots = self._tables[group][rows, at // size]
        self._write(slots * self.cells + at % size, self._oracle.at(rows, at, group))
        shared = slots[self._users[slots] > 1]
        if shared.size:
            self._read_again(shared)

    def _write_chunk(self, row: int, start: int, tokens: int, group: int) -> None:
        size = self.groups[group].block_size
        first, last = start // size, (start + tokens - 1) // size
        slots = self._tables[group][row, first : last + 1]
        content = self._oracle.tokens(row, start, start + tokens, group)
        lead = start - first * size
        if not lead and tokens == slots.size * self.cells:
            self._write_blocks(slots, content)
        else:
            cells = (slots[:, None] * self.cells + self._offsets_of[group]).reshape(-1)
            self._write(cells[lead : lead + tokens], content)
        shared = slots[self._users[slots] > 1]
        if shared.size:
            self._read_again(shared)

    def _decode_attention(self, rows: Rows, at: Rows, group: int) -> None:
        spec = self.groups[group]
        size = spec.block_size
        current = at // size
        unread = self._unread[group, rows] < current
        if unread.any():
            for i in np.flatnonzero(unread).tolist():
                self._attend(int(rows[i]), int(at[i]), int(current[i]) * size, group)
        start = spec.first_tokens(at) if spec.forgets else None
        low = 0 if start is None else start // size
        sample = low + (at * 40503 + rows * 7919) % np.maximum(current - low, 1)
        blocks = np.concatenate([current, np.minimum(sample, current)])
        both = np.concatenate([rows, rows])
        positions = blocks[:, None] * size + self._offsets_of[group]
        slots = self._tables[group][both, blocks]
        lowest = 0 if start is None else np.tile(start, 2)[:, None]
        read = Read(both, group, blocks, slots, lowest, np.concatenate([at, at])[:, None])
        self._compare(read, self._oracle.at(both, positions, group))
        self._unread[group, rows] = (at + 1) // size
        self.reads.in_full += rows.size
        self.reads.sampled += rows.size

    def _attend(self, row: int, start: int, end: int, group: int) -> None:
        """Compare in full what the tokens from ``start`` on read of the first ``end`` tokens and was not
        compared yet.
        """
        spec = self.groups[group]
        size = spec.block_size
        lowest = spec.first_token(start)
        first = max(int(self._unread[group, row]), lowest // size)
        last = -(-end // size)
        if last > first:
            slots = self._tables[group][row, first:last]
            read = Read(row, group, np.arange(first, last), slots, lowest, end - 1)
            self._compare(read, self._oracle.tokens(row, first * size, last * size, group))
            self.reads.in_full += last - first
        self._unread[group, row] = max(int(self._unread[group, row]), end // size)

    def _garbled(self, read: Read, i: int, offset: int, found: int) -> None:
        row = read.rows if isinstance(read.rows, int) else int(read.rows[i])
        block = int(read.blocks[i])
        position = block * self.groups[read.group].block_size + offset
        request = self._requests[row]
        assert request is not None
        expected = int(self._oracle.tokens(row, position, position + 1, read.group)[0])
        raise GarbledBlock(
            request.id, read.group, block, int(read.slots[i]), expected & (2**64 - 1), found & (2**64 - 1)
        )
