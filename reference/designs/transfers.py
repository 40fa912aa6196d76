"""Faulty designs of stores, loads, their ends, and resets. Nothing here is right."""

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.pool import Keys
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.connector.scheduler_side import Hit, OffloadScheduler
from kvfence.reference.connector.stores import ConnectorMetadata
from kvfence.reference.connector.transfers import Transfer, TransferReport, TransferTable
from kvfence.reference.designs.blocks import ForgivesDoubleFree
from kvfence.reference.designs.design import Design, with_table
from kvfence.reference.scheduler.scheduler import Scheduler

# What is stored, and when.


class _ListsBlockTwice(OffloadScheduler):
    """Appends a block to a store's list again when the scan meets it again."""

    def _queue_store(self, transfer: Transfer) -> None:
        transfer.src = np.concatenate([transfer.src, transfer.src[-1:]])
        transfer.dst = np.concatenate([transfer.dst, transfer.dst[-1:]])
        transfer.keys = np.concatenate([transfer.keys, transfer.keys[-1:]])
        transfer.at = np.concatenate([transfer.at, transfer.at[-1:]])
        super()._queue_store(transfer)


class _ForgetsStoresInFlight(OffloadScheduler):
    """A key counts as stored only when its store is over."""

    def _being_stored(self, group: int) -> set[int]:
        del group
        return set()


class _DoesNotFlush(OffloadScheduler):
    """Clears a finished request without another look at its blocks."""

    def _settle(self, request: Request, group: int, full: int, aborted: bool) -> None:
        pass


class _FlushesLate(OffloadScheduler):
    """Plans the last store of a request two steps after its blocks were freed, and does not hold them."""

    _late: list[tuple[int, Slots, Keys, int, Slots, Request]] | None = None

    def _settle(self, request: Request, group: int, full: int, aborted: bool) -> None:
        start = int(self.manager.tables.cursor[group, request.row])
        slots = self.manager.tables.slots[group][request.row, start:full].copy()
        if slots.size and not aborted:
            self._late = self._late or []
            self._late.append(
                (2, slots, request.keys_of[group][start:full], group, np.arange(start, full), request)
            )

    def still_needs(self, holder: str) -> bool:
        """A request is not gone before its late store is planned."""
        return super().still_needs(holder) or any(holder == late[-1].holder for late in self._late or [])

    def build_connector_meta(self, rows: Rows) -> ConnectorMetadata:
        """Plan what was put off."""
        late = self._late or []
        self._late = [(steps - 1, *rest) for steps, *rest in late if steps]  # type: ignore[misc]
        for steps, slots, keys, group, at, request in late:
            if not steps and slots.size <= self.tier.num_free:
                transfer = self._transfer("store", slots, slots, keys, group, at, request)
                transfer.dst = self.tier.get_new_blocks(transfer.holder, slots.size)
                self._queue_store(transfer)
        return super().build_connector_meta(rows)

    def _store_over(self, transfer: Transfer) -> None:
        if not self.gpu.held(transfer.holder):
            self.gpu.touch(transfer.holder, transfer.src)
        super()._store_over(transfer)


class _KeepsCursor(OffloadScheduler):
    """A preempted request loses its table and keeps its store cursor."""

    def request_preempted(self, request: Request) -> None:
        """Remember the cursor."""
        super().request_preempted(request)
        kept = self.__dict__.setdefault("_kept", {})
        kept[request.id] = self.manager.tables.cursor[:, request.row].copy()

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """Go on from the old cursor."""
        super().update_state_after_alloc(request, num_external_tokens)
        if request.generation:
            kept = self.__dict__.get("_kept", {})[request.id]
            self.manager.tables.cursor[:, request.row] = kept


class _MovesCursorFirst(OffloadScheduler):
    """Moves the cursor to the end and then finds that the tier has no slot."""

    def _decline(self, request: Request, group: int, block: int, upto: int) -> int:
        del block
        self._move_cursor(request, group, upto)
        return upto


# Who holds what meanwhile.


class _LetsGoOnPreempt(OffloadScheduler):
    """Takes the stores of a preempted request for gone and gives their sources back."""

    def request_preempted(self, request: Request) -> None:
        """Let go of sources that are still being read."""
        super().request_preempted(request)
        for transfer in self.transfers.open.values():
            if transfer.kind == "store" and transfer.request is request:
                self.gpu.free_blocks(transfer.holder, transfer.src)
                self.__dict__.setdefault("_gone", set()).add(transfer.holder)

    def _store_over(self, transfer: Transfer) -> None:
        if transfer.holder in self.__dict__.get("_gone", set()):
            self.gpu.touch(transfer.holder, transfer.src)
        super()._store_over(transfer)


