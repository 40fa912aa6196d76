"""The shadow of memory: for each piece that was accessed, its last write and the reads since then.

Pieces never overlap. They are as long as the accesses, cut where accesses begin and end, so memory that is
not touched costs nothing and a large access costs no more than a small one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from kvfence.checker.order.clocks import Clock
from kvfence.spec import order as od

What: TypeAlias = Literal["kernel", "copy", "host", "release"]

_BUCKET: Final = 1024
"""Starts in a bucket, at most: inserting into a list takes time that grows with its length."""
FEWEST: Final = 1 << 12
"""Pieces that are kept without a look at which of them still matter."""


class Site(msgspec.Struct, gc=False):
    """One access, as the shadow remembers it: enough to say who it was."""

    lane: int
    number: int
    """Number of the event, from 1: the access comes before whoever knows ``lane`` up to it."""
    what: What
    write: bool
    thread: int
    stream: int
    """-1 on the host."""
    name: str
    by: str
    stack: int
    order: od.SourceOrder = "stream"
    """Of a copy's read."""


class Piece:
    """Bytes ``start`` up to ``end``, all accessed alike so far."""

    __slots__ = ("end", "read", "reads", "start", "write")

    def __init__(self, start: int, end: int, piece: Piece | None = None) -> None:
        self.start = start
        self.end = end
        self.write: Site | None = None
        """The last write."""
        self.read: Site | None = None
        """The read since then that comes after all others, if there is one."""
        self.reads: dict[int, Site] | None = None
        """The last read of each lane since then, if no read comes after all others."""
        if piece is not None:
            self.write, self.read = piece.write, piece.read
            self.reads = None if piece.reads is None else piece.reads.copy()

    def sites(self) -> Iterator[Site]:
        """All accesses remembered."""
        if self.write is not None:
            yield self.write
        if self.read is not None:
            yield self.read
        if self.reads is not None:
            yield from self.reads.values()

    def forget(self, everywhere: Clock) -> None:
        """Forget accesses that come before everything that can still happen."""
        write, read = self.write, self.read
        if write is not None and everywhere[write.lane] >= write.number:
            self.write = None
        if read is not None and everywhere[read.lane] >= read.number:
            self.read = None
        if self.reads is not None:
            left = {lane: site for lane, site in self.reads.items() if everywhere[lane] < site.number}
            self.reads = left or None

    def same(self, other: Piece) -> bool:
        """Whether both remember the same accesses."""
        return self.write is other.write and self.read is other.read and self.reads == other.reads


class Shadow:
    """The pieces, at most about ``most`` of them.

    Beyond that, the ones accessed longest ago are forgotten, and ``forgotten`` counts them: races with them
    cannot be seen.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.forgotten = 0
        self.peak = 0
        self.by_start: dict[int, Piece] = {}
        self._buckets: list[list[int]] = []
        """All starts, sorted, cut into sorted lists; none is empty."""
        self._firsts: list[int] = []
        """The first start of each bucket."""
        self.threshold = min(FEWEST, most)
        """With more pieces than this, :meth:`prune` is due."""

    def __len__(self) -> int:
        return len(self.by_start)

    # Finding pieces.

    def cut(self, start: int, end: int) -> list[Piece]:
        """The pieces of ``start`` up to ``end``, in order: cut at both ends, made where there are none."""
        found = self.overlapping(start, end)
        pieces: list[Piece] = []
        at = start
        for piece in found:
            if piece.start < at:
                piece = self._split(piece, at)  # noqa: PLW2901
            elif piece.start > at:
                pieces.append(self._add(Piece(at, piece.start)))
            if piece.end > end:
                self._split(piece, end)
            pieces.append(piece)
            at = piece.end
        if at < end:
            pieces.append(self._add(Piece(at, end)))
        return pieces

    def overlapping(self, start: int, end: int) -> list[Piece]:
        """The pieces that have bytes of ``start`` up to ``end``, in order."""
        by_start = self.by_start
        found: list[Piece] = []
        if not self._firsts:
            return found
        which = max(0, bisect_right(self._firsts, start) - 1)
        bucket = self._buckets[which]
        at = bisect_right(bucket, start) - 1
        if at >= 0:
            before = by_start[bucket[at]]
            if before.end > start:
                found.append(before)
        at += 1
        while True:
            while at < len(bucket):
                if bucket[at] >= end:
                    return found
                found.append(by_start[bucket[at]])
                at += 1
            which += 1
            if which == len(self._buckets):
                return found
            bucket, at = self._buckets[which], 0

    def _split(self, piece: Piece, at: int) -> Piece:
        """Cut ``piece``; returns what begins at ``at``."""
        right = Piece(at, piece.end, piece)
        piece.end = at
        return self._add(right)

    def _add(self, piece: Piece) -> Piece:
        start = piece.start
        self.by_start[start] = piece
        which = bisect_right(self._firsts, start) - 1
        if which < 0:
            if not self._firsts:
                self._buckets.append([start])
                self._firsts.append(start)
                return piece
            which = 0
        bucket = self._buckets[which]
        if start > bucket[-1]:
            bucket.append(start)
        else:
            insort(bucket, start)
        if len(bucket) > _BUCKET:
            self._buckets.insert(which + 1, bucket[_BUCKET // 2 :])
            del bucket[_BUCKET // 2 :]
            self._firsts.insert(which + 1, self._buckets[which + 1][0])
        self._firsts[which] = bucket[0]
        return piece

    # Forgetting.

    def prune(self, everywhere: Clock) -> None:
        """Forget accesses that come before everything that can still happen; unite neighbours that are alike.

        If too many pieces are left all the same, those accessed longest ago go too.
        """
        self.peak = max(self.peak, len(self))
        kept: list[Piece] = []
        for start in (start for bucket in self._buckets for start in bucket):
            piece = self.by_start[start]
            piece.forget(everywhere)
            if piece.write is None and piece.read is None and piece.reads is None:
                continue
            if kept and kept[-1].end == piece.start and kept[-1].same(piece):
                kept[-1].end = piece.end
            else:
                kept.append(piece)
        if len(kept) > self.most // 2:
            room = self.most // 2
            ages = sorted(max(site.number for site in piece.sites()) for piece in kept)
            oldest = ages[len(kept) - room]
            young = [piece for piece in kept if max(site.number for site in piece.sites()) > oldest]
            self.forgotten += len(kept) - len(young)
            kept = young
        self._rebuild(kept)

    def _rebuild(self, pieces: list[Piece]) -> None:
        """``pieces``, in order, are all there is."""
        starts = [piece.start for piece in pieces]
        # In place: whoever looks pieces up by their start keeps the dictionary itself.
        self.by_start.clear()
        self.by_start.update(zip(starts, pieces, strict=True))
        half = _BUCKET // 2
        self._buckets = [starts[at : at + half] for at in range(0, len(starts), half)]
        self._firsts = [bucket[0] for bucket in self._buckets]
        self.threshold = min(self.most, max(FEWEST, 2 * len(pieces)))


def owner_of(owned: dict[tuple[int, int], str], start: int, end: int) -> str:
    """The owner of most of ``start`` up to ``end``, if anybody owns some of it."""
    best = max(
        ((min(last, end) - max(first, start), owner) for (first, last), owner in owned.items()),
        default=(0, ""),
    )
    return best[1] if best[0] > 0 else ""
