"""The prefix index of an observed block pool, as its events say that it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class PoolIndex:
    """Which of a pool's slots are in its prefix index, and under which hashes."""

    __slots__ = ("hashes", "index", "labels")

    def __init__(self, size: int) -> None:
        self.labels: npt.NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        """Of each slot: whether it entered the index and did not leave it since."""
        self.hashes: npt.NDArray[np.object_] = np.full(size, None, dtype=np.object_)
        """The hash under which each slot entered the index last, in an engine with a tier."""
        self.index: dict[bytes, int] = {}
        """Of a tier: the slot that entered its index last under each hash. It may have left it since."""

    def remember(self, where: npt.NDArray[np.uint32], hashes: list[Any]) -> None:
        """Record that slots of a tier entered its index under ``hashes``."""
        self.hashes[where] = hashes
        self.labels[where] = True
        index = self.index
        if len(index) > 2 * len(self.labels):
            there = np.flatnonzero(self.labels)
            index = self.index = dict(zip(self.hashes[there].tolist(), there.tolist(), strict=True))
        index.update(zip(hashes, where.tolist(), strict=True))

    def hash_of(self, slot: int) -> Any:
        """The hash under which ``slot`` is in the index; None if it is not there."""
        return self.hashes[slot] if self.labels[slot] else None

    def has(self, found: bytes) -> bool:
        """Whether some slot of the tier is in its index under the hash ``found``."""
        slot = self.index.get(found)
        if slot is None:
            return False
        if self.labels[slot] and self.hashes[slot] == found:
            return True
        there = self.hashes[self.labels].tolist()
        if found in there:
            self.index[found] = int(np.flatnonzero(self.labels)[there.index(found)])
            return True
        del self.index[found]
        return False
