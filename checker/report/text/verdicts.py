"""The report of ``kvfence verify`` as text: a table machine by invariant, then each counterexample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kvfence.checker.analysis.results import Counterexample, MachineFacts, Value, Verification, own_titles
from kvfence.checker.core.text_tables import item, paragraph, sizes_text, table
from kvfence.checker.engines.base import Verdict, only_because
from kvfence.checker.report.text.proofs import proof_remarks, verdict_with_time, work_rows
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.language import LEMMA

# Conditions that are in no catalogue.
BUILT_IN = {
    LEMMA: "what proofs assume besides the invariants",
    "DEADLOCK": "every state has a step, or may be the last",
    "RANGE": "no value leaves its declared range",
}
NOT_STATED = "-"
OTHER_COLUMNS = 46  # the invariants, and what they mean


def verification_text(found: Verification, *, width: int) -> str:
    """The whole report."""
    known = f" Known from {', '.join(found.reports)}." if found.reports else ""
    title = paragraph(f"Design {found.design}: {found.summary}{known}", width=width)
    parts = [title, _table(found, width), *_remarks(found, width)]
    for example in found.counterexamples:
        if example.invariant in (found.expected, "") or found.expected not in _broken(found, example.machine):
            parts.append(counterexample_text(example, found.design, width=width))
        else:
            parts.append(_also(example, width))
    parts.append(_summary(found, width))
    return "\n\n".join(parts)


def _table(found: Verification, width: int) -> str:
    """A row for each invariant and a column for each machine, in several tables if the width asks for it."""
    parts = _side_by_side(found.machines, width)
    return "\n\n".join(_table_of(part, found.not_yet if part is parts[0] else (), width) for part in parts)


def _side_by_side(machines: tuple[MachineFacts, ...], width: int) -> list[tuple[MachineFacts, ...]]:
    """The machines in as many parts as it takes for the columns of each to fit."""
    parts: list[tuple[MachineFacts, ...]] = [()]
    left = room = width - OTHER_COLUMNS
    for machine in machines:
        cells = (machine.machine, f"{machine.transitions:,}", str(machine.verdict))
        needed = 2 + max(map(len, cells))
        if needed > left and parts[-1]:
            parts.append(())
            left = room
        parts[-1] = (*parts[-1], machine)
        left -= needed
    return parts


def _table_of(machines: tuple[MachineFacts, ...], not_yet: tuple[str, ...], width: int) -> str:
    titles = {row.id: row.title for row in INVARIANTS} | own_titles(machines) | BUILT_IN
    stated = {condition.invariant for machine in machines for condition in machine.conditions}
    rows: list[tuple[str, ...]] = []
    for id_, title in titles.items():
        if id_ in stated:
            verdicts = (verdict_with_time(machine, id_) or NOT_STATED for machine in machines)
            rows.append((id_, *verdicts, title))
        elif id_ in not_yet:
            rows.append((id_, *("not yet" for _ in machines), title))
    rows.append(("", *("" for _ in machines), ""))
    rows += work_rows(machines) if all(machine.proof for machine in machines) else _explored(machines)
    rows.append(("seconds", *(f"{machine.seconds:.1f}" for machine in machines), ""))
    rows.append(("verdict", *(str(machine.verdict) for machine in machines), ""))
    return table(("invariant", *(machine.machine for machine in machines), "meaning"), rows, width=width)


def _explored(machines: tuple[MachineFacts, ...]) -> list[tuple[str, ...]]:
    return [
        ("states", *(f"{machine.states:,}" for machine in machines), "reached, and each judged"),
        ("transitions", *(f"{machine.transitions:,}" for machine in machines), "steps taken from them"),
        ("depth", *(str(machine.depth) for machine in machines), "steps to the farthest state"),
    ]


def _remarks(found: Verification, width: int) -> Iterator[str]:
    remarks = []
    for machine in found.machines:
        sizes = sizes_text(machine.sizes)
        sizes = f"any sizes; counterexamples at {sizes}" if machine.proof and sizes else sizes or "any sizes"
        remarks.append(f"{machine.machine}: {sizes}; engine {machine.engine}.")
        if machine.note:
            remarks.append(f"{machine.machine}: {machine.note}.")
        if machine.symmetry:
            names = ", ".join(machine.symmetry)
            reduced = f"reduced by symmetry; states that differ in names of {names} count as one"
            remarks.append(f"{machine.machine}: {reduced}.")
        if machine.stopped:
            remarks.append(f"{machine.machine} stopped early: {machine.stopped}.")
        remarks += proof_remarks(machine)
        remarks += _liveness_remarks(machine)
        remarks += [f"{machine.machine}: {text}." for text in machine.undeclared.values()]
        if machine.states_nothing:
            stated = "no invariant, check or liveness property"
            remarks.append(f"{machine.machine} states {stated}; nothing was judged.")
        if machine.judged_none:
            remarks.append(f"{machine.machine}: nothing that it states was judged here.")
        if not (machine.stopped and machine.verdict is Verdict.violated):
            remarks += unseen(machine)
    if found.not_begun:
        remarks.append(f"Interrupted before {', '.join(found.not_begun)}.")
    named = {condition.invariant for machine in found.machines for condition in machine.conditions}
    remarks += [f"{row.id} so far: {row.limits}." for row in INVARIANTS if row.limits and row.id in named]
    yield "\n".join(item(remark, width) for remark in remarks)


def unseen(machine: MachineFacts) -> Iterator[str]:
    """What was never taken, reached, met or evaluated, in sentences; and which other engine looked."""
    name, by = machine.machine, machine.searched
    cut = by.stopped if by else None
    if by:
        sizes = sizes_text(by.sizes)
        work = f"{f'at {sizes} ' if sizes else ''}by engine {by.engine}, {by.states:,} states"
        early = f"; stopped early: {cut}" if cut else ""
        yield f"{name}: actions, goals and premises were searched {work}{early}."
    never = "was not seen to have" if cut else "never"
    if machine.never_taken:
        yield f"{name} {never} {'taken' if cut else 'took'}: {', '.join(machine.never_taken)}."
    if machine.goals_missed:
        yield f"{name} {never} reached its goal: {', '.join(machine.goals_missed)}."
    if machine.unevaluated:
        yield f"{name} {never} evaluated: {', '.join(machine.unevaluated)}."
    for condition in machine.unmet if cut else machine.vacuous:
        yield f"{name}: {condition} {only_because(machine.unmet.get(condition, ''), sure=not cut)}."


def _liveness_remarks(machine: MachineFacts) -> Iterator[str]:
    if machine.engine == "liveness":
        others = "other conditions, deadlocks and ranges were not"
        yield f"{machine.machine}: only liveness properties were judged; {others}."
    if machine.promised:
        sizes = sizes_text(machine.promised.sizes)
        stopped = f"; stopped early: {machine.promised.stopped}" if machine.promised.stopped else ""
        at = f"{sizes or 'any sizes'} ({machine.promised.states:,} states){stopped}"
        yield f"{machine.machine}: liveness properties, under fairness, checked at {at}."
    if machine.unjudged:
        names = ", ".join(machine.unjudged)
        yield f"{machine.machine}: liveness properties not judged here, but by engine liveness: {names}."


def counterexample_text(example: Counterexample, design: str, *, width: int) -> str:
    """A counterexample as numbered events: the step, its meaning, the values that it changed."""
    count = len(example.steps)
    head = f"{example.invariant} is violated in machine {example.machine} by design {design}: "
    shorter = f", {example.left_out} more left out" if example.left_out else ", the fewest possible"
    length = f"{example.length}{shorter if count else ''}."
    lines = [paragraph(f"{head}{length}", width=width), ""]
    if not count:
        lines += _in_columns(example.start, width, "    ")
    for step in example.steps:
        if step.number - 1 == example.loop:
            lines.append("     Repeated forever:")
        lines.append(f"{step.number:3}. {call(step.action, step.arguments)}")
        if step.doc:
            lines.append(paragraph(step.doc, width=width, indent=" " * 5))
        changed = (f"{c.name}: {shown(c.before)} -> {shown(c.after)}" for c in step.changes)
        lines += _in_columns(changed, width, " " * 9)
    if example.loop == count:
        lines.append("     Nothing more happens.")
    lines += [""] if lines[-1] else []
    broken = f"Broken: {example.invariant}, {example.name.replace('_', ' ')}: {example.condition}"
    lines.append(item(broken, width))
    if example.values:
        when = " before the last event" if example.read_before_last_step else ""
        lines.append(f"Values{when} that make it false:")
        lines += _in_columns(example.values, width, "    ")
    lines += _diagnosed(example, width)
    if example.untold:
        lines.append(item(f"Cannot be written as a trace: {example.untold}.", width))
    return "\n".join(lines).rstrip()


def _diagnosed(example: Counterexample, width: int) -> Iterator[str]:
    """What is false and why, the step that made it so, and what a sound design does instead."""
    found, names = example.diagnosis, {step.number: step.action for step in example.steps}
    if found.conjunct:
        yield item(f"False: {found.conjunct}", width)
        yield from _in_columns([f"{p.text} = {shown(p.value)}" for p in found.parts], width, "    ")
    if found.made_by is not None:
        yield f"Became false with event {found.made_by}, {names[found.made_by]}."
    for p in found.prevented:
        if p.no_such_action:
            text = f"The sound design has no {p.action} (event {p.step})."
        elif p.guards:
            guards = " and ".join(f"`{g.text}` ({g.where})" for g in p.guards)
            text = f"The sound design refuses event {p.step}, {p.action}: it requires {guards}, false there."
        else:
            updates = ", ".join(f"{d.name} is {shown(d.sound)}, here {shown(d.here)}" for d in p.updates)
            text = f"In the sound design, after event {p.step}, {p.action}: {updates}."
        yield item(text, width)
    if found.due:
        text = f"The sound design continues from there: it eventually takes {' or '.join(found.due)}."
        yield item(text, width)


def call(action: str, arguments: Mapping[str, Value]) -> str:
    """A step as the report prints it."""
    return f"{action}({', '.join(f'{name}={shown(value)}' for name, value in arguments.items())})"


def shown(value: Value) -> str:
    """A value as the report prints it: ``true`` and ``false`` as in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_columns(values: Mapping[str, Value] | Iterable[str], width: int, indent: str) -> Iterator[str]:
    """Texts, or names with their values, as many to a line as fit."""
    texts = (f"{name} = {shown(v)}" for name, v in values.items()) if isinstance(values, Mapping) else values
    line = ""
    for text in texts:
        if line and len(indent) + len(line) + 2 + len(text) > width:
            yield indent + line
            line = ""
        line = f"{line}  {text}" if line else text
    if line:
        yield indent + line


