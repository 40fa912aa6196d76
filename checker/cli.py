"""The command line: parses, calls, prints. Exit codes: 0 holds, 1 violated, 2 cannot run, 3 undetermined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from typing import Annotated

import typer

from kvfence.checker.errors import CannotRun
from kvfence.checker.report.jsonreport import as_json
from kvfence.checker.report.listings import designs_text, invariants_text
from kvfence.checker.report.table import terminal_width
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS

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
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return CANNOT_RUN
    return 0


FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


@app.command()
def invariants(output: FormatOption = Format.text) -> int:
    """List the invariants, where each is checked, and how many public reports it would have caught."""
    if output is Format.json:
        typer.echo(as_json(INVARIANTS))
    else:
        typer.echo(invariants_text(INVARIANTS, width=terminal_width()))
    return 0


@app.command()
def designs(output: FormatOption = Format.text) -> int:
    """List the named designs: the sound one, and one for each fault that a machine can express."""
    if output is Format.json:
        typer.echo(as_json(list(DESIGNS.values())))
    else:
        typer.echo(designs_text(DESIGNS.values(), width=terminal_width()))
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
