"""Host memory that the GPU can reach: exactly as much as was asked for, or none at all.

Torch's pinned allocator rounds each allocation up to a power of two. Here plain memory is mapped and then
registered in chunks; when a chunk is refused, everything is given back.
"""

import contextlib
import ctypes
import math
import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.errors import OffloadError
from kvfence.reference.driver.driver import DriverError, HostMemory

CHUNK: Final = 2**30
"""Bytes registered at a time, at most, unless a block and a page fit no smaller chunk."""


class HostMemoryRefused(OffloadError):  # noqa: N818 - the name says what happened
    """Host memory could not be had or registered. Nothing of it is kept."""

    def __init__(self, asked: int, granted: int, why: str) -> None:
        super().__init__(
            f"{asked} bytes of registered host memory asked, {granted} granted before one was refused "
            f"({why}); all of them were given back. "
            "Ask for fewer blocks, or raise the limit on locked memory (ulimit -l)"
        )
        self.asked = asked
        self.granted = granted


def chunk_bytes(block_bytes: int, page: int = mmap.PAGESIZE, most: int = CHUNK) -> int:
    """Bytes of a chunk: whole blocks and whole pages, so that no block lies across two registrations.

    A copy across two registrations is refused by the driver even where their addresses are contiguous.
    """
    both = math.lcm(block_bytes, page)
    return max(1, most // both) * both


class Registered(mmap.mmap):
    """Mapped memory that is unregistered before it is unmapped, whoever drops the last array over it.

    A registration that outlived its mapping would be found by whatever the system maps there next.
    """

    memory: HostMemory
    chunks: list[int]
    """Addresses of the registrations."""
    process: int

    def unregister(self) -> None:
        """End every registration. Raises the first DriverError, after all were tried."""
        failed = None
        while self.chunks:
            try:
                self.memory.unregister(self.chunks.pop())
            except DriverError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __del__(self) -> None:
        # A forked child has the memory, but not the registrations.
        if getattr(self, "chunks", None) and os.getpid() == self.process:
            with contextlib.suppress(DriverError):
                self.memory.synchronize()
            with contextlib.suppress(DriverError):
                self.unregister()


class HostPool:
    """``blocks`` blocks of ``block_bytes`` each, page-aligned, registered with the driver.

    Raises HostMemoryRefused. Close it only when no copy that touches it is in flight; a pool that is dropped
    instead waits for the device, and lives as long as an array over its memory does.
    """

    def __init__(self, memory: HostMemory, blocks: int, block_bytes: int, most: int = CHUNK) -> None:
        self.nbytes = blocks * block_bytes
        self.chunk = chunk_bytes(block_bytes, most=most)
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            mapped = Registered(-1, self.nbytes, flags=flags)
        except (OSError, ValueError, OverflowError) as error:
            raise HostMemoryRefused(self.nbytes, 0, str(error)) from error
        mapped.memory, mapped.chunks, mapped.process = memory, [], os.getpid()
        self._map: Registered | None = mapped
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Fewer, larger pages register faster; where the kernel has none, small ones do.
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._register(mapped)

    def _register(self, mapped: Registered) -> None:
        granted = 0
        try:
            for at in range(0, self.nbytes, self.chunk):
                size = min(self.chunk, self.nbytes - at)
                mapped.memory.register(self.address + at, size)
                mapped.chunks.append(self.address + at)
                granted += size
        except DriverError as error:
            self.close()
            raise HostMemoryRefused(self.nbytes, granted, str(error)) from error
        except BaseException:
            self.close()
            raise

    def array(self) -> npt.NDArray[np.uint8]:
        """The memory as bytes; valid until the pool is closed."""
        if self._map is None:
            raise OffloadError("the host pool is closed")
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Unregister everything; the memory goes back once no array refers to it. May be repeated."""
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.unregister()
