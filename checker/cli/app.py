"""The command line: registers the commands, runs one of them, and turns every end into an exit code."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from kvfence import __version__
from kvfence.checker.cli import failures
from kvfence.checker.cli.commands.audit import app as audit
from kvfence.checker.core import interrupts
from kvfence.checker.core.exit_codes import CANNOT_RUN, EXIT_CODES, FAILED, READER_LEFT, SUMMARY
from kvfence.checker.core.interrupts import INTERRUPTED
from kvfence.checker.core.terminal_text import print_err, print_out
from kvfence.spec.errors import CannotRun, missing

COMMANDS = (
    "invariants", "designs", "verify", "mutate", "check", "races", "replay",
    "review", "explain", "explore", "export", "new",
)  # fmt: skip
"""Each is a function in the module of its name."""
REPORTED = f"interrupted: the report covers what was found until then (exit code {INTERRUPTED})"

app = typer.Typer(
    name="kvfence",
    help="Check KV-cache offload connectors: their specification, their runs and their traces.",
    epilog=f"Exit codes: {SUMMARY}",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in COMMANDS:
    app.command()(getattr(import_module(f"kvfence.checker.cli.commands.{command}"), command))
app.add_typer(audit, name="audit")


def _print_version(wanted: bool) -> None:
    if wanted:
        print_out(f"kvfence {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kvfence(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        print_out(context.get_help())
        return CANNOT_RUN
    return 0


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; every error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale may lack characters that reports use
    with interrupts.Watched(), failures.collected_from_threads() as in_threads:
        try:
            code, line = _outcome(list(arguments))
        except KeyboardInterrupt:  # between two instructions at its end
            code, line = INTERRUPTED, ""
        interrupts.stop_raising()
        if interrupts.pressed():
            line = REPORTED if code in EXIT_CODES.values() else interrupts.AT_ONCE
            code = INTERRUPTED
        elif in_threads and code in EXIT_CODES.values():
            code, line = FAILED, failures.failure_line(in_threads[0], arguments)
        if (error := failures.output_error()) is not None:
            code, line = _output_failed(error, arguments, code)
    if line:
        print_err(line)
    return code


def _outcome(arguments: list[str]) -> tuple[int, str]:
    """Runs a command: its exit code, and the line for stderr if it ended with an error."""
    try:
        interrupts.start_raising()
        if sys.flags.optimize > 1:
            raise CannotRun(
                "machines need their docstrings, which python -OO leaves out: start it with -O at most"
            )
        command = typer.main.get_command(app)
        # not by calling it: typer would take a closed pipe for exit code 1
        with command.make_context("kvfence", arguments) as context:
            return int(command.invoke(context) or 0), ""
    except typer.Exit as end:
        return end.exit_code, ""
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "").rstrip(".")
        return CANNOT_RUN, f"{text} (see kvfence --help)"
    except CannotRun as error:
        return CANNOT_RUN, str(error)
    except BaseException as error:  # SystemExit included: no user's code may choose the exit code
        interrupts.stop_raising()
        if interrupts.pressed():
            return INTERRUPTED, interrupts.AT_ONCE
        if (output_error := failures.output_error(error)) is not None:
            return _output_failed(output_error, arguments, FAILED)
        return _unforeseen(error, arguments)


def _unforeseen(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    from kvfence.spec.language import SpecError

    if isinstance(error, SpecError):
        return CANNOT_RUN, str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "kvfence").startswith("kvfence"):
        return CANNOT_RUN, str(missing(error.name))
    return FAILED, failures.failure_line(error, arguments)


def _output_failed(error: OSError, arguments: Sequence[str], code: int) -> tuple[int, str]:
    """The outcome when standard output fails: a reader may leave early, but a full disk hides the verdict."""
    if error.errno == errno.EPIPE:
        return (code if code == INTERRUPTED else READER_LEFT), ""
    what = f"cannot write to standard output: {error.strerror}"
    return FAILED, failures.failure_line(error, arguments, what)
