"""Descriptor buffers: page-locked arrays of addresses for kernels, used again when their reader is done."""

from collections import deque
from dataclasses import dataclass

import torch

from kvfence.reference.copy.plan import Plan
from kvfence.reference.driver.driver import Driver


@dataclass(slots=True, eq=False)
class Buffer:
    """Room for ``capacity`` pieces: source addresses, then destination addresses."""

    host: torch.Tensor
    device: torch.Tensor
    free_after: torch.cuda.Event
    capacity: int


class DescriptorPool:
    """Recycles buffers in the order in which their transfers were launched.

    A buffer is written again only when the event behind its last reader is complete: descriptors obey
    FREEZE as blocks do. When the oldest is still being read, another one is made.
    """

    def __init__(self, driver: Driver, least: int = 8192) -> None:
        self._driver = driver
        self._least = least
        self._used: deque[Buffer] = deque()
        self.made = 0

    def take(self, work: Plan) -> Buffer:
        """A buffer that is not read, filled with the addresses of ``work``."""
        count = work.src.size
        buffer = self._idle(count)
        rows = buffer.host.numpy()
        rows[:count] = work.src.view("int64")
        rows[count : 2 * count] = work.dst.view("int64")
        return buffer

    def _idle(self, count: int) -> Buffer:
        if self._used and self._used[0].free_after.query():
            buffer = self._used.popleft()
            if buffer.capacity >= count:
                return buffer
        capacity = max(self._least, 1 << (count - 1).bit_length())
        self.made += 1
        return Buffer(
            self._driver.new_pinned(2 * capacity),
            self._driver.new_buffer(16 * capacity),
            self._driver.new_event(),
            capacity,
        )

    def give_back(self, buffer: Buffer, stream: torch.cuda.Stream) -> None:
        """What was launched on ``stream`` so far is the last to read ``buffer``."""
        buffer.free_after.record(stream)
        self._used.append(buffer)
