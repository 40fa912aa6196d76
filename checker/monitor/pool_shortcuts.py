"""Short cuts for the events of pools, which are most of a trace.

A short cut only accepts: it looks whether everything is ordinary, by a comparison or two for each slot. If
so, it
takes the event over; if not, it leaves the books untouched, and the full rule judges slot by slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvfence.checker.monitor.books import LONG
from kvfence.checker.monitor.bulk import (
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
)
from kvfence.checker.monitor.pool_rules import PoolRules
from kvfence.checker.monitor.pool_state import (
    BAD,
    FILLING,
    LABEL,
    NULL,
    REF,
    REFS,
    Holder,
    PoolState,
    tags_of,
)
from kvfence.checker.monitor.violation import Violation
from kvfence.spec.events import Alloc, Evict, Free, Label, Touch


class PoolShortcuts(PoolRules):
    """The rules of pools with short cuts in front."""

    def alloc(self, event: Alloc) -> Violation | None:
        """Ordinary: nothing at all is known about the slots."""
        pool = self.pools[event.pool]
        slots = event.slots
        count = len(slots)
        which = named(pool, slots)
        if which is None or not all_are(pool, which, 0):
            return super().alloc(event)
        holder = pool.holders.get(event.holder) or self.books.holder(pool, event.holder)
        if not _join(pool, holder, slots, which):
            return super().alloc(event)
        put(pool, which, REF)
        pool.free -= count
        if holder.kind == "req":
            self.join(holder, slots, event)
        books = self.books
        books.slots += count
        if count >= LONG:
            books.count_long(count)
        free = event.free
        if free >= 0 and free != pool.free + pool.drift:
            return self.told(pool, free)
        return None

    def touch(self, event: Touch) -> Violation | None:
        """Ordinary: held or cached slots with content, which the holder does not have yet."""
        pool = self.pools[event.pool]
        slots = event.slots
        count = len(slots)
        which = named(pool, slots)
        if which is None or not all_have(pool, which, REFS | LABEL, FILLING | BAD | NULL):
            return super().touch(event)
        holder = pool.holders.get(event.holder) or self.books.holder(pool, event.holder)
        if (holder.own or holder.parts) and not holder.slots.isdisjoint(slots):
            return super().touch(event)
        if not _join(pool, holder, slots, which):
            return super().touch(event)
        pool.free -= add_holder(pool, which)
        if holder.kind == "req":
            self.join(holder, slots, event)
        books = self.books
        books.slots += count
        if count >= LONG:
            books.count_long(count)
        free = event.free
        if free >= 0 and free != pool.free + pool.drift:
            return self.told(pool, free)
        return None

    def free(self, event: Free) -> Violation | None:
        """Ordinary: slots that the holder holds, and that nothing expects or uses once nobody holds them."""
        books = self.books
        pool = self.pools[event.pool]
        slots = event.slots
        count = len(slots)
        holder = pool.holders.get(event.holder)
        if holder is None:
            return super().free(event)
        request = holder.request
        if request is not None and (
            request.last_step > books.processed if holder.kind == "req" else request.promise is not None
        ):
            return super().free(event)
        which = named(pool, slots)
        if which is None or not _holds(pool, holder, slots, which):
            return super().free(event)
        gone = dying(pool, which, LABEL | BAD)
        if gone is None or not _leave(holder, slots):
            return super().free(event)
        add(pool, which, -REF)
        pool.free += gone
        if holder.reach:
            for slot in slots:
                holder.reach.pop(slot, None)
        if not holder.own and not holder.parts:
            self.left(pool, holder)
        books.slots += count
        if count >= LONG:
            books.count_long(count)
        free = event.free
        if free >= 0 and free != pool.free + pool.drift:
            return self.told(pool, free)
        return None

    def evict(self, event: Evict) -> Violation | None:
        """Ordinary: the label is all that is known about the slots."""
        pool = self.pools[event.pool]
        slots = event.slots
        which = named(pool, slots)
        if which is None or not all_are(pool, which, LABEL) or not distinct(pool, which):
            return super().evict(event)
        remove_labels(pool, which)
        books = self.books
        books.slots += len(slots)
        if len(slots) >= LONG:
            books.count_long(len(slots))
        return None

    def label(self, event: Label) -> Violation | None:
        """Ordinary: held slots without a label, and whatever filled them went well in this epoch."""
        pool = self.pools[event.pool]
        slots = event.slots
        if event.op < 0:
            if pool.stale:
                return super().label(event)
        else:
            closed = self.books.closed.get(event.op)
            if closed is None or closed.gen != event.gen or not closed.current(pool):
                return super().label(event)
        which = named(pool, slots)
        if (
            which is None
            or len(event.keys) != len(slots)
            or not all_have(pool, which, REFS, LABEL | FILLING | BAD | NULL)
            or not distinct(pool, which)
            or event.op in self.books.ops
        ):
            return super().label(event)
        add_labels(pool, which, tags_of(event.keys, event.group))
        books = self.books
        books.slots += len(slots)
        if len(slots) >= LONG:
            books.count_long(len(slots))
        return None


def _join(pool: PoolState, holder: Holder, slots: Sequence[int], which: Named) -> bool:
    """Give ``holder`` the slots, none of which it has. False, and nothing changed, if one appears twice."""
    if isinstance(which, np.ndarray):
        if not distinct(pool, which):
            return False
        holder.parts.append(which)
        holder.in_parts += len(slots)
        return True
    own = holder.own
    before = len(own)
    own.update(slots)
    if len(own) == before + len(slots):
        return True
    own.difference_update(slots)
    return False


def _holds(pool: PoolState, holder: Holder, slots: Sequence[int], which: Named) -> bool:
    """Whether ``holder`` holds each of ``slots``; one that appears twice may count."""
    if isinstance(which, np.ndarray) and holder.parts and len(slots) == len(holder.own) + holder.in_parts:
        return all_of(pool, which, holder)
    return holder.slots.issuperset(slots)


def _leave(holder: Holder, slots: Sequence[int]) -> bool:
    """Take ``slots``, which it holds, from ``holder``. False, and nothing changed, if one appears twice."""
    if holder.parts:  # then these are all of its slots
        holder.own.clear()
        holder.parts.clear()
        holder.in_parts = 0
        return True
    own = holder.own
    before = len(own)
    own.difference_update(slots)
    if len(own) == before - len(slots):
        return True
    own.update(slots)
    return False
