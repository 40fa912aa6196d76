"""Judges one run: the ledger and the race checker as observers; each fault becomes one sighting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from kvfence.checker.audit.cases.outcome import Evidence, Outcome, Sighting
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import Violation
from kvfence.checker.ledger.violation_text import event_text, value_text
from kvfence.checker.order.clocks import OrderTraceError
from kvfence.checker.order.races import OrderChecker, Race
from kvfence.spec import events as ev
from kvfence.spec import order as od

MOST: Final = 40
"""Sightings of a run that are kept; more than that are consequences of the first ones."""
NO_FAULT: Final = ", which is no fault without harm"
"""Ends the cause of a rule that is broken for a known, innocent reason."""
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\b[\w.]*\d[\w.:-]*")

EventSink = Callable[[ev.Event], None]
OrderSink = Callable[[od.OrderEvent], None]


def without_numbers(text: str) -> str:
    """``text`` with every number and name that has one in it replaced, so that two runs can agree."""
    return _NUMBERS.sub("N", text)


class Judge:
    """Observes one run. Sightings are kept in the order in which they were seen, each cause once."""

    def __init__(self, record: EventSink | None = None, record_order: OrderSink | None = None) -> None:
        self.step = -1
        self.counts: Counter[str] = Counter()
        self.unchecked: list[str] = []
        self._record, self._record_order = record, record_order
        self._live: dict[str, bool] = {}
        """Requests, each with whether a reset came in its life."""
        self._open: set[int] = set()
        self._abandoned: set[int] = set()
        """Transfers in flight, and those that a reset came across: no request waits for what these bring."""
        self._evicted = -1
        """The last step in which the tier gave a block away."""
        self._sightings: dict[str, Sighting] = {}
        self._ledger: Ledger | None = None
        self._order: OrderChecker | None = None

    def begin(self, header: ev.Header) -> None:
        """The run's events refer to ``header``."""
        self._ledger = Ledger(header, "count")

    def begin_order(self, header: od.Header) -> None:
        """The run's order events refer to ``header``."""
        self._order = OrderChecker(header, on_race=self._raced)

    def event(self, event: ev.Event) -> None:
        """Judges ``event``. An event that makes no sense to the ledger is reported as not checked."""
        if self._record is not None:
            self._record(event)
        assert self._ledger is not None
        if isinstance(event, ev.Submit):
            self._live[event.req] = False
        elif isinstance(event, ev.Reset):
            self._live = dict.fromkeys(self._live, True)
            self._abandoned |= self._open
        elif isinstance(event, ev.Queue):
            self._open.add(event.op)
            self._abandoned.discard(event.op)
        elif isinstance(event, ev.Complete):
            self._open.discard(event.op)
        elif isinstance(event, ev.Evict) and event.pool == self._ledger.header.tier:
            self._evicted = self.step
        try:
            violation = self._ledger.apply(event)
        except (KeyError, ValueError, IndexError, OverflowError, TypeError) as error:
            self.not_checked(f"event {event_text(event)[:160]}: {error}")
            return
        if violation is not None:
            self._violated(violation)

    def order_event(self, event: od.OrderEvent) -> None:
        """Judges an order event."""
        if self._record_order is not None:
            self._record_order(event)
        assert self._order is not None
        try:
            self._order(event)
        except OrderTraceError as error:
            self.not_checked(f"order event {event_text(event)[:160]}: {error}")

    def not_checked(self, why: str) -> None:
        """Something could not be judged."""
        if why not in self.unchecked:
            self.unchecked.append(why)

    def sight(
        self, invariant: str, cause: str, evidence: Evidence, detail: str, story: tuple[str, ...] = ()
    ) -> None:
        """Keeps a sighting, if it is the first of its cause."""
        seen = Sighting(
            invariant=invariant, cause=cause, evidence=evidence, detail=detail, step=self.step, story=story
        )
        if len(self._sightings) < MOST:
            self._sightings.setdefault(seen.key, seen)

    def _violated(self, violation: Violation) -> None:
        tag = str(violation.event.__struct_config__.tag)
        kind = getattr(violation.event, "kind", "")
        what = f"{kind} {tag}".strip()
        if violation.pool:
            what += f" in {violation.pool}"
        cause = f"{what}: not true that {without_numbers(violation.condition)}"
        evidence: Evidence = "rule"
        if violation.values.get("open_store") in self._abandoned:
            cause += f"; a reset came across the first one{NO_FAULT}"
        if violation.invariant == "FLUSH":
            cause = self._lost(violation)
            if self._evicted == self.step:
                # It may have been in the tier, until others of the same request needed its place.
                cause += f"; in that step the tier evicted blocks{NO_FAULT}"
            else:
                evidence = "lost"
        values = ", ".join(f"{name} = {value_text(value)}" for name, value in violation.values.items())
        detail = f"not true that {violation.condition}" + (f" ({values})" if values else "")
        self.sight(violation.invariant, cause, evidence, detail, tuple(_story(violation)))

    def _lost(self, violation: Violation) -> str:
        """Which blocks of a finished request are neither stored nor queued nor dropped for a reason."""
        request = str(violation.values.get("req", "")).partition(".")[0]
        reset = ", after a reset in its life" if self._live.get(request) else ""
        return f"the last full blocks of a finished request are neither stored nor queued{reset}"

    def _raced(self, race: Race) -> None:
        both = (race.first, race.second)
        names = [f"{'write' if a.write else 'read'} of {a.name or a.what}" for a in both]
        cause = f"nothing orders a {names[0]} and a {names[1]} of {race.region}"
        slots = f"slots {race.slots[0]} to {race.slots[1]} of " if race.slots else ""
        detail = f"nothing orders two accesses to {slots}{race.region}; missing: {race.missing}"
        story = tuple(
            f"order event {a.number}: {name} (stream {a.stream}, thread {a.thread})"
            + (f" for {a.by}" if a.by else "")
            for a, name in zip(both, names, strict=True)
        )
        self.sight(race.invariant or "USE-READY", cause, "race", detail, story)

    def _pool_is_broken(self) -> bool:
        """Whether a pool's own bookkeeping is wrong: nothing can be followed then, and it is known why."""
        return any(seen.invariant == "CONSERVE" for seen in self._sightings.values())

    def _checks(self) -> dict[str, int]:
        checks: Counter[str] = Counter()
        if self._ledger is not None:
            checks.update(self._ledger.checks_by_invariant())
        if self._order is not None:
            checks.update(self._order.checks())
            del checks[""]  # pairs of accesses without a copy
        return dict(checks)

    def outcome(self, steps: int) -> Outcome:
        """What the run showed."""
        return Outcome(
            sightings=tuple(self._sightings.values()),
            unchecked=() if self._pool_is_broken() else tuple(self.unchecked),
            steps=steps,
            events=self._ledger.events if self._ledger is not None else 0,
            accesses=self._order.accesses if self._order is not None else 0,
            checks=self._checks(),
            counts=dict(self.counts),
        )


def _story(violation: Violation) -> list[str]:
    """The last events of the slots concerned, then the event that broke the rule."""
    numbered = {n: event for events in violation.history.values() for n, event in events}
    lines = [f"event {n}: {event_text(numbered[n])}" for n in sorted(numbered)[-14:] if n < violation.number]
    return [*lines, f"event {violation.number}: {event_text(violation.event)}"]
