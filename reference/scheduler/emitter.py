"""The scheduler's events that need counting: rounds without a step, admissions, blocks of each group."""

from collections.abc import Sized

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import GroupSpec
from kvfence.spec import events as ev


class Emitter:
    """Emits these events to ``observer``; a faulty design may count wrongly here."""

    def __init__(self, manager: KVCacheManager, observer: Observer) -> None:
        self.manager = manager
        self.observer = observer

    def emit_idle_round(self, needed: int, **requests: Sized) -> None:
        """Nothing was scheduled: counts the requests in each state.

        ``needed``: free slots that the first one waits for.
        """
        counts = {state: len(those) for state, those in requests.items()}
        self.observer(ev.Round(needed=needed or -1, pool=self.manager.pool.name, **counts))

    def emit_admission(self, request: Request, local: int, external: int, promised: int) -> None:
        """``request`` was admitted with ``local`` GPU tokens and ``external`` of those ``promised``."""
        self.observer(
            ev.Admit(
                req=request.id,
                gen=request.generation,
                local=local,
                external=self._count_external(external, promised),
                compute=request.total - local - external,
                total=request.total,
            )
        )

    def emit_tables(self, request: Request, tokens: int) -> None:
        """Emits how the blocks behind a hit of ``tokens`` tokens are counted, group by group."""
        for group, spec in enumerate(self.manager.groups):
            first, last = self._first_emitted(spec, tokens), tokens // spec.block_size
            slots = self.manager.tables.table(request.row, group)[first:last].copy()
            self.observer(
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

    def _count_external(self, accepted: int, promised: int) -> int:
        del promised
        return accepted

    def _first_emitted(self, spec: GroupSpec, tokens: int) -> int:
        return spec.first_block(tokens)

    def _count_held(self, slots: Slots) -> int:
        return int(np.count_nonzero(slots != self.manager.tables.null))

    def _count_needed(self, spec: GroupSpec, tokens: int) -> int:
        return tokens // spec.block_size - spec.first_block(tokens)

    def _bound(self, spec: GroupSpec) -> int:
        return spec.most_read if spec.forgets else -1
