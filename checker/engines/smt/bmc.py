"""Bounded model checking: a shortest run to each violation, at given sizes and up to a given depth."""

from __future__ import annotations

from kvfence.checker.engines.smt.search import FiniteEngine, Search

DEPTH = 12


class BMC(FiniteEngine):
    """Searches all runs up to ``depth`` steps, or until ``seconds`` are over.

    It never proves by itself: what was not violated is undetermined, except where no longer run exists.
    """

    name = "bmc"

    def __init__(self, depth: int = DEPTH, seconds: float | None = None, only: str = "") -> None:
        self.depth, self.seconds, self.only = depth, seconds, only

    def prove(self, search: Search) -> str:
        """Searches; proves nothing."""
        search.deepen_to(self.depth)
        return search.unsearched
