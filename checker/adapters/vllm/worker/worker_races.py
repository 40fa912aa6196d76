"""What happens with the races of a process's worker sides: raised, logged once, or counted."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from kvfence.checker.ledger.guard.guard import GuardMode
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.checker.order.races import Access, Race

KEPT: Final = 64
LOG: Final = logging.getLogger("kvfence.guard")


class OrderViolation(InvariantViolation):
    """Two accesses to the same slots that nothing orders; ``race`` says everything that is known."""

    def __init__(self, race: Race) -> None:
        Exception.__init__(self, race_text(race))
        self.race = race


def race_text(race: Race) -> str:
    """A race in a few lines: which invariant, which slots, both accesses, and which order is missing."""
    first, last = race.slots
    slots = f"slot {first}" if first == last else f"slots {first} to {last}"
    return (
        f"{race.invariant or 'order'} violated: nothing orders two accesses to {slots} of {race.region}\n"
        f"  {_access_text(race.first)}\n  {_access_text(race.second)}\n  {race.missing}"
    )


def _access_text(access: Access) -> str:
    where = f"stream {access.stream}" if access.stream >= 0 else "the host"
    by = f" ({access.by})" if access.by else ""
    return f"{'write' if access.write else 'read'} of {access.name or access.what}{by} on {where}"


class Races:
    """Takes the races of the worker sides of a process, each kind of them once for each worker."""

    def __init__(self, mode: GuardMode) -> None:
        self.mode = mode
        self.counts: Counter[str] = Counter()
        """By invariant: how many kinds of races were found."""
        self.kept: list[Race] = []
        self.gaps: dict[str, None] = {}
        """What was not judged, and why."""
        self.on_race: Callable[[Race], None] | None = None
        self._lock = threading.Lock()
        self._to_raise: Race | None = None

    def found(self, race: Race) -> None:
        """A race of a kind that was not seen before. Any thread may call."""
        with self._lock:
            self.counts[race.invariant or "USE-READY"] += 1
            if len(self.kept) < KEPT:
                self.kept.append(race)
            if self._to_raise is None:
                self._to_raise = race
        if self.mode == "log":
            LOG.error("%s", race_text(race))
        if self.on_race is not None:
            self.on_race(race)

    def not_checked(self, why: str) -> None:
        """Something is not judged."""
        with self._lock:
            if len(self.gaps) < KEPT:
                self.gaps[why] = None
        if self.mode == "log":
            LOG.warning("kvfence: not checked: %s", why)

    def raise_found(self) -> None:
        """Raise what was found since the last call, in mode ``raise``: on a thread that can bear it."""
        if self.mode != "raise":
            return
        with self._lock:
            race, self._to_raise = self._to_raise, None
        if race is not None:
            raise OrderViolation(race)
