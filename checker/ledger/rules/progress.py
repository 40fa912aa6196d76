"""Rules of progress, as far as a trace can show that there will be none."""

from __future__ import annotations

from typing import Final

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev

STALLED: Final = 3
"""Rounds in a row that find the same state and do nothing: the next ones do nothing either."""


# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
READY_REQUEST_RUNS = (
    "PROGRESS",
    "a scheduler that has something to run, and nothing in flight to wait for, runs it",
)
ROOM_CAME_BACK = "PROGRESS", "a request is preempted for room only when the slots of the one before came back"
FULL_TIER_HAS_EVICTABLE = (
    "PROGRESS",
    "a tier without room for a block has slots that come back, and not only mirrors",
)


class ProgressRules(Rules):
    """Judges ``round``."""

    @judges(ev.Round, also=("PROGRESS",))
    def round(self, event: ev.Round) -> Violation | None:
        """A scheduler that could do something, and for which nothing in flight will change that, does it."""
        state, extra = self.state, self.extra
        pool = state.pools[event.pool]
        fits = 0 <= event.needed <= pool.free + pool.drift and event.waiting > 0
        if event.scheduled or state.ops or state.steps or not (event.running or event.ready or fits):
            extra.round, extra.rounds = None, 0
            if event.scheduled:
                state.judge("PROGRESS")
            return None
        seen = round_seen(state, event)
        extra.rounds = extra.rounds + 1 if seen == extra.round else 1
        extra.round = seen
        if extra.rounds != STALLED:
            return None
        state.judge("PROGRESS")
        return self.fail(
            *READY_REQUEST_RUNS,
            pool,
            rounds=STALLED,
            **fields(event, "running", "ready", "parked", "waiting", "needed"),
            free=pool.free,
        )


def preempt_fault(state: LedgerState, event: ev.Preempt) -> Violation | None:
    """Whether one request after the other is preempted while the first one's slots are on their way."""
    if event.why != "room":
        return None
    before = state.extra.victim
    state.extra.victim = f"{event.req}.{event.gen}", state.processed
    if before is None or before[1] != state.processed:
        return None
    state.judge("PROGRESS")
    name = f"req:{before[0]}"
    held = {
        pool.name: holder.count
        for pool in state.pools.values()
        if (holder := pool.holders.get(name)) and holder.count
    }
    if not held:
        return None
    return state.fail(
        *ROOM_CAME_BACK,
        req=f"{event.req}.{event.gen}",
        before=before[0],
        still_held=held,
        processed=state.processed,
    )


def starved_fault(state: LedgerState, event: ev.Drop) -> Violation | None:
    """Whether a block is not stored for want of room in a tier in which no room will come.

    Slots under a transfer, a promise or a table come back when that is over; a mirror is kept for good.
    """
    pool = state.pools.get(state.header.tier)
    if event.why != "tier_full" or pool is None:
        return None
    state.judge("PROGRESS")
    kept = 0
    for holder in pool.holders.values():
        if holder.count and holder.kind != "mirror":
            return None
        kept += holder.count
    if not kept or pool.free + pool.drift > 0:
        return None
    return state.fail(
        *FULL_TIER_HAS_EVICTABLE,
        pool,
        req=f"{event.req}.{event.gen}",
        group=event.group,
        block=event.at,
        mirrors=kept,
    )


def round_seen(state: LedgerState, event: ev.Round) -> tuple[object, ...]:
    """What a round saw: if the next one sees the same, nothing has changed in between."""
    return (
        state.dispatched,
        state.processed,
        event,
        len(state.requests),
        tuple(pool.free for pool in state.pools.values()),
    )
