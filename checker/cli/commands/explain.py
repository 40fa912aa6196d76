"""`kvfence explain`: the story of a recorded violation, in text and in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import File, Folder, with_help, write_folder
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.core.terminal_text import print_out
from kvfence.checker.core.text_tables import terminal_width
from kvfence.spec.files.outputs import check_outputs, write_text


@with_help(
    {
        "trace": "A trace or an order trace: JSON lines, compressed with zstd if its name ends in .zst.",
        "which": "Explain the Nth violation or race.",
        "html": "Write one HTML page, with pictures.",
        "svg": "Write each picture to this folder as an SVG file.",
    }
)
def explain(
    trace: Path,
    which: Annotated[int, typer.Option(min=1, metavar="N")] = 1,
    html: File = None,
    svg: Folder = None,
) -> int:
    """Explain a violation of a recorded trace: the events that led to it, and the holders of each slot.

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
        files = {f"{name}.svg": picture for name, (_, picture) in pictures(found).items()}
        write_folder(svg, files, [trace])
    return EXIT_CODES[found.verdict]
