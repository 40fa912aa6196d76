"""`kvfence check`: judges a recorded trace of a connector."""

from __future__ import annotations

from pathlib import Path

from kvfence.checker.cli.shared.options import Count, Format, print_report, with_help
from kvfence.checker.cli.shared.progress_line import count_progress
from kvfence.checker.core.exit_codes import EXIT_CODES


@with_help(
    {
        "trace": "A trace file: JSON lines, compressed with zstd if its name ends in .zst.",
        "limit": "Stop after this many violations; 0: read to the end of the trace.",
    }
)
def check(trace: Path, limit: Count = 1, output: Format = "text") -> int:
    """Judge a recorded trace of a connector by every invariant that the ledger monitors."""
    from kvfence.checker.ledger.check import check_trace
    from kvfence.checker.report.text.checked import check_text

    with count_progress("events") as progress:
        found = check_trace(trace, limit=limit or None, progress=progress)
    print_report(found, output, check_text)
    return EXIT_CODES[found.verdict]
