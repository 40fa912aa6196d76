"""Requests of an engine from submission to retirement, and resets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np

from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.checker.adapters.vllm.stream.pool_events import PoolTap
from kvfence.checker.adapters.vllm.stream.steps import StepStream
from kvfence.checker.adapters.vllm.stream.tables import Tables, emit_table
from kvfence.spec import events as ev

_REASONS: dict[str, ev.FinishReason] = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_IGNORED": "length",
    "FINISHED_ERROR": "error",
}


Admission: TypeAlias = tuple[int, int, int]
"""Of an admitted request: tokens that are computed, tokens that come from elsewhere, and all tokens."""


class EngineStream(StepStream):
    """A stream that follows the requests of a scheduler."""

    resetting: list[PoolTap] | None = None
    """The pools that were cleared by the reset under way."""
    unseen = False
    """Whether the engine has tiers that no hook observes: they may load, too."""

    def table_changed(self, id_: str, tables: Tables, admission: Admission | None) -> None:
        """Slots were allocated for a request, which may admit it; ``tables``: what it has now."""
        state = self.request(id_)
        emit_table(self, state, self.gathered(), tables)
        if admission is not None and not state.admitted:
            self.admit(state, *admission)

    def admit(self, state: RequestState, local: int, external: int, total: int) -> None:
        """The block table of a waiting request was allocated."""
        state.admitted = True
        state.local = local
        if not self.tiers:
            return  # Steps are not emitted either.
        if self.unseen and external > 0:
            if state.promised:
                state.admission = local, external, total
                return
            local, external = self.counted_at_once(state, local + external, total), 0
        self.emit_admission(state, local, external, total)

    def counted_at_once(self, state: RequestState, local: int, total: int) -> int:
        """Tokens that count as computed of ``local`` ones, some of which a tier loads that is not observed.

        When they have landed is not judged. The last token of a request is computed even if it was loaded.
        """
        state.local = min(local, total - 1)
        if local == total:
            self.loaded_whole.add(state.id)
        return state.local

    def load_settled(self, state: RequestState, observed: bool) -> None:
        """It is known who loads for an admitted request: a tier that is ``observed``, or one that is not."""
        admission, state.admission = state.admission, None
        if admission is None:
            return
        local, external, total = admission
        if not observed:
            self.withdraw(state)
            local, external = self.counted_at_once(state, local + external, total), 0
        self.emit_admission(state, local, external, total)

    def emit_admission(self, state: RequestState, local: int, external: int, total: int) -> None:
        """Tokens that are computed, those that an observed tier loads, and all."""
        self.emit(ev.Admit(state.id, state.gen, local, external, total - local - external, total))
        if external <= 0:
            state.promised = False

    def table_shrunk(self, id_: str, emptied: bool = False) -> None:
        """A call that concerns a request's tables is over; ``emptied``: all blocks were given back."""
        emit_table(self, self.request(id_), self.gathered())
        if emptied:
            self.request(id_).emptied()

    def withdraw(self, state: RequestState) -> None:
        """The promise to a request, if there is one, is given up."""
        if state.promised:
            state.promised = False
            self.emit(ev.Withdraw(state.id, state.gen))

    # Preemption.

    def preempting(self, id_: str, computed: int) -> None:
        """A running request is about to lose its blocks."""
        state = self.request(id_)
        self.withdraw(state)
        self.settle(state, computed)
        self.emit(ev.Preempt(state.id, state.gen))

    def preempted(self, id_: str) -> None:
        """It lost them, and waits again."""
        state = self.request(id_)
        if state.table not in self.leaving:
            self.emit(ev.Retire(state.id, state.gen))
        state.begin(state.gen + 1)

    # The end.

    def finishing(self, id_: str, status: str, computed: int) -> None:
        """No more steps of the request will be scheduled."""
        state = self.request(id_)
        if state.ended:
            return
        state.ended = True
        self.settle(state, computed)
        why = _REASONS.get(status, "error")
        self.emit(ev.Finish(state.id, state.gen, why, self.confirmed(state, computed)))

    def confirmed(self, state: RequestState, computed: int) -> int:
        """Tokens of a request whose KV is written by the steps that were emitted: none without a tier."""
        if not self.tiers:
            return 0
        if state.open_loads or state.id in self.loaded_whole:
            self.loaded_whole.discard(state.id)
            return state.local
        return max(computed - self.in_flight(state.id), 0)

    def gone(self, id_: str) -> None:
        """The request is gone, and its blocks are given back, now or later."""
        state = self.requests.get(id_)
        if state is None:
            return
        if state.table not in self.leaving:
            self.emit(ev.Retire(state.id, state.gen))
        self.forget(state)

    def free_is_deferred(self, id_: str, blocks: list[Any]) -> None:
        """The request left its table, but its blocks are given back later."""
        state = self.request(id_)
        slots = {block.block_id for block in blocks if not block.is_null}
        state.emptied()
        if slots:
            self.leaving[state.table] = (state.id, state.gen, slots)

    def table_left(self, id_: str, gen: int) -> None:
        """The table of a generation that is over was given back."""
        self.emit(ev.Retire(id_, gen))

    # Tokens that do not count after all.

    def settle(self, state: RequestState, computed: int) -> None:
        """Emit the tokens that count as computed when some of a step may have been rejected."""
        if state.uneven:
            state.uneven = False
            self.emit(ev.Rollback(state.id, state.gen, computed))

    def settle_rejected(self, computed: list[tuple[str, int]]) -> None:
        """After a step with speculative tokens: how many of each request count."""
        for id_, tokens in computed:
            state = self.requests.get(id_)
            if state is not None and not state.ended:
                again = any(id_ in each for _, _, each in self.steps)
                self.settle(state, tokens)
                state.uneven = again

    def failed_blocks(self, bad: Collection[int]) -> None:
        """Loads did not fill these slots of the GPU."""
        bad = set(bad)
        for transfers in self.open_loads():
            for transfer in transfers:
                failed = [slot for slot in transfer.gpu if slot in bad]
                if failed:
                    transfer.ok = False
                    self.emit(ev.Failed(transfer.op, 0, 0, failed, transfer.group))

    def load_failed(self, state: RequestState, computed: int | None) -> None:
        """A load of the request is over and failed: so many tokens of it count; None if it is gone."""
        if computed is not None and not state.ended:
            self.emit(ev.Rollback(state.id, state.gen, computed))

    def open_loads(self) -> list[list[Any]]:
        """The open loads of every tier."""
        return [transfers for loads in self.loads for transfers in loads.values()]

    # Resets.

    def begin_reset(self) -> None:
        """A reset of the prefix caches begins."""
        self.resetting = []

    def pool_reset(self, tap: PoolTap) -> None:
        """The prefix index of a pool was emptied."""
        if self.resetting is not None:
            self.resetting.append(tap)
        else:
            self.empty(tap)

    def empty(self, tap: PoolTap) -> None:
        """Emit that all slots of a pool left its prefix index, other than by a reset of all tiers."""
        gone = np.flatnonzero(tap.labels).tolist()
        tap.labels[:] = False
        if gone:
            self.emit(ev.Unlabel(tap.name, gone, "reset"))

    def end_reset(self, done: bool, with_connector: bool) -> None:
        """A reset was answered. One that spares the connector is not a reset of all tiers."""
        cleared, self.resetting = self.resetting or [], None
        if done and with_connector:
            for tap in cleared:
                tap.labels[:] = False
            self.emit(ev.Reset(True, [tap.name for tap in cleared]))
            return
        for tap in cleared:
            self.empty(tap)
        if with_connector:
            self.emit(ev.Reset(False))

    # Rest.

    def at_rest(self, busy: bool) -> None:
        """Observation ends: nothing may be held, unless requests, steps or transfers are under way."""
        if self.sink is not None and not self.requests and not self.steps and not busy:
            self.emit(ev.Quiesce())
