"""What commands share: options, how a report is printed, and how a folder of files is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.text_tables import terminal_width
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import check_outputs, write_text

Format = Annotated[Literal["text", "json"], typer.Option("--format", help="The format of the report.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="SORT=N", help="The size of a sort, e.g. Block=4; may be repeated."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of a native search. Default: one for each core.")
]
DEFAULT_MEMORY = "2GiB"
DESIGN_HELP = "The design; kvfence designs lists them."


def print_report(found: object, output: str, text: Callable[..., str], **options: Any) -> None:
    """Prints a report as JSON, or as ``text(found, width=..., **options)`` at the width of the terminal."""
    from kvfence.checker.report.jsonreport import as_json

    print_out(as_json(found) if output == "json" else text(found, width=terminal_width(), **options))


def write_folder(folder: Path, files: Mapping[str, str], inputs: Sequence[Path] = ()) -> None:
    """Writes texts by file name into a folder, which is made if need be. CannotRun where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"{folder}: cannot be made: {error.strerror}") from None
    check_outputs({name: folder / name for name in files}, inputs)
    for name, text in files.items():
        write_text(folder / name, text, inputs)
