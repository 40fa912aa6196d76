"""What the scheduler tells of its decisions: rounds without a step, admissions, how blocks are counted."""

from __future__ import annotations

from collections import deque

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import BlockTables, GroupSpec
from kvfence.spec import events as ev


class EmittingScheduler:
    """The part of a scheduler that only tells; a faulty design may count wrongly here."""

    manager: KVCacheManager
    tables: BlockTables
    observer: Observer | None
    block_size: int
    watermark: int
    waiting: deque[Request]
    parked: dict[str, Request]
    ready: list[Request]
    running: list[Request]

    def _emit_idle_round(self, observer: Observer) -> None:
        """Nothing was scheduled: who is there all the same."""
        needed = self.waiting[0].needed if self.waiting else 0
        if needed and (self.running or self.parked or self.ready):
            needed += self.watermark
        observer(
            ev.Round(
                running=len(self.running),
                ready=len(self.ready),
                parked=len(self.parked),
                waiting=len(self.waiting),
                needed=needed or -1,
                pool=self.manager.pool.name,
            )
        )

    def _emit_admission(self, request: Request, local: int, external: int, promised: int) -> None:
        del promised
        if self.observer is not None:
            total = request.total
            self.observer(
                ev.Admit(
                    req=request.id,
                    gen=request.generation,
                    local=local,
                    external=external,
                    compute=total - local - external,
                    total=total,
                )
            )

    def _emit_tables(self, observer: Observer, request: Request, tokens: int) -> None:
        """How the blocks behind the hit are counted, group by group."""
        for group, spec in enumerate(self.manager.groups):
            first, last = self._first_told(spec, tokens), tokens // spec.block_size
            slots = self.tables.table(request.row, group)[first:last].copy()
            observer(
                ev.Geometry(
                    req=request.id,
                    gen=request.generation,
                    group=group,
                    tokens=tokens,
                    at=first,
                    slots=slots,
                    held=self._count_held(slots),
                    needed=self._count_needed(spec, tokens),
                    bound=self._bound(spec),
                )
            )

    def _first_told(self, spec: GroupSpec, tokens: int) -> int:
        return spec.first_block(tokens)

    def _count_held(self, slots: Slots) -> int:
        return int(np.count_nonzero(slots != self.tables.null))

    def _count_needed(self, spec: GroupSpec, tokens: int) -> int:
        return tokens // spec.block_size - spec.first_block(tokens)

    def _bound(self, spec: GroupSpec) -> int:
        return spec.most_read if spec.forgets else -1
