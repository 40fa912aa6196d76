"""Kernel copy: a few thread blocks read and write registered host memory directly.

For blocks too small for DMA, whose cost for each piece then exceeds that of its bytes.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import torch

from kvfence.reference.copy.descriptors import Buffer, DescriptorPool
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import CopyError, Plan
from kvfence.reference.driver.driver import Driver, NoDevice
from kvfence.spec import events as ev

SOURCE: Final = Path(__file__).with_name("kernels.cu")
QUAD: Final = 16
"""Bytes of the smallest access: blocks begin and end at multiples of it."""

_NAME = "copy_blocks"
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)


@dataclass(frozen=True, slots=True)
class Shape:
    """Thread blocks of a kernel copy, and threads in each.

    Two multiprocessors come near the link's limit when each has a thousand threads with 128 bytes in flight.
    """

    grid: int
    threads: int = 1024


DEFAULT_SHAPES: Final[Mapping[ev.Kind, Shape]] = {"store": Shape(2, 768), "load": Shape(4)}
"""More threads store no faster, and their writes, queued for the link, hold up what compute writes."""


class Kernels:
    """The compiled kernels of one device. Raises NoDevice when they cannot reach host memory."""

    def __init__(self, driver: Driver) -> None:
        if not driver.maps_host_memory:
            raise NoDevice("kernels of this device cannot reach registered host memory under its own address")
        self.driver = driver
        self._copy = driver.compile(SOURCE.read_text(encoding="utf-8"), _NAME)
        self._pool = DescriptorPool(driver)

    def stage(self, work: Plan, shape: Shape, stream: torch.cuda.Stream) -> Callable[[], None]:
        """Send the addresses of ``work`` ahead. What is returned launches a kernel for each size of piece."""
        sent = [(part, self._pool.take(part)) for part in by_size(work)]
        for part, buffer in sent:
            at, nbytes = buffer.device.data_ptr(), 16 * part.src.size
            self.driver.copy(at, buffer.host.data_ptr(), nbytes, stream.cuda_stream)
        return partial(self._launch, sent, shape, stream)

    def _launch(self, sent: list[tuple[Plan, Buffer]], shape: Shape, stream: torch.cuda.Stream) -> None:
        for part, buffer in sent:
            at, count = buffer.device.data_ptr(), part.src.size
            arguments = (at, at + 8 * count, count, int(part.nbytes[0]))
            self.driver.launch(
                self._copy, shape.grid, shape.threads, stream.cuda_stream, arguments, _ARGUMENTS
            )
        for _, buffer in sent:
            self._pool.give_back(buffer, stream)


class KernelCopy(CopyEngine):
    """Copies by the few thread blocks of ``shapes``, so that compute keeps the other multiprocessors."""

    name: ClassVar[str] = "kernel"
    merges: ClassVar[bool] = False

    def __init__(self, kernels: Kernels, shapes: Mapping[ev.Kind, Shape] = DEFAULT_SHAPES) -> None:
        self._kernels = kernels
        self._shapes = shapes

    def stage(self, work: Plan, stream: torch.cuda.Stream) -> Callable[[], None]:
        """Raises CopyError for blocks that are no multiple of 16 bytes."""
        check_aligned(work)
        return self._kernels.stage(work, self._shapes[work.kind], stream)

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """Raises CopyError for blocks that are no multiple of 16 bytes."""
        self.stage(work, stream)()


def is_aligned(work: Plan) -> bool:
    """Whether every piece begins and ends at a multiple of 16 bytes."""
    return not ((work.src | work.dst | work.nbytes) & np.uint64(QUAD - 1)).any()


def check_aligned(work: Plan) -> None:
    """Raises CopyError unless every piece begins and ends at a multiple of 16 bytes."""
    if not is_aligned(work):
        raise CopyError(
            f"a kernel copies multiples of {QUAD} bytes only: use the engine dma for these blocks"
        )


def by_size(work: Plan) -> list[Plan]:
    """The pieces of ``work``, one part for each size."""
    if not work.nbytes.size or (work.nbytes == work.nbytes[0]).all():
        return [work] if work.nbytes.size else []
    parts = []
    for size in np.unique(work.nbytes):
        these = work.nbytes == size
        part = (work.src[these], work.dst[these], work.nbytes[these])
        parts.append(Plan(work.kind, work.engine, (), *part))
    return parts
