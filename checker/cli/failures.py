"""Unforeseen errors: one line on stderr, which names a private file with the traceback."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kvfence import __version__
from kvfence.checker.core import interrupts
from kvfence.checker.core.exit_codes import FAILED
from kvfence.checker.core.foreign import ForeignExit
from kvfence.spec.errors import named

_MOST = 1_000_000
"""Characters of a traceback that are kept: half from its beginning, half from its end."""


def failure_line(error: BaseException, arguments: Sequence[str], what: str = "") -> str:
    """The line that reports an unforeseen error; writes its traceback to a file that only the user can read.

    ``what``: what happened, in words, where that is known.
    """
    if isinstance(error, ForeignExit):
        what = what or str(error)
    blame = f"{what}; its" if what else f"{named(error)}: this is a fault of kvfence, please report it; the"
    try:
        return f"{blame} traceback is in {_write_traceback(error, arguments)} (exit code {FAILED})"
    except (OSError, MemoryError, RecursionError) as problem:
        why = getattr(problem, "strerror", None) or type(problem).__name__
        return f"{blame} traceback could not be written to a file: {why} (exit code {FAILED})"


def _write_traceback(error: BaseException, arguments: Sequence[str]) -> str:
    import platform
    import shlex
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    if len(text) > _MOST:
        text = f"{text[: _MOST // 2]}\n[...]\n{text[-_MOST // 2 :]}"
    head = (
        f"kvfence {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {shlex.join(['kvfence', *arguments])}\n"
        "To report it: open an issue where kvfence came from, with this file and the input if you can.\n\n"
    )
    # a new name, open for this user only, never through a link
    number, path = tempfile.mkstemp(prefix="kvfence-failure-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(head + text)
    return path


@contextmanager
def collected_from_threads() -> Iterator[list[BaseException]]:
    """Collects errors that end a thread, or that Python ignores (in a callback from C, in ``__del__``)."""
    found: list[BaseException] = []

    def keep(args: Any) -> None:
        error = args.exc_value
        if isinstance(error, KeyboardInterrupt) and interrupts.pressed():
            interrupts.raise_again()
        elif error is not None and not isinstance(error, SystemExit):
            found.append(error)

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = keep
    try:
        yield found
    finally:
        threading.excepthook, sys.unraisablehook = before


def output_error(raised: BaseException | None = None) -> OSError | None:
    """The error of standard output, if any: ``raised`` if writing raised it, or that of flushing the rest.

    After an error standard output leads to the null device, so that Python does not flush it again at exit.
    """
    error = raised if isinstance(raised, OSError) and _came_from_echo(raised) else None
    if sys.stdout is None:
        return error
    try:
        sys.stdout.flush()
    except OSError as flushing:
        error = error or flushing
    except ValueError:  # closed by the caller
        return error
    if error is not None:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
    return error


def _came_from_echo(error: OSError) -> bool:
    import typer  # not at the top: this module reports when it is missing

    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_code is typer.echo.__code__
