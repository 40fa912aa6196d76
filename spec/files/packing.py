"""Events as they are written to a trace: long lists of numbers packed, short ones readable."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from kvfence.spec.events import PACKED_FIELDS, Event
from kvfence.spec.packed import WIDE, Numbers, ints, pack

LONGEST_LINE: Final = 20 * 2**20
"""Bytes of an event in a file, at most."""
LONGEST_HEADER: Final = 64 * 2**20
"""Bytes of a header, at most: snapshots of large pools are long."""
READABLE: Final = 16
"""Numbers that are written as a list; more are packed."""

_LARGEST: Final = np.uint64((1 << 32) - 1)


def packed(event: Event) -> Event:
    """``event`` with its numbers as a trace has them. Numbers that do not fit stay a list.

    Raises ``ValueError`` for arrays that are not rows of integers.
    """
    changes: dict[str, Numbers] = {}
    for name, width in PACKED_FIELDS[type(event)]:
        numbers = getattr(event, name)
        if isinstance(numbers, list | tuple) and len(numbers) <= READABLE:
            continue
        changes[name] = _written(numbers, width)
    return msgspec.structs.replace(event, **changes) if changes else event


def _written(numbers: Numbers, width: int) -> Numbers:
    if isinstance(numbers, np.ndarray) and len(numbers) > READABLE and numbers.dtype == np.int64:
        # Read as unsigned, a negative number is too great as well.
        largest = numbers.view(np.uint64).max()
        if largest <= (_LARGEST if width < WIDE else np.uint64(np.iinfo(np.int64).max)):
            return numbers.astype("<u8" if width == WIDE else "<u4", copy=False).tobytes()
    listed = ints(numbers, width)
    if len(listed) <= READABLE:
        return listed
    try:
        return pack(listed, width)
    except OverflowError:
        return listed
