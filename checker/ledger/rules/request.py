"""Rules of the events of requests: promised, admitted, preempted, finished, gone."""

from __future__ import annotations

from kvfence.checker.ledger.kernels.slot_bits import BAD, LABEL, REFS
from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.rules.geometry import accepted_fault, promise_fault
from kvfence.checker.ledger.rules.load import promised_again
from kvfence.checker.ledger.rules.progress import preempt_fault, starved_fault
from kvfence.checker.ledger.state.bulk import all_have_both, distinct, named, same
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.request_state import Promise, Request
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.files.wellformed import MOST_BLOCKS
from kvfence.spec.packed import count_of, ints

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
GENERATION_GROWS = "ONCE", "a request is submitted with a greater generation each time"
HIT_FITS_REQUEST = "COUNT", "local and external hit are not negative and together no longer than the request"
PINS_ARE_PROMISED = "PURE", "the pins of a request are the slots promised to it"
PINS_ARE_REPLACED = "PURE", "pins are replaced, not added, when a lookup is repeated"
TOKENS_ADD_UP = "COUNT", "local, external and computed tokens are not negative and add up to the total"
ACCEPTED_WAS_PROMISED = "COUNT", "no more external tokens are accepted than were promised"
FINAL_COUNT_AGREES = (
    "COUNT",
    "a finished request has as many confirmed tokens as its processed steps computed",
)
FAILED_NOT_COUNTED = "FAIL-CLOSED", "a request counts no token of a failed load as computed"
AHEAD_IS_UNDER_WAY = "COUNT", "tokens counted as dispatched are those of steps that are not processed"
CURSOR_GOES_ON = "CURSOR", "the store cursor goes back only with a new generation"
CURSOR_LEAVES_NO_GAP = "CURSOR", "the store cursor passes only blocks that are stored, queued or dropped"
RETIRED_HAS_ENDED = "ONCE", "a generation is gone only after it has ended"
RETIRED_HOLDS_NOTHING = "NO-LEAK", "a request that is gone holds nothing"
RETIRED_HAS_NO_PROMISE = "NO-LEAK", "the promise to a request that is gone is consumed or withdrawn"
RETIRED_HAS_NO_LOAD = "NO-LEAK", "a request that is gone has no open load"
RETIRED_IS_FLUSHED = "FLUSH", "each full confirmed block of a finished request is stored, queued or dropped"


