"""What the events of a trace do to slots: their holders, their labels, and the copies that use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from kvfence.spec import events as ev
from kvfence.spec.packed import NARROW, ints

Slot = tuple[str, int]
"""A slot by pool and number."""
Look = Literal["free", "held", "cached", "both", "moving", "null"]
"""``cached``: free, and found by its key; ``both``: held and found; ``moving``: a copy reads or writes it."""


class Holding:
    """The slots of a trace so far. Call it with each event; unlike the ledger it judges nothing."""

    def __init__(self, header: ev.Header) -> None:
        self.header = header
        self.holders: dict[Slot, list[str]] = {}
        self.labelled: set[Slot] = set()
        self.copies: dict[tuple[int, int], tuple[str, list[Slot]]] = {}
        self.null = {(pool.name, pool.null) for pool in header.pools if pool.null is not None}
        for known in header.snapshot.pools if header.snapshot else ():
            for holder in known.holders:
                for s in ints(holder.slots, NARROW):
                    self.holders.setdefault((known.name, s), []).append(holder.name)
            self.labelled |= {(known.name, s) for s in ints(known.labelled, NARROW)}

    def __call__(self, event: ev.Event) -> None:
        """Updates the slots by an event."""
        e: Any = ev.listed(event)
        match event:
            case ev.Alloc() | ev.Touch():
                for s in e.slots:
                    self.holders.setdefault((e.pool, s), []).append(e.holder)
            case ev.Free():
                for s in e.slots:
                    held = self.holders.get((e.pool, s), [])
                    if e.holder in held:
                        held.remove(e.holder)
            case ev.Label():
                self.labelled |= {(e.pool, s) for s in e.slots}
            case ev.Evict() | ev.Unlabel():
                self.labelled -= {(e.pool, s) for s in e.slots}
            case ev.Reset():
                self.labelled = {s for s in self.labelled if not (e.ok and s[0] in e.pools)}
            case ev.Cleared():
                self.labelled = {s for s in self.labelled if s[0] != e.pool}
            case ev.Queue():
                self.copies[e.op, e.gen] = (e.kind, [*slots_named([event])])
            case ev.Complete():
                self.copies.pop((e.op, e.gen), None)

    def held(self) -> dict[Slot, tuple[str, ...]]:
        """The holders of each slot that was ever held."""
        return {slot: tuple(holders) for slot, holders in sorted(self.holders.items())}

    def look(self, slot: Slot) -> Look:
        """The state of a slot, as pictures show it."""
        if any(slot in slots for _, slots in self.copies.values()):
            return "moving"
        if slot in self.null:
            return "null"
        held, found = bool(self.holders.get(slot)), slot in self.labelled
        return "both" if held and found else "held" if held else "cached" if found else "free"

    def described(self, slot: Slot) -> str:
        """The state of a slot in words."""
        by = ", ".join(self.holders.get(slot, ())) or "nobody"
        copies = [f"{kind} {op}.{gen}" for (op, gen), (kind, slots) in self.copies.items() if slot in slots]
        found = ", in the prefix index" if slot in self.labelled else ""
        return f"{slot[0]} {slot[1]}: held by {by}{found}{''.join(f', under {c}' for c in copies)}"


def slots_named(events: Iterable[ev.Event]) -> Iterator[Slot]:
    """Every slot that events name, in order."""
    for packed in events:
        e: Any = ev.listed(packed)
        if isinstance(packed, ev.Queue):
            yield from ((e.src_pool, s) for s in e.src)
            yield from ((e.dst_pool, s) for s in e.dst)
        elif hasattr(e, "pool") and hasattr(e, "slots"):
            yield from ((e.pool, s) for s in e.slots)


def about(event: ev.Event) -> set[str]:
    """The requests and operations that an event is about, as ``req:7.0`` and ``op:3.1``.

    A dispatched step names requests without their generation, as ``req:7``.
    """
    e: Any = event
    gen = getattr(e, "gen", 0)
    out = {f"req:{r}" for r in getattr(e, "reqs", ())}
    if getattr(e, "req", ""):
        out.add(f"req:{e.req}.{getattr(e, 'rgen', gen)}")
    if getattr(e, "op", -1) >= 0:
        out.add(f"op:{e.op}.{gen}")
    holder = getattr(e, "holder", "")
    return out | {holder} if holder else out


def fields_of(event: msgspec.Struct) -> str:
    """The fields of an event that differ from their defaults, in a line."""
    return " ".join(
        f"{f.name}={getattr(event, f.name)}"
        for f in msgspec.structs.fields(event)
        if getattr(event, f.name) != f.default
    )
