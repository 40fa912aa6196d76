"""Order events of the virtual device in a replay: what kernels and copies touch, and what waits for what.

A step is a kernel that the engine waits for before it goes on. A copy lands at some later time whatever else
happens, so each one in flight is on a stream of its own; the engine knows that it is over when the last rank
has reported.
"""

from itertools import count, repeat
from typing import Final

import numpy as np
import torch

from kvfence.reference.blocks.changes import Change
from kvfence.reference.blocks.content import Tokens
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.runner import Cells, ModelRunner, Read
from kvfence.reference.blocks.tables import GroupSpec, Rows
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.device.order_tap import CELL, COMPUTE, OrderObserver, runs_of
from kvfence.reference.device.order_tap import ENGINE_THREAD as ENGINE
from kvfence.reference.device.protocol import CopyJob
from kvfence.reference.device.virtual import VirtualDevice
from kvfence.reference.scheduler.options import Options
from kvfence.spec import order as od

STEP: Final = 0
"""The event of the last step. Those of copies follow, one for each stream."""
FIRST_COPY_STREAM: Final = 3
MEMORY: Final[dict[str, od.RegionKind]] = {"gpu": "device", "cpu": "pinned"}
"""Pool -> the kind of its region."""


def replay_header(options: Options) -> od.Header:
    """First line of the order trace of a replay with ``options``, on any device. Addresses are made up."""
    slot = options.slot_tokens * CELL
    return od.Header(
        producer="kvfence.reference",
        streams=(od.Stream(COMPUTE, name="compute"), od.Stream(1, name="store"), od.Stream(2, name="load")),
        regions=tuple(
            od.Region(number, number << 48, slots * slot, MEMORY[pool], name=pool, slot=slot)
            for number, (where, (pool, slots)) in enumerate(
                zip(MEMORY, options.two_pools.items(), strict=True)
            )
        ),
        meta={"design": options.design, "device": options.device, "mode": options.mode},
    )


class OrderedVirtualDevice(VirtualDevice):
    """A virtual device that emits its order events to ``order``."""

    def __init__(self, options: Options, order: OrderObserver) -> None:
        super().__init__(options)
        self._order = order
        self._regions = {pool: number for number, pool in enumerate(self.memory)}
        self._streams = count(FIRST_COPY_STREAM)
        self._idle: list[int] = []
        self._flying: dict[tuple[int, int], tuple[int, set[int]]] = {}
        """By operation: its stream, which is also its event, and the ranks that reported."""

    def submit(self, job: CopyJob) -> None:
        """Start ``job`` on all ranks."""
        stream = self._idle.pop() if self._idle else self._new_stream()
        self._flying[job.op, job.generation] = stream, set()
        src, dst = self._ranges(job.src_pool, job.src), self._ranges(job.dst_pool, job.dst)
        name, by = "load" if job.load else "store", f"op:{job.op}.{job.generation}"
        self._order(od.Copy(ENGINE, stream, src, dst, "stream", name, by))
        self._order(od.Record(ENGINE, stream, stream))
        super().submit(job)

    def poll(self) -> list[TransferReport]:
        """Ends of copies since the last call."""
        reports = super().poll()
        for report in reports:
            operation = report.op, report.generation
            flying = self._flying.get(operation)
            if flying is None:
                continue
            stream, ranks = flying
            ranks.add(report.rank)
            if len(ranks) == self.options.ranks:
                del self._flying[operation]
                self._idle.append(stream)
                self._order(od.Query(ENGINE, stream, done=True))
        return reports

    def _new_stream(self) -> int:
        stream = next(self._streams)
        self._order(od.Declare(streams=(od.Stream(stream, name=f"copy {stream - FIRST_COPY_STREAM}"),)))
        return stream

    def _ranges(self, pool: str, slots: Slots) -> list[od.Range]:
        starts = (slots * self._width).tolist()
        return list(zip(repeat(self._regions[pool]), starts, repeat(self._width), strict=False))


class OrderedModelRunner(ModelRunner):
    """A model runner that emits what its steps write and read to ``order``."""

    def __init__(
        self, order: OrderObserver, memory: torch.Tensor, groups: tuple[GroupSpec, ...], rows: int
    ) -> None:
        super().__init__(memory, groups, rows)
        self._order = order
        self._cells_written: list[Cells] = []
        self._slots_written: list[Slots] = []
        self._slots_read: list[Slots] = []

    def _write(self, cells: Cells, content: Tokens) -> None:
        self._cells_written.append(cells)
        super()._write(cells, content)

    def _write_blocks(self, slots: Slots, content: Tokens) -> None:
        self._slots_written.append(slots)
        super()._write_blocks(slots, content)

    def _compare(self, read: Read, expected: Tokens) -> None:
        self._slots_read.append(read.slots)
        super()._compare(read, expected)

    def execute(self, changes: list[Change], rows: Rows, start: Rows, tokens: Rows) -> None:
        """Run a step, and wait for it. Raises GarbledBlock."""
        try:
            super().execute(changes, rows, start, tokens)
        finally:
            self._emit()

    def _emit(self) -> None:
        slot = self.cells * CELL
        reads = _runs(self._slots_read, slot)
        writes = _runs(self._cells_written, CELL) + _runs(self._slots_written, slot)
        for accesses in (self._slots_read, self._cells_written, self._slots_written):
            accesses.clear()
        if reads or writes:
            self._order(od.Kernel(ENGINE, COMPUTE, reads, writes, "step"))
            self._order(od.Record(ENGINE, COMPUTE, STEP))
            self._order(od.SyncEvent(ENGINE, STEP))


def _runs(parts: list[Slots], nbytes: int) -> list[od.Range]:
    """Ranges of the GPU pool: the places of ``nbytes`` each that ``parts`` count, neighbours as one."""
    return runs_of(0, np.unique(np.concatenate(parts)), nbytes) if parts else []
