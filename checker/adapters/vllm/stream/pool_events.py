"""Notes on block pools become events here, in one file: from the note of a hook to the sink that judges.

The end of some calls of vLLM says on whose behalf they were made. Inside of such a call a note becomes an
:class:`Item`, which waits until its holder is known; outside of them it becomes an event at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.checker.adapters.vllm.stream.content_keys import FEW, keys_and_groups, packed_keys
from kvfence.checker.adapters.vllm.stream.pool_index import PoolIndex
from kvfence.spec import events as ev

Sink: TypeAlias = Callable[[ev.Event], None]
"""Judges or records the events of one engine: a guard, for example."""
OpenSink: TypeAlias = Callable[[ev.Header], Sink]
Handler: TypeAlias = "Callable[[list[Item]], None]"

ALLOC: Final = "alloc"
TOUCH: Final = "touch"
FREE: Final = "free"
EVICT: Final = "evict"
LABEL: Final = "label"
UNLABEL: Final = "unlabel"


def packed(slots: Sequence[int]) -> Any:
    """``slots`` in the form in which an event takes them fastest."""
    if isinstance(slots, range):
        return list(slots) if len(slots) <= FEW else np.arange(slots.start, slots.stop, dtype=np.uint32)
    return slots if len(slots) <= FEW else array("I", slots)


def indexes(slots: Any) -> npt.NDArray[np.uint32]:
    """Packed ``slots`` as numpy's indexes, without a copy if they are many."""
    return np.array(slots, dtype=np.uint32) if isinstance(slots, list) else np.frombuffer(slots, np.uint32)


@dataclass(eq=False, slots=True)
class Item:
    """Something that happened to a pool inside a call whose end says on whose behalf."""

    kind: str
    tap: PoolTap
    slots: list[int]
    pack: Any
    """``slots`` as an event takes them: :func:`packed`."""
    free: int = -1
    extra: Any = None
    hashes: list[bytes | None] | None = None
    """vLLM's hashes of these slots at that time, if they were noted."""


class PoolTap(PoolIndex):
    """A block pool under observation.

    The methods take what the hooks noted after the pool did it: lists of vLLM's blocks, of which only what
    never changes is read here, and copies of all that does.
    """

    __slots__ = (
        "__weakref__",
        "name",
        "note_queue",
        "null",
        "pool",
        "queue",
        "recent",
        "stream",
        "unnamed_holders",
    )

    def __init__(self, name: str, pool: Any, stream: PoolStream) -> None:
        super().__init__(len(pool.blocks))
        self.name = name
        self.pool = pool
        self.queue = pool.free_block_queue
        self.stream = stream
        self.note_queue = stream.note_queue
        null = getattr(pool, "null_block", None)
        self.null: int = -1 if null is None else null.block_id
        self.unnamed_holders: dict[int, int] = {}
        """By slot: how many holders without a name it has."""
        self.recent: list[tuple[list[Any], list[int], Any]] = []
        """The last long lists of blocks, with their slots: the same list comes several times in a step."""

    def slots(self, blocks: list[Any]) -> tuple[list[Any], list[int], Any]:
        """``blocks`` without the null block, their slots, and these packed."""
        few, null = len(blocks) <= FEW, self.null
        if not few:
            for known in self.recent:
                if len(known[0]) == len(blocks) and known[0] == blocks:
                    return known
        slots = [block.block_id for block in blocks]
        if null in slots:
            blocks = [block for block in blocks if block.block_id != null]
            slots = [block.block_id for block in blocks]
        if few:
            return blocks, slots, slots
        found = (blocks, slots, packed(slots))
        self.recent = [*self.recent[-1:], found]
        return found

    def allocated(self, blocks: list[Any], free: int, hashes: list[bytes | None]) -> None:
        """Take in that the pool gave ``blocks`` away, which have ``hashes`` now."""
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
                self.stream.add_item(Item(EVICT, self, gone_slots, pack_gone, extra=extra))
        self.stream.add_item(Item(ALLOC, self, slots, pack, free))

    def denied(self, asked: int, free: int) -> None:
        """Take in that the pool could not give ``asked`` blocks."""
        self.stream.emit(ev.Deny(self.name, "ref:0.0", asked, free))

    def touched(self, blocks: list[Any], free: int, hashes: list[bytes | None] | None) -> None:
        """Take in that ``blocks`` got one more holder."""
        kept, slots, pack = self.slots(blocks)
        if slots:
            if len(kept) != len(blocks):
                hashes = None
            self.stream.add_item(Item(TOUCH, self, slots, pack, free, None, hashes))

    def freed(self, blocks: list[Any], free: int) -> None:
        """Take in that a holder left ``blocks``."""
        if blocks and getattr(blocks[0], "pool", None) is not None and self.stream.pending is None:
            # Only frees that were put off mix the blocks of several pools.
            blocks = [block for block in blocks if block.pool is self.pool or block.pool is None]
        _, slots, pack = self.slots(blocks)
        if slots:
            self.stream.add_item(Item(FREE, self, slots, pack, free))

    def labelled(self, blocks: list[Any], hashes: list[bytes | None]) -> None:
        """Take in that ``blocks`` are in the prefix index under ``hashes``; those without one are not."""
        if None in hashes:  # The null block, and blocks that no hit can need.
            there = [at for at, found in enumerate(hashes) if found is not None]
            blocks, hashes = [blocks[at] for at in there], [hashes[at] for at in there]
        if not blocks:
            return
        slots = [block.block_id for block in blocks]
        pack = packed(slots)
        where = indexes(pack)
        again = self.labels[where]
        if again.any():
            self.unlabelled(where[again].tolist(), "another key")
        self.labels[where] = True
        if self.stream.tiers:
            self.hashes[where] = hashes
        self.stream.add_item(Item(LABEL, self, slots, pack, extra=hashes))

    def unlabelled(self, slots: list[int], why: str) -> None:
        """Take in that ``slots`` left the prefix index."""
        gone = [slot for slot in slots if self.labels[slot]]
        self.labels[gone] = False
        if gone:
            self.stream.add_item(Item(UNLABEL, self, gone, packed(gone), extra=why))


