"""Shapes of kernel copies: which kernel, how many thread blocks, and how much each keeps in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from kvfence.reference.device.driver import Card
from kvfence.spec.events import Kind

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads move 16 bytes each, through registers.

    Two multiprocessors come near the link's limit when each has a thousand threads with 128 bytes in flight.
    """

    source: ClassVar[Path] = _HERE / "kernels.cu"
    kernel: ClassVar[str] = "copy_blocks"
    defines: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[int] = 0

    grid: int
    threads: int = 1024


@dataclass(frozen=True, slots=True)
class Bulk:
    """Each of ``warps`` warps moves pieces of ``chunk`` bytes through ``stages`` buffers in shared memory.

    Of its writes at most ``behind`` are under way when ``bound``; else as many as its buffers allow.
    Needs compute capability 9.0 (CUDA programming guide, asynchronous data copies: bulk copies).
    """

    source: ClassVar[Path] = _HERE / "bulk.cu"
    kernel: ClassVar[str] = "copy_bulk"

    grid: int
    warps: int
    chunk: int
    stages: int
    behind: int
    bound: bool

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return 32 * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a thread block."""
        return self.warps * self.stages * self.chunk

    @property
    def defines(self) -> tuple[str, ...]:
        """What the kernel is compiled with."""
        return (
            f"WARPS={self.warps}",
            f"CHUNK={self.chunk}",
            f"STAGES={self.stages}",
            f"BEHIND={self.behind}",
            f"BOUND={int(self.bound)}",
        )


Shape: TypeAlias = Threads | Bulk

BULK_SINCE: Final = (9, 0)
BY_THREADS: Final[Mapping[Kind, Shape]] = {"store": Threads(2, 768), "load": Threads(4)}
IN_BULK: Final[Mapping[Kind, Shape]] = {
    "store": Bulk(2, 4, 16384, 3, 2, bound=True),
    "load": Bulk(4, 4, 4096, 5, 1, bound=False),
}
"""A multiprocessor moves at most 25 to 29 GB/s in bulk. 256 KiB in flight cover the delay of the link while
compute keeps memory busy; more stores than that hold up what compute writes."""


def best_shapes(card: Card) -> Mapping[Kind, Shape]:
    """For this card."""
    return IN_BULK if card.capability >= BULK_SINCE else BY_THREADS
