"""The engine for everyday use: for each transfer, the one that was measured to be the fastest for its
blocks.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from kvfence.reference.copy.batched import BatchedDMA
from kvfence.reference.copy.crossover import OVERRIDE, Crossover, EngineName, crossover, overrides
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import KernelCopy, Kernels, is_aligned
from kvfence.reference.copy.plan import Plan, Segment
from kvfence.reference.copy.staged import StagedCopy, host_order
from kvfence.reference.driver.driver import Driver
from kvfence.spec import events as ev
from kvfence.spec import order as od

LONG_RUN = 8
"""Blocks of a run on the host side, on average, from which the host side counts as contiguous."""


class AutoCopy(CopyEngine):
    """Plans with the engine that is fastest for the size of the pieces and the layout of the blocks.

    ``forced`` names an engine for a direction, whatever was measured; where that is not ``auto``, blocks
    that are no multiple of 16 bytes still go by DMA.
    """

    name: ClassVar[str] = "auto"

    def __init__(
        self,
        engines: Mapping[str, CopyEngine],
        table: Crossover | None,
        forced: Mapping[ev.Kind, EngineName] | None = None,
    ) -> None:
        self._engines = engines
        self._table = table
        self._forced = dict(forced or {})

    def plan(self, kind: ev.Kind, segments: Sequence[Segment]) -> Plan:
        """The pieces, made for the engine that is to move them. Raises CopyError."""
        merged = self._engines["dma"].plan(kind, segments)
        name = self._choose(kind, merged, segments)
        return merged if name == "dma" else self._engines[name].plan(kind, segments)

    def _choose(self, kind: ev.Kind, merged: Plan, segments: Sequence[Segment]) -> str:
        if not merged.src.size or not is_aligned(merged):
            return "dma"
        forced = self._forced.get(kind, "auto")
        if forced != "auto":
            return forced
        if self._table is None:
            return "dma"
        blocks = sum(segment.src.size * len(segment.src_views) for segment in segments)
        block = merged.total / blocks
        piece = merged.total / merged.src.size
        if piece < 2 * block and self._table.engine(kind, "host runs", block) == "staged":
            order = host_order(merged)
            at = (merged.dst if kind == "store" else merged.src)[order]
            runs = 1 + int(np.count_nonzero(at[1:] != at[:-1] + merged.nbytes[order][:-1]))
            if merged.src.size >= LONG_RUN * runs:
                return "staged"
        return self._table.engine(kind, "scattered", piece)

    def source_order(self, work: Plan) -> od.SourceOrder:
        """That of the engine that planned it."""
        return self._engines[work.engine].source_order(work)

    def stage(self, work: Plan, stream: torch.cuda.Stream) -> Callable[[], None]:
        """By the engine that planned it."""
        return self._engines[work.engine].stage(work, stream)

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """Carried out by the engine that planned it."""
        self._engines[work.engine].launch(work, stream)


def open_engines(driver: Driver) -> dict[str, CopyEngine]:
    """The engines of a device by name. Raises NoDevice."""
    kernels = Kernels(driver)
    engines: tuple[CopyEngine, ...] = (BatchedDMA(driver), KernelCopy(kernels), StagedCopy(kernels))
    return {engine.name: engine for engine in engines}


def open_auto(driver: Driver, engine: str | None = None) -> AutoCopy:
    """The engines of a device behind one. Raises NoDevice, OptionsError.

    ``engine`` (else the environment variable KVFENCE_COPY_ENGINE) overrides the choice, for both directions
    or as ``store=ENGINE,load=ENGINE``. Nothing is measured when both are overridden.
    """
    forced = overrides(engine, "engine") if engine else overrides(os.environ.get(OVERRIDE, ""))
    engines = open_engines(driver)
    measured = sum(name != "auto" for name in forced.values()) < 2
    return AutoCopy(engines, crossover(driver, engines) if measured else None, forced)
