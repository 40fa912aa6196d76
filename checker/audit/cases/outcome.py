"""What one run of a case showed: sightings, each with the evidence for it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Evidence: TypeAlias = Literal["rule", "content", "exception", "race", "leak", "stall", "lost"]
"""How a sighting was seen: by a rule of the ledger, a content that attention should not read, an exception of
the engine, two accesses without an order, something held or waiting for ever at the end, a block that is lost
without a reason.
"""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in a run. ``cause`` names it without numbers, so that two runs can agree on it."""

    invariant: str
    cause: str
    evidence: Evidence
    detail: str = msgspec.field(name="told")
    """What was seen, with numbers."""
    step: int = -1
    """The engine step in which it was seen."""
    story: tuple[str, ...] = ()
    """The last things that happened to the blocks and requests concerned, oldest first."""

    @property
    def key(self) -> str:
        """Sightings of the same fault have the same key."""
        return f"{self.invariant}: {self.cause}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a case."""

    sightings: tuple[Sighting, ...] = ()
    unchecked: tuple[str, ...] = ()
    """What could not be looked at, and why; then silence means nothing there."""
    steps: int = 0
    events: int = 0
    accesses: int = 0
    checks: dict[str, int] = {}
    """For each invariant, the events that were judged by it, and the pairs of accesses compared for it."""
    counts: dict[str, int] = {}
    """What the run went through: preemptions, hits, stores, loads, aborts, ..."""
    refused: str = ""
    """Why the case was not run; empty if it was."""

    def keys(self) -> set[str]:
        """The keys of all sightings."""
        return {sighting.key for sighting in self.sightings}
