"""Counts the copies of a connector that have come to an end, in whichever form it reports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Place: TypeAlias = tuple[int, ...]
"""Which connector of several: its number in each that wraps it."""


class Copies:
    """Copies of one engine. Each worker may report the same one, in several steps."""

    def __init__(self) -> None:
        self._begun: set[tuple[Place, int]] = set()
        """Of connectors that report stores and loads alike: which of them are stores."""
        self._at_once: set[tuple[Place, int]] = set()
        """And which are loads within a step, which are reported in no other way."""
        self._ended: set[tuple[Place, int]] = set()

    def begun(self, metadata: Any) -> None:
        """Takes note of ``metadata``, which the scheduler side gives its workers."""
        for place, part in parts(metadata):
            self._begun |= {(place, job) for job in getattr(part, "store_jobs", ())}
            loads = getattr(part, "load_jobs", {})
            self._at_once |= {(place, job) for job, load in loads.items() if getattr(load, "sync", False)}

    def ended(self, metadata: Any) -> tuple[int, int]:
        """How many stores, and loads within a step, the workers' ``metadata`` is the first to report."""
        ended: set[tuple[Place, int]] = set()
        for place, part in parts(metadata):
            ended |= {(place, event) for event in getattr(part, "completed_store_events", ())}
            jobs = {(place, job) for job in getattr(part, "completed_jobs", ())}
            ended |= jobs & (self._begun | self._at_once)
        new = ended - self._ended
        self._ended |= new
        loads = len(new & self._at_once)
        return len(new) - loads, loads


def parts(metadata: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The metadata of each connector behind ``metadata`` that has some, with its place."""
    inside = getattr(metadata, "metadata", None)
    if isinstance(inside, tuple):
        for number, each in enumerate(inside):
            yield from parts(each, (*place, number))
    elif metadata is not None:
        yield place, metadata
