"""Counts the copies of a connector that have come to an end, in whichever form it tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Place: TypeAlias = tuple[int, ...]
"""Which connector of several: its number in each that wraps it."""


class Copies:
    """Copies of one engine. The same one may be told once for each worker, in several steps."""

    def __init__(self) -> None:
        self._begun: set[tuple[Place, int]] = set()
        """Of connectors that tell of stores and loads alike: what of it is stores."""
        self._at_once: set[tuple[Place, int]] = set()
        """And what is loads within a step, which are told in no other way."""
        self._ended: set[tuple[Place, int]] = set()

    def begun(self, metadata: Any) -> None:
        """The scheduler side tells its workers ``metadata``."""
        for place, part in parts(metadata):
            self._begun |= {(place, job) for job in getattr(part, "store_jobs", ())}
            loads = getattr(part, "load_jobs", {})
            self._at_once |= {(place, job) for job, load in loads.items() if getattr(load, "sync", False)}

    def ended(self, metadata: Any) -> tuple[int, int]:
        """Workers tell ``metadata``; how many stores, and loads within a step, it is the first to tell of."""
        told: set[tuple[Place, int]] = set()
        for place, part in parts(metadata):
            told |= {(place, event) for event in getattr(part, "completed_store_events", ())}
            jobs = {(place, job) for job in getattr(part, "completed_jobs", ())}
            told |= jobs & (self._begun | self._at_once)
        new = told - self._ended
        self._ended |= new
        loads = len(new & self._at_once)
        return len(new) - loads, loads


def parts(metadata: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """What each of the connectors behind ``metadata`` tells, if it does."""
    inside = getattr(metadata, "metadata", None)
    if isinstance(inside, tuple):
        for number, each in enumerate(inside):
            yield from parts(each, (*place, number))
    elif metadata is not None:
        yield place, metadata
