"""The report of ``kvfence mutate`` as text: per machine the kill matrix, then what nothing notices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvfence.checker.analysis.mutation.matrix import Matrix, Row, Survivor
from kvfence.checker.analysis.mutation.mutants import Kind
from kvfence.checker.analysis.results import worst
from kvfence.checker.core.text_tables import item, paragraph, sizes_text, table
from kvfence.checker.engines.base import Verdict

KINDS = tuple(Kind)
COLUMNS = ("id", *(kind.name for kind in KINDS), "all", "alone", "first", "condition")
LEGEND = (
    "Mutants that each condition notices, by what was changed: guard: a conjunct of a guard dropped; "
    "fence: a guard weakened inside; update: an assignment dropped; release: a release forgotten; "
    "value: an assignment changed; design: the named designs. "
    "Alone: no other condition notices it; first: in fewer steps than any other."
)


def mutated_text(found: Sequence[Matrix], *, width: int, accepted: bool = False) -> str:
    """All machines; ``accepted``: with the survivors that the machines accept."""
    parts = [part for m in found for part in _machine(m, width, accepted)]
    return "\n\n".join([paragraph(LEGEND, width=width), *parts])


def _machine(m: Matrix, width: int, accepted: bool) -> Iterator[str]:
    tried, killed = sum(m.tried.values()), sum(m.killed.values())
    sizes = "; ".join(f"{sizes_text(s)}: {n:,} states" for s, n in m.states)
    yield item(f"Machine {m.machine}, {sizes}", width)
    yield table(COLUMNS, [*map(cells, m.rows), totals(m)], width=width, right=frozenset(COLUMNS[1:-1]))
    notes = [f"{name(r)} is implied: {implied(r)}" for r in m.rows if r.implied_by]
    notes += [f"{n.replace('_', ' ')} notices nothing: {why}" for n, why in m.accepted_idle.items()]
    unlike = [s for s in m.survivors if accepted or s in m.unexplained]
    notes += [described(s) for s in (*unlike, *m.undetermined)]
    notes += list(m.faults)
    if notes:
        yield "\n".join(item(n, width) for n in notes)
    stopped = f" Stopped, {m.missing} not tried: {m.stopped}." if m.stopped else ""
    lemmas = f" ({m.by_lemma} by lemmas only)" if m.by_lemma else ""
    explained = len(m.survivors) - len(m.unexplained)
    fates = f"{m.same} behave as the machine, {explained} accepted, {len(m.unexplained)} survive"
    yield paragraph(
        f"{m.machine}: {m.verdict}. {tried} mutants: {killed} noticed{lemmas}, {fates}, "
        f"{len(m.undetermined)} undetermined; {m.seconds:.0f} s.{stopped}",
        width=width,
    )


def name(row: Row) -> str:
    """The condition's name, in words where it is a sentence."""
    return row.name if "." in row.name else row.name.replace("_", " ")


def cells(row: Row) -> tuple[str, ...]:
    """A row of the matrix: kills by kind, in all, alone, first."""
    counts = (*(row.kills.get(kind, 0) for kind in KINDS), row.total, row.alone, row.first)
    return (row.invariant, *(str(n) if n else "." for n in counts), name(row))


def totals(m: Matrix) -> tuple[str, ...]:
    """The last row: how many of how many mutants of each kind are noticed."""
    of = [f"{m.killed.get(kind, 0)}/{m.tried.get(kind, 0)}" for kind in KINDS]
    return ("", *of, f"{sum(m.killed.values())}/{sum(m.tried.values())}", "", "", "any condition")


def implied(row: Row) -> str:
    """Why a condition that adds nothing to the others is implied."""
    others = " or ".join(o.replace("_", " ") if "." not in o else o for o in row.implied_by)
    return f"each mutant that it notices is noticed as soon by {others}."


def described(s: Survivor) -> str:
    """A survivor: what it does, and the reason it may."""
    why = f" {s.fate.capitalize()}: {s.why}" if s.why else ""
    return f"{s.name} ({s.kind}). New: {s.new or 'unknown'}.{why}"


def worst_of(found: Sequence[Matrix]) -> Verdict:
    """The verdict on all machines."""
    return worst(m.verdict for m in found) or Verdict.undetermined
