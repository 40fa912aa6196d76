"""What the ledger knows about the slots of one pool.

Each slot has one integer word: three counts (holders, open transfers, open promises) and a few flags.
A rule's usual question ("is nothing known about this slot?", "is the label all there is?") is then one
comparison, and the words can be read slot by slot (a memoryview) or many at once (numpy), without two copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.spec.events import Pool

if TYPE_CHECKING:
    from kvfence.checker.monitor.request_state import Request

LABEL: Final = 1  # in the prefix index
BAD: Final = 2  # destination of a failed transfer, not written since
FILLING: Final = 4  # destination of an open transfer
FROZEN: Final = 8  # left by a request whose dispatched steps may still read it
NULL: Final = 16  # the null block
REF: Final = 1 << 5  # one holder
BUSY: Final = 1 << 25  # one open transfer that reads or writes the slot
PROMISE: Final = 1 << 44  # one open promise that names the slot
REFS: Final = BUSY - REF
BUSIES: Final = PROMISE - BUSY
PROMISES: Final = (1 << 63) - PROMISE

Tag: TypeAlias = int
"""A content key (0 .. 2**64 - 1) and its group, mixed into 64 bits: keys are hashes, so a mixture is as good.
"""

_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def tags_of(keys: Sequence[int], group: int) -> Sequence[Tag]:
    """The tags of ``keys`` in ``group``."""
    if group == 0:
        return keys
    mix = group * _MIX & _MASK
    return [key ^ mix for key in keys]


class Holder:
    """One holder's slots in one pool."""

    __slots__ = ("in_parts", "kind", "leaked", "name", "own", "parts", "reach", "request")

    def __init__(self, name: str, kind: str, request: Request | None) -> None:
        self.name = name
        self.kind = kind
        """``req``, ``hit``, ``op``, or whatever precedes the colon."""
        self.request = request
        """The request generation of a ``req`` or ``hit`` holder."""
        self.own: set[int] = set()
        self.parts: list[npt.NDArray[np.int64]] = []
        """Many slots that joined at once are kept as they came: most leave together, and no set is built."""
        self.in_parts = 0
        self.reach: dict[int, int] | None = None
        """Of slots in window groups: steps that begin at this many computed tokens or fewer read the slot."""
        self.leaked = False
        """A violation has told that these slots were not given back; it is told once."""

    def copy(self, request: Request | None) -> Holder:
        """A copy that belongs to ``request``."""
        other = Holder(self.name, self.kind, request)
        other.own = set(self.own)
        other.parts, other.in_parts = list(self.parts), self.in_parts
        other.reach = None if self.reach is None else dict(self.reach)
        other.leaked = self.leaked
        return other

    @property
    def slots(self) -> set[int]:
        """All of its slots."""
        if self.parts:
            for part in self.parts:
                self.own.update(part.tolist())
            self.parts.clear()
            self.in_parts = 0
        return self.own


