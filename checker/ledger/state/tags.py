"""How many labels of a pool, and how many open stores to it, carry each content key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.checker.ledger.kernels.kernels import ROOM, Kernels
from kvfence.checker.ledger.kernels.slot_bits import LABELLED, STORED

Tag: TypeAlias = int
"""A content key (0 .. 2**64 - 1) and its group, mixed into 64 bits: keys are hashes, so a mixture is as good.
"""

_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_SMALLEST: Final = 6  # a table of 2**6 entries
_TABLE, _BITS, _USED = 3, 4, 5  # places in the layout of a pool


def mix_of(group: int) -> int:
    """What is mixed into the keys of ``group``."""
    return group * _MIX & _MASK


def tags_of(keys: Sequence[int], group: int) -> Sequence[Tag]:
    """The tags of ``keys`` in ``group``."""
    if group == 0:
        return keys
    mix = mix_of(group)
    return [key ^ mix for key in keys]


class Bag:
    """Tags, each some times: nearly all of them once."""

    __slots__ = ("again", "once")

    def __init__(self) -> None:
        self.once: set[Tag] = set()
        self.again: dict[Tag, int] = {}
        """How many times more a tag is there."""

    def copy(self) -> Bag:
        """An independent copy."""
        other = Bag()
        other.once, other.again = set(self.once), dict(self.again)
        return other

    def add_new(self, tags: Sequence[Tag]) -> bool:
        """Put ``tags`` in if they are different ones that are not there; whether they were."""
        once = self.once
        if not once.isdisjoint(tags):
            return False
        before = len(once)
        once.update(tags)
        if len(once) == before + len(tags):
            return True
        once.difference_update(tags)
        return False

    def add(self, tags: Sequence[Tag]) -> None:
        """Put ``tags`` in."""
        if self.add_new(tags):
            return
        once = self.once
        for tag in tags:
            if tag in once:
                self.again[tag] = self.again.get(tag, 0) + 1
            else:
                once.add(tag)

    def remove(self, tags: Sequence[Tag]) -> None:
        """Take ``tags``, which are there, out."""
        if not self.again:
            self.once.difference_update(tags)
            return
        for tag in tags:
            more = self.again.pop(tag, 0)
            if more > 1:
                self.again[tag] = more - 1
            elif not more:
                self.once.discard(tag)

    def counts(self) -> dict[Tag, int]:
        """How many times each tag is there."""
        return {tag: 1 + self.again.get(tag, 0) for tag in self.once}


class TagCounts:
    """The counts as Python sets."""

    __slots__ = ("_labels", "_stores")

    def __init__(self) -> None:
        self._labels, self._stores = Bag(), Bag()

    def copy_to(self, layout: npt.NDArray[np.int64]) -> TagCounts:  # noqa: ARG002 - only the kernels' differ
        """An independent copy, for the pool with ``layout``."""
        other = TagCounts.__new__(TagCounts)
        other._labels, other._stores = self._labels.copy(), self._stores.copy()
        return other

    def labelled(self, tag: Tag) -> bool:
        """Whether a label carries ``tag``."""
        return tag in self._labels.once

    def stored(self, tag: Tag) -> bool:
        """Whether an open store brings ``tag``."""
        return tag in self._stores.once

    def make_room(self, more: int) -> None:
        """There is always room for ``more`` tags."""

    def fresh(self, tags: Sequence[Tag]) -> bool:
        """Whether ``tags`` are different ones that no label and no open store carries."""
        return (
            self._labels.once.isdisjoint(tags)
            and self._stores.once.isdisjoint(tags)
            and len(set(tags)) == len(tags)
        )

    def store_fresh(self, tags: Sequence[Tag]) -> bool:
        """A store is open that brings these tags, if they are fresh; whether they are."""
        return self._labels.once.isdisjoint(tags) and self._stores.add_new(tags)

    def label(self, tags: Sequence[Tag]) -> None:
        """Labels with these tags are new."""
        self._labels.add(tags)

    def unlabel(self, tags: Sequence[Tag]) -> None:
        """Labels with these tags are gone."""
        self._labels.remove(tags)

    def store(self, tags: Sequence[Tag]) -> None:
        """A store that brings these tags is open."""
        self._stores.add(tags)

    def unstore(self, tags: Sequence[Tag]) -> None:
        """A store that brings these tags is over."""
        self._stores.remove(tags)

    def clear_labels(self) -> None:
        """No label is left."""
        self._labels = Bag()

    def counts(self) -> tuple[dict[Tag, int], dict[Tag, int]]:
        """How many labels, and how many open stores, carry each tag."""
        return self._labels.counts(), self._stores.counts()


class NativeTagCounts:
    """The counts as a hash table that the kernels share: rows of a tag and its count (see ``words``)."""

    __slots__ = ("_kernels", "_layout", "_pool", "_table")

    def __init__(self, kernels: Kernels, layout: npt.NDArray[np.int64]) -> None:
        self._kernels = kernels
        self._layout = layout
        self._pool = layout.ctypes.data
        self._take(np.zeros((1 << _SMALLEST, 2), np.uint64), used=0)

    def _take(self, table: npt.NDArray[np.uint64], used: int) -> None:
        self._table = table
        self._layout[_TABLE] = table.ctypes.data
        self._layout[_BITS] = len(table).bit_length() - 1
        self._layout[_USED] = used

    def copy_to(self, layout: npt.NDArray[np.int64]) -> NativeTagCounts:
        """An independent copy, for the pool with ``layout``."""
        other = NativeTagCounts.__new__(NativeTagCounts)
        other._kernels, other._layout, other._pool = self._kernels, layout, layout.ctypes.data
        other._take(self._table.copy(), int(self._layout[_USED]))
        return other

    @property
    def size(self) -> int:
        """How many entries the table has."""
        return len(self._table)

    def make_room(self, more: int) -> None:
        """Build a greater table, with room for ``more`` tags."""
        old = self._table
        entries = int(self._layout[_USED]) + more
        self._take(np.zeros((1 << max(_SMALLEST, (2 * entries).bit_length()), 2), np.uint64), used=0)
        self._kernels.rebuild(self._pool, old.ctypes.data, len(old))

    def _count(self, tags: Sequence[Tag], amount: int) -> None:
        if self._kernels.tally(self._pool, tags, amount) == ROOM:
            self.make_room(len(tags))
            self._kernels.tally(self._pool, tags, amount)

    def labelled(self, tag: Tag) -> bool:
        """Whether a label carries ``tag``."""
        return self._kernels.counted(self._pool, tag) & (STORED - LABELLED) != 0

    def stored(self, tag: Tag) -> bool:
        """Whether an open store brings ``tag``."""
        return self._kernels.counted(self._pool, tag) >= STORED

    def fresh(self, tags: Sequence[Tag]) -> bool:
        """Whether ``tags`` are different ones that no label and no open store carries."""
        counted, pool = self._kernels.counted, self._pool
        return not any(counted(pool, tag) for tag in tags) and len(set(tags)) == len(tags)

    def store_fresh(self, tags: Sequence[Tag]) -> bool:
        """A store is open that brings these tags, if they are fresh; whether they are."""
        fresh = self.fresh(tags)
        if fresh:
            self.store(tags)
        return fresh

    def label(self, tags: Sequence[Tag]) -> None:
        """Labels with these tags are new."""
        self._count(tags, LABELLED)

    def unlabel(self, tags: Sequence[Tag]) -> None:
        """Labels with these tags are gone."""
        self._count(tags, -LABELLED)

    def store(self, tags: Sequence[Tag]) -> None:
        """A store that brings these tags is open."""
        self._count(tags, STORED)

    def unstore(self, tags: Sequence[Tag]) -> None:
        """A store that brings these tags is over."""
        self._count(tags, -STORED)

    def clear_labels(self) -> None:
        """No label is left."""
        stores = self.counts()[1]
        self._take(np.zeros_like(self._table), used=0)
        for tag, count in stores.items():
            self._count([tag], STORED * count)

    def counts(self) -> tuple[dict[Tag, int], dict[Tag, int]]:
        """How many labels, and how many open stores, carry each tag."""
        rows = [(tag, count % STORED, count // STORED) for tag, count in self._table.tolist() if count]
        return {tag: n for tag, n, _ in rows if n}, {tag: n for tag, _, n in rows if n}
