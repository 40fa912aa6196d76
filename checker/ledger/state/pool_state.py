"""What the ledger knows about the slots of one pool.

The slots' words (see ``words``) can be read slot by slot (a memoryview) or many at once (numpy, the kernels),
without two copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvfence.checker.ledger.kernels.kernels import Kernels
from kvfence.checker.ledger.kernels.slot_bits import FROZEN, LABEL, NULL_BLOCK
from kvfence.checker.ledger.state.attention_window import last_reader
from kvfence.checker.ledger.state.tags import NativeTagCounts, Tag, TagCounts
from kvfence.spec import events as ev
from kvfence.spec.packed import Numbers, ints

if TYPE_CHECKING:
    from kvfence.checker.ledger.state.request_state import Request


@dataclass(slots=True, eq=False)
class Holder:
    """One holder's slots in one pool."""

    name: str
    kind: str
    """``req``, ``hit``, ``op``, or whatever precedes the colon."""
    request: Request | None
    """The request generation of a ``req`` or ``hit`` holder."""
    own: set[int] = field(default_factory=set)
    parts: list[Numbers] = field(default_factory=list)
    """Slots that joined together are kept as they came: most leave together, and no set is built."""
    in_parts: int = 0
    reach: dict[int, int] = field(default_factory=dict)
    """Of slots in window groups: steps that begin at this many computed tokens or fewer read the slot."""
    reaching: list[tuple[Numbers, int, ev.Group]] = field(default_factory=list)
    """Slots whose reach is not worked out yet, with the block index of the first, and their group."""
    again: dict[int, int] = field(default_factory=dict)
    """How often it joined the holders of a slot that it held already: reported, so it may leave as often."""
    leaked: bool = False
    """A violation has reported that these slots were not given back; it is reported once."""

    def copy(self, request: Request | None) -> Holder:
        """A copy that belongs to ``request``."""
        return replace(
            self,
            request=request,
            own=set(self.own),
            parts=list(self.parts),
            reach=dict(self.reach),
            reaching=list(self.reaching),
            again=dict(self.again),
        )

    @property
    def slots(self) -> set[int]:
        """All of its slots."""
        if self.parts:
            self.own.update(*map(ints, self.parts))
            self.parts.clear()
            self.in_parts = 0
        return self.own

    @property
    def count(self) -> int:
        """How many slots it has."""
        return len(self.own) + self.in_parts

    def reaches(self) -> dict[int, int]:
        """``reach``, worked out for all of its slots."""
        for slots, first, group in self.reaching:
            for at, slot in enumerate(ints(slots), first):
                last = last_reader(group, at)
                if last is not None:
                    self.reach[slot] = last
        self.reaching.clear()
        return self.reach

    def forget_reach(self, slots: Iterable[int]) -> None:
        """``slots`` leave."""
        if self.reach or self.reaching:
            reach = self.reaches()
            for slot in slots:
                reach.pop(slot, None)


class PoolState:
    """The slots of one pool: words, holders, labels."""

    __slots__ = (
        "array",
        "counts",
        "disputed",
        "drift",
        "epoch",
        "free",
        "frozen",
        "holders",
        "kernels",
        "labelled",
        "layout",
        "long_from",
        "marks",
        "name",
        "native",
        "null",
        "stale",
        "tag_words",
        "tags",
        "total",
        "words",
    )

    def __init__(self, pool: ev.Pool, *, indexed: bool, long_from: int, kernels: Kernels | None) -> None:
        self.name = pool.name
        self.total = pool.slots
        self.null = pool.null
        self.array: npt.NDArray[np.int64] = np.zeros(pool.slots, dtype=np.int64)
        if pool.null is not None:
            self.array[pool.null] = NULL_BLOCK
        self.words = self.array.data
        self.long_from = long_from
        """Numbers of slots from which numpy is used."""
        self.free = pool.slots - (pool.null is not None)
        self.drift = 0
        """What the pool reported minus our own count, after it was reported."""
        self.holders: dict[str, Holder] = {}
        self.tags: npt.NDArray[np.uint64] = np.zeros(pool.slots, dtype=np.uint64)
        """The tag of each slot that has a label; of others, anything."""
        self.tag_words = self.tags.data
        self.labelled = 0
        """How many slots have a label."""
        self.kernels = kernels
        self.layout = self.lay_out()
        """What the kernels have to know of the pool."""
        self.native = self.layout.ctypes.data
        """Its address."""
        self.counts: TagCounts | NativeTagCounts | None = None
        """The tags of all labels and of open stores; kept for pools that stores go to."""
        if indexed:
            self.index()
        self.marks: npt.NDArray[np.int32] = np.zeros(pool.slots, dtype=np.int32)
        """Scratch space to find a slot that appears twice."""
        self.disputed: set[int] = set()
        """Held slots that were evicted: that was reported, and what follows from it is not."""
        self.frozen: dict[int, int] = {}
        """The last step that may read a slot, for slots with the FROZEN flag."""
        self.epoch = 0
        self.stale: set[str] = set()
        """Tables that were begun before the last reset of this pool."""

    def copy(self, requests: dict[Request, Request]) -> PoolState:
        """A copy whose holders belong to the copies of their requests."""
        other = copy(self)
        other.array, other.tags, other.marks = self.array.copy(), self.tags.copy(), self.marks.copy()
        other.words, other.tag_words = other.array.data, other.tags.data
        other.holders = {
            name: holder.copy(None if holder.request is None else requests[holder.request])
            for name, holder in self.holders.items()
        }
        other.layout = other.lay_out()
        other.native = other.layout.ctypes.data
        other.counts = None if self.counts is None else self.counts.copy_to(other.layout)
        other.frozen, other.stale, other.disputed = dict(self.frozen), set(self.stale), set(self.disputed)
        return other

    def lay_out(self) -> npt.NDArray[np.int64]:
        """Addresses and sizes in the order in which the kernels expect them; the last three: of the tags."""
        return np.array([self.array.ctypes.data, self.tags.ctypes.data, self.total, 0, 0, 0], np.int64)

    def word(self, slot: int) -> int:
        """The slot's word; 0 for a slot that does not exist."""
        return self.words[slot] if 0 <= slot < self.total else 0

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
        if self.counts is not None:
            self.counts.label([tag])

    def drop_label(self, slot: int) -> None:
        """Take the label from ``slot``, if it has one."""
        tag = self.label_of(slot)
        if tag is not None:
            self.words[slot] &= ~LABEL
            self.labelled -= 1
            if self.counts is not None:
                self.counts.unlabel([tag])

    def index(self) -> TagCounts | NativeTagCounts:
        """The counts of all tags; from here on they are kept."""
        if self.counts is None:
            self.counts = TagCounts() if self.kernels is None else NativeTagCounts(self.kernels, self.layout)
            self.counts.label([self.tag_words[slot] for slot in self.labelled_slots()])
        return self.counts

    def clear_labels(self) -> None:
        """Take the label from every slot."""
        self.array &= ~LABEL
        self.labelled = 0
        if self.counts is not None:
            self.counts.clear_labels()

    def thaw(self, slots: Iterable[int], step: int) -> None:
        """``step`` is over: ``slots`` that waited for it, or for an earlier one, may be freed."""
        for slot in slots:
            last = self.frozen.get(slot)
            if last is not None and last <= step:
                del self.frozen[slot]
                self.words[slot] &= ~FROZEN
