"""Errors of a specification: one line that names the place, the fault and the way out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kvfence.spec.errors import close_matches

_HERE = str(Path(__file__).parent)


class SpecError(Exception):
    """A specification that cannot mean what it says.

    The text is one line, ``file:line: what is wrong; the way out``, and the place is the line of the
    specification, not of the language.

    >>> Machine("doc").sort("Block", default=0)
    Traceback (most recent call last):
    kvfence.spec.language.errors.SpecError: ...: sort Block has default size 0; ...
    """


def here() -> str:
    """The ``file:line`` of the innermost caller outside the language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno)


def place(filename: str, line: int) -> str:
    """``file:line``, the file as it is called from the working directory."""
    return f"{_shown(filename)}:{line}"


def _shown(filename: str) -> str:
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename


def fail(problem: str, where: str | None = None) -> SpecError:
    """The error to raise for ``problem``, at ``where`` or at the calling line of the specification."""
    return SpecError(f"{where or here()}: {problem}")


def close(name: str, known: Iterable[str]) -> str:
    """``did you mean …`` for a misspelt name, or the names there are."""
    names = sorted(known)
    return close_matches(name, names) or ("there is " + ", ".join(names) if names else "none is declared")
