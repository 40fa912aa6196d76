"""Requests of an engine from submission to retirement, and resets."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvfence.checker.adapters.vllm.stream import Item, PoolTap, RequestState, Stream
from kvfence.checker.adapters.vllm.tables import table_handler
from kvfence.spec.events import (
    Admit,
    Failed,
    Finish,
    FinishReason,
    Preempt,
    Reset,
    Retire,
    Rollback,
    Unlabel,
    Withdraw,
)

_REASONS: dict[str, FinishReason] = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_IGNORED": "length",
    "FINISHED_ERROR": "error",
}


class EngineStream(Stream):
    """A stream that follows the requests of a scheduler."""

    resetting: list[PoolTap] | None = None
    """The pools that were cleared by the reset under way."""

    def admit(self, state: RequestState, request: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The block table of a waiting request was allocated; ``args``: of ``allocate_slots``."""
        local = named.get("num_new_computed_tokens", args[1] if len(args) > 1 else 0)
        external = named.get("num_external_computed_tokens", args[4] if len(args) > 4 else 0)
        local += request.num_computed_tokens
        total = request.num_tokens
        state.admitted = True
        state.local = local
        if not self.tiers:
            return  # Steps are not told either.
        self.emit(Admit(state.id, state.gen, local, external, total - local - external, total))
        if external <= 0:
            state.promised = False

    def table_changed(self, state: RequestState, items: list[Item]) -> None:
        """What an allocation for the request did to the pools."""
        if self.pending is not None and self.pending:
            self.flush()
        try:
            table_handler(self, state)(items)
        except Exception as error:
            self.trouble(error)

    def withdraw(self, state: RequestState) -> None:
        """The promise to a request, if there is one, is given up."""
        if state.promised:
            state.promised = False
            self.emit(Withdraw(state.id, state.gen))

    # Preemption.

    def preempting(self, request: Any) -> RequestState:
        """A running request is about to lose its blocks."""
        state = self.request(request.request_id)
        self.withdraw(state)
        self.settle(state, request)
        self.emit(Preempt(state.id, state.gen))
        return state

    def preempted(self, state: RequestState) -> None:
        """It lost them, and waits again."""
        if state.table not in self.leaving:
            self.emit(Retire(state.id, state.gen))
        state.begin(state.gen + 1)

    # The end.

    def finishing(self, request: Any) -> None:
        """No more steps of the request will be scheduled."""
        state = self.request(request.request_id)
        if state.ended:
            return
        state.ended = True
        self.settle(state, request)
        why = _REASONS.get(request.status.name, "error")
        self.emit(Finish(state.id, state.gen, why, self.confirmed(state, request)))

    def confirmed(self, state: RequestState, request: Any) -> int:
        """Tokens of a request whose KV is written by the steps that were told: none without a tier."""
        if not self.tiers:
            return 0
        if state.open_loads:
            return state.local
        return max(int(request.num_computed_tokens) - self.in_flight(state.id), 0)

    def gone(self, request: Any) -> None:
        """The request is gone, and its blocks are given back, now or later."""
        state = self.requests.get(request.request_id)
        if state is None:
            return
        if state.table not in self.leaving:
            self.emit(Retire(state.id, state.gen))
        self.forget(state)

    def table_emptied(self, id_: str) -> None:
        """All blocks of a request were given back."""
        state = self.requests.get(id_)
        if state is not None:
            state.lengths.clear()
            state.admitted = False

    def free_is_deferred(self, request: Any, blocks: list[Any]) -> None:
        """The request left its table, but its blocks are given back later."""
        state = self.request(request.request_id)
        slots = {block.block_id for block in blocks if not block.is_null}
        state.lengths.clear()
        state.admitted = False
        if slots:
            self.leaving[state.table] = (state.id, state.gen, slots)

    def left(self, id_: str, gen: int) -> None:
        """The table of a generation that is over was given back."""
        self.emit(Retire(id_, gen))

    # Tokens that do not count after all.

    def settle(self, state: RequestState, request: Any) -> None:
        """Tell the tokens that count as computed when some of a step may have been rejected."""
        if state.uneven:
            state.uneven = False
            self.emit(Rollback(state.id, state.gen, int(request.num_computed_tokens)))

    def settle_rejected(self, scheduler: Any, output: Any) -> None:
        """After a step with speculative tokens: how many count."""
        for id_ in output.scheduled_spec_decode_tokens:
            state, request = self.requests.get(id_), scheduler.requests.get(id_)
            if state is not None and request is not None and not state.ended:
                again = any(id_ in tokens for _, _, tokens in self.steps)
                self.settle(state, request)
                state.uneven = again

    def failed_blocks(self, slots: Any) -> None:
        """Loads did not fill these slots of the GPU."""
        bad = set(slots)
        for transfers in self.open_loads():
            for transfer in transfers:
                failed = [slot for slot in transfer.gpu if slot in bad]
                if failed:
                    transfer.ok = False
                    self.emit(Failed(transfer.op, 0, 0, failed, transfer.group))

    def load_failed(self, state: RequestState) -> None:
        """A load of the request is over and failed: so many tokens of it count."""
        request = None if self.scheduler is None else self.scheduler.requests.get(state.id)
        if request is not None and not state.ended:
            self.emit(Rollback(state.id, state.gen, int(request.num_computed_tokens)))

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
        """Tell that all slots of a pool left its prefix index, other than by a reset of all tiers."""
        gone = np.flatnonzero(tap.labels).tolist()
        tap.labels[:] = False
        if gone:
            self.emit(Unlabel(tap.name, gone, "reset"))

    def end_reset(self, done: bool, with_connector: bool) -> None:
        """A reset was answered. One that spares the connector is not a reset of all tiers."""
        cleared, self.resetting = self.resetting or [], None
        if done and with_connector:
            for tap in cleared:
                tap.labels[:] = False
            self.emit(Reset(True, [tap.name for tap in cleared]))
            return
        for tap in cleared:
            self.empty(tap)
        if with_connector:
            self.emit(Reset(False))
