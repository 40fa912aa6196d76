"""Kernel copy: a few thread blocks read and write registered host memory directly.

For blocks too small for DMA, whose cost for each piece then exceeds that of its bytes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import torch

from kvfence.reference.copy.descriptors import Buffer, DescriptorPool
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import CopyError, Plan
from kvfence.reference.device.driver import Driver, NoDevice, compile_cuda
from kvfence.spec.events import Kind

SOURCE: Final = Path(__file__).with_name("kernels.cu")
QUAD: Final = 16
"""Bytes of the smallest access: blocks begin and end at multiples of it."""

_THREADS = "copy_by_threads"
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
_BULK_ARGUMENTS = (*_ARGUMENTS, ctypes.c_uint32, ctypes.c_uint32)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel copy is laid out.

    ``writes`` 0: threads load and store, ``threads`` in each of ``grid`` thread blocks. Otherwise (compute
    capability 9.0 and later) the bulk copy engine of each multiprocessor does, through ``stages`` pieces of
    ``piece`` bytes in shared memory, of which ``writes`` may be on their way out.
    """

    grid: int
    threads: int = 512
    writes: Literal[0, 1, 4, 8] = 0
    piece: int = 8192
    stages: int = 24


class Kernels:
    """The compiled kernels of one device."""

    def __init__(self, driver: Driver) -> None:
        if not driver.maps_host_memory:
            raise NoDevice("kernels of this device cannot reach registered host memory under its own address")
        self.driver = driver
        capability = driver.card.capability
        self.has_bulk = capability >= (9, 0)
        bulk = ("copy_bulk_1", "copy_bulk_4", "copy_bulk_8") if self.has_bulk else ()
        image = compile_cuda(SOURCE.read_text(encoding="utf-8"), capability)
        self._functions = driver.load_kernels(image, (_THREADS, *bulk))
        for name in bulk:
            driver.allow_shared(
                self._functions[name], driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 1024
            )

    def launch(self, shape: Shape, src: int, dst: int, blocks: int, nbytes: int, stream: int) -> None:
        """Copy ``blocks`` blocks of ``nbytes`` bytes; ``src`` and ``dst`` are addresses of address arrays."""
        if shape.writes and self.has_bulk:
            function = self._functions[f"copy_bulk_{shape.writes}"]
            arguments = (src, dst, blocks, nbytes, shape.piece, shape.stages)
            shared = shape.piece * shape.stages
            self.driver.launch(function, shape.grid, 32, shared, stream, arguments, _BULK_ARGUMENTS)
        else:
            arguments = (src, dst, blocks, nbytes)
            self.driver.launch(
                self._functions[_THREADS], shape.grid, shape.threads, 0, stream, arguments, _ARGUMENTS
            )


class KernelCopy(CopyEngine):
    """One launch for each size of block in the transfer."""

    name: ClassVar[str] = "kernel"
    merges: ClassVar[bool] = False

    def __init__(self, kernels: Kernels, store: Shape, load: Shape, mapped: bool = False) -> None:
        self._kernels = kernels
        self._shapes: dict[Kind, Shape] = {"store": store, "load": load}
        self._pool = DescriptorPool(kernels.driver.ordinal)
        self._mapped = mapped

    def launch(self, work: Plan, stream: int) -> None:
        """Raises CopyError for blocks that are no multiple of 16 bytes."""
        if not work.src.size:
            return
        check_aligned(work)
        here = torch.cuda.ExternalStream(stream, self._kernels.driver.ordinal)
        groups = by_size(work)
        for part in groups:
            buffer = self._pool.take(part)
            self._launch_one(part, buffer, here)
            self._pool.give_back(buffer, here)

    def _launch_one(self, part: Plan, buffer: Buffer, here: torch.cuda.Stream) -> None:
        count = part.src.size
        if self._mapped:
            at = buffer.host.data_ptr()
        else:
            at = buffer.device.data_ptr()
            self._kernels.driver.copy(at, buffer.host.data_ptr(), 16 * count, here.cuda_stream)
        size = int(part.nbytes[0])
        self._kernels.launch(self._shapes[part.kind], at, at + 8 * count, count, size, here.cuda_stream)


def check_aligned(work: Plan) -> None:
    """Raises CopyError unless every piece begins and ends at a multiple of 16 bytes."""
    if ((work.src | work.dst | work.nbytes) & np.uint64(QUAD - 1)).any():
        raise CopyError(
            f"the kernel copy moves multiples of {QUAD} bytes: use the engine dma for these blocks"
        )


def by_size(work: Plan) -> list[Plan]:
    """The pieces of ``work``, one part for each size."""
    if (work.nbytes == work.nbytes[0]).all():
        return [work]
    parts = []
    for size in np.unique(work.nbytes):
        these = work.nbytes == size
        parts.append(Plan(work.kind, (), work.src[these], work.dst[these], work.nbytes[these]))
    return parts
