"""Text on its way to a terminal: all that kvfence prints goes through here."""

from __future__ import annotations

import sys
from contextlib import suppress

from kvfence.spec.files.visible import shortened, visible

_LONGEST_LINE = 4000  # characters of an error


def print_out(text: str) -> None:
    """Print ``text`` on standard output. What its encoding cannot express becomes an escape, too."""
    import typer  # here, as engines import this module too

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(visible(text).encode(encoding, "backslashreplace").decode(encoding))


def print_err(text: str) -> None:
    """Print one line on standard error, after the name of the program, where that can be written."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            line = visible(shortened(" ".join(text.split()), _LONGEST_LINE))
            print(f"kvfence: {line}", file=sys.stderr, flush=True)
