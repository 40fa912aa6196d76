"""Order events of the CUDA device: emitted to an observer in the order of the calls, from all its threads."""

import threading
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np
import torch

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.runner import Cells
from kvfence.reference.copy.plan import run_starts
from kvfence.reference.device.protocol import CopyJob
from kvfence.spec import events as ev
from kvfence.spec import order as od

OrderObserver: TypeAlias = Callable[[od.OrderEvent], None]

ENGINE_THREAD: Final = 0
COPY_THREAD: Final = 1
COMPUTE: Final = 0
STREAMS: Final[Mapping[ev.Kind, int]] = {"store": 1, "load": 2}
JOBS: Final = 0
"""The queue of copies from the engine's thread to the copy thread."""
LAUNCHED: Final = 1
"""The queue of launched copies back. Whoever polls an event took its copy from here, so it is recorded."""
CELL: Final = 8
"""Bytes of a token."""


class OrderTap:
    """One observer for both threads. Regions are the pools, in the order of ``memory``."""

    def __init__(self, observer: OrderObserver, memory: Mapping[str, torch.Tensor]) -> None:
        self._observer = observer
        self._lock = threading.Lock()
        self._regions = {name: number for number, name in enumerate(memory)}
        self._slot = {name: tensor.stride(0) * CELL for name, tensor in memory.items()}

    def emit(self, event: od.OrderEvent) -> None:
        """Pass ``event`` on."""
        with self._lock:
            self._observer(event)

    def copy(self, job: CopyJob, kind: ev.Kind, order: od.SourceOrder) -> None:
        """The copy thread launches ``job``: a part for each run of slots."""
        first = run_starts(job.src, job.dst) if job.src.size else np.zeros(0, np.intp)
        lengths = np.diff(first, append=job.src.size)
        by = f"op:{job.op}.{job.generation}"
        src = self._ranges(job.src_pool, job.src[first], lengths)
        dst = self._ranges(job.dst_pool, job.dst[first], lengths)
        self.emit(od.Copy(COPY_THREAD, STREAMS[kind], src, dst, order, kind, by))

    def step(self, pool: str, written: Cells, read: Slots) -> None:
        """The engine's thread launches a step that writes tokens and reads slots of ``pool``."""
        region, slot = self._regions[pool], self._slot[pool]
        cells, slots = np.unique(written), np.unique(read)
        reads = runs_of(region, slots, slot)
        writes = runs_of(region, cells, CELL)
        self.emit(od.Kernel(ENGINE_THREAD, COMPUTE, reads, writes, "step"))

    def _ranges(self, pool: str, slots: Slots, lengths: Slots) -> list[od.Range]:
        region, slot = self._regions[pool], self._slot[pool]
        return list(zip(repeat(region), (slots * slot).tolist(), (lengths * slot).tolist(), strict=False))


def runs_of(region: int, sorted_places: Slots, nbytes: int) -> list[od.Range]:
    """Ranges of neighbouring places of ``nbytes`` each."""
    if not sorted_places.size:
        return []
    first = np.flatnonzero(np.diff(sorted_places, prepend=sorted_places[0] - 2) != 1)
    lengths = np.diff(first, append=sorted_places.size)
    starts = (sorted_places[first] * nbytes).tolist()
    return list(zip(repeat(region), starts, (lengths * nbytes).tolist(), strict=False))
