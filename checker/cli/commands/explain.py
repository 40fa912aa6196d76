"""`kvfence explain`: the story of a recorded violation, in words and in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.text_tables import terminal_width
from kvfence.spec.files.outputs import check_outputs, write_text


def explain(
    trace: Annotated[
        Path, typer.Argument(help="A trace or an order trace: JSON lines, or zstd if its name ends in .zst.")
    ],
    which: Annotated[int, typer.Option(min=1, help="Which violation or race to explain.")] = 1,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page, with pictures.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the pictures to this folder, an SVG file each.")
    ] = None,
) -> int:
    """Explain the first violation of a recorded trace: the events that led to it, and who held what.

    Exit code 1 when there is a violation, 0 when there is none.
    """
    from kvfence.checker.analysis.recorded.explain import explain_trace
    from kvfence.checker.report.html.explain_page import explained_html, explained_text, pictures

    check_outputs({"--html": html}, inputs=[trace])
    found = explain_trace(trace, which)
    print_out(explained_text(found, width=terminal_width()))
    if html is not None:
        write_text(html, explained_html(found), inputs=[trace])
    if svg is not None:
        write_pictures(svg, {name: picture for name, (_, picture) in pictures(found).items()}, [trace])
    return EXIT_CODES[found.verdict]


def write_pictures(folder: Path, pictures: dict[str, str], inputs: list[Path]) -> None:
    """Writes each picture to ``NAME.svg`` in a folder, made if need be. CannotRun where that fails."""
    from kvfence.spec.errors import CannotRun

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"{folder}: cannot be made: {error.strerror}") from None
    check_outputs({name: folder / f"{name}.svg" for name in pictures}, inputs)
    for name, text in pictures.items():
        write_text(folder / f"{name}.svg", text, inputs)
