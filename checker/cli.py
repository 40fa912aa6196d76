"""The command line: parses, calls, prints. Exit codes: 0 holds, 1 violated, 2 cannot run, 3 undetermined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.errors import CannotRun

CANNOT_RUN = 2
INTERRUPTED = 3

app = typer.Typer(
    name="kvfence",
    help="Checks KV-cache offload connectors: their specification, their runs and their traces.",
    epilog="Exit codes: 0 holds, 1 violated, 2 cannot run, 3 undetermined.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """How a report is printed."""

    text = "text"
    json = "json"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvfence {version('kvfence')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kvfence(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return CANNOT_RUN
    return 0


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; every expected error becomes one line on stderr."""
    try:
        return int(app(list(arguments), prog_name="kvfence", standalone_mode=False) or 0)
    except typer.TyperException as error:
        message = f"{error.format_message().rstrip('.')} (see kvfence --help)"
    except CannotRun as error:
        message = str(error)
    print(f"kvfence: {' '.join(message.split())}", file=sys.stderr)
    return CANNOT_RUN


def main() -> None:
    """The ``kvfence`` command."""
    sys.exit(run(sys.argv[1:]))
