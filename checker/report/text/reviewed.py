"""The report of `kvfence review` as text: verdicts side by side, stories, behaviours, and what differs."""

from __future__ import annotations

from collections.abc import Iterator

from kvfence.checker.analysis.review.facts import Behaviours, InvariantReview, MachineReview, Review
from kvfence.checker.core.text_tables import item, paragraph, sizes_text, table
from kvfence.checker.engines.base import Verdict
from kvfence.checker.report.text.review_proofs import claim, depends_on, evidence, spoken
from kvfence.checker.report.text.verdicts import BUILT_IN, counterexample_text
from kvfence.spec.catalog import INVARIANTS

MOST_LINES = 40
"""Lines of a specification that are shown."""
TITLES = {row.id: row.title for row in INVARIANTS} | BUILT_IN
EXIT_CODES = {"same": 0, "different": 0, "better": 0, "worse": 1, "mixed": 1, "undetermined": 3}


def review_text(found: Review, *, width: int) -> str:
    """The whole report."""
    parts = [
        item(f"{side} {name}{f': {about}' if about else '.'}", width)
        for side, name, about in (
            ("Base", found.base, found.base_summary),
            ("Change", found.change, found.change_summary),
        )
    ]
    for machine in found.machines:
        parts += _machine(found, machine, width)
    if found.unchanged:
        same = f"The same on both sides: {', '.join(found.unchanged)}."
        parts.append(item(same, width))
    parts.append(_summary(found, width))
    return "\n\n".join(part for part in parts if part)


def conclusion(found: Review) -> str:
    """The verdict in a sentence."""
    return {
        "same": "no difference: the machines are equal",
        "different": "the machines differ, and no verdict changes",
        "better": "better",
        "worse": "worse",
        "mixed": "some better, some worse",
        "undetermined": "undetermined",
    }[found.verdict]


def behaviours_sentence(these: Behaviours, side: str, *, gone: bool = False) -> str:
    """What the search for behaviours of one side alone found, in a sentence."""
    kind = "lost" if gone else "new"
    if these.found:
        first = these.found[0]
        more = f" ({len(these.found) - 1} more of this length)" if len(these.found) > 1 else ""
        return f"{kind}: only {side} can take {first.steps[-1]} as step {len(first.steps)}{more}"
    if these.complete:
        return f"{kind}: none; every run of {side} is also a run of the other side"
    reach = f"in {these.states:,} pairs of states" if these.states else ""
    return f"{kind}: none found {reach}; not all pairs were examined ({these.why})".replace("  ", " ")


def verdict_shown(verdict: Verdict | None) -> str:
    """A verdict, or that the side does not state the condition."""
    return str(verdict) if verdict is not None else "not stated"


def meaning(row: InvariantReview) -> str:
    """What an invariant is about; of a liveness property, its name and the sizes at which it was checked."""
    if row.kind == "safety":
        return TITLES.get(row.invariant, row.sentence)
    at = sizes_text(row.sizes)
    return f"liveness: {row.conditions[0].replace('_', ' ')}{f' (judged at {at})' if at else ''}"


def remark(row: InvariantReview) -> str:
    """What the change does to an invariant, in a word or two."""
    if row.effect == "worse" and not row.first:
        return "worse, after another violation"
    return "" if row.effect == "same" else row.effect


def about_nothing(m: MachineReview) -> Iterator[str]:
    """Sentences on the conditions that are undetermined because they speak of nothing that is reached."""
    for side, facts in (("base", m.base), ("change", m.change)):
        for name in facts.vacuous if facts else ():
            yield f'In the {side}, no state meets the premise of "{spoken(name)}", so it is vacuous there.'


def _machine(found: Review, m: MachineReview, width: int) -> Iterator[str]:
    sizes = sizes_text(m.sizes)
    yield f"Machine {m.machine} ({sizes})" if sizes else f"Machine {m.machine}"
    if m.base is None or m.change is None:
        yield "\n".join(paragraph(f"{note}.", width=width) for note in m.notes)
        return
    rows = [
        (i.invariant, verdict_shown(i.base), verdict_shown(i.change), remark(i), meaning(i))
        for i in m.invariants
    ]
    for name in ("states", "transitions"):
        a, b = getattr(m.base, name), getattr(m.change, name)
        rows.append((name, f"{a:,}", f"{b:,}", "", _ratio(a, b)))
    yield table(("invariant", "base", "change", "effect", "meaning"), rows, width=width)
    yield "\n".join(item(line, width) for line in _remarks(m))
    yield _holding(m, width)
    for row in m.invariants:
        if row.story is not None:
            yield _story(found, row, width)
    for these, gone in ((m.new, False), (m.lost, True)):
        if these.found:
            yield _behaviour(these, gone, width)
    if m.lines or m.differences:
        yield _differences(m, width)


