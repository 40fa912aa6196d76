"""`kvfence designs`: lists the named designs."""

from __future__ import annotations

from kvfence.checker.cli.shared.options import Format, print_report


def designs(output: Format = "text") -> int:
    """List the named designs: the sound one, and one for each fault that a machine can have."""
    from kvfence.checker.report.text.listings import designs_text
    from kvfence.spec.designs import DESIGNS

    print_report(list(DESIGNS.values()), output, designs_text)
    return 0
