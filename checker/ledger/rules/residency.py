"""Rules of what is published about the prefix indexes: it is what can be looked up."""

from __future__ import annotations

from collections.abc import Sequence

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.tags import Tag, tags_of
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, ints

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
CLEARED_IS_EMPTY = "EVENTS", "a pool that is published as cleared is empty"
PUBLISHED_AGREES = "EVENTS", "the published keys are those that can be looked up"


class ResidencyRules(Rules):
    """Judges ``stored``, ``removed``, ``cleared`` and ``published``."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        self.published = state.extra.published

    @judges(ev.Stored, "EVENTS")
    def stored(self, event: ev.Stored) -> Violation | None:
        """A key is published when it can be looked up, and once."""
        pool, keys, tags, known = self.read(event)
        index, found = pool.index(), None
        for key, tag in zip(keys, tags, strict=True):
            if not index.labelled(tag):
                found = found or self.fault("a key that is published as stored can be looked up", pool, key)
            if tag in known:
                found = found or self.fault("a key is published as stored once", pool, key)
            known.add(tag)
        if not keys:
            self.state.not_judged("EVENTS")
        return found

    @judges(ev.Removed, "EVENTS")
    def removed(self, event: ev.Removed) -> Violation | None:
        """A key is taken back that was published, when no slot has it any more."""
        pool, keys, tags, known = self.read(event)
        index, found = pool.index(), None
        for key, tag in zip(keys, tags, strict=True):
            if tag not in known:
                found = found or self.fault("a key that is published as removed was stored", pool, key)
            if index.labelled(tag):
                found = found or self.fault(
                    "a key that is published as removed cannot be looked up", pool, key
                )
            known.discard(tag)
        if not keys:
            self.state.not_judged("EVENTS")
        return found

    def read(self, event: ev.Stored | ev.Removed) -> tuple[PoolState, Sequence[int], Sequence[Tag], set[Tag]]:
        """The pool of an event, its keys as they are and as tags, and what is published of the pool."""
        pool, keys = self.pools[event.pool], ints(event.keys, WIDE)
        return pool, keys, tags_of(keys, event.group), self.published.setdefault(pool.name, set())

    @judges(ev.Cleared, "EVENTS")
    def cleared(self, event: ev.Cleared) -> Violation | None:
        """Everything is taken back when nothing can be looked up."""
        pool = self.pools[event.pool]
        self.published.setdefault(pool.name, set()).clear()
        if not pool.labelled:
            return None
        return self.fail(*CLEARED_IS_EMPTY, pool, pool.labelled_slots()[:1], left=pool.labelled)

    @judges(ev.Published, "EVENTS")
    def caught_up(self, event: ev.Published) -> Violation | None:
        """What is published is what can be looked up."""
        return difference(self.state, self.pools[event.pool])

    def fault(self, condition: str, pool: PoolState, key: int) -> Violation:
        """A key that is published wrongly."""
        return self.fail("EVENTS", condition, pool, key=key)


def difference(state: LedgerState, pool: PoolState) -> Violation | None:
    """Whether the published keys of ``pool`` are those of its labels. Each difference is reported once."""
    known = state.extra.published.setdefault(pool.name, set())
    labelled = set(pool.index().counts()[0])
    if known == labelled:
        return None
    missing, over = len(labelled - known), len(known - labelled)
    state.extra.published[pool.name].clear()
    state.extra.published[pool.name] |= labelled
    return state.fail(*PUBLISHED_AGREES, pool, not_published=missing, not_there=over)


def quiet_fault(state: LedgerState) -> Violation | None:
    """The same for each pool of which something was published, when nothing happens any more."""
    for name in list(state.extra.published):
        state.judge("EVENTS")
        found = difference(state, state.pools[name])
        if found is not None:
            return found
    return None