def _broken(found: Verification, machine: str) -> set[str]:
    return {example.invariant for example in found.counterexamples if example.machine == machine}


def _also(example: Counterexample, width: int) -> str:
    """A violation besides the one that the design is known for; JSON has its events too."""
    after = f"after {example.length}" if example.steps else example.length
    where = f"Also violated in machine {example.machine}, {after}"
    text = f"{where}: {example.invariant}, {example.name.replace('_', ' ')}."
    return item(text, width)


def _summary(found: Verification, width: int) -> str:
    states = sum(machine.states for machine in found.machines)
    transitions = sum(machine.transitions for machine in found.machines)
    work = f"{states:,} states, {transitions:,} transitions, {found.seconds:.1f} s."
    if _proved(found):
        questions = sum(machine.proof.questions for machine in found.machines if machine.proof)
        work = f"{questions:,} questions, {found.seconds:.1f} s."
    return paragraph(f"{found.design}: {found.verdict}. {_meaning(found)} {work}", width=width)


def _proved(found: Verification) -> bool:
    return bool(found.machines) and all(machine.proof for machine in found.machines)


def _meaning(found: Verification) -> str:
    broken = sorted({example.invariant for example in found.counterexamples})
    if found.expected in broken:
        return f"It breaks {found.expected}, as expected."
    every = "Every condition of these machines"
    if any(machine.unjudged for machine in found.machines):
        every += ", liveness properties excepted,"
    if found.verdict is Verdict.holds and all(machine.engine == "liveness" for machine in found.machines):
        return "Every liveness property of these machines holds in every fair run at these sizes."
    if found.verdict is Verdict.holds and _proved(found):
        return f"{every} is proved for sorts of any size and runs of any length."
    meaning = {
        Verdict.holds: f"{every} holds in every state reachable at these sizes.",
        Verdict.violated: f"It breaks {', '.join(broken)}.",
        Verdict.undetermined: "The question is open: the remarks above say what is missing.",
    }[found.verdict]
    missed = f" {found.expected}, which it is known to break, was not violated." if found.expected else ""
    return f"{meaning}{missed}"
