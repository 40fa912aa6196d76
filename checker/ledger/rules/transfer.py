"""Rules of the events of transfers between pools: queued, issued, reported by each rank, complete once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from kvfence.checker.ledger.kernels.slot_bits import BAD, BUSY, FILLING, LABEL, REFS
from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.rules.load import distrust, distrusted_fault, load_order_fault, refilled
from kvfence.checker.ledger.rules.rank import end_fault
from kvfence.checker.ledger.state.bulk import same
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import REMEMBERED, Closed, LedgerState, Op
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.tags import Tag, tags_of
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, count_of, ints

T = TypeVar("T", bound=Hashable)


# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
ID_IS_FREE = "ONCE", "an id is used again only after its transfer is complete"
ID_GROWS = "ONCE", "an id is used again with a greater generation"
LOADED_KEY_IS_CARRIED = "PIN", "a load reads slots that carry the keys it brings"
READ_NOT_FILLING = "USE-READY", "no open transfer still writes a slot that is read"
READ_NOT_BAD = "FAIL-CLOSED", "a slot that a failed transfer should have filled is not copied"
FILLED_ONCE = "UNIQUE", "at most one open transfer fills a slot"
KEY_STORED_ONCE = "UNIQUE", "at most one store of a key to a pool is open"
KEY_NOT_STORED_AGAIN = "UNIQUE", "a key that the pool has is not stored again"
SLOT_STORED_ONCE = "UNIQUE", "at most one open store to a pool reads a slot"
NO_LOAD_BESIDE_STORE = "ONCE", "a request has no load while a store is open"
LOADED_WAS_PROMISED = "PIN", "a load reads promised slots"
NO_STORE_BESIDE_LOAD = "ONCE", "a request has no store while a load is open"
BLOCK_STORED_ONCE = "UNIQUE", "a block appears once in a store"
STORED_IS_CONFIRMED = "STORE-READY", "a store reads only blocks whose tokens are all confirmed"
REPORTING_RANK_EXISTS = "ONCE", "a report comes from a rank that exists"
REPORTED_ONCE = "ONCE", "a rank reports a transfer once"
EXPECTED_NOT_IGNORED = "ONCE", "a report that is still expected is not ignored"
REPORTED_BY_ALL = "RANKS", "a transfer is complete only when every rank reported"
SUCCEEDED_ON_ALL = "FAIL-CLOSED", "a transfer is good only if every rank succeeded"
FAILED_NOT_LABELLED = "FAIL-CLOSED", "no destination of a failed transfer is in the prefix index"


class TransferRules(Rules):
    """Judges ``queue``, ``issue``, ``report``, ``stale`` and ``complete``."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        self.two = len(self.pools) == 2 and state.header.tier in self.pools
        """There is only the device and its one tier."""

    # Queue.

    @judges(
        ev.Queue,
        "ONCE",
        "UNIQUE",
        "CONSERVE",
        "FREEZE",
        "USE-READY",
        "FAIL-CLOSED",
        also=("PIN", "STORE-READY", "LOAD-ORDER"),
    )
    def queue(self, event: ev.Queue) -> Violation | None:
        """A transfer is decided: each slot held and, if read, whole; no duplicates; one direction."""
        state = self.state
        src, dst = self.pools[event.src_pool], self.pools[event.dst_pool]
        if src is dst or (self.two and (event.kind == "store") != (dst.name == state.header.tier)):
            raise ValueError("a store moves blocks to the tier, a load from there")
        found = self.id_fault(event)
        request: Request | None = None
        if event.req:
            request, wrong = state.request(event.req, event.rgen)
            found = found or wrong
        op = Op(event, src, dst, request)
        if event.kind == "store":
            dst.index()
        count = self.take(op, src, dst)
        if count is None:
            sources, destinations, keys = ints(event.src), ints(event.dst), ints(event.keys, WIDE)
            count = len(sources)
            if not count == len(destinations) == len(keys):
                raise ValueError("a transfer has one source, one destination and one key for each block")
            found = found or self.slots_fault(event, src, dst)
            if not op.load:
                found = found or self.keys_fault(event, dst, keys)
            self.take_one_by_one(op, src, dst)
        elif op.load and found is None:
            state.judge("PIN")
        state.count_slots(2 * count)
        blocks = self.blocks(event)
        if request is not None:
            found = found or self.request_fault(event, request, src, blocks)
        extra = state.extra
        if extra.zeroing and op.load:
            found = found or load_order_fault(state, event, dst)
        if extra.suspects:
            found = found or (distrusted_fault(state, event, src) if op.load else None)
            refilled(state, event)
        self.open(op, blocks)
        if found is None and not count:
            state.not_judged("UNIQUE", "CONSERVE", "FREEZE", "USE-READY", "FAIL-CLOSED")
        return found

    def take(self, op: Op, src: PoolState, dst: PoolState) -> int | None:
        """Take a plain transfer over: how many blocks it moves. None, and nothing changed, if it is not."""

    def give_back(self, op: Op, src: PoolState, dst: PoolState) -> None:
        """The end of a transfer that :meth:`take` took over."""
        self.give_back_one_by_one(op, src, dst)

    def blocks(self, event: ev.Queue) -> Sequence[int]:
        """``at``: a range, if each is one more than the one before."""
        listed = ints(event.at)
        row = range(listed[0], listed[0] + len(listed)) if listed else range(0)
        return row if list(listed) == list(row) else listed

    def id_fault(self, event: ev.Queue) -> Violation | None:
        """Whether the id is in use, or was used with this generation or a later one."""
        op = self.state.ops.get(event.op)
        if op is not None:
            self.forget(op)
            return self.fail(*ID_IS_FREE, op=event.op, gen=event.gen, open=op.event.gen)
        closed = self.state.closed.get(event.op)
        if closed is not None and closed.gen >= event.gen:
            return self.fail(*ID_GROWS, op=event.op, gen=event.gen, before=closed.gen)
        return None

    def slots_fault(self, event: ev.Queue, src: PoolState, dst: PoolState) -> Violation | None:
        """What is wrong with the slots of a new transfer."""
        sources, destinations = ints(event.src), ints(event.dst)
        for side, pool, slots in (("src", src, sources), ("dst", dst, destinations)):
            twice = _repeated(slots)
            if twice is not None:
                return self.fail(
                    "UNIQUE", f"a slot appears once in {side} of a transfer", pool, twice, op=event.op
                )
            for slot in slots:
                if not 0 <= slot < pool.total:
                    return self.fail("CONSERVE", "a transferred slot exists", pool, slot, total=pool.total)
                if not pool.words[slot] & REFS:
                    return self.fail(
                        "FREEZE", f"each {side} slot of a transfer has a holder", pool, slot, op=event.op
                    )
        found = self.filled_twice(event, dst, destinations)
        if found is not None:
            return found
        tags = tags_of(ints(event.keys, WIDE), event.group)
        if event.kind == "load" and sources:
            self.state.judge("PIN")
        for slot, tag in zip(sources, tags, strict=True):
            word = src.words[slot]
            if event.kind == "load" and word & LABEL and src.label_of(slot) != tag:
                return self.fail(
                    *LOADED_KEY_IS_CARRIED, src, slot, op=event.op, key=tag, labelled=src.label_of(slot)
                )
            if word & FILLING:
                return self.fail(*READ_NOT_FILLING, src, slot, op=event.op)
            if word & BAD:
                return self.fail(*READ_NOT_BAD, src, slot, op=event.op)
        return None

    def filled_twice(self, event: ev.Queue, dst: PoolState, slots: Sequence[int]) -> Violation | None:
        """Whether another open transfer fills one of the destinations: which content stays is chance."""
        for slot in slots:
            if dst.words[slot] & FILLING:
                other = self.state.writer_of(dst, slot)
                return self.fail(
                    *FILLED_ONCE, dst, slot, op=event.op, open_transfer=None if other is None else other.id
                )
        return None

    def keys_fault(self, event: ev.Queue, dst: PoolState, keys: Sequence[int]) -> Violation | None:
        """Whether a store moves what is there already, or on its way."""
        tags, counts = tags_of(keys, event.group), dst.index()
        if counts.fresh(tags):
            return None
        if self.state.header.unique == "slot":
            return self.sources_fault(event, dst)
        twice = _repeated(tags)
        if twice is not None:
            return self.fail("UNIQUE", "a key appears once in a store", op=event.op, key=twice)
        for key, tag in zip(keys, tags, strict=True):
            if counts.stored(tag):
                others = [op.id for op in self.stores_to(dst) if tag in self.tags(op)]
                return self.fail(*KEY_STORED_ONCE, dst, key=key, op=event.op, open_stores=others)
            if counts.labelled(tag):
                at = dst.labelled_slots(tag)
                return self.fail(*KEY_NOT_STORED_AGAIN, dst, at, key=key, op=event.op)
        return None

    def sources_fault(self, event: ev.Queue, dst: PoolState) -> Violation | None:
        """Whether another open store reads one of the slots that this one reads."""
        sources = set(ints(event.src))
        for op in self.stores_to(dst):
            if op.event.src_pool != event.src_pool:
                continue
            shared = sources.intersection(ints(op.event.src))
            if shared:
                return self.fail(
                    *SLOT_STORED_ONCE,
                    self.pools[event.src_pool],
                    sorted(shared),
                    op=event.op,
                    open_store=op.id,
                )
        return None

    def tags(self, op: Op) -> Sequence[Tag]:
        """The tags that ``op`` moves."""
        return tags_of(ints(op.event.keys, WIDE), op.event.group)

    def stores_to(self, dst: PoolState) -> list[Op]:
        """The open stores to ``dst``."""
        return [op for op in self.state.ops.values() if not op.load and op.event.dst_pool == dst.name]

    def request_fault(
        self, event: ev.Queue, request: Request, src: PoolState, blocks: Sequence[int]
    ) -> Violation | None:
        """What is wrong with this transfer for the request whose ``blocks`` it moves."""
        if event.kind == "load":
            if request.stores:
                return self.fail(*NO_LOAD_BESIDE_STORE, op=event.op, req=request.key, stores=request.stores)
            promise = request.promise
            if promise is None or promise.pool != src.name or same(promise.numbers, event.src):
                return None
            sources = ints(event.src)
            if not promise.slots.issuperset(sources):
                for slot in sources:
                    if slot not in promise.slots:
                        return self.fail(*LOADED_WAS_PROMISED, src, slot, req=request.key, op=event.op)
            return None
        if request.loads:
            return self.fail(*NO_STORE_BESIDE_LOAD, op=event.op, req=request.key, loads=request.loads)
        if not blocks:
            return None
        twice = None if isinstance(blocks, range) else _repeated(blocks)
        if twice is not None:
            return self.fail(*BLOCK_STORED_ONCE, block=twice, op=event.op, req=request.key)
        group = self.state.groups.get(event.group)
        if request.known and group is not None:
            self.state.judge("STORE-READY")
            last = blocks[-1] if isinstance(blocks, range) else max(blocks)
            need = (last + 1) * group.block_size
            confirmed = self.state.confirmed(request)
            if need > confirmed:
                sources = ints(event.src)
                return self.fail(
                    *STORED_IS_CONFIRMED,
                    src,
                    (sources[blocks.index(last)],) if len(blocks) == len(sources) else (),
                    op=event.op,
                    req=request.key,
                    tokens_needed=need,
                    tokens_confirmed=confirmed,
                )
        return None

    def take_one_by_one(self, op: Op, src: PoolState, dst: PoolState) -> None:
        """Take over the slots and keys of any transfer."""
        for slot in ints(op.event.src):
            self.use(op, src, slot)
        for slot in ints(op.event.dst):
            if dst.word(slot) & FILLING:
                self.share(op, dst, slot)
            if self.use(op, dst, slot):
                dst.words[slot] = (dst.words[slot] | FILLING) & ~BAD
        if not op.load:
            dst.index().store(self.tags(op))

    def open(self, op: Op, blocks: Sequence[int]) -> None:
        """Take the transfer over into the ledger state."""
        event, id_, request = op.event, op.id, op.request
        self.state.ops[id_] = op
        if op.load:
            if request is not None:
                request.loads += 1
                request.waits.add(id_)
                request.ready = False
                op.waiters.append(request)
                self.state.close_promise(request)
            return
        if request is not None:
            request.stores += 1
            if isinstance(blocks, range):
                request.cover(event.group).add_range(blocks.start, blocks.stop)
            else:
                request.cover(event.group).add(blocks)

    def share(self, op: Op, dst: PoolState, slot: int) -> None:
        """``op`` writes a slot that another transfer writes already: neither is plain."""
        for other in self.state.ops.values():
            if other is not op and other.event.dst_pool == dst.name and other.writes(slot):
                other.plain = False

    def use(self, op: Op, pool: PoolState, slot: int) -> bool:
        """``op`` uses ``slot``. One that does not exist or has no holder was reported; it is left alone."""
        if not 0 <= slot < pool.total or not pool.words[slot] & REFS:
            op.forgiven |= {(pool.name, slot)}
            return False
        pool.words[slot] += BUSY
        return True

    # Issue, reports, end.

    def open_op(
        self, event: ev.Issue | ev.Report | ev.Complete, verb: str
    ) -> tuple[Op | None, Violation | None]:
        """The open transfer that an event means; a violation when there is none of this id and generation."""
        op = self.state.ops.get(event.op)
        if op is not None and op.event.gen == event.gen:
            return op, None
        closed = self.state.closed.get(event.op)
        return None, self.fail(
            "ONCE",
            f"only an open transfer of this id and generation is {verb}",
            **fields(event, "op", "gen"),
            open=None if op is None else op.event.gen,
            completed=None if closed is None else closed.gen,
        )

    @judges(ev.Issue, "ONCE")
    def issue(self, event: ev.Issue) -> Violation | None:
        """A queued transfer is handed to the workers, once."""
        op, wrong = self.open_op(event, "issued")
        if op is None:
            return wrong
        if op.issued:
            return self.fail("ONCE", "a transfer is issued once", op=op.id, gen=op.event.gen)
        op.issued = True
        return None

    @judges(ev.Report, "ONCE")
    def report(self, event: ev.Report) -> Violation | None:
        """Each rank reports an issued transfer once."""
        closed = self.state.closed.get(event.op)
        if closed is not None and closed.gen == event.gen and closed.missing >> max(event.rank, 0) & 1:
            closed.missing &= ~(1 << event.rank)  # that it ended without this report was a violation
            self.state.not_judged("ONCE")
            return None
        op, wrong = self.open_op(event, "reported")
        if op is None:
            return wrong
        if not 0 <= event.rank < self.state.header.ranks:
            return self.fail(*REPORTING_RANK_EXISTS, op=op.id, rank=event.rank, ranks=self.state.header.ranks)
        bit = 1 << event.rank
        before = op.reported
        op.reported |= bit
        if not event.ok:
            op.failed |= bit
        if not op.issued:
            op.issued = True
            return self.fail("ONCE", "a transfer is reported after it was issued", op=op.id, gen=op.event.gen)
        if before & bit:
            return self.fail(*REPORTED_ONCE, op=op.id, gen=op.event.gen, rank=event.rank)
        return None

    @judges(ev.Stale, "ONCE")
    def stale(self, event: ev.Stale) -> Violation | None:
        """A report that is still expected must not be ignored."""
        op = self.state.ops.get(event.op)
        if op is None or op.event.gen != event.gen or not op.issued:
            return None
        if event.rank not in self.ranks_in(~op.reported):
            return None
        return self.fail(*EXPECTED_NOT_IGNORED, op=op.id, gen=op.event.gen, rank=event.rank)

    @judges(ev.Complete, "ONCE", "RANKS", "FAIL-CLOSED")
    def complete(self, event: ev.Complete) -> Violation | None:
        """A transfer ends when all ranks reported, and well only if all of them did."""
        op, found = self.open_op(event, "completed")
        if op is None:
            return found
        if op.reported != self.all_ranks:
            missing = self.ranks_in(~op.reported)
            found = self.fail(*REPORTED_BY_ALL, op=op.id, gen=op.event.gen, missing=missing)
        elif event.ok and op.failed:
            failed = self.ranks_in(op.failed)
            found = self.fail(*SUCCEEDED_ON_ALL, op=op.id, gen=op.event.gen, failed=failed)
        extra = self.state.extra
        if extra.votes:
            found = found or end_fault(self.state, op, event.ok)
        if not event.ok:
            dst = self.pools[op.event.dst_pool]
            labelled = [slot for slot in ints(op.event.dst) if dst.word(slot) & LABEL]
            if found is None and not count_of(op.event.dst):
                self.state.not_judged("FAIL-CLOSED")
            if labelled:
                found = found or self.fail(*FAILED_NOT_LABELLED, dst, labelled, op=op.id, gen=op.event.gen)
            if op.load:
                distrust(self.state, op)
            self.fail_destinations(op, dst)
        if extra.failed:
            extra.failed.pop((op.id, op.event.gen), None)
        self.release(op)
        self.settle(op, event.ok)
        closed = self.state.closed
        closed.pop(op.id, None)
        closed[op.id] = Closed(op, event.ok, self.all_ranks & ~op.reported)
        if len(closed) > REMEMBERED:
            del closed[next(iter(closed))]
        return found

    def fail_destinations(self, op: Op, dst: PoolState) -> None:
        """The destinations of a failed transfer are of no use; whoever has them in a table must know."""
        destinations, blocks = ints(op.event.dst), ints(op.event.at)
        only = self.state.extra.failed.get((op.id, op.event.gen))
        if only is not None:
            kept = [place for place, slot in enumerate(destinations) if slot in only]
            destinations = [destinations[place] for place in kept]
            blocks = [blocks[place] for place in kept] if blocks else blocks
        for slot in destinations:
            if (dst.name, slot) not in op.forgiven:
                dst.words[slot] |= BAD
        if not op.load:
            if op.request is not None and blocks:
                op.request.cover(op.event.group).take(blocks)
            return
        for waiter in op.waiters:
            if waiter is not op.request:
                starts = [waiter.suspects.get((dst.name, slot)) for slot in destinations]
                known = [start for start in starts if start is not None]
                waiter.bad.append((dst.name, destinations))
                waiter.lower_limit(min(known) if known else (waiter.local if waiter.known else None))
        owner = op.request
        if owner is not None:
            group = self.state.groups.get(op.event.group)
            owner.bad.append((dst.name, destinations))
            if group is not None and blocks:
                owner.lower_limit(min(blocks) * group.block_size)
            else:
                owner.lower_limit(owner.local if owner.known else None)

    def release(self, op: Op) -> None:
        """The transfer uses its slots no longer."""
        src, dst = self.pools[op.event.src_pool], self.pools[op.event.dst_pool]
        del self.state.ops[op.id]
        if op.plain and not op.forgiven:
            self.give_back(op, src, dst)
        else:
            self.give_back_one_by_one(op, src, dst)

    def give_back_one_by_one(self, op: Op, src: PoolState, dst: PoolState) -> None:
        """The end of any transfer: a violation or another transfer may have got in between."""
        for slot in ints(op.event.src):
            if (src.name, slot) not in op.forgiven:
                src.words[slot] -= BUSY
        for slot in ints(op.event.dst):
            if (dst.name, slot) not in op.forgiven:
                dst.words[slot] -= BUSY
                if self.state.writer_of(dst, slot) is None:
                    dst.words[slot] &= ~FILLING
        if not op.load:
            dst.index().unstore(self.tags(op))

    def settle(self, op: Op, ok: bool) -> None:
        """Tell the requests that waited."""
        owner = op.request
        if op.load:
            for waiter in op.waiters:
                waiter.waits.discard(op.id)
                waiter.update_ready()
            if owner is not None:
                owner.loads -= 1
                if ok and not owner.loads and not owner.expects_rollback:
                    owner.computed += owner.external
                    owner.external = 0
        elif owner is not None:
            owner.stores -= 1

    def forget(self, op: Op) -> None:
        """A transfer whose id was taken for another one: reported, and its slots are let go."""
        self.release(op)
        self.settle(op, False)


def _repeated(values: Sequence[T]) -> T | None:
    """The first value that appears twice."""
    if len(set(values)) == len(values):
        return None
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
