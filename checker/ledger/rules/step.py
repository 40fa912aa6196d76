"""Rules of the events of model steps and of the whole connector."""

from __future__ import annotations

from kvfence.checker.ledger.rules.host_memory import quiet_fault as memory_fault
from kvfence.checker.ledger.rules.load import zeros_over
from kvfence.checker.ledger.rules.residency import quiet_fault as residency_fault
from kvfence.checker.ledger.state.books import Books, Step
from kvfence.checker.ledger.state.declared import Rules, judges
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec.events import Dispatch, Process, Quiesce, Reset


class StepRules(Rules):
    """Judges ``dispatch``, ``process``, ``reset`` and ``quiesce``."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.pools = books.pools
        self.run = None if books.kernels is None else books.kernels.run
        """Judges and takes over the requests of a step, if all of them are ready."""

    @judges(Dispatch, "ONCE", "USE-READY", "FAIL-CLOSED")
    def dispatch(self, event: Dispatch) -> Violation | None:
        """Steps are numbered in order, and run only requests whose tables are filled."""
        books = self.books
        found: Violation | None = None
        if books.dispatched is not None and event.step != books.dispatched + 1:
            found = books.fail(
                "ONCE", "steps are dispatched in order", step=event.step, before=books.dispatched
            )
        elif len(books.steps) >= books.depth:
            found = books.fail(
                "ONCE",
                "no more steps are dispatched ahead than the header says",
                step=event.step,
                unprocessed=[step.number for step in books.steps],
                depth=books.depth,
            )
            books.depth = len(books.steps) + 1
        number, ids, tokens, run = event.step, event.reqs, event.tokens, self.run
        requests: list[Request] | None = None
        if run is None or type(ids) is not list or run(books.progress, ids, tokens, number) < 0:
            requests = []
            for id_ in ids:
                request = books.current.get(id_)
                if request is None:
                    request, wrong = books.request(id_, max(books.newest.get(id_, 0), 0))
                    found = found or wrong
                requests.append(request)
            for request, more in zip(requests, tokens, strict=True):
                if not request.ready:
                    found = found or self.dispatch_fault(event, request)
                    request.ready = True  # it runs: that is reported once
                request.computed += more
                request.last_step = number
        books.steps.append(Step(number, ids, tokens, requests))
        books.dispatched = event.step
        if books.processed >= event.step:
            books.processed = event.step - 1
        if found is None and not ids:
            books.not_judged("USE-READY", "FAIL-CLOSED")
        return found

    def dispatch_fault(self, event: Dispatch, request: Request) -> Violation | None:
        """Why ``request`` may not run."""
        fail = self.books.fail
        if request.end:
            return fail(
                "ONCE",
                "a generation that has ended is not dispatched",
                step=event.step,
                req=request.key,
                ended=request.end,
            )
        if request.waits:
            loads = sorted(request.waits)
            return fail(
                "USE-READY",
                "a request runs after the loads into its table landed",
                step=event.step,
                req=request.key,
                loads=loads,
            )
        return fail(
            "FAIL-CLOSED",
            "a request whose load failed is rolled back before it runs",
            step=event.step,
            req=request.key,
            valid=request.limit,
        )

    @judges(Process, "ONCE")
    def process(self, event: Process) -> Violation | None:
        """Steps end in the order in which they were dispatched."""
        books = self.books
        found: Violation | None = None
        oldest = books.steps[0].number if books.steps else None
        if event.step != oldest:
            if oldest is None and books.dispatched is None:
                books.processed = event.step
                books.not_judged("ONCE")
                return None
            found = books.fail(
                "ONCE",
                "the processed step is the oldest that is dispatched and not processed",
                step=event.step,
                oldest=oldest,
                dispatched=books.dispatched,
            )
        while books.steps and books.steps[0].number <= event.step:
            step = books.steps.popleft()
            books.processed = step.number
            for pool, slots in step.frozen:
                pool.thaw(slots, step.number)
        if books.extra.zeroing:
            zeros_over(books)
        return found

    @judges(Reset, "RESET")
    def reset(self, event: Reset) -> Violation | None:
        """A good reset leaves no pool that can serve an older key."""
        books = self.books
        if not event.ok:
            books.not_judged("RESET")
            return None
        found: Violation | None = None
        for pool in self.pools.values():
            if pool.name not in event.pools and pool.labelled:
                found = found or books.fail(
                    "RESET",
                    "no tier still serves an older key after a reset",
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

    @judges(Quiesce, "NO-LEAK", also=("EVENTS", "HOSTMEM"))
    def quiesce(self, event: Quiesce) -> Violation | None:  # noqa: ARG002 - says nothing but that it is quiet
        """Nothing is held."""
        books = self.books
        found: Violation | None = None
        for pool in self.pools.values():
            held = [holder for holder in pool.holders.values() if holder.slots and not holder.leaked]
            for holder in held:
                holder.leaked = True
                found = found or books.fail(
                    "NO-LEAK",
                    "nothing is held when no request is left and no transfer is in flight",
                    pool,
                    sorted(holder.slots),
                    holder=holder.name,
                    held=len(holder.slots),
                    holders=len(held),
                )
        promised = [request.key for request in books.requests.values() if request.promise is not None]
        steps = [step.number for step in books.steps]
        if books.ops or promised or steps:
            found = found or books.fail(
                "NO-LEAK",
                "no transfer, promise or step is open when the connector is quiet",
                transfers=sorted(books.ops)[:8],
                promises=promised[:8],
                steps=steps,
            )
        left = [
            request.key
            for request in books.requests.values()
            if books.saw_retire and request.explicit and (request.end or request.prompt is not None)
        ]
        if left:
            found = found or books.fail(
                "NO-LEAK",
                "each request that was submitted or has ended is gone when the connector is quiet",
                requests=left[:8],
                left=len(left),
            )
        return found or residency_fault(books) or memory_fault(books)
