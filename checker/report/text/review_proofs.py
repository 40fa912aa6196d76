"""How a review says why an invariant holds on a side: proved for any size, or exhausted at given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvfence.checker.analysis.review.facts import Evidence, InvariantReview, MachineReview
from kvfence.checker.core.text_tables import sizes_text

MOST_NAMES = 6
"""Names of lemmas or conditions that a line of text names."""


def evidence(m: MachineReview) -> Iterator[tuple[InvariantReview, Evidence]]:
    """Every invariant of the machine that comes with a reason why it holds, once for each side."""
    for row in m.invariants:
        for found in row.evidence:
            yield row, found


def claim(found: Evidence) -> str:
    """What is certain, and how: never more than that."""
    if found.basis == "proved":
        return f"proved for {_any_size(found)}, by {_work(found)}"
    judged = f"{found.states:,} {'states' if not found.fairness else 'states and all fair runs through them'}"
    at = sizes_text(found.sizes)
    if found.basis == "open":
        return f"neither exhausted nor proved: {found.why}"
    where = f"exhausted at {at} ({judged})" if at else f"exhausted ({judged})"
    return f"{where}{_fair(found)}; for other sizes undetermined: {found.why}"


def brief(found: Evidence) -> str:
    """The same in a few words."""
    if found.basis == "proved":
        return f"proved for any size ({found.questions:,} questions, rechecked{_agreed(found)})"
    if found.basis == "open":
        return "neither exhausted nor proved"
    return f"exhausted at {sizes_text(found.sizes) or 'its one size'}, not proved"


def depends_on(found: Evidence, most: int = MOST_NAMES) -> str:
    """What a proof depends on besides the conditions themselves; empty where it is nothing, or no proof."""
    if found.basis != "proved":
        return ""
    parts = [
        _listed(kind, [spoken(name) for name in names], most)
        for kind, names in (
            ("lemma", [lemma.name for lemma in found.lemmas]),
            ("other condition", found.invariants),
        )
        if names
    ]
    return " and ".join(parts)


def spoken(name: str) -> str:
    """A condition's name as words; a check says which action it is made by."""
    action, dot, check = name.partition(".")
    return f"{check} at {action}" if dot else name.replace("_", " ")


def _listed(kind: str, names: Sequence[str], most: int) -> str:
    shown = "; ".join(names[:most])
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} {kind}{'s' if len(names) > 1 else ''} ({shown}{more})"


def _any_size(found: Evidence) -> str:
    sorts = list(found.sizes)
    if not sorts:
        return "runs of any length"
    named = sorts[0] if len(sorts) == 1 else f"{', '.join(sorts[:-1])} and {sorts[-1]}"
    return f"any number of {named}"


def _work(found: Evidence) -> str:
    many = "questions" if found.questions != 1 else "question"
    return f"induction: {found.questions:,} {many} to z3, decided again by a new one{_agreed(found)}"


def _agreed(found: Evidence) -> str:
    if not found.second:
        return ""
    agreed = found.questions - len(found.second_open)
    return f" and {agreed:,} of them by {found.second}" if found.second_open else f" and by {found.second}"


def _fair(found: Evidence) -> str:
    kinds: dict[str, list[str]] = {}
    for action, kind in found.fairness.items():
        kinds.setdefault(kind, []).append(action)
    if not kinds:
        return ""
    assumed = (f"{kind}ly for {', '.join(actions)}" for kind, actions in kinds.items())
    return f", assuming fairness {' and '.join(assumed)}"
