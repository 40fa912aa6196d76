"""A review as GitHub workflow commands: errors, warnings and notices at the lines that differ."""

from __future__ import annotations

from kvfence.checker.analysis.review.facts import InvariantReview, MachineReview, Review
from kvfence.checker.report.text.review_proofs import claim
from kvfence.checker.report.text.reviewed import TITLES, conclusion
from kvfence.checker.report.text.verdicts import call

MOST_STEPS = 12
"""Steps of a story that an annotation has."""


VERBS = {"worse": "violated by the change", "better": "violated no more", "open": "undetermined"}


def github_annotations(found: Review) -> str:
    """One workflow command a line: what is worse is an error, what is open a warning, the rest notices."""
    lines = []
    for m in found.machines:
        for row in m.invariants:
            level = {"worse": "error", "open": "warning", "better": "notice"}.get(row.effect)
            if level:
                lines.append(_command(level, *place(m), title(row, m), message(row)))
        lost = [("goal", f"{goal.replace('_', ' ')} is never reached") for goal in m.goals_lost]
        lost += [("action", f"{name} is never taken") for name in m.actions_lost]
        lines += [_command("error", *place(m), f"{m.machine}: {what} lost", text) for what, text in lost]
        for note in m.notes:
            lines.append(_command("warning", *place(m), f"{m.machine}: undetermined", note))
    text = f"{found.base} -> {found.change}: {conclusion(found)}"
    lines.append(_command("notice", "", 0, "kvfence review", text))
    return "\n".join(lines)


def place(m: MachineReview) -> tuple[str, int]:
    """The file and the line that the change can be blamed on; ("", 0) when it is in no file of this tree."""
    for side in ("change", "base"):
        for line in m.lines:
            if line.side == side and ":" not in line.file:
                return line.file, line.line
    for d in m.differences:
        file, _, number = d.where.rpartition(":")
        if file and ":" not in file and number.isdigit():
            return file, int(number)
    return "", 0


def title(row: InvariantReview, m: MachineReview) -> str:
    """What happened to which invariant, in a few words."""
    verb = VERBS[row.effect]
    return f"{row.label} {verb} ({m.machine})"


def message(row: InvariantReview) -> str:
    """The invariant, the shortest story in one sentence, and why it holds where it does."""
    sentence = TITLES.get(row.invariant) or row.sentence or (row.conditions[0] if row.conditions else "")
    text = f"{row.invariant}: {sentence.removesuffix('.')}."
    return " ".join((f"{text}{_story(row)}", *reasons(row)))


def reasons(row: InvariantReview) -> list[str]:
    """Why the invariant holds, a sentence for each side on which it does."""
    return [f"In the {found.side}: {claim(found)}." for found in row.evidence]


def _story(row: InvariantReview) -> str:
    if row.story is None:
        return ""
    steps = [call(s.action, s.arguments) for s in row.story.steps]
    shown = steps if len(steps) <= MOST_STEPS else [*steps[: MOST_STEPS - 1], "…", steps[-1]]
    conjunct = row.story.diagnosis.conjunct
    why = f" False then: {conjunct}." if conjunct else ""
    after = f"After {row.story.length}: {', '.join(shown)}" if steps else "In the initial state"
    return f" {after}.{why}"


def _command(level: str, file: str, line: int, title: str, text: str) -> str:
    where = f"file={_property(file)},line={line}," if file else ""
    return f"::{level} {where}title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
