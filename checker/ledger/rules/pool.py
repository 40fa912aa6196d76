"""Rules of the events that give, share and take slots and labels.

They judge slot by slot and can handle anything; ``pool_fast_paths`` spares most events that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvfence.checker.ledger.kernels.slot_bits import (
    BAD,
    BUSIES,
    FILLING,
    FROZEN,
    LABEL,
    NULL_BLOCK,
    PROMISES,
    REF,
    REFS,
)
from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.attention_window import kind_of
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import LedgerState, holders_of, listed
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import LAST_STEP
from kvfence.checker.ledger.state.tags import tags_of
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, Numbers, ints

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
FREE_COUNT_AGREES = (
    "CONSERVE",
    "the pool's count of free slots is the total less the null block and the held slots",
)
ALLOCATED_NOT_IN_TRANSFER = "FREEZE", "no open transfer reads or writes an allocated slot"
ALLOCATED_NOT_READ = "FREEZE", "no dispatched step may still read an allocated slot"
ALLOCATED_WAS_FREE = "CONSERVE", "an allocated slot is in the free list, once"
ALLOCATED_HAS_NO_KEY = "CONSERVE", "an allocated slot carries no key (a cached slot is evicted first)"
DENIED_WHEN_SHORT = "CONSERVE", "a pool refuses only when fewer slots are free than were asked for"
SHARED_IS_KEPT = "CONSERVE", "a shared slot is held or cached: a free slot without a key has nothing to share"
HOLDER_LEAVES_ITS_OWN = "CONSERVE", "a holder leaves only slots that it holds"
PIN_STAYS = "PIN", "a promised slot keeps its pin until the promise is consumed or withdrawn"
TRANSFERRED_STAYS_HELD = "FREEZE", "a slot has a holder while an open transfer reads or writes it"
READ_STAYS_HELD = "FREEZE", "a slot has a holder while a dispatched step may still read it"
EVICTED_NOT_IN_TRANSFER = "FREEZE", "no open transfer reads or writes an evicted slot"
ONE_KEY = "UNIQUE", "a slot carries one key"
LABELLED_WHEN_COMPLETE = "USE-READY", "a slot is labelled after the transfer that fills it is complete"
LABELLED_WAS_QUEUED = "ONCE", "a slot is labelled for a transfer that was queued"
LABELLED_IN_DESTINATION = "USE-READY", "a transfer fills slots of the pool that it goes to"
LABELLED_IF_GOOD = "FAIL-CLOSED", "a slot is labelled only if the transfer that filled it succeeded"
LABELLED_IN_EPOCH = "RESET", "a transfer queued before a reset does not bring entries back"
LABELLED_NOT_BAD = "FAIL-CLOSED", "a labelled slot was computed again after a failed transfer into it"
LABELLED_NOT_FILLING = "USE-READY", "no open transfer still writes a labelled slot"
TABLE_IN_EPOCH = "RESET", "a table begun before a reset does not enter the prefix index"


class PoolRules(Rules):
    """Judges ``alloc``, ``deny``, ``touch``, ``free``, ``evict``, ``label`` and ``unlabel``."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        self.windows = {index: group for index, group in state.groups.items() if kind_of(group) != "full"}

    def count_fault(self, pool: PoolState, free: int, found: Violation | None = None) -> Violation | None:
        """The pool's own count of free slots must be ours. A difference is reported once.

        After another violation, ``found``, a difference is its consequence and only noted.
        """
        if free < 0 or free == pool.free + pool.drift:
            return found
        ours = pool.free + pool.drift
        pool.drift = free - pool.free
        if found is not None:
            return found
        return self.fail(*FREE_COUNT_AGREES, pool, told=free, counted=ours, total=pool.total)

    def no_slots(self, free: int) -> None:
        """An event names no slots, and is accepted: all that was compared is the count that it tells."""
        if free < 0:
            self.state.not_judged("CONSERVE")

    # Alloc.

    @judges(ev.Alloc, "CONSERVE", "FREEZE", "PIN")
    def alloc(self, event: ev.Alloc) -> Violation | None:
        """The slots come from the free list and nothing may use them."""
        pool, slots = self.pools[event.pool], listed(event.slots)
        holder = self.state.holder(pool, event.holder)
        found: Violation | None = None
        taken: list[int] = []
        for slot in slots:
            found = found or self.alloc_fault(pool, slot)
            if not 0 <= slot < pool.total or slot in holder.own:
                continue
            word = pool.words[slot]
            if word & (BUSIES | PROMISES | FROZEN):
                self.state.forgive(pool, slot)
            if word & LABEL:
                pool.drop_label(slot)
            if word & REFS:
                pool.words[slot] += REF
            else:
                pool.free -= not word & NULL_BLOCK
                pool.words[slot] = REF | (word & NULL_BLOCK)
            holder.own.add(slot)
            taken.append(slot)
        self.join(holder, taken, event)
        self.state.count_slots(len(slots))
        found = self.count_fault(pool, event.free, found)
        if not slots and found is None:
            self.state.not_judged("FREEZE", "PIN")
            self.no_slots(event.free)
        return found

    def alloc_fault(self, pool: PoolState, slot: int) -> Violation | None:
        """What is wrong with giving ``slot`` away."""
        if not 0 <= slot < pool.total:
            return self.fail("CONSERVE", "an allocated slot exists", pool, slot, total=pool.total)
        word = pool.words[slot]
        if word & NULL_BLOCK:
            return self.fail("CONSERVE", "the null block is never allocated", pool, slot)
        if word & BUSIES:
            return self.fail(*ALLOCATED_NOT_IN_TRANSFER, pool, slot, transfers=self.users(pool, slot))
        if word & FROZEN:
            return self.fail(
                *ALLOCATED_NOT_READ, pool, slot, step=pool.frozen.get(slot), processed=self.state.processed
            )
        if word & REFS and slot in pool.disputed:
            pool.disputed.discard(slot)
            return None
        if word & REFS:
            return self.fail(*ALLOCATED_WAS_FREE, pool, slot, holders=(word & REFS) // REF)
        if word & PROMISES:
            return self.fail("PIN", "an allocated slot is not promised", pool, slot)
        if word & LABEL:
            return self.fail(*ALLOCATED_HAS_NO_KEY, pool, slot, key=pool.label_of(slot))
        return None

    @judges(ev.Deny, "CONSERVE")
    def deny(self, event: ev.Deny) -> Violation | None:
        """Only a pool that is short may refuse."""
        pool = self.pools[event.pool]
        free = pool.free + pool.drift
        if event.asked <= free:
            return self.fail(*DENIED_WHEN_SHORT, pool, asked=event.asked, free=free, holder=event.holder)
        return self.count_fault(pool, event.free)

    # Touch.

    @judges(ev.Touch, "CONSERVE", also=("UNIQUE", "PURE"))
    def touch(self, event: ev.Touch) -> Violation | None:
        """A holder joins: only slots that have one, or a key to share."""
        pool, slots = self.pools[event.pool], ints(event.slots)
        holder = self.state.holder(pool, event.holder)
        found: Violation | None = None
        joined: list[int] = []
        if slots:
            self.joins_once(holder)
        for place, slot in enumerate(slots):
            found = found or self.touch_fault(pool, holder, slot)
            if not 0 <= slot < pool.total:
                continue
            if slot in holder.slots:
                holder.again[slot] = holder.again.get(slot, 0) + 1
                continue
            word = pool.words[slot]
            if not word & (REFS | NULL_BLOCK):
                pool.free -= 1
            pool.words[slot] = word + REF
            holder.slots.add(slot)
            joined.append(slot)
            if word & (FILLING | BAD) and holder.kind == "req":
                self.join_unfilled(pool, holder, slot, event, place)
        self.join(holder, joined, event)
        self.state.count_slots(len(slots))
        found = self.count_fault(pool, event.free, found)
        if not slots and found is None:
            self.no_slots(event.free)
        return found

    def joins_once(self, holder: Holder) -> None:
        """Count that a transfer or a pin, each of which joins a slot once, was judged by that."""
        if holder.kind == "op":
            self.state.judge("UNIQUE")
        elif holder.kind == "hit":
            self.state.judge("PURE")

    def touch_fault(self, pool: PoolState, holder: Holder, slot: int) -> Violation | None:
        """What is wrong with ``holder`` joining the holders of ``slot``."""
        if not 0 <= slot < pool.total:
            return self.fail("CONSERVE", "a shared slot exists", pool, slot, total=pool.total)
        if slot in holder.slots:
            invariant = {"op": "UNIQUE", "hit": "PURE"}.get(holder.kind, "CONSERVE")
            return self.fail(invariant, "a holder holds a slot at most once", pool, slot, holder=holder.name)
        word = pool.words[slot]
        if word & NULL_BLOCK:
            return self.fail("CONSERVE", "the null block has no holder", pool, slot, holder=holder.name)
        if not word & (REFS | LABEL):
            return self.fail(*SHARED_IS_KEPT, pool, slot, holder=holder.name)
        return None

    def join_unfilled(self, pool: PoolState, holder: Holder, slot: int, event: ev.Touch, place: int) -> None:
        """A table took in a slot that a transfer still writes, or failed to write."""
        request = holder.request
        if request is None:
            return
        group = self.state.groups.get(event.group)
        first = None if group is None else (event.at + place) * group.block_size
        op = self.state.writer_of(pool, slot)
        if op is None:
            request.bad.append((pool.name, (slot,)))
            request.lower_limit(first)
            return
        if first is not None:
            request.suspects[pool.name, slot] = first
        if op.load and op.id not in request.waits:
            request.waits.add(op.id)
            op.waiters.append(request)
            request.update_ready()

    def join(self, holder: Holder, slots: Numbers, event: ev.Alloc | ev.Touch) -> None:
        """Remember when and where ``slots`` entered a request's table."""
        request = holder.request
        if holder.kind != "req" or request is None:
            return
        if request.progress[LAST_STEP] > self.state.processed:
            request.add_fresh(event.pool, slots)
        if self.windows and event.group in self.windows:
            holder.reaching.append((slots, event.at, self.windows[event.group]))

    # Free.

    @judges(ev.Free, "CONSERVE", "PIN", "FREEZE")
    def free(self, event: ev.Free) -> Violation | None:
        """A holder leaves. If it was the last one, nothing may use or expect the slot."""
        state = self.state
        pool, slots = self.pools[event.pool], ints(event.slots)
        holder = state.holder(pool, event.holder)
        found: Violation | None = None
        request = holder.request
        promise = request.promise if request is not None and holder.kind == "hit" else None
        promised = promise.slots if promise is not None and promise.pool == pool.name else frozenset[int]()
        protects = self.protection(pool, holder)
        frozen: list[int] = []
        gone = 0
        for slot in slots:
            if slot not in holder.slots:
                more = holder.again.pop(slot, 0)
                if more:
                    if more > 1:
                        holder.again[slot] = more - 1
                    continue
                found = found or self.fail(*HOLDER_LEAVES_ITS_OWN, pool, slot, holder=holder.name)
                continue
            word = pool.words[slot] - REF
            dying = not word & REFS
            read = protects is not None and protects(slot)
            if slot in promised:
                found = found or self.fail(*PIN_STAYS, pool, slot, holder=holder.name)
            gone += dying
            if dying:
                found = found or self.free_fault(pool, holder, slot, word, read)
            elif read and request is not None:
                pool.frozen[slot] = max(request.last_step, pool.frozen.get(slot, -1))
                word |= FROZEN
                frozen.append(slot)
            pool.words[slot] = word
            holder.slots.discard(slot)
            holder.forget_reach((slot,))
            if dying:
                pool.free += not word & NULL_BLOCK
                if word & (BUSIES | PROMISES | FROZEN):
                    state.forgive(pool, slot)
        if frozen and request is not None:
            for step in state.steps:
                if step.number == request.last_step:
                    step.frozen.append((pool, frozen))
        if not holder.slots:
            self.left(pool, holder)
        state.count_slots(len(slots))
        found = self.count_fault(pool, event.free, found)
        if found is None and not gone:
            self.all_stay(pinned=bool(promised))
            if not slots:
                self.no_slots(event.free)
        return found

    def all_stay(self, *, pinned: bool = False) -> None:
        """Each slot that a holder leaves has others, so nothing was asked about what needs one."""
        self.state.not_judged("FREEZE")
        if not pinned:
            self.state.not_judged("PIN")

    def free_fault(
        self, pool: PoolState, holder: Holder, slot: int, word: int, read: bool
    ) -> Violation | None:
        """What is wrong with ``slot`` having no holder any more."""
        if word & PROMISES:
            return self.fail("PIN", "a promised slot has a holder", pool, slot, leaving=holder.name)
        if word & BUSIES:
            return self.fail(
                *TRANSFERRED_STAYS_HELD, pool, slot, leaving=holder.name, transfers=self.users(pool, slot)
            )
        if read or word & FROZEN:
            step = pool.frozen.get(slot) if word & FROZEN else holder.request and holder.request.last_step
            return self.fail(
                *READ_STAYS_HELD, pool, slot, leaving=holder.name, step=step, processed=self.state.processed
            )
        return None

    def protection(self, pool: PoolState, holder: Holder) -> Callable[[int], bool] | None:
        """Tells of a table's slots whether the request's dispatched steps may still read or write them.

        None if no step of the request is under way.
        """
        request = holder.request
        if holder.kind != "req" or request is None or request.last_step <= self.state.processed:
            return None
        fresh = {slot for name, slots in request.fresh() if name == pool.name for slot in ints(slots)}
        start = request.computed - self.state.unprocessed(request)
        reach = holder.reaches()
        return lambda slot: slot not in fresh and reach.get(slot, start) >= start

    def left(self, pool: PoolState, holder: Holder) -> None:
        """A holder holds nothing any more."""
        pool.holders.pop(holder.name, None)
        pool.stale.discard(holder.name)
        request = holder.request
        if request is not None and not request.explicit and request.last_step <= self.state.processed:
            self.state.forget_implicit(request)

    # Labels.

    @judges(ev.Evict, "PIN", "FREEZE", "CONSERVE")
    def evict(self, event: ev.Evict) -> Violation | None:
        """Only cached slots that have no holder, and that nothing expects, are evicted."""
        pool, slots = self.pools[event.pool], ints(event.slots)
        found: Violation | None = None
        for slot in slots:
            found = found or self.evict_fault(pool, slot)
            if 0 <= slot < pool.total:
                pool.drop_label(slot)
                if pool.words[slot] & PROMISES:
                    self.state.forgive_promises(pool, slot)
        self.state.count_slots(len(slots))
        if not slots:
            self.state.not_judged("PIN", "FREEZE", "CONSERVE")
        return found

    def evict_fault(self, pool: PoolState, slot: int) -> Violation | None:
        """What is wrong with evicting ``slot``."""
        if not 0 <= slot < pool.total:
            return self.fail("CONSERVE", "an evicted slot exists", pool, slot, total=pool.total)
        word = pool.words[slot]
        if word == LABEL:
            return None
        holders = holders_of(pool, slot) if word & REFS else []
        if word & PROMISES or any(name.startswith("hit:") for name in holders):
            if word & REFS:
                pool.disputed.add(slot)
            return self.fail("PIN", "a promised or pinned slot is not evicted", pool, slot, holders=holders)
        if word & BUSIES:
            return self.fail(*EVICTED_NOT_IN_TRANSFER, pool, slot, transfers=self.users(pool, slot))
        if word & REFS:
            pool.disputed.add(slot)
            return self.fail("PIN", "an evicted slot has no holder", pool, slot, holders=holders)
        if not word & LABEL:
            return self.fail("CONSERVE", "an evicted slot carries a key", pool, slot)
        return None

    @judges(ev.Label, "CONSERVE", "UNIQUE", "FAIL-CLOSED", "USE-READY", also=("ONCE", "RESET"))
    def label(self, event: ev.Label) -> Violation | None:
        """A slot enters the prefix index only when its content is there, whole and current."""
        pool, slots, keys = self.pools[event.pool], ints(event.slots), ints(event.keys, WIDE)
        if len(keys) != len(slots):
            raise ValueError("a label has one key for each slot")
        found = self.label_op_fault(pool, event, slots)
        seen: set[int] = set()
        for slot, tag in zip(slots, tags_of(keys, event.group), strict=True):
            found = found or self.label_fault(pool, slot, seen)
            if found is None and pool.label_of(slot) not in (None, tag):
                found = self.fail(*ONE_KEY, pool, slot, key=tag, labelled=pool.label_of(slot))
            seen.add(slot)
            if 0 <= slot < pool.total and not pool.words[slot] & NULL_BLOCK:
                pool.set_label(slot, tag)
        if found is None and event.op < 0 and pool.stale and slots:
            self.state.judge("RESET")
            found = self.stale_table_fault(pool, slots)
        self.state.count_slots(len(slots))
        if found is None and not slots:
            self.state.not_judged("CONSERVE", "UNIQUE", "FAIL-CLOSED", "USE-READY")
        return found

    def label_op_fault(self, pool: PoolState, event: ev.Label, slots: Sequence[int]) -> Violation | None:
        """What is wrong with the transfer that is said to have filled the slots."""
        if event.op < 0:
            return None
        op = self.state.ops.get(event.op)
        if op is not None and op.event.gen == event.gen:
            return self.fail(
                *LABELLED_WHEN_COMPLETE,
                pool,
                slots,
                **fields(event, "op", "gen"),
                reported=op.reported.bit_count(),
                ranks=self.state.header.ranks,
            )
        closed = self.state.closed.get(event.op)
        newest = op.event.gen if op is not None else None if closed is None else closed.gen
        if newest is not None:
            self.state.judge("ONCE")
        if newest is not None and newest < event.gen:
            return self.fail(*LABELLED_WAS_QUEUED, pool, slots, op=event.op, gen=event.gen, newest=newest)
        if closed is None or closed.gen != event.gen:
            return None
        if closed.dst_pool != pool.name:
            return self.fail(
                *LABELLED_IN_DESTINATION, pool, slots, op=event.op, gen=event.gen, goes_to=closed.dst_pool
            )
        if not closed.ok:
            return self.fail(*LABELLED_IF_GOOD, pool, slots, op=event.op, gen=event.gen)
        epoch = closed.epoch(pool)
        if pool.epoch:
            self.state.judge("RESET")
        if epoch < pool.epoch:
            return self.fail(
                *LABELLED_IN_EPOCH,
                pool,
                slots,
                **fields(event, "op", "gen"),
                queued_in_epoch=epoch,
                epoch=pool.epoch,
            )
        return None

    def label_fault(self, pool: PoolState, slot: int, seen: set[int]) -> Violation | None:
        """What is wrong with labelling ``slot``, whatever filled it."""
        if not 0 <= slot < pool.total:
            return self.fail("CONSERVE", "a labelled slot exists", pool, slot, total=pool.total)
        if slot in seen:
            return self.fail("UNIQUE", "a slot is labelled once by one event", pool, slot)
        word = pool.words[slot]
        if not word & REFS:
            return self.fail("CONSERVE", "a slot is held when it is labelled", pool, slot)
        if word & BAD:
            return self.fail(*LABELLED_NOT_BAD, pool, slot)
        if word & FILLING:
            return self.fail(*LABELLED_NOT_FILLING, pool, slot, transfers=self.users(pool, slot))
        return None

    def stale_table_fault(self, pool: PoolState, slots: Sequence[int]) -> Violation | None:
        """Whether a table that was begun before a reset publishes what it computed."""
        for name in pool.stale:
            old = pool.holders[name].slots.intersection(slots)
            if old:
                return self.fail(*TABLE_IN_EPOCH, pool, sorted(old), holder=name, epoch=pool.epoch)
        return None

    @judges(ev.Unlabel, "CONSERVE")
    def unlabel(self, event: ev.Unlabel) -> Violation | None:
        """Slots leave the prefix index; always allowed."""
        pool, slots = self.pools[event.pool], ints(event.slots)
        found: Violation | None = None
        for slot in slots:
            if 0 <= slot < pool.total:
                pool.drop_label(slot)
            else:
                found = found or self.fail("CONSERVE", "a slot exists", pool, slot, total=pool.total)
        self.state.count_slots(len(slots))
        if not slots:
            self.state.not_judged("CONSERVE")
        return found

    def users(self, pool: PoolState, slot: int) -> list[str]:
        """Open transfers that read or write ``slot``: for reports."""
        return [
            f"{'load' if op.load else 'store'} {op.id}.{op.event.gen}"
            for op in self.state.ops.values()
            if op.uses(pool.name, slot)
        ]