class PoolState:
    """The slots of one pool: words, holders, labels."""

    __slots__ = (
        "again",
        "array",
        "drift",
        "epoch",
        "free",
        "frozen",
        "holders",
        "indexed",
        "labelled",
        "long_from",
        "marks",
        "name",
        "null",
        "stale",
        "storing",
        "tag_words",
        "tags",
        "total",
        "where",
        "words",
    )

    def __init__(self, pool: Pool, *, indexed: bool, long_from: int) -> None:
        self.name = pool.name
        self.total = pool.slots
        self.null = pool.null
        self.array: npt.NDArray[np.int64] = np.zeros(pool.slots, dtype=np.int64)
        if pool.null is not None:
            self.array[pool.null] = NULL
        self.words = self.array.data
        self.long_from = long_from
        """Numbers of slots from which numpy is used."""
        self.free = pool.slots - (pool.null is not None)
        self.drift = 0
        """What the pool told minus our own count, after it was reported."""
        self.holders: dict[str, Holder] = {}
        self.tags: npt.NDArray[np.uint64] = np.zeros(pool.slots, dtype=np.uint64)
        """The tag of each slot that has a label; of others, anything."""
        self.tag_words = self.tags.data
        self.labelled = 0
        """How many slots have a label."""
        self.indexed = indexed
        self.where: set[Tag] = set()
        """The tags of all labels; kept for pools that stores go to."""
        self.again: dict[Tag, int] = {}
        """For a tag that several slots carry, how many beyond the first."""
        self.storing: set[Tag] = set()
        """Tags that open stores bring here."""
        self.marks: npt.NDArray[np.int32] = np.zeros(pool.slots, dtype=np.int32)
        """Scratch space to find a slot that appears twice."""
        self.frozen: dict[int, int] = {}
        """The last step that may read a slot, for slots with the FROZEN flag."""
        self.epoch = 0
        self.stale: set[str] = set()
        """Tables that were begun before the last reset of this pool."""

    def copy(self, requests: dict[Request, Request]) -> PoolState:
        """A copy whose holders belong to the copies of their requests."""
        other = PoolState.__new__(PoolState)
        other.name, other.total, other.null = self.name, self.total, self.null
        other.array = self.array.copy()
        other.words = other.array.data
        other.long_from = self.long_from
        other.free, other.drift, other.epoch, other.indexed = self.free, self.drift, self.epoch, self.indexed
        other.holders = {
            name: holder.copy(None if holder.request is None else requests[holder.request])
            for name, holder in self.holders.items()
        }
        other.tags = self.tags.copy()
        other.tag_words = other.tags.data
        other.labelled = self.labelled
        other.where, other.again, other.storing = set(self.where), dict(self.again), set(self.storing)
        other.marks = self.marks.copy()
        other.frozen, other.stale = dict(self.frozen), set(self.stale)
        return other

    def has(self, slot: int) -> bool:
        """Whether the pool has a slot of this number."""
        return 0 <= slot < self.total

    def word(self, slot: int) -> int:
        """The slot's word; 0 for a slot that does not exist."""
        return self.words[slot] if 0 <= slot < self.total else 0

    def holders_of(self, slot: int) -> list[str]:
        """Names of the holders of ``slot``, found by looking at every holder: for reports."""
        return [holder.name for holder in self.holders.values() if slot in holder.slots]

    def label_of(self, slot: int) -> Tag | None:
        """The tag of ``slot``; None without a label."""
        return self.tag_words[slot] if self.word(slot) & LABEL else None

    def labelled_slots(self, tag: Tag | None = None) -> list[int]:
        """Slots with a label, or with the label ``tag``. Looks at the whole pool: for reports and resets."""
        labelled = (self.array & LABEL) != 0
        if tag is not None:
            labelled &= self.tags == np.uint64(tag)
        found: list[int] = np.flatnonzero(labelled).tolist()
        return found

    def set_label(self, slot: int, tag: Tag) -> None:
        """Give ``slot`` the label ``tag``, instead of the one it has, if any."""
        self.drop_label(slot)
        self.tag_words[slot] = tag
        self.words[slot] |= LABEL
        self.labelled += 1
        if self.indexed:
            self.count_tag(tag)

    def drop_label(self, slot: int) -> None:
        """Take the label from ``slot``, if it has one."""
        tag = self.label_of(slot)
        if tag is not None:
            self.words[slot] &= ~LABEL
            self.labelled -= 1
            if self.indexed:
                self.uncount_tag(tag)

    def count_tag(self, tag: Tag) -> None:
        """One slot more carries ``tag``."""
        if tag in self.where:
            self.again[tag] = self.again.get(tag, 0) + 1
        else:
            self.where.add(tag)

    def uncount_tag(self, tag: Tag) -> None:
        """One slot less carries ``tag``."""
        more = self.again.get(tag, 0)
        if more > 1:
            self.again[tag] = more - 1
        elif more:
            del self.again[tag]
        else:
            self.where.discard(tag)

    def index(self) -> None:
        """Start to keep the tags of all labels."""
        if not self.indexed:
            self.indexed = True
            self.recount_tags()

    def recount_tags(self) -> None:
        """Count the labels by tag from the start. Looks at the whole pool."""
        self.where.clear()
        self.again.clear()
        for slot in self.labelled_slots():
            self.count_tag(self.tag_words[slot])

    def clear_labels(self) -> None:
        """Take the label from every slot."""
        self.array &= ~LABEL
        self.labelled = 0
        self.where.clear()
        self.again.clear()

    def thaw(self, slots: Iterable[int], step: int) -> None:
        """``step`` is over: ``slots`` that waited for it, or for an earlier one, may be freed."""
        for slot in slots:
            last = self.frozen.get(slot)
            if last is not None and last <= step:
                del self.frozen[slot]
                self.words[slot] &= ~FROZEN
