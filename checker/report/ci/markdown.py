"""A review as Markdown, short enough for a pull-request comment."""

from __future__ import annotations

from collections.abc import Iterator

from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.analysis.review.facts import InvariantReview, MachineReview, Review
from kvfence.checker.core.text_tables import sizes_text
from kvfence.checker.report.text import reviewed
from kvfence.checker.report.text.review_proofs import brief, claim, depends_on, evidence
from kvfence.checker.report.text.verdicts import call, shown

MOST_STORIES = 3
MOST_STEPS = 16
MOST_LINES = 12
MOST_REASONS = 4
MOST_LEMMAS = 3
_MARK = {"worse": "❌", "better": "✅", "open": "❔", "same": ""}


def review_markdown(found: Review) -> str:
    """The comment: what changed, a table of what is not the same, stories folded away, lines that differ."""
    out = [f"### kvfence review: `{found.base}` → `{found.change}`: {reviewed.conclusion(found)}", ""]
    for mark, sentences in (("❌", found.worse), ("✅", found.better), ("❔", found.open)):
        out += [f"* {mark} {_code(s)}" for s in sentences]
    if out[-1]:
        out.append("")
    stories = 0
    for m in found.machines:
        out += _machine(m)
        for row in sorted(m.invariants, key=lambda row: row.effect != "worse"):
            if row.story is None or not row.first:
                continue
            stories += 1
            if stories <= MOST_STORIES:
                out += _story(found, row, row.story, opened=stories == 1)
    if stories > MOST_STORIES:
        out += [f"{stories - MOST_STORIES} more stories are in the full report.", ""]
    for m in found.machines:
        out += _lines(m)
    if found.unchanged:
        out += [f"Unchanged: {', '.join(f'`{name}`' for name in found.unchanged)}.", ""]
    return "\n".join(out).rstrip() + "\n"


def _machine(m: MachineReview) -> Iterator[str]:
    sizes = sizes_text(m.sizes)
    yield f"**Machine `{m.machine}`**{f' ({sizes})' if sizes else ''}"
    yield ""
    if m.base is None or m.change is None:
        return
    yield "| | base | change | |"
    yield "|---|---|---|---|"
    same = [row for row in m.invariants if row.effect == "same"]
    for row in m.invariants:
        if row.effect != "same":
            wake = "" if row.first or row.effect != "worse" else ", after another violation"
            base, change = map(reviewed.verdict_shown, (row.base, row.change))
            text = f"{reviewed.meaning(row)}{wake}"
            yield f"| {row.invariant} | {base} | {_MARK[row.effect]} {change} | {text} |"
    if same:
        yield f"| {', '.join(dict.fromkeys(row.invariant for row in same))} | unchanged | unchanged | |"
    yield f"| states | {m.base.states:,} | {m.change.states:,} | |"
    yield ""
    new = reviewed.behaviours_sentence(m.new, "the change")
    lost = reviewed.behaviours_sentence(m.lost, "the base", gone=True)
    yield f"Behaviours {_code(new)}; {_code(lost)}."
    yield ""
    for sentence in reviewed.about_nothing(m):
        yield _code(sentence)
        yield ""
    yield from _holding(m)


def _holding(m: MachineReview) -> Iterator[str]:
    """Why what the change concerns holds: a line for each, the longer ones folded away."""
    reasons = list(evidence(m))
    if not reasons:
        return
    if len(reasons) > MOST_REASONS:
        yield f"<details><summary>Why {len(reasons)} verdicts hold</summary>"
        yield ""
    for row, found in reasons:
        leaning = depends_on(found, MOST_LEMMAS)
        text = claim(found) if len(reasons) <= MOST_REASONS else brief(found)
        text = f"{text}; it depends on {leaning}" if leaning else text
        yield f"* {row.label} in the {found.side}: {_code(text)}."
    yield ""
    if len(reasons) > MOST_REASONS:
        yield from ("</details>", "")


def _story(found: Review, row: InvariantReview, story: Counterexample, *, opened: bool) -> Iterator[str]:
    who = found.change if row.story_of == "change" else found.base
    count = len(story.steps)
    summary = f"<summary>{row.label}: {story.length} of <code>{who}</code></summary>"
    yield f"<details{' open' if opened else ''}>{summary}"
    yield ""
    hidden = range(MOST_STEPS - 1, count - 1) if count > MOST_STEPS else range(0)
    for k, step in enumerate(story.steps):
        if k in hidden:
            if k == hidden.start:
                yield f"   … {len(hidden)} more"
            continue
        if k == story.loop:
            yield "   *repeated forever:*"
        changed = ", ".join(f"{c.name}: {shown(c.before)} → {shown(c.after)}" for c in step.changes[:3])
        more = f" and {len(step.changes) - 3} more" if len(step.changes) > 3 else ""
        after = f" — {changed}{more}" if changed else ""
        yield f"{step.number}. `{call(step.action, step.arguments)}`{after}"
    yield ""
    if story.diagnosis.conjunct:
        yield f"False: `{story.diagnosis.conjunct}`"
    for p in story.diagnosis.prevented[:1]:
        other = "base" if row.story_of == "change" else "change"
        if p.guards:
            yield f"The {other} refuses event {p.step}: `{p.guards[0].text}` ({p.guards[0].where})"
        elif p.updates:
            d = p.updates[0]
            yield f"In the {other}, event {p.step} leaves `{d.name}` {shown(d.sound)}, not {shown(d.here)}."
        else:
            yield f"The {other} has no `{p.action}`."
    yield from ("", "</details>", "")


def _lines(m: MachineReview) -> Iterator[str]:
    if not m.lines:
        return
    yield from (
        f"<details><summary>What differs: {m.lines[0].file.rpartition('/')[2]}</summary>",
        "",
        "```diff",
    )
    for line in m.lines[:MOST_LINES]:
        yield f"{'-' if line.side == 'base' else '+'} {line.line:4} {line.text}"
    yield "```"
    if len(m.lines) > MOST_LINES:
        yield f"and {len(m.lines) - MOST_LINES} more lines"
    yield from ("", "</details>", "")


def _code(sentence: str) -> str:
    """Text that Markdown leaves as it is."""
    return sentence.replace("_", r"\_").replace("*", r"\*").replace("|", r"\|")
