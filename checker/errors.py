"""The error for a command that cannot do what it was asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CannotRun(Exception):  # noqa: N818 - what the command answers, as its exit code does
    """What was asked cannot be done: one line that names the thing and the way out."""


def unknown(what: str, name: str, known: Iterable[str], way_out: str) -> CannotRun:
    """The error for a ``name`` that is none of the ``known``: offers close matches, else the way out."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else way_out
    return CannotRun(f"there is no {what} {name!r}: {hint}")