class PoolStream:
    """Emits the events of the pools of one engine, each with the holder on whose behalf it happened."""

    note_queue: Any
    tiers: list[PoolTap]
    pending: list[Item] | None = None
    """What happened to the pools inside the call under way; None outside of calls."""
    handler: Handler | None = None
    still: dict[str, int] | None = None
    """Tokens of the step that was processed last, if no event was emitted since it was dispatched."""

    def __init__(self, open_sink: OpenSink) -> None:
        self.open_sink = open_sink
        self.sink: Sink | None = None
        self.outer: list[tuple[list[Item] | None, Handler | None]] = []
        """Of the calls around the one under way: their pending items and handlers."""
        self.leaving: dict[str, tuple[str, int, set[int]]] = {}
        """By holder: request, generation and slots of tables that are given back later."""

    # For the files of requests, steps and faults.

    def header(self) -> ev.Header:
        """What the numbers in the events refer to."""
        raise NotImplementedError

    def emit_repeats(self) -> None:
        """Emit the steps that were put off."""
        raise NotImplementedError

    def trouble(self, error: Exception) -> None:
        """Count an exception of the adapter itself."""
        raise NotImplementedError

    def pool_reset(self, tap: PoolTap) -> None:
        """Take in that the prefix index of a pool was emptied."""
        raise NotImplementedError

    def table_left(self, id_: str, gen: int) -> None:
        """Take in that a table that was given back later is empty now."""
        raise NotImplementedError

    # Notes come in, events go out.

    def follow(self, note: tuple[Any, ...]) -> None:
        """Call what ``note`` begins with; exceptions are :meth:`trouble`."""
        try:
            note[0](*note[1:])
        except Exception as error:
            self.trouble(error)

    def emit(self, event: ev.Event) -> None:
        """Give ``event`` to the sink, after the header and the steps that were put off."""
        if self.still is not None:
            self.emit_repeats()
        if self.sink is None:
            self.sink = self.open_sink(self.header())
        self.sink(event)

    # Calls whose end says on whose behalf the pools changed.

    def enter(self, handler: Handler | None) -> None:
        """Give what happens to the pools from here on to ``handler``, up to :meth:`leave`."""
        self.flush()
        self.outer.append((self.pending, self.handler))
        self.pending, self.handler = [], handler

    def gather(self) -> None:
        """Keep what happens to the pools from here on, up to :meth:`gathered`."""
        self.enter(None)

    def flush(self) -> None:
        """Let the handler emit what has happened up to now."""
        items, handler = self.pending, self.handler
        if items and handler is not None:
            self.pending = []
            handler(items)

    def gathered(self) -> list[Item]:
        """End what :meth:`gather` began; returns what happened meanwhile."""
        items = self.pending or []
        self.pending, self.handler = self.outer.pop()
        return items

    def leave(self) -> None:
        """End what :meth:`enter` began."""
        try:
            self.flush()
        finally:
            self.pending, self.handler = self.outer.pop()

    def broken_off(self) -> None:
        """End what :meth:`gather` began because vLLM raised an exception."""
        self.emit_unattributed(self.gathered())

    # Items become events.

    def add_item(self, item: Item) -> None:
        """Keep ``item`` for the call under way; emit it at once if there is none."""
        if self.pending is not None:
            self.pending.append(item)
        else:
            self.emit_unattributed([item])

    def emit_item(self, item: Item, holder: str, group: int = 0, at: int = 0) -> None:
        """Emit ``item`` as done by ``holder``."""
        kind = item.kind
        if kind == ALLOC:
            self.emit(ev.Alloc(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == TOUCH:
            self.emit(ev.Touch(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == FREE:
            self.emit(ev.Free(item.tap.name, holder, item.pack, item.free))
        else:
            self.emit_label(item)

    def emit_label(self, item: Item, op: int = -1) -> None:
        """Emit an item that has no holder: evict, label, unlabel."""
        tap, slots = item.tap, item.slots
        if item.kind == EVICT:
            self.emit(ev.Evict(tap.name, item.pack))
        elif item.kind == UNLABEL:
            self.emit(ev.Unlabel(tap.name, item.pack, item.extra))
        else:
            keys, groups = keys_and_groups(item.extra, slots)
            first = int(groups[0])
            if (groups == first).all():
                self.emit(ev.Label(tap.name, item.pack, packed_keys(keys), first, op))
                return
            for group in np.unique(groups).tolist():
                here = np.flatnonzero(groups == group).tolist()
                some = packed([slots[at] for at in here])
                self.emit(ev.Label(tap.name, some, packed_keys(keys[here].tolist()), group, op))

    def emit_unattributed(self, items: list[Item]) -> None:
        """Emit items that happened outside of any call that says on whose behalf.

        Deferred frees are recognised by their slots; other holders count, but have no name: the first of a
        slot is ``ref:0.0``, the second ``ref:1.0`` and so on.
        """
        for item in items:
            if item.kind in {EVICT, LABEL, UNLABEL}:
                self.emit_label(item)
            elif not (item.kind == FREE and self.leaving and self._emit_deferred_free(item)):
                self._emit_unnamed(item)

    def _emit_deferred_free(self, item: Item) -> bool:
        """Emit the free of a table that its request left before; whether ``item`` is one."""
        for holder, (id_, gen, slots) in self.leaving.items():
            if slots.issuperset(item.slots):
                self.emit_item(item, holder)
                slots.difference_update(item.slots)
                if not slots:
                    del self.leaving[holder]
                    self.table_left(id_, gen)
                return True
        return False

    def _emit_unnamed(self, item: Item) -> None:
        """Emit an item of holders without a name."""
        counts, levels = item.tap.unnamed_holders, dict[int, list[int]]()
        for slot in item.slots:
            level = counts.get(slot, 0)
            if item.kind == FREE:
                level = max(level - 1, 0)
                counts[slot] = level
                if not level:
                    del counts[slot]
            else:
                counts[slot] = level + 1
            levels.setdefault(level, []).append(slot)
        last = len(levels) - 1
        for place, (level, slots) in enumerate(levels.items()):
            free = item.free if place == last else -1
            self.emit_item(Item(item.kind, item.tap, slots, packed(slots), free), f"ref:{level}.0")
