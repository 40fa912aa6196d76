"""Batched DMA: one driver call starts the copies of a transfer on the GPU's copy engines."""

from itertools import pairwise
from typing import ClassVar, Final

import numpy as np
import torch

from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import Plan
from kvfence.reference.driver.driver import SRC_ANY, SRC_STREAM, Driver, NoDevice
from kvfence.spec import order as od

LANE_BYTES: Final = 32 * 2**20
"""Bytes worth a lane of their own: less moves in the time that it takes to fork and join."""


class BatchedDMA(CopyEngine):
    """cuMemcpyBatchAsync, the pieces of large transfers dealt to up to ``lanes`` streams that the transfer
    joins.

    Each piece costs a copy engine about a microsecond besides its bytes; with several lanes, one piece moves
    while another one begins.

    A store reads in stream order (STREAM): its source is written by kernels, and ANY would let the read
    overtake them although the stream waited for them. A load may read at ANY time from its launch on when
    ``any_for_loads``: its source is host memory whose last writer, a store, was seen complete by the host
    before the block could be promised, and the load's own hold keeps it from being written until the load
    is over.
    """

    name: ClassVar[str] = "dma"

    def __init__(self, driver: Driver, lanes: int = 4, any_for_loads: bool = True) -> None:
        if not driver.has_batched_copy:
            raise NoDevice("the NVIDIA driver has no batched copy; those for CUDA 12.8 or newer have")
        self._driver = driver
        self.lanes = lanes
        self.any_for_loads = any_for_loads
        self._streams = [driver.new_stream() for _ in range(lanes - 1)]
        self._begun = driver.new_event()
        self._ended = [driver.new_event() for _ in self._streams]

    def source_order(self, work: Plan) -> od.SourceOrder:
        """ANY for loads unless the engine was made with ``any_for_loads`` false."""
        return "any" if work.kind == "load" and self.any_for_loads else "stream"

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """One batch for each lane."""
        order = SRC_ANY if self.source_order(work) == "any" else SRC_STREAM
        lanes = min(self.lanes, work.total // LANE_BYTES, work.nbytes.size)
        if lanes <= 1:
            self._driver.copy_batch(work.dst, work.src, work.nbytes, order, stream.cuda_stream)
            return
        self._begun.record(stream)
        edges = lane_edges(work, lanes)
        last = work.part(edges[-2], edges[-1])
        self._driver.copy_batch(last.dst, last.src, last.nbytes, order, stream.cuda_stream)
        for lane, ended, (start, end) in zip(self._streams, self._ended, pairwise(edges[:-1]), strict=False):
            part = work.part(start, end)
            lane.wait_event(self._begun)
            self._driver.copy_batch(part.dst, part.src, part.nbytes, order, lane.cuda_stream)
            ended.record(lane)
            stream.wait_event(ended)


def lane_edges(work: Plan, lanes: int) -> list[int]:
    """Where to cut the pieces into ``lanes`` parts of about equally many bytes: ``lanes + 1`` places."""
    reached = np.cumsum(work.nbytes)
    shares = reached[-1] * np.arange(1, lanes) // lanes
    return [0, *(np.searchsorted(reached, shares) + 1).tolist(), work.nbytes.size]
