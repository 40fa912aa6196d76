"""Fast paths for the events of pools, which are most of a trace.

A fast path only accepts: it looks whether everything is ordinary, by a comparison or two for each slot. If
so, it takes the event over; if not, it leaves the ledger state untouched, and the rule judges slot by slot.
"""

from __future__ import annotations

import numpy as np

from kvfence.checker.ledger.kernels.slot_bits import BAD, FILLING, LABEL, NULL_BLOCK, REF, REFS
from kvfence.checker.ledger.rules.pool import PoolRules
from kvfence.checker.ledger.state.bulk import (
    Named,
    add,
    add_holder,
    add_labels,
    all_are,
    all_have,
    all_of,
    distinct,
    dying,
    named,
    put,
    remove_labels,
    tags_named,
)
from kvfence.checker.ledger.state.ledger_state import LONG, LedgerState
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import LAST_STEP
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec.packed import Numbers, ints


class PoolFastPathsBase(PoolRules):
    """What the fast paths of pools have in common, whether compiled or not: the end of each."""

    def joined(
        self, pool: PoolState, holder: Holder, event: ev.Alloc | ev.Touch, count: int
    ) -> Violation | None:
        """The slots of ``event``, ``count`` of them, have the holder; now the rest of the ledger state."""
        if holder.kind == "req":
            self.join(holder, event.slots, event)
        state = self.state
        state.slots += count
        if count >= LONG:
            state.count_long(count)
        if event.free == pool.free and not pool.drift:
            return None
        return self.count_fault(pool, event.free)

    def may_protect(self, holder: Holder) -> bool:
        """Whether slots may not be freed because a step, or a promise to the request, needs ``holder``."""
        request = holder.request
        if request is None:
            return False
        if holder.kind == "req":
            return request.progress[LAST_STEP] > self.state.processed
        return request.promise is not None

    def freed(self, pool: PoolState, event: ev.Free, count: int, gone: int) -> Violation | None:
        """The holder left ``count`` slots, of which ``gone`` have none any more."""
        pool.free += gone
        state = self.state
        state.slots += count
        if count >= LONG:
            state.count_long(count)
        if event.free != pool.free or pool.drift:
            found = self.count_fault(pool, event.free)
            if found is not None:
                return found
        if not gone:
            self.all_stay()
        return None


class PoolFastPaths(PoolFastPathsBase):
    """The rules of pools with fast paths in front."""

    def alloc(self, event: ev.Alloc) -> Violation | None:
        """Ordinary: nothing at all is known about the slots."""
        pool = self.pools[event.pool]
        which = _unknown(pool, event.slots)
        if which is None:
            return super().alloc(event)
        holder = pool.holders.get(event.holder) or self.state.holder(pool, event.holder)
        if not _join(pool, holder, which):
            return super().alloc(event)
        count = len(which)
        put(pool, which, REF)
        pool.free -= count
        return self.joined(pool, holder, event, count)

    def touch(self, event: ev.Touch) -> Violation | None:
        """Ordinary: held or cached slots with content, which the holder does not have yet."""
        pool = self.pools[event.pool]
        which = named(pool, event.slots)
        wrong = FILLING | BAD | NULL_BLOCK
        if which is None or not len(which) or not all_have(pool, which, REFS | LABEL, wrong):
            return super().touch(event)
        holder = pool.holders.get(event.holder) or self.state.holder(pool, event.holder)
        if (holder.own or holder.parts) and not holder.slots.isdisjoint(ints(event.slots)):
            return super().touch(event)
        if not _join(pool, holder, which):
            return super().touch(event)
        count = len(which)
        pool.free -= add_holder(pool, which)
        self.joins_once(holder)
        return self.joined(pool, holder, event, count)

    def free(self, event: ev.Free) -> Violation | None:
        """Ordinary: slots that the holder holds, and that nothing expects or uses once nobody holds them."""
        pool = self.pools[event.pool]
        holder = pool.holders.get(event.holder)
        if holder is None or self.may_protect(holder):
            return super().free(event)
        which = named(pool, event.slots)
        if which is None or not len(which) or not _holds(pool, holder, which):
            return super().free(event)
        gone = dying(pool, which, LABEL | BAD)
        if gone is None or not _leave(holder, which):
            return super().free(event)
        count = len(which)
        add(pool, which, -REF)
        if holder.reaching or holder.reach:
            holder.forget_reach(ints(event.slots))
        if not holder.own and not holder.parts:
            self.left(pool, holder)
        return self.freed(pool, event, count, gone)

    def evict(self, event: ev.Evict) -> Violation | None:
        """Ordinary: the label is all that is known about the slots."""
        pool = self.pools[event.pool]
        which = named(pool, event.slots)
        if which is None or not len(which) or not all_are(pool, which, LABEL) or not distinct(pool, which):
            return super().evict(event)
        remove_labels(pool, which)
        self.state.count_slots(len(which))
        return None

    def label(self, event: ev.Label) -> Violation | None:
        """Ordinary: held slots without a label, and whatever filled them went well in this epoch."""
        pool = self.pools[event.pool]
        which = named(pool, event.slots) if trusted(self.state, pool, event) else None
        if (
            which is None
            or not len(which)
            or (tags := tags_named(event.keys, event.group, which)) is None
            or not all_have(pool, which, REFS, LABEL | FILLING | BAD | NULL_BLOCK)
            or not distinct(pool, which)
        ):
            return super().label(event)
        add_labels(pool, which, tags)
        if event.op >= 0:
            filled(self.state, pool)
        self.state.count_slots(len(which))
        return None


