"""Batched DMA: one driver call starts the copies of a transfer on the GPU's copy engines."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import Plan
from kvfence.reference.device.driver import SRC_ANY, SRC_STREAM, Driver, NoDevice


class BatchedDMA(CopyEngine):
    """cuMemcpyBatchAsync, the pieces dealt to ``lanes`` streams that the transfer's stream waits for.

    Each piece costs a copy engine about a microsecond besides its bytes; with several lanes, one piece moves
    while another one begins.

    A store reads in stream order (STREAM): its source is written by kernels, which an order of ANY would let it
    overtake although the stream waited for them. A load may read at ANY time from its launch on when
    ``any_for_loads``: its source is host memory whose last writer, a store, was seen complete by the host before
    the block could be promised, and which the load's own hold keeps from being written until the load is over.
    """

    name: ClassVar[str] = "dma"

    def __init__(self, driver: Driver, lanes: int = 1, any_for_loads: bool = True) -> None:
        if not driver.has_batched_copy:
            raise NoDevice("the NVIDIA driver has no batched copy (CUDA 12.8 or newer has)")
        self._driver = driver
        self.lanes = lanes
        self.loads_in_order = not any_for_loads
        low = 0  # the lowest priority: copies give way to compute
        self._streams = [torch.cuda.Stream(driver.ordinal, low) for _ in range(lanes - 1)]
        self._forks = [torch.cuda.Event() for _ in range(lanes)]

    def launch(self, work: Plan, stream: int) -> None:
        """One batch a lane."""
        order = SRC_STREAM if work.kind == "store" or self.loads_in_order else SRC_ANY
        if self.lanes == 1 or work.nbytes.size < 2 * self.lanes:
            self._driver.copy_batch(work.dst, work.src, work.nbytes, order, stream)
            return
        here = torch.cuda.ExternalStream(stream, self._driver.ordinal)
        begun, *ended = self._forks
        begun.record(here)
        edges = lane_edges(work, self.lanes)
        for number, lane in enumerate(self._streams):
            part = work.part(edges[number], edges[number + 1])
            lane.wait_event(begun)
            self._driver.copy_batch(part.dst, part.src, part.nbytes, order, lane.cuda_stream)
            ended[number].record(lane)
        last = work.part(edges[-2], edges[-1])
        self._driver.copy_batch(last.dst, last.src, last.nbytes, order, stream)
        for event in ended:
            here.wait_event(event)


def lane_edges(work: Plan, lanes: int) -> list[int]:
    """Where to cut the pieces into ``lanes`` parts of about equally many bytes: ``lanes + 1`` places."""
    reached = np.cumsum(work.nbytes)
    shares = reached[-1] * np.arange(1, lanes) // lanes
    return [0, *(np.searchsorted(reached, shares) + 1).tolist(), work.nbytes.size]
