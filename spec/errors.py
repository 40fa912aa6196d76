"""The error for a command that cannot do what it was asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from typing import Final


class CannotRun(Exception):  # noqa: N818 - what the command answers, as its exit code does
    """What was asked cannot be done: one line that names the thing and the way out.

    >>> kvfence.verify("no_such_design")
    Traceback (most recent call last):
    kvfence.spec.errors.CannotRun: there is no design 'no_such_design': kvfence designs lists them
    """


def named(error: BaseException) -> str:
    """An error by its type and its text, in at most 300 characters."""
    with suppress(Exception):  # an error of the user's own may fail to print itself
        if text := str(error).strip():
            return f"{type(error).__name__}: {text[:300]}"
    return type(error).__name__


def close_matches(name: str, known: Iterable[str]) -> str:
    """``did you mean A or B?``, of the known names that are like ``name``; empty if none is."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str], way_out: str) -> CannotRun:
    """The error for a ``name`` that is none of the ``known``: offers close matches, else the way out."""
    return CannotRun(f"there is no {what} {name!r}: {close_matches(name, known) or way_out}")


_EXTRAS: Final = {
    "z3": "smt",
    "torch": "reference",
    "prometheus_client": "reference",
    "cuda": "gpu",
    "zstandard": "zstd",
    "networkx": "order",
    "hypothesis": "audit",
}
"""What of kvfence's extras brings each package that only some commands need."""


def missing(module: str | None) -> CannotRun:
    """The error for a package that is not installed, by the name of the module that was to be imported."""
    package = (module or "a package").partition(".")[0]
    wanted = f"kvfence[{_EXTRAS[package]}]" if package in _EXTRAS else package
    return CannotRun(f"this needs {package}, which is not installed: run pip install '{wanted}'")
