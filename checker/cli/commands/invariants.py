"""`kvfence invariants`: lists the catalogue."""

from __future__ import annotations

from kvfence.checker.cli.shared.options import Format, print_report


def invariants(output: Format = "text") -> int:
    """List the invariants, where each is checked, and how many public reports it would have caught."""
    from kvfence.checker.report.text.listings import invariants_text
    from kvfence.spec.catalog import INVARIANTS

    print_report(INVARIANTS, output, invariants_text)
    return 0
