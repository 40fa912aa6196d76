"""What the exit code of a command says: the verdict, that it could not run, that it failed, or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvfence.checker.core.interrupts import INTERRUPTED

EXIT_CODES: Final[dict[str, int]] = {"holds": 0, "violated": 1, "undetermined": 3}
"""By verdict. Verdicts are words: an enumeration of them finds its code, too."""
CANNOT_RUN: Final = 2
"""Bad input, a bad option, or something that is not installed."""
FAILED: Final = 4
"""kvfence itself failed, or could not tell what it found."""
READER_LEFT: Final = 141
"""The reader of standard output closed it before the end, as `head` does."""
SUMMARY: Final = (
    "0 holds, 1 violated, 2 cannot run, 3 undetermined, 4 kvfence itself failed, "
    f"{INTERRUPTED} interrupted by Ctrl-C."
)


def worst_code(codes: Iterable[int]) -> int:
    """The code for several verdicts: one violated is violated, else one undetermined is undetermined."""
    severity = (EXIT_CODES["holds"], EXIT_CODES["undetermined"], EXIT_CODES["violated"])
    return max(codes, key=severity.index, default=EXIT_CODES["holds"])
