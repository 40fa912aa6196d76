"""A block pool under observation: what the hooks noted of it, as items of its engine's stream."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from kvfence.checker.adapters.vllm.stream.numbers import FEW, indexes, packed, slots_of
from kvfence.spec import events as ev

if TYPE_CHECKING:
    from kvfence.checker.adapters.vllm.stream.stream import Stream

ALLOC: Final = "alloc"
TOUCH: Final = "touch"
FREE: Final = "free"
EVICT: Final = "evict"
LABEL: Final = "label"
UNLABEL: Final = "unlabel"


class Item:
    """Something that happened to a pool inside a call whose end says on whose behalf."""

    __slots__ = ("extra", "free", "hashes", "kind", "pack", "slots", "tap")

    def __init__(
        self,
        kind: str,
        tap: PoolTap,
        slots: list[int],
        free: int = -1,
        extra: Any = None,
        pack: Any = None,
        hashes: list[bytes | None] | None = None,
    ) -> None:
        self.kind = kind
        self.tap = tap
        self.slots = slots
        self.free = free
        self.extra = extra
        self.pack = packed(slots) if pack is None else pack
        """``slots`` as an event takes them."""
        self.hashes = hashes
        """vLLM's hashes of these slots at that time, if they were noted."""


class PoolTap:
    """A block pool under observation.

    The methods take what the hooks noted after the pool did it: lists of vLLM's blocks, of which only what
    never changes is read here, and copies of all that does.
    """

    __slots__ = (
        "__weakref__",
        "anonymous",
        "hashes",
        "index",
        "known",
        "labels",
        "name",
        "note_queue",
        "null",
        "pool",
        "queue",
        "stream",
    )

    def __init__(self, name: str, pool: Any, stream: Stream) -> None:
        self.name = name
        self.pool = pool
        self.queue = pool.free_block_queue
        self.stream = stream
        self.note_queue = stream.note_queue
        null = getattr(pool, "null_block", None)
        self.null: int = -1 if null is None else null.block_id
        self.labels: npt.NDArray[np.bool_] = np.zeros(len(pool.blocks), dtype=np.bool_)
        """Which slots were seen to enter the prefix index."""
        self.hashes: npt.NDArray[np.object_] = np.full(len(pool.blocks), None, dtype=np.object_)
        """The hash under which each slot entered the index last, in an engine with a tier."""
        self.index: dict[bytes, int] = {}
        """Of a tier: the slot that entered its index last under each hash. It may have left it since."""
        self.anonymous: dict[int, int] = {}
        """Holders without a name of each slot."""
        self.known: list[tuple[list[Any], list[int], Any]] = []
        """The last long rows of blocks, with their slots: the same row comes several times in a step."""

    def slots(self, blocks: list[Any]) -> tuple[list[Any], list[int], Any]:
        """``blocks`` without the null block, their slots, and these packed."""
        count = len(blocks)
        if count <= FEW:
            slots, null = slots_of(blocks), self.null
            if null in slots:
                blocks = [block for block in blocks if block.block_id != null]
                slots = slots_of(blocks)
            return blocks, slots, slots
        for row in self.known:
            if len(row[0]) == count and row[0] == blocks:
                return row
        slots = slots_of(blocks)
        pack = array("I", slots)
        if self.null in pack:
            blocks = [block for block in blocks if block.block_id != self.null]
            slots = slots_of(blocks)
            pack = packed(slots)
        row = (blocks, slots, pack)
        self.known.append(row)
        if len(self.known) > 2:
            del self.known[0]
        return row

    def allocated(self, blocks: list[Any], free: int, hashes: list[bytes | None]) -> None:
        """The pool gave ``blocks`` away, which have ``hashes`` now."""
        if not blocks:
            return
        _, slots, pack = self.slots(blocks)
        where = indexes(pack)
        had = self.labels[where]
        if had.any():
            gone = where[had]
            if hashes.count(None) != len(hashes):
                without = {
                    block.block_id for block, found in zip(blocks, hashes, strict=True) if found is None
                }
                gone = np.array([slot for slot in gone.tolist() if slot in without], dtype=np.uint32)
            self.labels[gone] = False
            if len(gone):
                gone_slots = gone.tolist()
                pack_gone = gone_slots if len(gone_slots) <= FEW else gone
                extra = self.hashes[gone].tolist() if self.stream.tiers else None
                self.stream.happened(Item(EVICT, self, gone_slots, extra=extra, pack=pack_gone))
        self.stream.happened(Item(ALLOC, self, slots, free, pack=pack))

    def denied(self, asked: int, free: int) -> None:
        """The pool could not give so many."""
        self.stream.emit(ev.Deny(self.name, "ref:0.0", asked, free))

    def touched(self, blocks: list[Any], free: int, hashes: list[bytes | None] | None) -> None:
        """A holder was added to ``blocks``."""
        count = len(blocks)
        kept, slots, pack = self.slots(blocks)
        if slots:
            if len(kept) != count:
                hashes = None
            self.stream.happened(Item(TOUCH, self, slots, free, pack=pack, hashes=hashes))

    def freed(self, blocks: list[Any], free: int) -> None:
        """A holder left ``blocks``."""
        if blocks and getattr(blocks[0], "pool", None) is not None and self.stream.pending is None:
            # Only frees that were put off mix the blocks of several pools.
            blocks = [block for block in blocks if block.pool is self.pool or block.pool is None]
        _, slots, pack = self.slots(blocks)
        if slots:
            self.stream.happened(Item(FREE, self, slots, free, pack=pack))

    def labelled(self, blocks: list[Any], hashes: list[bytes | None]) -> None:
        """``blocks`` are in the prefix index under ``hashes``; those without one are not."""
        if None in hashes:  # The null block, and blocks that no hit can need.
            there = [at for at, found in enumerate(hashes) if found is not None]
            blocks, hashes = [blocks[at] for at in there], [hashes[at] for at in there]
        if not blocks:
            return
        slots = slots_of(blocks)
        pack = packed(slots)
        where = indexes(pack)
        again = self.labels[where]
        if again.any():
            self.unlabelled(where[again].tolist(), "another key")
        self.labels[where] = True
        if self.stream.tiers:
            self.hashes[where] = hashes
        self.stream.happened(Item(LABEL, self, slots, extra=hashes, pack=pack))

    def unlabelled(self, slots: list[int], why: str) -> None:
        """``slots`` left the prefix index."""
        gone = [slot for slot in slots if self.labels[slot]]
        self.labels[gone] = False
        if gone:
            self.stream.happened(Item(UNLABEL, self, gone, extra=why))

    def remember(self, where: npt.NDArray[np.uint32], hashes: list[Any]) -> None:
        """Slots of a tier entered its index under ``hashes``."""
        self.hashes[where] = hashes
        self.labels[where] = True
        index = self.index
        if len(index) > 2 * len(self.labels):
            there = np.flatnonzero(self.labels)
            index = self.index = dict(zip(self.hashes[there].tolist(), there.tolist(), strict=True))
        index.update(zip(hashes, where.tolist(), strict=True))

    def hash_of(self, slot: int) -> Any:
        """The hash under which a slot is in the index; None if it is not there."""
        return self.hashes[slot] if self.labels[slot] else None

    def has(self, found: bytes) -> bool:
        """Whether some slot of the tier is in its index under this hash."""
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
