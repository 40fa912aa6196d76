"""Staged copy: small device blocks are gathered into, or scattered from, one buffer that moves as large pieces.

Pays where the host side is contiguous and the device side is not: a tier that was just filled, for instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from kvfence.reference.copy.descriptors import DescriptorPool
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import Kernels, Shape, by_size, check_aligned
from kvfence.reference.copy.plan import CopyError, Plan, Segment, plan
from kvfence.reference.device.driver import SRC_ANY, SRC_STREAM, Addresses
from kvfence.spec.events import Kind


class StagedCopy(CopyEngine):
    """Two staging buffers of ``room`` bytes on the device: while one is gathered or scattered, the other moves."""

    name: ClassVar[str] = "staged"
    merges: ClassVar[bool] = False

    def __init__(self, kernels: Kernels, room: int = 32 * 2**20, grid: int = 16) -> None:
        self._kernels = kernels
        self._driver = kernels.driver
        self._room = room
        self._shape = Shape(grid)
        device = torch.device("cuda", self._driver.ordinal)
        self._staging = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(2)]
        self._idle = [torch.cuda.Event() for _ in range(2)]
        self._ready = [torch.cuda.Event() for _ in range(2)]
        self._begun = torch.cuda.Event()
        self._side = torch.cuda.Stream(device, 0)
        self._pool = DescriptorPool(self._driver.ordinal)

    def plan(self, kind: Kind, segments: Sequence[Segment]) -> Plan:
        """Pieces in the order of their host addresses, so that what is contiguous there moves as one."""
        work = plan(kind, segments, merge=False)
        order = np.argsort(work.dst if kind == "store" else work.src, kind="stable")
        return Plan(kind, segments, work.src[order], work.dst[order], work.nbytes[order])

    def launch(self, work: Plan, stream: int) -> None:
        """Raises CopyError for blocks larger than the staging buffer, or no multiple of 16 bytes."""
        if not work.src.size:
            return
        check_aligned(work)
        if int(work.nbytes.max()) > self._room:
            raise CopyError(
                f"a block of {work.nbytes.max()} bytes is larger than the staging buffer of {self._room}"
            )
        here = torch.cuda.ExternalStream(stream, self._driver.ordinal)
        # The gathers run beside the copies, on a stream of their own that begins where this transfer does. An event
        # that was never recorded counts as complete, so the first use of a buffer waits for nothing.
        self._begun.record(here)
        self._side.wait_event(self._begun)
        edges = fitting(work.nbytes, self._room)
        for number, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
            self._move(work.part(start, end), number % 2, here)
        if work.kind == "load":
            self._begun.record(self._side)
            here.wait_event(self._begun)

    def _move(self, part: Plan, turn: int, here: torch.cuda.Stream) -> None:
        offsets = np.cumsum(part.nbytes) - part.nbytes
        staged = np.uint64(self._staging[turn].data_ptr()) + offsets
        if part.kind == "store":
            self._side.wait_event(self._idle[turn])
            self._by_kernel(Plan("store", (), part.src, staged, part.nbytes))
            self._ready[turn].record(self._side)
            here.wait_event(self._ready[turn])
            self._by_dma(staged, part.dst, part.nbytes, SRC_STREAM, here)
            self._idle[turn].record(here)
        else:
            here.wait_event(self._idle[turn])
            self._by_dma(part.src, staged, part.nbytes, SRC_ANY, here)
            self._ready[turn].record(here)
            self._side.wait_event(self._ready[turn])
            self._by_kernel(Plan("load", (), staged, part.dst, part.nbytes))
            self._idle[turn].record(self._side)

    def _by_kernel(self, part: Plan) -> None:
        for group in by_size(part):
            buffer = self._pool.take(group)
            count = group.src.size
            at = buffer.device.data_ptr()
            self._driver.copy(at, buffer.host.data_ptr(), 16 * count, self._side.cuda_stream)
            size = int(group.nbytes[0])
            self._kernels.launch(self._shape, at, at + 8 * count, count, size, self._side.cuda_stream)
            self._pool.give_back(buffer, self._side)

    def _by_dma(
        self, src: Addresses, dst: Addresses, nbytes: Addresses, order: int, here: torch.cuda.Stream
    ) -> None:
        """Staged bytes are contiguous, so pieces merge where the host side is."""
        first = np.flatnonzero(
            np.append(True, (src[:-1] + nbytes[:-1] != src[1:]) | (dst[:-1] + nbytes[:-1] != dst[1:]))
        )
        sizes = np.add.reduceat(nbytes, first)
        self._driver.copy_batch(dst[first], src[first], sizes, order, here.cuda_stream)


def fitting(nbytes: Addresses, room: int) -> list[int]:
    """Where to cut pieces of ``nbytes`` into parts of at most ``room`` bytes: the edges of the parts."""
    reached = np.cumsum(nbytes)
    edges = [0]
    while edges[-1] < nbytes.size:
        before = int(reached[edges[-1] - 1]) if edges[-1] else 0
        edges.append(int(np.searchsorted(reached, before + room, side="right")))
    return edges
