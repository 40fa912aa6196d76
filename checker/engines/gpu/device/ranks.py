"""Ranks: the processes that search together, each with a device and a share of the states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvfence.checker.engines.gpu.device.search_device import Words


class Lost(Exception):  # noqa: N818 (a reason to stop)
    """Another rank does not answer any more."""


class Transfer(Protocol):
    """States on their way between ranks."""

    def wait(self) -> list[tuple[int, int]]:
        """Address and number of the keys that came, from each rank. Lost."""


class Ranks:
    """All ranks of a search; this class is one process alone.

    Every method but ``speaks`` is called by all ranks together. Lost.
    """

    rank, count = 0, 1
    last_words: Callable[[], str] | None = None
    """What a rank says that is ended from outside."""

    def speaks(self) -> bool:
        """Whether this is the first rank that is still there, as far as this host can tell. Asks no other."""
        return True

    def total(self, numbers: Sequence[int]) -> list[int]:
        """Sums over the ranks, one for each position."""
        return list(numbers)

    def agree(self, numbers: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
        """Sums of the ``numbers``, and what each rank has in ``counts`` for this one."""
        return list(numbers), list(counts)

    def largest(self, number: int) -> int:
        """The largest number that a rank gave."""
        return number

    def lowest(self, sights: Words, size: int) -> Words:  # noqa: ARG002
        """Of each row of ``size`` words, the smallest one, words compared in turn."""
        return sights

    def boxes(self, room: int, words: int) -> list[int]:
        """Addresses of two buffers, each of ``count`` boxes of ``room`` keys."""
        raise AssertionError(room, words)

    def exchange(self, which: int, counts: Sequence[int], coming: Sequence[int]) -> Transfer:
        """Send the boxes of one buffer to their ranks: ``counts`` keys of each; ``coming`` arrive."""
        raise AssertionError(which, counts, coming)
