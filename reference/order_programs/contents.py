"""Memory of an order program: not bytes, but where each byte came from.

Memory of any size costs only as much as was written into it.
"""

from hashlib import blake2b
from typing import NamedTuple, TypeAlias


class Extent(NamedTuple):
    """Bytes ``start`` up to ``end`` hold value ``value``, whose first byte would be at ``origin``."""

    start: int
    end: int
    value: int
    origin: int


Memory: TypeAlias = tuple[Extent, ...]
"""Sorted, without overlaps; what is not covered was never written."""
Content: TypeAlias = tuple[tuple[int, int, int], ...]
"""What a range holds: for each stretch of it its length, the value, and the first byte of the value there."""

UNWRITTEN = 0


def value_of(*parts: object) -> int:
    """A value that differs, for all practical purposes, unless all parts are the same."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") or 1


def content(memory: Memory, start: int, end: int) -> Content:
    """What ``start`` up to ``end`` holds. The same bytes give the same content, however they came there."""
    found: list[tuple[int, int, int]] = []

    def add(nbytes: int, value: int, first: int) -> None:
        if found and found[-1][1] == value and found[-1][2] + found[-1][0] == first:
            found[-1] = (found[-1][0] + nbytes, value, found[-1][2])
        else:
            found.append((nbytes, value, first))

    at = start
    for extent in memory:
        if extent.end <= at:
            continue
        if extent.start >= end:
            break
        if extent.start > at:
            add(extent.start - at, UNWRITTEN, at)
            at = extent.start
        upto = min(extent.end, end)
        add(upto - at, extent.value, at - extent.origin)
        at = upto
    if at < end:
        add(end - at, UNWRITTEN, at)
    return tuple(found)


def written(memory: Memory, start: int, what: Content) -> Memory:
    """``memory`` after ``what`` was written to ``start``."""
    end = start + sum(nbytes for nbytes, _, _ in what)
    before = [
        Extent(extent.start, min(extent.end, start), extent.value, extent.origin)
        for extent in memory
        if extent.start < start
    ]
    after = [
        Extent(max(extent.start, end), extent.end, extent.value, extent.origin)
        for extent in memory
        if extent.end > end
    ]
    middle, at = [], start
    for nbytes, value, first in what:
        middle.append(Extent(at, at + nbytes, value, at - first))
        at += nbytes
    return (*before, *middle, *after)