class _LeavesDestinationToTable(OffloadScheduler):
    """Only the request's table holds the destinations of its loads, and an abort frees the table."""

    def _hold_destination(self, transfer: Transfer) -> None:
        pass

    def _release_destination(self, load: Transfer) -> None:
        pass


class _DoesNotHoldDestination(OffloadScheduler):
    """The tier's slots have no holder until the store is over."""

    def _queue_store(self, transfer: Transfer) -> None:
        super()._queue_store(transfer)
        self.tier.free_blocks(transfer.holder, transfer.dst)

    def _store_over(self, transfer: Transfer) -> None:
        self.tier.touch(transfer.holder, transfer.dst)
        super()._store_over(transfer)


# Ends of transfers.


class _MatchesIdAlone(TransferTable):
    """Takes a late report of an older transfer for one of the transfer that has its id now."""

    def _addressee(self, report: TransferReport) -> Transfer | None:
        return self.open.get(report.op)


class _ContentWithOneRank(TransferTable):
    """Takes the first rank's report for all."""

    def _is_over(self, transfer: Transfer) -> bool:
        return bool(transfer.reported)


class _DropsRecordOnFinish(OffloadScheduler):
    """Forgets a request's stores when the request is over; their reports then mean nothing to it."""

    def request_finished(self, request: Request, aborted: bool) -> bool:
        """Forget the stores in flight."""
        mine = [op for op, t in self.transfers.open.items() if t.request is request and t.issued]
        delay = super().request_finished(request, aborted)
        for op in mine:
            if self.transfers.open[op].kind == "store":
                del self.transfers.open[op]
        return delay


class _RegistersEarly(OffloadScheduler):
    """Enters the destinations of a load into the prefix index when the load is decided."""

    def _load(self, request: Request, hit: Hit, tokens: int) -> None:
        super()._load(request, hit, tokens)
        for transfer in self.transfers.open.values():
            if transfer.request is request and transfer.kind == "load":
                super()._register_loaded(transfer)

    def _register_loaded(self, load: Transfer) -> None:
        pass


class _KeepsFailedBlocks(OffloadScheduler):
    """Leaves the destinations of a failed load in the prefix index, for others to share."""

    def _distrust(self, load: Transfer) -> None:
        if load.epoch == self.epoch:
            self._register_loaded(load)


# Resets.


class _RegistersAfterReset(OffloadScheduler):
    """Does not ask when a transfer was decided."""

    def _may_register(self, transfer: Transfer) -> bool:
        del transfer
        return True


class _ResetsOneTier(Scheduler):
    """Clears the GPU's index and calls it a reset."""

    def _reset_tiers(self) -> list[str]:
        self.manager.pool.reset_prefix_cache()
        return [self.manager.pool.name]


FAULTS: dict[str, Design] = {
    "duplicate_in_store_list": Design(
        connector=_ListsBlockTwice, gpu_pool=ForgivesDoubleFree, cpu_pool=ForgivesDoubleFree
    ),
    "duplicate_in_flight_store": Design(connector=_ForgetsStoresInFlight),
    "no_flush_on_finish": Design(connector=_DoesNotFlush),
    "late_flush": Design(connector=_FlushesLate),
    "cursor_not_rewound": Design(connector=_KeepsCursor),
    "cursor_before_queue": Design(connector=_MovesCursorFirst),
    "free_on_preempt": Design(connector=_LetsGoOnPreempt),
    "free_on_abort": Design(connector=_LeavesDestinationToTable),
    "unpinned_destination": Design(connector=_DoesNotHoldDestination),
    "ignore_generation": Design(connector=with_table(_MatchesIdAlone)),
    "complete_on_first_rank": Design(connector=with_table(_ContentWithOneRank)),
    "lost_completion": Design(connector=_DropsRecordOnFinish),
    "register_before_landing": Design(connector=_RegistersEarly),
    "keep_label_on_failure": Design(connector=_KeepsFailedBlocks),
    "reset_ignores_in_flight": Design(connector=_RegistersAfterReset),
    "reset_one_tier": Design(scheduler=_ResetsOneTier),
}
"""Faulty designs of transfers and resets by name."""
