"""What commands share: options, how a report is printed, and how a folder of files is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

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
File = Annotated[Path | None, typer.Option(metavar="FILE")]
Folder = Annotated[Path | None, typer.Option(metavar="DIR")]
Count = Annotated[int, typer.Option(min=0)]
Command = TypeVar("Command", bound=Callable[..., int])
DEFAULT_MEMORY = "2GiB"
DESIGN_HELP = "The design; kvfence designs lists them."


def with_help(texts: Mapping[str, str]) -> Callable[[Command], Command]:
    """Gives parameters of a command, by name, the help text of their option, or argument where required."""

    def explained(p: inspect.Parameter) -> inspect.Parameter:
        if p.name not in texts:
            return p
        kind, *infos = get_args(p.annotation) if get_origin(p.annotation) is Annotated else (p.annotation,)
        given = typer.Argument() if p.default is p.empty else typer.Option()
        info = copy(infos[0]) if infos else given
        info.help = texts[p.name]
        return p.replace(annotation=Annotated[kind, info])

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [explained(p) for p in signature.parameters.values()]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return add


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
