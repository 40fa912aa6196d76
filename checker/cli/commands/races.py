"""`kvfence races`: finds accesses that nothing orders in a recorded order trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvfence.checker.cli.shared.options import Count, Format, print_report, with_help
from kvfence.checker.cli.shared.progress_line import count_progress
from kvfence.checker.core.exit_codes import EXIT_CODES


@with_help(
    {
        "trace": "An order trace: JSON lines, compressed with zstd if its name ends in .zst.",
        "limit": "Stop after this many different races; 0: read to the end.",
        "explain": "Explain the first N races, each with a schedule that corrupts data.",
    }
)
def races(
    trace: Path,
    limit: Count = 0,
    explain: Annotated[int, typer.Option(min=0, metavar="N")] = 0,
    output: Format = "text",
) -> int:
    """Find accesses to the same memory that nothing orders, in a recorded trace of threads and streams."""
    from kvfence.checker.adapters.reference import execute
    from kvfence.checker.order.race_check import check_order_trace, explained
    from kvfence.checker.report.text.raced import races_text
    from kvfence.spec.files.traces import read_again

    if explain:
        read_again(trace, "kvfence races --explain")
    with count_progress("events") as progress:
        found = check_order_trace(trace, limit=limit or None, progress=progress)
    if explain:
        found = explained(found, explain, execute)
    print_report(found, output, races_text)
    return EXIT_CODES[found.verdict]
