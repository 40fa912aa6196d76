"""A device without hardware: copies land late, out of order, or fail, all of it decided by a seed."""

import heapq
import random
from dataclasses import replace

import numpy as np
import torch

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.device.files import FileStore
from kvfence.reference.device.metrics import TransferMetrics
from kvfence.reference.device.protocol import CopyJob
from kvfence.reference.scheduler.options import Options

DISK = "disk"
"""Name of the pool that is kept in files."""


class VirtualDevice:
    """The pools ``gpu`` and ``cpu``, and copies that land as ``options`` say.

    Each rank ends a copy after 1 .. ``max_delay`` calls of :meth:`advance`, independently of the other ranks.

    The memory stands for the shard of the rank that ends last: bytes move when the last rank ends. A failing
    load moves only half of its blocks. ``repeat_rate`` of the reports are given a second time, much later.
    The last rank ends ``late_rank`` steps, of two calls each, later than it would. With ``files``, the pool
    ``disk`` is there.
    """

    def __init__(self, options: Options, files: FileStore | None = None) -> None:
        self.options = options
        self.memory = {
            name: torch.zeros((slots, options.slot_tokens), dtype=torch.int64)
            for name, slots in options.two_pools.items()
        }
        # numpy moves small scattered rows several times faster than torch does on a CPU.
        self._arrays = {name: tensor.numpy() for name, tensor in self.memory.items()}
        self.metrics = TransferMetrics()
        self.files = files
        self._width = 8 * options.slot_tokens
        self._random = random.Random(options.seed)
        self._now = 0
        self._landings: list[tuple[int, float, int, CopyJob | None, TransferReport]] = []
        self._serial = 0
        self._reports: list[TransferReport] = []
        self._written: dict[str, list[Slots]] = {name: [] for name in self.memory}

    def submit(self, job: CopyJob) -> None:
        """Start ``job`` on all ranks."""
        options, last = self.options, self.options.ranks - 1
        fail_rate = options.fail_rate if job.load or options.fail_stores else 0.0
        due = sorted(self._now + self._random.randint(1, options.max_delay) for _ in range(options.ranks))
        order = list(range(options.ranks))
        self._random.shuffle(order)
        ends = list(zip(due, order, strict=True))
        if options.late_rank:
            ends = sorted((when + 2 * options.late_rank * (rank == last), rank) for when, rank in ends)
        for place, (when, rank) in enumerate(ends):
            ok = not (fail_rate and self._random.random() < fail_rate)
            failed = None if ok else np.arange(job.src.size // 2, job.src.size)
            report = TransferReport(job.op, job.generation, rank, ok, failed)
            self._land_at(when, job if place == last else None, report)

    def _land_at(self, when: int, job: CopyJob | None, report: TransferReport) -> None:
        self._serial += 1
        heapq.heappush(self._landings, (when, self._random.random(), self._serial, job, report))

    def advance(self) -> None:
        """One tick: what is due lands, in random order."""
        self._now += 1
        if self.files is not None:
            self.files.advance()
        while self._landings and self._landings[0][0] <= self._now:
            _, _, _, job, report = heapq.heappop(self._landings)
            if job is not None:
                report = self._move(job, report)
            self._reports.append(report)
            if self.options.repeat_rate and self._random.random() < self.options.repeat_rate:
                self._land_at(self._now + self._random.randint(1, 4 * self.options.max_delay), None, report)

    def _move(self, job: CopyJob, report: TransferReport) -> TransferReport:
        """Move the bytes. Returns the report, which may have become worse."""
        n = len(job.src) if report.ok else len(job.src) // 2
        src, dst = job.src[:n], job.dst[:n]
        if self.files is not None and job.dst_pool == DISK:
            self.files.write(dst, self._arrays[job.src_pool][src])
        elif self.files is not None and job.src_pool == DISK:
            content, there = self.files.read(src)
            self._arrays[job.dst_pool][dst[there]] = content[there]
            self._written[job.dst_pool].append(dst[there])
            if not there.all():
                lost = np.flatnonzero(~there)
                known = lost if report.failed is None else np.union1d(lost, report.failed)
                report = replace(report, ok=False, failed=known)
        else:
            self._arrays[job.dst_pool][dst] = self._arrays[job.src_pool][src]
            self._written[job.dst_pool].append(dst)
        self.metrics.transfer("load" if job.load else "store", src.size * self._width, 0.0)
        return report

    def poll(self) -> list[TransferReport]:
        """Ends of copies since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def written(self, pool: str) -> list[Slots]:
        """Slots of ``pool`` that copies wrote since the last call."""
        written, self._written[pool] = self._written[pool], []
        return written

    def close(self) -> None:
        """Remove the files."""
        if self.files is not None:
            self.files.close()
