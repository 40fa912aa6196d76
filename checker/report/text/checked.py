"""The report of ``kvfence check`` as text."""

from __future__ import annotations

from kvfence.checker.core.text_tables import item, paragraph, table
from kvfence.checker.ledger.check import CheckReport
from kvfence.checker.ledger.violation_text import violation_text


def check_text(found: CheckReport, *, width: int) -> str:
    """The verdict on each invariant with the judgements made, every violation kept, and a summary."""
    parts = [checks_table(found.checks, found.violation_counts, dict(found.verdicts), width=width)]
    parts += [violation_text(violation, width=width) for violation in found.violations]
    if found.notes:
        parts.append("\n".join(item(f"{note}.", width) for note in found.notes))
    rate = found.events / found.seconds if found.seconds else 0.0
    work = f"{found.events:,} events, {found.slot_transitions:,} slots named in them"
    summary = f"{found.path}: {found.verdict}. {work}, {found.seconds:.1f} s, {rate:,.0f} events/s."
    return "\n\n".join([*parts, paragraph(summary, width=width)])


def checks_table(
    checks: dict[str, int], violated: dict[str, int], verdicts: dict[str, str], *, width: int
) -> str:
    """Per invariant: the verdict, the judgements made, the violations."""
    rows = [
        (invariant, verdicts[invariant], f"{checks.get(invariant, 0):,}", f"{violated.get(invariant, 0):,}")
        for invariant in sorted(verdicts)
    ]
    right = frozenset({"judgements", "violations"})
    return table(("invariant", "verdict", "judgements", "violations"), rows, width=width, right=right)
