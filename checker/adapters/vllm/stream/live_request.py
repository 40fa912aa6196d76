"""What the adapter remembers of a live request."""

from __future__ import annotations

from typing import Any


class RequestState:
    """One request and its generation, its block tables as observed, and what was stored of them."""

    def __init__(self, id_: str, gen: int) -> None:
        self.id = id_
        self.begin(gen)

    def begin(self, gen: int) -> None:
        """Begin a new generation: nothing is held, promised or stored."""
        self.gen = gen
        self.table = f"req:{self.id}.{gen}"
        self.hit = f"hit:{self.id}.{gen}"
        self.admitted = False
        self.admission: tuple[int, int, int] | None = None
        """Its admission, until it is known whether the tier that gave the promise is the one that loads."""
        self.promised = False
        self.promiser: Any = None
        """Of several tiers, the one that gave the promise."""
        self.ended = False
        self.local = 0
        self.open_loads = 0
        self.lengths: dict[int, int] = {}
        """By group: blocks of the table that were observed to enter it."""
        self.tables: dict[int, list[int]] = {}
        """By group: the slots that entered it, also those that left it since; -1 for no slot."""
        self.freed: set[int] = set()
        """Slots that left the tables since."""
        self.covered: dict[int, bytearray] = {}
        """By group: 1 for each block of the table that was queued or dropped."""
        self.cursor: list[int] | None = None
        self.blocked: dict[int, int] = {}
        """By group: blocks that were ready when the tier was last observed to be full."""
        self.uneven = False
        """A step computes tokens of it that may be rejected."""

    def enter(self, group: int, at: int, slots: list[int]) -> None:
        """Take in that ``slots`` are in the table of ``group`` from index ``at`` on."""
        table = self.tables.setdefault(group, [])
        if len(table) < at:
            table.extend([-1] * (at - len(table)))
        table[at : at + len(slots)] = slots
        self.lengths[group] = max(self.lengths.get(group, 0), at + len(slots))
        if self.freed:
            self.freed.difference_update(slots)

    def emptied(self) -> None:
        """Take in that all blocks of the table were given back, or will be."""
        self.lengths.clear()
        self.tables.clear()
        self.freed.clear()
        self.admitted = False

    def cover(self, group: int, start: int, end: int) -> None:
        """Take in that blocks ``start`` .. ``end - 1`` are accounted for."""
        done = self.covered.setdefault(group, bytearray())
        if len(done) < end:
            done.extend(bytes(end - len(done)))
        done[start:end] = b"\1" * (end - start)

    def gaps(self, group: int, start: int, end: int) -> list[int]:
        """Blocks from ``start`` to before ``end`` that are not accounted for."""
        done = self.covered.get(group, b"")
        if end <= len(done) and not done.count(0, start, end):
            return []
        return [at for at in range(start, end) if at >= len(done) or not done[at]]
