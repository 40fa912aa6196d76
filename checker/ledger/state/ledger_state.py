"""Everything the ledger knows, and how it words a violation; the rules read and write it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from kvfence.checker.ledger.kernels.kernels import Kernels
from kvfence.checker.ledger.kernels.slot_bits import BUSIES, FILLING, FROZEN, PROMISE, PROMISES
from kvfence.checker.ledger.state.bulk import Named, add, named
from kvfence.checker.ledger.state.declared import RULES, UndeclaredError
from kvfence.checker.ledger.state.extra_state import Extra
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import Promise, Request
from kvfence.checker.ledger.state.tags import Tag
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec.catalog import BY_ID
from kvfence.spec.packed import Numbers, ints

RING: Final = 1 << 15  # events remembered for reports
RING_SLOTS: Final = 1 << 20  # numbers in the long ones of these events
LONG: Final = 64  # slots that make an event a long one
REMEMBERED: Final = 1 << 16  # closed operations and generations remembered
DISTINGUISHING: Final = ("req", "op", "gen", "holder", "group")
"""The values by which faults of one rule differ."""
KNOWN_CAUSES: Final = 4096  # faults remembered, so that each is reported in full once
REPORTED_SLOTS: Final = 4
REPORTED_HOLDERS: Final = 8
REPORTED_EVENTS: Final = 8
SEARCHED: Final = 1 << 14  # events looked through for them
DETAILED: Final = 64  # faults that get the history of their slots; it takes a walk through the ring

_NONE: Final = frozenset[tuple[str, int]]()


class Op:
    """An open transfer."""

    __slots__ = (
        "destinations",
        "dst_epoch",
        "event",
        "failed",
        "forgiven",
        "id",
        "issued",
        "load",
        "named_dst",
        "named_src",
        "plain",
        "reported",
        "request",
        "src_epoch",
        "stored",
        "waiters",
    )

    def __init__(self, event: ev.Queue, src: PoolState, dst: PoolState, request: Request | None) -> None:
        self.id = event.op
        self.event = event
        self.load = event.kind == "load"
        self.src_epoch = src.epoch
        self.dst_epoch = dst.epoch
        self.request = request
        self.named_src: Named = ()
        self.named_dst: Named = ()
        """Its slots, as the bulk changes name them; only for a ``plain`` one."""
        self.stored: Sequence[Tag] = ()
        """The tags that it brings, as sets count them; only for a ``plain`` one."""
        self.destinations: frozenset[int] | None = None
        self.plain = False
        """There was nothing out of the ordinary about its slots when it was queued."""
        self.issued = False
        self.reported = 0
        """Bit ``r`` is set when rank ``r`` reported."""
        self.failed = 0
        """Bit ``r`` is set when rank ``r`` reported a failure."""
        self.waiters: list[Request] = []
        """Requests that have a destination in their table."""
        self.forgiven: frozenset[tuple[str, int]] = _NONE
        """Slots that a violation took away: they do not count as in use by this transfer any more."""

    def writes(self, slot: int) -> bool:
        """Whether ``slot`` is a destination."""
        if self.destinations is None:
            self.destinations = frozenset(ints(self.event.dst))
        return slot in self.destinations

    def uses(self, pool: str, slot: int) -> bool:
        """Whether it reads or writes ``slot`` of ``pool``."""
        return queue_names(self.event, pool, slot)

    def copy(self, requests: dict[Request, Request]) -> Op:
        """A copy that belongs to the copy of its request."""
        other = Op.__new__(Op)
        for name in Op.__slots__:
            setattr(other, name, getattr(self, name))
        other.request = None if self.request is None else requests[self.request]
        other.waiters = [requests[waiter] for waiter in self.waiters]
        return other


class Step:
    """A dispatched step whose output has not arrived."""

    __slots__ = ("_ids", "_requests", "frozen", "number", "tokens")

    def __init__(
        self, number: int, ids: Sequence[str], tokens: Sequence[int], requests: list[Request] | None = None
    ) -> None:
        self.number = number
        self._ids = ids
        self._requests = requests
        self.tokens = tokens
        self.frozen: list[tuple[PoolState, list[int]]] = []
        """Slots that may be freed once this step is over."""

    def requests(self, current: dict[str, Request]) -> list[Request]:
        """The generations that it runs; ``current`` as when it was dispatched, or later if this was called
        before.
        """
        if self._requests is None:
            self._requests = [current[id_] for id_ in self._ids]
        return self._requests

    def copy(
        self, current: dict[str, Request], copies: dict[Request, Request], pools: dict[str, PoolState]
    ) -> Step:
        """A copy for another ledger state, with the copies of its requests and pools."""
        requests = [copies[request] for request in self.requests(current)]
        other = Step(self.number, self._ids, self.tokens, requests)
        other.frozen = [(pools[pool.name], list(slots)) for pool, slots in self.frozen]
        return other


class Closed:
    """How a transfer ended."""

    __slots__ = ("dst_epoch", "dst_pool", "gen", "missing", "ok", "src_epoch", "src_pool")

    def __init__(self, op: Op, ok: bool, missing: int) -> None:
        event = op.event
        self.missing = missing
        """Bit ``r`` is set if it ended before rank ``r`` reported, and that was a violation."""
        self.gen = event.gen
        self.ok = ok
        self.src_pool, self.src_epoch = event.src_pool, op.src_epoch
        self.dst_pool, self.dst_epoch = event.dst_pool, op.dst_epoch

    def epoch(self, pool: PoolState) -> int:
        """The epoch of ``pool`` in which the transfer was queued; the present one if it has no part in it."""
        if pool.name == self.dst_pool:
            return self.dst_epoch
        return self.src_epoch if pool.name == self.src_pool else pool.epoch

    def current(self, pool: PoolState) -> bool:
        """Whether the transfer went well, and ``pool`` was not reset since it was queued."""
        return self.ok and self.dst_pool == pool.name and self.epoch(pool) == pool.epoch


class LedgerState:
    """State of pools, requests, transfers and steps, built from the events so far."""

    def __init__(self, header: ev.Header, long_from: int, kernels: Kernels | None) -> None:
        self.header = header
        self.kernels = kernels
        self.pools = {
            pool.name: PoolState(pool, indexed=pool.name == header.tier, long_from=long_from, kernels=kernels)
            for pool in header.pools
        }
        self.extra = Extra()
        self.groups = dict(enumerate(header.groups))
        self.requests: dict[str, Request] = {}
        """By generation, as in a holder's name: ``7.0``."""
        self.current: dict[str, Request] = {}
        """The newest generation of each request."""
        self.progress: dict[str, int] = {}
        """Addresses of their ``progress``."""
        self.newest: dict[str, int] = {}
        self.retired: dict[str, None] = {}
        self.ops: dict[int, Op] = {}
        self.closed: dict[int, Closed] = {}
        self.steps: deque[Step] = deque()
        self.dispatched: int | None = None
        """Number of the last dispatched step."""
        self.depth = header.depth
        """Steps that may be dispatched and not processed: more, once that was reported."""
        self.processed = -1
        self.saw_submit = False
        self.saw_lookup = False
        self.saw_retire = False
        self.events = 0
        self.slots = 0
        """Slots named by the events so far."""
        self.ring: deque[ev.Event] = deque(maxlen=RING)
        self.ring_slots = RING_SLOTS
        """Numbers in the long ones of these events, at most."""
        self.long: deque[tuple[int, int]] = deque()
        """Of the long events that are remembered: their numbers (from 1) and how many slots they name."""
        self.long_slots = 0
        self.reported = 0
        """Different faults so far."""
        self.causes: dict[tuple[object, ...], bool] = {}
        """What the last of them were about."""
        self.judged: dict[str, int] = dict.fromkeys(BY_ID, 0)
        """Judgements made, more or fewer than one for each event of a kind; see :meth:`judge`."""
        self.strict = True
        """Whether it is an error if a rule raises what it does not declare; if not, it is a violation."""

    def copy(self, *, history: bool = True) -> LedgerState:
        """An independent copy, with or without the events that are remembered for reports.

        Events are shared: they are never changed.
        """
        other = LedgerState.__new__(LedgerState)
        other.__dict__.update(self.__dict__)
        known = set(self.requests.values())
        known.update(self.current.values())
        for pool in self.pools.values():
            known.update(holder.request for holder in pool.holders.values() if holder.request is not None)
        for op in self.ops.values():
            known.update(op.waiters)
            if op.request is not None:
                known.add(op.request)
        for step in self.steps:
            known.update(step.requests(self.current))
        copies = {request: request.copy() for request in known}
        other.pools = {name: pool.copy(copies) for name, pool in self.pools.items()}
        other.requests = {key: copies[request] for key, request in self.requests.items()}
        other.current = {id_: copies[request] for id_, request in self.current.items()}
        other.progress = {id_: request.address for id_, request in other.current.items()}
        other.newest, other.retired = dict(self.newest), dict(self.retired)
        other.ops = {id_: op.copy(copies) for id_, op in self.ops.items()}
        other.closed = dict(self.closed)
        other.steps = deque(step.copy(self.current, copies, other.pools) for step in self.steps)
        other.ring = self.ring.copy() if history else deque(maxlen=self.ring.maxlen)
        other.long, other.long_slots = (self.long.copy(), self.long_slots) if history else (deque(), 0)
        other.judged, other.causes = dict(self.judged), dict(self.causes)
        other.extra = self.extra.copy()
        return other

    # Requests and holders.

    def holder(self, pool: PoolState, name: str) -> Holder:
        """The holder ``name`` of ``pool``, created if it is new, with all of its slots in ``own``."""
        holder = pool.holders.get(name)
        if holder is not None and holder.parts:
            holder.own.update(*map(listed, holder.parts))
            holder.parts.clear()
            holder.in_parts = 0
        elif holder is None:
            if name[:3] == "op:":
                kind, request = "op", None
            else:
                kind, _, key = name.partition(":")
                request = self.request_of_key(key) if kind in ("req", "hit") else None
            # Given its containers, a dataclass is made as fast as by hand.
            holder = pool.holders[name] = Holder(name, kind, request, set(), [], 0, {}, [], {})
        return holder

    def request_of_key(self, key: str) -> Request | None:
        """The request generation named ``key`` (``7.0``), created if nothing spoke of it before."""
        request = self.requests.get(key)
        if request is None:
            id_, _, gen = key.rpartition(".")
            if not gen.isdecimal():
                return None
            request = self.add_request(id_, int(gen), explicit=False)
        return request

    def add_request(self, id_: str, gen: int, *, explicit: bool) -> Request:
        """Start to follow a generation."""
        key = f"{id_}.{gen}"
        request = self.requests[key] = Request(id_, gen, key, explicit)
        current = self.current.get(id_)
        if current is not None and current.gen < gen:
            self.not_current(current)
            current = None
        if current is None:
            self.current[id_] = request
            self.progress[id_] = request.progress.buffer_info()[0]
        return request

    def not_current(self, request: Request) -> None:
        """Nothing dispatched from here on means this generation."""
        if self.current.get(request.id) is request:
            for step in self.steps:
                step.requests(self.current)
            del self.current[request.id], self.progress[request.id]

    def request(self, id_: str, gen: int) -> tuple[Request, Violation | None]:
        """The generation that an event names, and what is wrong with naming it.

        A trace that tells no submissions may start anywhere: an unknown generation is wrong only in others.
        """
        request = self.requests.get(f"{id_}.{gen}")
        if request is not None:
            request.explicit = True
            return request, None
        request = self.add_request(id_, gen, explicit=True)
        if request.key in self.retired:
            return request, self.fail("ONCE", "a generation that is gone does nothing more", req=request.key)
        if self.saw_submit:
            return request, self.fail(
                "ONCE", "a generation is submitted before it does anything", req=request.key
            )
        return request, None

    def note_generation(self, id_: str, gen: int) -> None:
        """Remember the newest submitted generation of a request id."""
        newest = max(gen, self.newest.pop(id_, -1))
        self.newest[id_] = newest
        if len(self.newest) > REMEMBERED:
            del self.newest[next(iter(self.newest))]

    def count_slots(self, count: int) -> None:
        """An event named ``count`` slots."""
        self.slots += count
        if count >= LONG:
            self.count_long(count)

    def count_long(self, count: int) -> None:
        """A long event is remembered: forget old ones if that makes too many numbers."""
        long, events = self.long, self.events
        long.append((events, count))
        self.long_slots += count
        if self.long_slots <= self.ring_slots:
            return
        number = 0
        while self.long_slots > self.ring_slots and long[0][0] < events:
            number, slots = long.popleft()
            self.long_slots -= slots
        forget = self.ring.popleft
        for _ in range(number - events + len(self.ring)):
            forget()

    def remember(self, events: int, slots: int) -> None:
        """From here on, remember that many events, with that many numbers in the long ones of them."""
        self.ring = deque(self.ring, maxlen=events)
        self.ring_slots = slots

    def judge(self, invariant: str) -> None:
        """Count this event for ``invariant``, by which its rule does not judge each event."""
        self.judged[invariant] += 1

    def not_judged(self, *invariants: str) -> None:
        """Do not count this event, which is accepted, for ``invariants`` by which its rule judges others."""
        for invariant in invariants:
            self.judged[invariant] -= 1

    def forget_implicit(self, request: Request) -> None:
        """Forget a generation that was only ever named as a holder, if it holds nothing any more."""
        names = (f"req:{request.key}", f"hit:{request.key}")
        if not any(name in pool.holders for pool in self.pools.values() for name in names):
            self.requests.pop(request.key, None)
            self.not_current(request)

    def forget_request(self, request: Request) -> None:
        """Stop following a generation, but remember that there was one."""
        self.requests.pop(request.key, None)
        self.not_current(request)
        self.retired[request.key] = None
        if len(self.retired) > REMEMBERED:
            del self.retired[next(iter(self.retired))]

    def unprocessed(self, request: Request) -> int:
        """Tokens of ``request`` in steps that are dispatched and not processed."""
        if request.last_step <= self.processed:
            return 0
        return sum(
            step.tokens[requests.index(request)]
            for step in self.steps
            if request in (requests := step.requests(self.current))
        )

    def confirmed(self, request: Request) -> int:
        """Tokens of ``request`` whose KV is known to be written."""
        if request.final is not None:
            return request.final
        return request.computed - self.unprocessed(request)

    def writer_of(self, pool: PoolState, slot: int) -> Op | None:
        """The open transfer that writes ``slot``, if any."""
        for op in self.ops.values():
            if op.event.dst_pool == pool.name and op.writes(slot) and (pool.name, slot) not in op.forgiven:
                return op
        return None

    def close_promise(self, request: Request) -> None:
        """End the promise of ``request``, if one is open."""
        promise = request.promise
        if promise is None:
            return
        request.promise = None
        pool = self.pools[promise.pool]
        slots = named(pool, promise.numbers)
        if slots is not None:
            add(pool, slots, -PROMISE)

    def open_promise(self, request: Request, pool: PoolState, numbers: Numbers, external: int) -> None:
        """Record that slots of ``pool``, which exist and are named once each, are promised to ``request``."""
        request.promise = Promise(pool.name, numbers, external)
        promised = named(pool, numbers)
        if promised is not None:
            add(pool, promised, PROMISE)

    # After a violation.

    def forgive(self, pool: PoolState, slot: int) -> None:
        """Nothing protects ``slot`` any more: that was reported, its consequences are not."""
        for op in self.ops.values():
            if op.uses(pool.name, slot):
                op.forgiven |= {(pool.name, slot)}
        self.forgive_promises(pool, slot)
        pool.frozen.pop(slot, None)
        pool.words[slot] &= ~(BUSIES | FILLING | FROZEN)

    def forgive_promises(self, pool: PoolState, slot: int) -> None:
        """No promise names ``slot`` any more."""
        for request in self.requests.values():
            promise = request.promise
            if promise is not None and promise.pool == pool.name and slot in promise.slots:
                left = sorted(promise.slots - {slot})
                request.promise = Promise(promise.pool, left, promise.external)
        pool.words[slot] &= ~PROMISES

    def fail(
        self,
        invariant: str,
        condition: str,
        pool: PoolState | None = None,
        slots: Sequence[int] | int = (),
        **values: object,
    ) -> Violation:
        """Word a violation of the event that is being judged: ``condition`` should hold, and does not.

        ``slots`` are those of ``pool`` for which it is false; a single one is also the first of the values.
        Raises UndeclaredError if the rule of the event does not declare ``invariant``.
        """
        if isinstance(slots, int):
            slots, values = (slots,), {"slot": slots, **values}
        event = self.ring[-1]
        if self.strict and invariant not in RULES[type(event)].ids:
            raise UndeclaredError(
                f"the rule of {type(event).__name__} raised {invariant}, which it does not declare: "
                f"not true that {condition}"
            )
        involved = tuple(dict.fromkeys(slots))[:REPORTED_SLOTS]
        holders: dict[int, tuple[str, ...]] = {}
        history: dict[int, tuple[tuple[int, ev.Event], ...]] = {}
        again = self.is_known(
            (invariant, condition, pool and pool.name, involved, *map(values.get, DISTINGUISHING))
        )
        if pool is not None and not again:
            holders = {slot: tuple(holders_of(pool, slot)[:REPORTED_HOLDERS]) for slot in involved}
            if self.reported <= DETAILED:
                history = {slot: self.history(pool.name, slot) for slot in involved}
        return Violation(
            invariant=invariant,
            number=self.events - 1,
            event=_listed(event),
            condition=condition,
            values=values,
            pool="" if pool is None else pool.name,
            slots=involved,
            holders=holders,
            history=history,
            again=again,
        )

    def is_known(self, cause: tuple[object, ...]) -> bool:
        """Whether a violation with this cause was reported already; from here on it was."""
        causes = self.causes
        again = causes.pop(cause, None) is not None
        causes[cause] = True
        if not again:
            self.reported += 1
            if len(causes) > KNOWN_CAUSES:
                del causes[next(iter(causes))]
        return again

    def history(self, pool: str, slot: int) -> tuple[tuple[int, ev.Event], ...]:
        """The last events before this one that concern ``slot``, as far as they are remembered.

        Only the last ones are looked through: a serving process waits for this.
        """
        last = list(islice(reversed(self.ring), 1, SEARCHED + 1))
        transfers = {
            (event.op, event.gen)
            for event in last
            if type(event) is ev.Queue and queue_names(event, pool, slot)
        }
        found: list[tuple[int, ev.Event]] = []
        for number, event in zip(range(self.events - 2, -1, -1), last, strict=False):
            if _concerns(event, pool, slot, transfers):
                found.append((number, _listed(event)))
                if len(found) == REPORTED_EVENTS:
                    break
        return tuple(reversed(found))


