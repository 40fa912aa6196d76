"""Sizes in memory and sort sizes as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvfence.spec.errors import CannotRun

_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SMALLEST = 16 * 2**20


def parse_memory(text: str) -> int:
    """Bytes from ``2GiB``, ``512MiB`` or a plain number of bytes; CannotRun for less than 16 MiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and next((name for name in _BYTES if name.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise CannotRun(f"{text!r} is no amount of memory: write it as 2GiB, 512MiB or a number of bytes")
    amount = int(float(match[1]) * _BYTES[unit])
    if amount < _SMALLEST:
        raise CannotRun(f"{text} of memory is too little to explore anything: give at least 16MiB")
    return amount


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Sort sizes from ``Block=4`` and the like; CannotRun for another form, size 0 or a repeated sort."""
    sizes: dict[str, int] = {}
    for text in texts:
        sort, _, number = text.partition("=")
        if not sort.isidentifier() or not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise CannotRun(f"{text!r} is no size: write it as Sort=N, for instance Block=4")
        if int(number) < 1:
            raise CannotRun(f"{text} is impossible: a sort has at least one element")
        if sort in sizes:
            raise CannotRun(f"the size of {sort} is given twice: keep one of {sort}={sizes[sort]} and {text}")
        sizes[sort] = int(number)
    return sizes


def parse_counts(text: str | None) -> tuple[int, ...]:
    """Numbers from ``16,32``; none from None. CannotRun for another form."""
    if text is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise CannotRun(f"{text!r} is no list of numbers: write it as 16,32")
    return tuple(map(int, text.split(",")))