class RequestRules(Rules):
    """Judges ``submit`` to ``retire``."""

    @judges(ev.Submit, "ONCE")
    def submit(self, event: ev.Submit) -> Violation | None:
        """A generation is submitted once, and generations grow."""
        state = self.state
        state.saw_submit = True
        newest = state.newest.get(event.req, -1)
        key = f"{event.req}.{event.gen}"
        request = state.requests.get(key)
        if request is None:
            request = state.add_request(event.req, event.gen, explicit=True)
        request.explicit = True
        request.prompt = event.prompt
        state.note_generation(event.req, event.gen)
        if event.gen <= newest:
            return self.fail(*GENERATION_GROWS, req=event.req, gen=event.gen, newest=newest)
        return None

    # The promise of a hit.

    @judges(ev.Lookup, "ONCE", "COUNT", also=("PIN", "CONSERVE", "PURE", "GEOMETRY", "FAIL-CLOSED"))
    def lookup(self, event: ev.Lookup) -> Violation | None:
        """Each promised block is cached and pinned; a promise replaces the one before."""
        state = self.state
        state.saw_lookup = True
        request, found = state.request(event.req, event.gen)
        found = found or self.settle_replaced(request)
        external, local = event.external, event.local
        if external < 0 or local < 0 or (request.prompt is not None and local + external > request.prompt):
            found = found or self.fail(
                *HIT_FITS_REQUEST, req=request.key, local=local, external=external, prompt=request.prompt
            )
        state.extra.promised.pop(request.key, None)
        before = request.promise
        state.close_promise(request)
        pool = self.pools.get(event.pool)
        if pool is None and external:
            raise KeyError(event.pool)
        if pool is not None and external:
            if count_of(event.slots):
                state.judge("PIN")
                state.judge("CONSERVE")
            which = named(pool, event.slots)
            slots = event.slots
            if which is None or not (all_have_both(pool, which, REFS, LABEL) and distinct(pool, which)):
                listed = ints(event.slots)
                for slot in listed:
                    found = found or self.promise_fault(pool, request, slot)
                slots = sorted(
                    {slot for slot in listed if 0 <= slot < pool.total and pool.words[slot] & REFS}
                )
            if event.counts:
                found = found or promise_fault(state, event, pool)
            state.open_promise(request, pool, slots, external)
            if state.extra.suspects and request.promise is not None:
                found = found or promised_again(state, request, pool, request.promise.slots)
        if pool is not None:
            found = found or self.pins_fault(request, pool, before)
        state.count_slots(count_of(event.slots))
        return found

    def promise_fault(self, pool: PoolState, request: Request, slot: int) -> Violation | None:
        """What is wrong with promising ``slot``."""
        if not 0 <= slot < pool.total:
            return self.fail("CONSERVE", "a promised slot exists", pool, slot, total=pool.total)
        word = pool.words[slot]
        if not word & REFS:
            return self.fail("PIN", "each promised slot has a holder", pool, slot, req=request.key)
        if not word & LABEL:
            return self.fail("PIN", "each promised slot is cached", pool, slot, req=request.key)
        return None

    def pins_fault(self, request: Request, pool: PoolState, before: Promise | None) -> Violation | None:
        """Whether pins of an older promise stay beside the ones of this one.

        Those that the replaced promise named may still be there until the request's next event.
        """
        holder = pool.holders.get(f"hit:{request.key}")
        if holder is None or holder.leaked:
            return None
        self.state.judge("PURE")
        promise = request.promise
        if promise is None or promise.pool != pool.name:
            more = set(holder.slots)
        elif not holder.own and len(holder.parts) == 1 and same(holder.parts[0], promise.numbers):
            return None
        else:
            more = holder.slots - promise.slots
        if not more:
            return None
        if before is not None and more <= before.slots:
            request.replaced = (pool.name, frozenset(more))
            return None
        return self.fail(*PINS_ARE_PROMISED, pool, sorted(more), holder=holder.name)

    def settle_replaced(self, request: Request) -> Violation | None:
        """The pins of a replaced promise must be gone now."""
        if request.replaced is None:
            return None
        self.state.judge("PURE")
        name, slots = request.replaced
        request.replaced = None
        pool = self.pools[name]
        holder = pool.holders.get(f"hit:{request.key}")
        promised = request.promise.slots if request.promise is not None else frozenset[int]()
        left = frozenset[int]() if holder is None else holder.slots & slots - promised
        if not left:
            return None
        return self.fail(*PINS_ARE_REPLACED, pool, sorted(left), holder=f"hit:{request.key}")

    @judges(ev.Withdraw, "ONCE")
    def withdraw(self, event: ev.Withdraw) -> Violation | None:
        """The promise is given up."""
        request, found = self.state.request(event.req, event.gen)
        request.replaced = None
        self.state.close_promise(request)
        self.state.extra.promised.pop(request.key, None)
        return found

    @judges(ev.Admit, "ONCE", "COUNT", also=("PURE", "GEOMETRY"))
    def admit(self, event: ev.Admit) -> Violation | None:
        """Each token is counted once: local, external or to be computed."""
        state = self.state
        request, found = state.request(event.req, event.gen)
        found = found or self.settle_replaced(request)
        if state.extra.promised:
            found = found or accepted_fault(state, event)
        parts = (event.local, event.external, event.compute)
        promised = request.promise.external if request.promise is not None else 0
        if sum(parts) != event.total or min(parts) < 0:
            found = found or self.fail(
                *TOKENS_ADD_UP, req=request.key, **fields(event, "local", "external", "compute", "total")
            )
        elif event.external > promised and (state.saw_lookup or request.promise is not None):
            found = found or self.fail(
                *ACCEPTED_WAS_PROMISED, req=request.key, external=event.external, promised=promised
            )
        if event.external <= 0:
            state.close_promise(request)
        request.known = True
        request.local = request.computed = event.local
        request.external = event.external
        return found

    # Ends and setbacks.

    @judges(ev.Preempt, "ONCE", also=("PROGRESS",))
    def preempt(self, event: ev.Preempt) -> Violation | None:
        """A generation ends once; the next one waits."""
        state = self.state
        request, found = state.request(event.req, event.gen)
        if request.end:
            found = found or self.ended(request)
        if event.why:
            found = found or preempt_fault(state, event)
        self.end(request, "preempted")
        key = f"{event.req}.{event.gen + 1}"
        if key not in state.requests and key not in state.retired:
            state.add_request(event.req, event.gen + 1, explicit=True)
        return found

    @judges(ev.Finish, "ONCE", also=("COUNT",))
    def finish(self, event: ev.Finish) -> Violation | None:
        """A generation ends once, and says how much of it is written."""
        state = self.state
        request, found = state.request(event.req, event.gen)
        if request.end:
            found = found or self.ended(request)
        confirmed = state.confirmed(request)
        counted = request.known or (request.prompt is not None and request.last_step < 0)
        if counted:
            state.judge("COUNT")
        if counted and confirmed != event.computed:
            found = found or self.fail(
                *FINAL_COUNT_AGREES, req=request.key, told=event.computed, counted=confirmed
            )
        self.end(request, event.why)
        request.final = event.computed
        return found

    def ended(self, request: Request) -> Violation:
        """A generation that has ended ends again."""
        return self.fail("ONCE", "a generation ends once", req=request.key, ended=request.end)

    def end(self, request: Request, why: str) -> None:
        """No step of this generation may be dispatched any more."""
        request.final = self.state.confirmed(request)
        request.end = why
        request.ready = False

    @judges(ev.Rollback, "ONCE", also=("FAIL-CLOSED", "COUNT"))
    def rollback(self, event: ev.Rollback) -> Violation | None:
        """After a failed load, only valid tokens count as computed."""
        request, found = self.state.request(event.req, event.gen)
        most = request.computed + request.external
        if request.limit is not None:
            most = min(most, request.limit)
        if request.known:
            self.state.judge("FAIL-CLOSED")
        if request.known and event.computed > most:
            found = found or self.fail(
                *FAILED_NOT_COUNTED, req=request.key, computed=event.computed, valid=most
            )
        if event.ahead >= 0:
            found = found or self.ahead_fault(request, event)
        for name, slots in request.bad:
            pool = self.pools[name]
            holder = pool.holders.get(f"req:{request.key}")
            if holder is not None:
                for slot in holder.slots.intersection(ints(slots)):
                    pool.words[slot] &= ~BAD
        request.bad.clear()
        request.suspects.clear()
        request.limit = None
        request.expects_rollback = False
        request.external = 0
        request.computed = event.computed
        request.update_ready()
        return found

    def ahead_fault(self, request: Request, event: ev.Rollback) -> Violation | None:
        """Whether a request that was rolled back still counts on steps that are not under way."""
        self.state.judge("COUNT")
        under_way = self.state.unprocessed(request)
        if event.ahead == under_way:
            return None
        return self.fail(*AHEAD_IS_UNDER_WAY, req=request.key, told=event.ahead, dispatched=under_way)

    # What became of the blocks.

    @judges(ev.Drop, "ONCE", also=("PROGRESS",))
    def drop(self, event: ev.Drop) -> Violation | None:
        """Blocks will not be stored, for a reason that is counted."""
        if event.at < 0 or not 0 <= event.n <= MOST_BLOCKS - event.at:
            raise ValueError(f"a table has no blocks from {event.at}, {event.n} of them")
        request, found = self.state.request(event.req, event.gen)
        request.cover(event.group).add_range(event.at, event.at + event.n)
        return found or (starved_fault(self.state, event) if event.why == "tier_full" else None)

    @judges(ev.Cursor, "ONCE", "CURSOR")
    def cursor(self, event: ev.Cursor) -> Violation | None:
        """The cursor passes only blocks that are accounted for, and goes back only with a new generation."""
        state = self.state
        if not 0 <= event.to <= MOST_BLOCKS:
            raise ValueError(f"a table has no {event.to} blocks")
        request, found = state.request(event.req, event.gen)
        cover = request.cover(event.group)
        if event.to < cover.cursor:
            found = found or self.fail(
                *CURSOR_GOES_ON, req=request.key, group=event.group, to=event.to, was=cover.cursor
            )
        gap = cover.gap_below(event.to)
        if gap is not None:
            found = found or self.fail(
                *CURSOR_LEAVES_NO_GAP, req=request.key, group=event.group, to=event.to, block=gap
            )
            cover.add_range(gap, event.to)
        cover.cursor = event.to
        return found

    @judges(ev.Retire, "ONCE", "NO-LEAK", also=("FLUSH",))
    def retire(self, event: ev.Retire) -> Violation | None:
        """Nothing is held for the generation, and each of its blocks is accounted for."""
        state = self.state
        before = state.requests.get(f"{event.req}.{event.gen}")
        lives = before is not None and before.explicit and not before.end
        request, found = state.request(event.req, event.gen)
        found = found or self.leak(request) or self.flush_fault(request)
        if lives:
            found = found or self.fail(*RETIRED_HAS_ENDED, req=request.key)
        state.extra.promised.pop(request.key, None)
        state.saw_retire = True
        state.close_promise(request)
        state.forget_request(request)
        return found

    def leak(self, request: Request) -> Violation | None:
        """What is still held for a request that is gone."""
        found: Violation | None = None
        for kind in ("req", "hit"):
            name = f"{kind}:{request.key}"
            for pool in self.pools.values():
                holder = pool.holders.get(name)
                if holder is not None and holder.slots and not holder.leaked:
                    holder.leaked = True
                    found = found or self.fail(
                        *RETIRED_HOLDS_NOTHING,
                        pool,
                        sorted(holder.slots),
                        holder=name,
                        held=len(holder.slots),
                    )
        if request.promise is not None:
            found = found or self.fail(*RETIRED_HAS_NO_PROMISE, req=request.key)
        if request.loads:
            loads = [op.id for op in self.state.ops.values() if op.load and op.request is request]
            found = found or self.fail(*RETIRED_HAS_NO_LOAD, req=request.key, loads=loads)
        return found

    def flush_fault(self, request: Request) -> Violation | None:
        """Whether a full confirmed block of a finished request is not accounted for."""
        if not request.end or request.end == "preempted" or request.final is None:
            return None
        for index, group in self.state.groups.items():
            if group.pool == self.state.header.tier:
                continue
            full = request.final // group.block_size
            if not full:
                continue
            self.state.judge("FLUSH")
            gap = request.cover(index).gap_below(full)
            if gap is not None:
                return self.fail(
                    *RETIRED_IS_FLUSHED,
                    req=request.key,
                    group=index,
                    block=gap,
                    full_blocks=full,
                    end=request.end,
                )
        return None
