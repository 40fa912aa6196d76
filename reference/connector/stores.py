"""What to store, and when: eager as blocks fill, lazy as they are about to be evicted; what is left out has
a reason.
"""

from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import BlockPool, Keys, Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.connector.transfers import Transfer, TransferTable
from kvfence.spec import events as ev


@dataclass(slots=True)
class ConnectorMetadata:
    """What the workers get with a step: transfers to start."""

    loads: list[Transfer] = field(default_factory=list)
    stores: list[Transfer] = field(default_factory=list)


class StorePlanner:
    """The storing half of the connector's scheduler side.

    Eager mode stores blocks as soon as confirmed tokens fill ``store_batch`` of them, and the rest at the
    end of the generation. Lazy mode stores cached blocks that are about to be evicted from the GPU.
    """

    table_type: ClassVar[type[TransferTable]] = TransferTable

    def __init__(
        self,
        manager: KVCacheManager,
        tier: BlockPool,
        lazy: bool = False,
        ranks: int = 1,
        store_batch: int = 8,
        lazy_horizon: int = 1024,
        stats: Stats | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.manager = manager
        self.gpu = manager.pool
        self.tier = tier
        self.lazy = lazy
        self.store_batch = store_batch
        self.lazy_horizon = lazy_horizon
        self.stats = stats if stats is not None else Stats()
        self.observer = observer
        self.block_size = manager.groups[0].block_size
        self.transfers = self.table_type(ranks, observer)
        self.epoch = 0
        """Grows with each reset; a transfer keeps the epoch in which it was decided."""
        self.storing: list[set[int]] = [set() for _ in manager.groups]
        """Per group: keys on their way to the tier."""
        self.to_issue = ConnectorMetadata()
        self._scanned = (0, 0)
        """Where the lazy scan stopped: how often the free queue had been packed, and the position in it."""
        self._offered: list[set[int]] = [set() for _ in manager.groups]
        """Per group: keys stored lazily since the GPU pool last evicted something."""
        self._evicted = 0

    def _store_due(self, rows: Rows) -> None:
        """Store for the requests that have a batch of full blocks, or whose window is about to slide past
        some.
        """
        if not rows.size:
            return
        tables = self.manager.tables
        confirmed = tables.confirmed[rows]
        for group, spec in enumerate(self.manager.groups):
            full = confirmed // spec.block_size
            cursor = tables.cursor[group, rows]
            due = full - cursor >= self.store_batch
            if spec.forgets:
                due |= (cursor < spec.first_blocks(confirmed)) & (full > cursor)
            for row in rows[due].tolist():
                request = tables.requests[row]
                assert request is not None
                self._store_blocks(request, group, int(tables.confirmed[row]) // spec.block_size)

    def _store_blocks(self, request: Request, group: int, upto: int) -> None:
        """Move the store cursor towards block ``upto``: each block it passes is queued or dropped with a
        reason.

        It stops at the first block for which the tier has no slot; that gap is tried again later.
        """
        tables, row = self.manager.tables, request.row
        start = int(tables.cursor[group, row])
        keys = request.key_lists[group][start:upto]
        slots = tables.slots[group][row, start:upto]
        chosen, reasons = self._choose(keys, slots, group)
        room = self.tier.num_free
        if len(chosen) > room:
            upto = self._decline(request, group, start + chosen[room], upto)
            chosen, reasons = chosen[:room], reasons[: upto - start]
        if chosen:
            which = np.array(chosen, np.int64)
            at = start + which
            self._store(slots[which], request.keys_of[group][at], group, at, request)
        if len(chosen) < len(reasons):
            block = start
            for reason, run in groupby(reasons):
                n = len(list(run))
                if reason is not None:
                    self._drop(request, request.generation, group, block, n, reason)
                block += n
        self._move_cursor(request, group, upto)

    def _decline(self, request: Request, group: int, block: int, upto: int) -> int:
        """The tier has no slot for ``block``: how far the cursor may move all the same."""
        del request, group, upto
        return block

    def _choose(
        self, keys: list[int], slots: Slots, group: int
    ) -> tuple[list[int], list[ev.DropReason | None]]:
        """Which of the blocks to store, and for each block why not (None: store it)."""
        resident = self.tier.index[group]
        storing = self._being_stored(group)
        holes = slots == self.manager.tables.null
        if resident.keys().isdisjoint(keys) and storing.isdisjoint(keys) and not holes.any():
            return list(range(len(keys))), [None] * len(keys)
        reasons: list[ev.DropReason | None] = [
            "window" if hole else "resident" if key in resident else "in_flight" if key in storing else None
            for key, hole in zip(keys, holes.tolist(), strict=True)
        ]
        return [i for i, reason in enumerate(reasons) if reason is None], reasons

    def _being_stored(self, group: int) -> set[int]:
        """Keys that the tier does not have yet but will have, unless their store fails."""
        return self.storing[group]

    def _store(self, src: Slots, keys: Keys, group: int, at: Slots, request: Request | None) -> None:
        """Queue a store; from here on it holds both ends."""
        transfer = self._transfer("store", src, src, keys, group, at, request)
        transfer.dst = self.tier.get_new_blocks(transfer.holder, src.size)
        self.gpu.touch(transfer.holder, src)
        self._queue_store(transfer)

    def _queue_store(self, transfer: Transfer) -> None:
        self.storing[transfer.group].update(transfer.keys.tolist())
        self.transfers.add(transfer)
        self.to_issue.stores.append(transfer)
        self.stats.stores += 1
        self.stats.stored_blocks += transfer.src.size

    def _store_over(self, transfer: Transfer) -> None:
        self.storing[transfer.group].difference_update(transfer.keys.tolist())
        if not transfer.ok:
            self.stats.failed_stores += 1
            request, generation = transfer.request, transfer.request_generation
            if request is not None and generation not in request.retired:
                for at in transfer.at.tolist():
                    self._drop(request, generation, transfer.group, at, 1, "failed")
        elif self._may_register(transfer):
            self.tier.cache_full_blocks(
                transfer.dst, transfer.keys, transfer.group, transfer.op, transfer.generation
            )
        self.tier.free_blocks(transfer.holder, transfer.dst[::-1])
        self.gpu.free_blocks(transfer.holder, transfer.src[::-1])
        self.transfers.forget(transfer)

    def _may_register(self, transfer: Transfer) -> bool:
        """A transfer decided before a reset must not bring back what the reset forgot."""
        return transfer.epoch == self.epoch

    def _store_before_eviction(self) -> None:
        """Lazy mode: store the cached blocks that the GPU pool gives away next.

        Each entry of the free queue is looked at once; a block without room in the tier is looked at again.
        While the GPU evicts nothing, no block is stored twice: in a smaller tier they would push each other
        out for ever.
        """
        if self.gpu.evicted != self._evicted:
            self._evicted = self.gpu.evicted
            for offered in self._offered:
                offered.clear()
        queue = self.gpu.free_queue
        packed, start = self._scanned
        slots, end = queue.scan(start if packed == queue.packed else 0, self.lazy_horizon)
        self._scanned = (queue.packed, end)
        slots = slots[self.gpu.group_of[slots] >= 0]
        if not slots.size:
            return
        groups = self.gpu.group_of[slots]
        for group in range(len(self.manager.groups)):
            mine = slots[groups == group]
            keys = self.gpu.key[mine]
            chosen, _ = self._choose(keys.tolist(), mine, group)
            key_list = keys.tolist()
            offered = self._offered[group]
            chosen = list({key_list[i]: i for i in reversed(chosen) if key_list[i] not in offered}.values())
            chosen.reverse()
            if len(chosen) > self.tier.num_free:
                chosen = chosen[: self.tier.num_free]
                self._scanned = (-1, 0)
            if chosen:
                which = np.array(chosen, np.int64)
                offered.update(key_list[i] for i in chosen)
                self._store(mine[which], keys[which], group, which[:0], None)

    def _drop(
        self, request: Request, generation: int, group: int, at: int, n: int, why: ev.DropReason
    ) -> None:
        self.stats.drops[why] += n
        if self.observer is not None:
            self.observer(ev.Drop(req=request.id, gen=generation, at=at, n=n, why=why, group=group))

    def _move_cursor(self, request: Request, group: int, to: int) -> None:
        cursor = self.manager.tables.cursor
        if to != cursor[group, request.row]:
            cursor[group, request.row] = to
            if self.observer is not None:
                self.observer(ev.Cursor(req=request.id, gen=request.generation, to=to, group=group))

    def _settle(self, request: Request, group: int, full: int, aborted: bool) -> None:
        """Account for the blocks that the cursor has not passed: flush them, or drop them with a reason."""
        cursor = self.manager.tables.cursor
        if not self.lazy and not aborted and cursor[group, request.row] < full:
            self._store_blocks(request, group, full)
        left = full - int(cursor[group, request.row])
        if left > 0:
            why: ev.DropReason = "aborted" if aborted else "lazy" if self.lazy else "tier_full"
            self._drop(request, request.generation, group, full - left, left, why)

    def _transfer(
        self,
        kind: ev.Kind,
        src: Slots,
        dst: Slots,
        keys: Keys,
        group: int,
        at: Slots,
        request: Request | None,
    ) -> Transfer:
        op, generation = self.transfers.next_id()
        pools = (self.gpu.name, self.tier.name) if kind == "store" else (self.tier.name, self.gpu.name)
        rgen = 0 if request is None else request.generation
        return Transfer(
            op, generation, kind, pools[0], src, pools[1], dst, keys, group, self.epoch, at, request, rgen
        )
