"""Numbers of an event, slots for instance: a list of integers, or an array of them as it lies in memory."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:

    class _Array(Protocol):
        def tolist(self) -> Any: ...

    Numbers: TypeAlias = Sequence[int] | _Array
else:
    Numbers = Sequence[int] | bytes
"""A list or tuple of integers, or many of them packed:

* ``bytes``: little-endian and unsigned, 8 bytes for a content key and 4 bytes for anything else. In a trace
  file this is a string, in base64.
* anything else with the buffer protocol, for instance a numpy array or an ``array.array``: one dimension of
  machine integers. Only within a process; who emits the event must not change the array afterwards.
"""

NARROW: Final = 4
"""Bytes of a packed slot or block index."""
WIDE: Final = 8
"""Bytes of a packed content key."""

_CODES: Final = {NARROW: "I", WIDE: "Q"}


def ints(numbers: Numbers, width: int = NARROW) -> Sequence[int]:
    """``numbers`` as Python integers; ``width``: bytes of one when they are packed in ``bytes``.

    Raises ``ValueError`` for bytes that are no whole number of numbers, and for an array that is not a row of
    integers.
    """
    if isinstance(numbers, list | tuple):
        return numbers
    if isinstance(numbers, bytes):
        if len(numbers) % width:
            raise ValueError(f"{len(numbers)} bytes of packed numbers, which have {width} bytes each")
        unpacked = array(_CODES[width], numbers)
        if sys.byteorder == "big":
            unpacked.byteswap()
        return unpacked.tolist()
    try:
        view = memoryview(numbers)  # type: ignore[arg-type]  # a range, for instance, has none
    except TypeError:
        return list(numbers)  # type: ignore[arg-type]
    if view.ndim != 1 or view.format.lstrip("@") not in tuple("bBhHiIlLqQ"):
        raise ValueError(f"an array of {view.ndim} dimensions and format {view.format} is no row of integers")
    return view.tolist()


def count_of(numbers: Numbers, width: int = NARROW) -> int:
    """How many numbers these are; ``width``: bytes of one when they are packed in ``bytes``."""
    return len(numbers) // width if isinstance(numbers, bytes) else len(numbers)  # type: ignore[arg-type]


def pack(numbers: Sequence[int], width: int = NARROW) -> bytes:
    """``numbers`` as little-endian unsigned integers of ``width`` bytes. Raises ``OverflowError`` if one does
    not fit.
    """
    packed = array(_CODES[width], numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
