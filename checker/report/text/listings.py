"""The catalogue of invariants and the named designs, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvfence.checker.core.text_tables import paragraph, table
from kvfence.spec.catalog import Invariant
from kvfence.spec.designs import Design

# What is wrapped never: the short columns of a listing stay on one line.
UNBROKEN = 1000


def invariants_text(invariants: Iterable[Invariant], *, width: int) -> str:
    """Per invariant: machines that state it, whether traces are judged by it, reports, statement."""
    rows, texts = [], []
    for row in invariants:
        machines, judged = ", ".join(row.machines) or "not yet", "yes" if row.monitored else "not yet"
        rows.append((row.id, machines, judged, str(len(row.reports)), row.title))
        texts.append(row.statement + (f" So far: {row.limits}." if row.limits else ""))
    return _listing(("invariant", "machines", "on traces", "reports", "title"), rows, texts, width)


def designs_text(designs: Iterable[Design], *, width: int) -> str:
    """Per design: the invariant that it breaks, in which machines, public reports, what it does."""
    rows, texts = [], []
    for row in designs:
        rows.append((row.name, row.breaks or "nothing", ", ".join(row.machines), ", ".join(row.reports)))
        texts.append(row.summary)
    return _listing(("design", "breaks", "machines", "public reports"), rows, texts, width)


def _listing(headers: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str], width: int) -> str:
    headline, *lines = table(headers, rows, width=UNBROKEN).split("\n")
    entries = zip(lines, (paragraph(text, width=width, indent="    ") for text in texts), strict=True)
    return "\n".join([headline, *("\n".join(entry) for entry in entries)])
