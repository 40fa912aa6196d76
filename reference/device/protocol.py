"""What the worker side needs from a device."""

from dataclasses import dataclass
from typing import Protocol

import torch

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.device.metrics import TransferMetrics


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Copy block ``src[i]`` of pool ``src_pool`` to block ``dst[i]`` of pool ``dst_pool``; ``load``: towards
    the GPU.
    """

    op: int
    generation: int
    src_pool: str
    src: Slots
    dst_pool: str
    dst: Slots
    load: bool


class Device(Protocol):
    """Memories by pool name, and copies that run beside the compute."""

    memory: dict[str, torch.Tensor]
    """Per pool, [slots, block_size] int64: the content identity of each token (see
    :mod:`kvfence.reference.blocks.content`).
    """
    metrics: TransferMetrics

    def submit(self, job: CopyJob) -> None:
        """Start a copy; it lands at some later time, in any order relative to others and to compute."""

    def advance(self) -> None:
        """Let time pass."""

    def poll(self) -> list[TransferReport]:
        """Ends of copies since the last call, one for each rank."""

    def written(self, pool: str) -> list[Slots]:
        """Slots of ``pool`` that copies wrote since the last call."""

    def close(self) -> None:
        """Give back what the device holds. Nothing may be submitted afterwards."""