def _remarks(m: MachineReview) -> Iterator[str]:
    if m.base is not None and m.base.symmetry:
        yield f"States that differ in names of {', '.join(m.base.symmetry)} count as one."
    for goals, how in ((m.goals_lost, "no longer reached"), (m.goals_gained, "reached now")):
        for goal in goals:
            yield f"Goal {how}: {goal.replace('_', ' ')}."
    for actions, how in ((m.actions_lost, "no longer taken"), (m.actions_gained, "taken now")):
        if actions:
            yield f"Actions {how}: {', '.join(actions)}."
    yield f"Behaviours {behaviours_sentence(m.new, 'the change')}."
    yield f"Behaviours {behaviours_sentence(m.lost, 'the base', gone=True)}."
    yield from about_nothing(m)
    for note in m.notes:
        yield f"{note[:1].upper()}{note[1:]}."


def _holding(m: MachineReview, width: int) -> str:
    """Why what the change concerns holds, on each side where it does."""
    lines = []
    for row, found in evidence(m):
        sentence = f"{row.label} in the {found.side}: {claim(found)}."
        leaning = depends_on(found)
        text = f"{sentence} The proof depends on {leaning}." if leaning else sentence
        lines.append(item(text, width, 2))
    return "\n".join(["Why it holds:", *lines]) if lines else ""


def _ratio(a: int, b: int) -> str:
    return f"{b / a:.2f} times as many" if a and not 0.95 < b / a < 1.05 else ""


def _story(found: Review, row: InvariantReview, width: int) -> str:
    assert row.story is not None
    name = found.change if row.story_of == "change" else found.base
    other = "base" if row.story_of == "change" else "change"
    text = counterexample_text(row.story, name, width=width)
    return text.replace("The sound design", f"The {other}").replace("In the sound design", f"In the {other}")


def _behaviour(these: Behaviours, gone: bool, width: int) -> str:
    first = these.found[0]
    side, other = ("base", "change") if gone else ("change", "base")
    lines = [f"A shortest run that only the {side} has:", ""]
    for number, step in enumerate(first.steps, 1):
        lines.append(f"{number:3}. {step}")
        if step.doc:
            lines.append(paragraph(step.doc, width=width, indent=" " * 5))
    event, why = f"event {len(first.steps)}", " and ".join(first.refused)
    refusal = f"The {other} refuses {event}: it requires {why}."
    lines.append(item(refusal, width) if why else f"The {other} cannot take {event}.")
    return "\n".join(lines)


def _differences(m: MachineReview, width: int) -> str:
    out = ["What differs in the specification:"]
    file = ""
    for line in m.lines[:MOST_LINES]:
        if line.file != file:
            file = line.file
            out.append(f"  {file}")
        out.append(f"  {'-' if line.side == 'base' else '+'}{line.line:5} {line.text}"[:width])
    if len(m.lines) > MOST_LINES:
        out.append(f"  and {len(m.lines) - MOST_LINES} more lines")
    for d in () if m.lines else m.differences:
        text = f"{d.what}: {d.base or 'nothing'} -> {d.change or 'nothing'}"
        out.append(item(f"{text} ({d.where})" if d.where else text, width, 2))
    return "\n".join(out)


def _summary(found: Review, width: int) -> str:
    out = [f"{found.base} -> {found.change}: {conclusion(found)}. {found.seconds:.1f} s."]
    for label, sentences in (("Worse", found.worse), ("Better", found.better), ("Open", found.open)):
        out += [item(f"{label}: {s}.", width) for s in sentences]
    if found.only_change:
        out.append(f"New machines, not compared: {', '.join(found.only_change)}.")
    return "\n".join(out)