def trusted(state: LedgerState, pool: PoolState, event: ev.Label) -> bool:
    """Whether whatever filled the labelled slots went well, in this epoch of the pool."""
    op = event.op
    if op < 0:
        return not pool.stale
    closed = state.closed.get(op)
    return closed is not None and closed.gen == event.gen and closed.current(pool) and op not in state.ops


def filled(state: LedgerState, pool: PoolState) -> None:
    """Count what else a label is judged by if it tells the transfer that filled the slots, and is trusted."""
    state.judge("ONCE")
    if pool.epoch:
        state.judge("RESET")


def _unknown(pool: PoolState, slots: Numbers) -> Named | None:
    """``slots`` if there are some, all of them exist, and nothing is known about any; otherwise None."""
    if type(slots) is not list or len(slots) >= pool.long_from:
        which = named(pool, slots)
        return which if which is not None and len(which) and all_are(pool, which, 0) else None
    try:
        ordinary = slots and min(slots) >= 0 and not any(map(pool.words.__getitem__, slots))
    except IndexError:
        return None
    return slots if ordinary else None


def _join(pool: PoolState, holder: Holder, which: Named) -> bool:
    """Give ``holder`` the slots, none of which it has. False, and nothing changed, if one appears twice."""
    if isinstance(which, np.ndarray):
        if not distinct(pool, which):
            return False
        holder.parts.append(which)
        holder.in_parts += len(which)
        return True
    own = holder.own
    before = len(own)
    own.update(which)
    if len(own) == before + len(which):
        return True
    own.difference_update(which)
    return False


def _holds(pool: PoolState, holder: Holder, which: Named) -> bool:
    """Whether ``holder`` holds each of the slots; one that appears twice may count."""
    if isinstance(which, np.ndarray):
        if holder.parts and len(which) == len(holder.own) + holder.in_parts:
            return all_of(pool, which, holder)
        return holder.slots.issuperset(which.tolist())
    return holder.slots.issuperset(which)


def _leave(holder: Holder, which: Named) -> bool:
    """Take the slots, which it holds, from ``holder``. False, and nothing changed, if one appears twice."""
    if holder.parts:  # then these are all of its slots
        holder.own.clear()
        holder.parts.clear()
        holder.in_parts = 0
        return True
    own = holder.own
    before = len(own)
    slots = which.tolist() if isinstance(which, np.ndarray) else which
    own.difference_update(slots)
    if len(own) == before - len(slots):
        return True
    own.update(slots)
    return False
