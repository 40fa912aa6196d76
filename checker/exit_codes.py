"""What the exit code of a command says: the verdict, or that it could not run."""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final[dict[str, int]] = {"holds": 0, "violated": 1, "undetermined": 3}
"""By verdict. Verdicts are words: an enumeration of them finds its code, too."""
CANNOT_RUN: Final = 2
