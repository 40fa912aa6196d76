"""Rules of the events of model steps and of the whole connector."""

from __future__ import annotations

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.rules.host_memory import quiet_fault as memory_fault
from kvfence.checker.ledger.rules.load import zeros_over
from kvfence.checker.ledger.rules.residency import quiet_fault as residency_fault
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import LedgerState, Step
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
STEPS_IN_ORDER = "ONCE", "steps are dispatched in order"
DEPTH_IS_KEPT = "ONCE", "no more steps are dispatched ahead than the header says"
ENDED_DOES_NOT_RUN = "ONCE", "a generation that has ended is not dispatched"
LOADED_BEFORE_RUN = "USE-READY", "a request runs after the loads into its table landed"
ROLLED_BACK_BEFORE_RUN = "FAIL-CLOSED", "a request whose load failed is rolled back before it runs"
OLDEST_IS_PROCESSED = "ONCE", "the processed step is the oldest that is dispatched and not processed"
RESET_CLEARS_ALL = "RESET", "no tier still serves an older key after a reset"
QUIET_HOLDS_NOTHING = "NO-LEAK", "nothing is held when no request is left and no transfer is in flight"
QUIET_HAS_NOTHING_OPEN = "NO-LEAK", "no transfer, promise or step is open when the connector is quiet"
QUIET_ALL_GONE = "NO-LEAK", "each request that was submitted or has ended is gone when the connector is quiet"


class StepRules(Rules):
    """Judges ``dispatch``, ``process``, ``reset`` and ``quiesce``."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        self.run = None if state.kernels is None else state.kernels.run
        """Judges and takes over the requests of a step, if all of them are ready."""

    @judges(ev.Dispatch, "ONCE", "USE-READY", "FAIL-CLOSED")
    def dispatch(self, event: ev.Dispatch) -> Violation | None:
        """Steps are numbered in order, and run only requests whose tables are filled."""
        state = self.state
        found: Violation | None = None
        if state.dispatched is not None and event.step != state.dispatched + 1:
            found = self.fail(*STEPS_IN_ORDER, step=event.step, before=state.dispatched)
        elif len(state.steps) >= state.depth:
            found = self.fail(
                *DEPTH_IS_KEPT,
                step=event.step,
                unprocessed=[step.number for step in state.steps],
                depth=state.depth,
            )
            state.depth = len(state.steps) + 1
        number, ids, tokens, run = event.step, event.reqs, event.tokens, self.run
        requests: list[Request] | None = None
        if run is None or type(ids) is not list or run(state.progress, ids, tokens, number) < 0:
            requests = []
            for id_ in ids:
                request = state.current.get(id_)
                if request is None:
                    request, wrong = state.request(id_, max(state.newest.get(id_, 0), 0))
                    found = found or wrong
                requests.append(request)
            for request, more in zip(requests, tokens, strict=True):
                if not request.ready:
                    found = found or self.dispatch_fault(event, request)
                    request.ready = True  # it runs: that is reported once
                request.computed += more
                request.last_step = number
        state.steps.append(Step(number, ids, tokens, requests))
        state.dispatched = event.step
        if state.processed >= event.step:
            state.processed = event.step - 1
        if found is None and not ids:
            state.not_judged("USE-READY", "FAIL-CLOSED")
        return found

    def dispatch_fault(self, event: ev.Dispatch, request: Request) -> Violation | None:
        """Why ``request`` may not run."""
        if request.end:
            return self.fail(*ENDED_DOES_NOT_RUN, step=event.step, req=request.key, ended=request.end)
        if request.waits:
            loads = sorted(request.waits)
            return self.fail(*LOADED_BEFORE_RUN, step=event.step, req=request.key, loads=loads)
        return self.fail(*ROLLED_BACK_BEFORE_RUN, step=event.step, req=request.key, valid=request.limit)

    @judges(ev.Process, "ONCE")
    def process(self, event: ev.Process) -> Violation | None:
        """Steps end in the order in which they were dispatched."""
        state = self.state
        found: Violation | None = None
        oldest = state.steps[0].number if state.steps else None
        if event.step != oldest:
            if oldest is None and state.dispatched is None:
                state.processed = event.step
                state.not_judged("ONCE")
                return None
            found = self.fail(
                *OLDEST_IS_PROCESSED, step=event.step, oldest=oldest, dispatched=state.dispatched
            )
        while state.steps and state.steps[0].number <= event.step:
            step = state.steps.popleft()
            state.processed = step.number
            for pool, slots in step.frozen:
                pool.thaw(slots, step.number)
        if state.extra.zeroing:
            zeros_over(state)
        return found

    @judges(ev.Reset, "RESET")
    def reset(self, event: ev.Reset) -> Violation | None:
        """A good reset leaves no pool that can serve an older key."""
        state = self.state
        if not event.ok:
            state.not_judged("RESET")
            return None
        found: Violation | None = None
        for pool in self.pools.values():
            if pool.name not in event.pools and pool.labelled:
                found = found or self.fail(
                    *RESET_CLEARS_ALL,
                    pool,
                    pool.labelled_slots()[:1],
                    left=pool.labelled,
                    cleared=list(event.pools),
                )
        for name in event.pools:
            pool = self.pools[name]
            pool.clear_labels()
            pool.epoch += 1
            pool.stale = {holder.name for holder in pool.holders.values() if holder.kind == "req"}
        return found

    @judges(ev.Quiesce, "NO-LEAK", also=("EVENTS", "HOSTMEM"))
    def quiesce(self, event: ev.Quiesce) -> Violation | None:  # noqa: ARG002 - says nothing but that it is quiet
        """Nothing is held."""
        state = self.state
        found: Violation | None = None
        for pool in self.pools.values():
            held = [holder for holder in pool.holders.values() if holder.slots and not holder.leaked]
            for holder in held:
                holder.leaked = True
                found = found or self.fail(
                    *QUIET_HOLDS_NOTHING,
                    pool,
                    sorted(holder.slots),
                    holder=holder.name,
                    held=len(holder.slots),
                    holders=len(held),
                )
        promised = [request.key for request in state.requests.values() if request.promise is not None]
        steps = [step.number for step in state.steps]
        if state.ops or promised or steps:
            found = found or self.fail(
                *QUIET_HAS_NOTHING_OPEN, transfers=sorted(state.ops)[:8], promises=promised[:8], steps=steps
            )
        left = [
            request.key
            for request in state.requests.values()
            if state.saw_retire and request.explicit and (request.end or request.prompt is not None)
        ]
        if left:
            found = found or self.fail(*QUIET_ALL_GONE, requests=left[:8], left=len(left))
        return found or residency_fault(state) or memory_fault(state)