def queue_names(event: ev.Queue, pool: str, slot: int) -> bool:
    """Whether the transfer reads or writes ``slot`` of ``pool``."""
    return (event.src_pool == pool and slot in listed(event.src)) or (
        event.dst_pool == pool and slot in listed(event.dst)
    )


def holders_of(pool: PoolState, slot: int) -> list[str]:
    """Names of the holders of ``slot``, found by looking at every holder: for reports."""
    return [
        holder.name
        for holder in pool.holders.values()
        if slot in holder.own or any(slot in listed(part) for part in holder.parts)
    ]


# Numbers from a file are lists already. One event is easier to follow from the file to its violation if
# these do not lead through two more modules.


def listed(numbers: Numbers) -> Sequence[int]:
    """``numbers`` as Python integers, as ``packed.ints`` gives them."""
    return numbers if type(numbers) is list else ints(numbers)


def _listed(event: ev.Event) -> ev.Event:
    packed = ev.PACKED_FIELDS[type(event)]
    return event if all(type(getattr(event, name)) is list for name, _ in packed) else ev.listed(event)


def _concerns(event: ev.Event, pool: str, slot: int, transfers: set[tuple[int, int]]) -> bool:
    if isinstance(event, ev.Alloc | ev.Touch | ev.Free | ev.Evict | ev.Label | ev.Unlabel | ev.Lookup):
        return event.pool == pool and slot in listed(event.slots)
    if isinstance(event, ev.Queue):
        return queue_names(event, pool, slot)
    if isinstance(event, ev.Issue | ev.Report | ev.Stale | ev.Complete):
        return (event.op, event.gen) in transfers
    return False
