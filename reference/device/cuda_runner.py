"""The model runner on a GPU: steps are launched on the compute stream and judged when they are over."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from kvfence.reference.blocks.changes import Change
from kvfence.reference.blocks.content import Tokens
from kvfence.reference.blocks.errors import GarbledBlock
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.runner import Cells, ModelRunner, Read
from kvfence.reference.blocks.tables import GroupSpec, Rows
from kvfence.reference.device.order_tap import OrderTap

DEPTH: Final = 8
"""Steps launched and not judged, at most: how far the GPU may be behind."""
_LEAST = 1 << 17


@dataclass(slots=True, eq=False)
class _Step:
    """A step on the GPU, and the buffers that its launch uses."""

    host: torch.Tensor
    device: torch.Tensor
    outcome: torch.Tensor
    """Place of a mismatch among the tokens read (of any token if there is none), and what was found there."""
    over: torch.cuda.Event
    reads: list[tuple[Read, Cells, Tokens]] = field(default_factory=list)
    requests: list[Request | None] = field(default_factory=list)


class CudaModelRunner(ModelRunner):
    """What a step writes and reads is gathered on the host, sent in one copy, and done by the GPU in this
    order.

    The host goes on at once. So a store that was decided on a step's output may be submitted while the GPU
    still computes that step, and only stream order keeps the two apart.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        groups: tuple[GroupSpec, ...],
        rows: int,
        stream: torch.cuda.Stream,
        tap: OrderTap | None = None,
    ) -> None:
        self._stream = stream
        self._tap = tap
        self._writes: list[tuple[Cells, Tokens]] = []
        self._reads: list[tuple[Read, Cells, Tokens]] = []
        self._launched: deque[_Step] = deque()
        self._idle: list[_Step] = []
        super().__init__(memory, groups, rows)

    def _use(self, memory: torch.Tensor) -> None:
        self._on_device = memory.view(-1)

    def _write(self, cells: Cells, content: Tokens) -> None:
        self._writes.append((cells, content))

    def _write_blocks(self, slots: Slots, content: Tokens) -> None:
        self._writes.append((self._cells(slots).reshape(-1), content))

    def _cells(self, slots: Slots) -> Cells:
        return slots[:, None] * self.block_size + self._offsets

    def _compare(self, read: Read, expected: Tokens) -> None:
        counts = read.counts(self._offsets)
        cells = self._cells(read.slots)[counts]
        if cells.size:
            self._reads.append((read, cells, expected.reshape(counts.shape)[counts]))

    def execute(self, changes: list[Change], rows: Rows, start: Rows, tokens: Rows) -> None:
        """Launch a step. Raises GarbledBlock for one launched before."""
        self._judge(DEPTH - 1)
        super().execute(changes, rows, start, tokens)
        self._launch()

    def settle(self) -> None:
        """Wait for the steps launched so far. Raises GarbledBlock."""
        self._judge(0)

    def _launch(self) -> None:
        parts = [cells for cells, _ in self._writes]
        parts += [content for _, content in self._writes]
        written = sum(cells.size for cells in parts[: len(self._writes)])
        parts += [cells for _, cells, _ in self._reads]
        parts += [expected for _, _, expected in self._reads]
        if not parts:
            return
        flat = np.concatenate(parts)
        read = flat.size // 2 - written
        if self._tap is not None:
            slots = [reading.slots for reading, _, _ in self._reads]
            self._tap.step("gpu", flat[:written], np.concatenate(slots) if slots else flat[:0])
        step = self._buffers(flat.size)
        step.reads, step.requests = self._reads, list(self._requests)
        self._writes, self._reads = [], []
        step.host.numpy()[: flat.size] = flat
        with torch.cuda.stream(self._stream):
            sent = step.device[: flat.size]
            sent.copy_(step.host[: flat.size], non_blocking=True)
            to, content, at, expected = sent.split((written, written, read, read))
            if written:
                self._on_device.index_copy_(0, to, content)
            if read:
                found = self._on_device.index_select(0, at)
                worst = (found != expected).to(torch.uint8).argmax().view(1)
                step.outcome.copy_(torch.cat((worst, found.index_select(0, worst))), non_blocking=True)
            step.over.record(self._stream)
        self._launched.append(step)

    def _buffers(self, cells: int) -> _Step:
        if self._idle:
            step = self._idle.pop()
            if step.host.numel() >= cells:
                return step
        room = max(_LEAST, 1 << (cells - 1).bit_length())
        device = self._on_device.device
        with torch.cuda.stream(self._stream):
            return _Step(
                torch.empty(room, dtype=torch.int64, pin_memory=True),
                torch.empty(room, dtype=torch.int64, device=device),
                torch.empty(2, dtype=torch.int64, pin_memory=True),
                torch.cuda.Event(),
            )

    def _judge(self, most: int) -> None:
        """Judge the steps that are over, and wait until no more than ``most`` are not."""
        while self._launched and (len(self._launched) > most or self._launched[0].over.query()):
            step = self._launched.popleft()
            step.over.synchronize()
            if step.reads:
                self._judge_one(step)
            self._idle.append(step)

    def _judge_one(self, step: _Step) -> None:
        place, found = step.outcome.tolist()
        for read, cells, expected in step.reads:
            if place < cells.size:
                wanted = int(expected[place])
                if wanted != found:
                    self._raise(step, read, int(cells[place]), wanted, found)
                return
            place -= cells.size

    def _raise(self, step: _Step, read: Read, cell: int, expected: int, found: int) -> None:
        slot = cell // self.block_size
        i = int(np.flatnonzero(read.slots == slot)[0])
        request = step.requests[read.rows if isinstance(read.rows, int) else int(read.rows[i])]
        assert request is not None
        block, low = int(read.blocks[i]), 2**64 - 1
        raise GarbledBlock(request.id, read.group, block, slot, expected & low, found & low)
