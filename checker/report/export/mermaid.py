"""Exports as Mermaid: state diagrams of a machine's sorts, and sequence diagrams of counterexamples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.core.identifiers import Names
from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.report.diagrams.messages import Message, speaker_of
from kvfence.checker.report.text.verdicts import call
from kvfence.spec.language import Enum, Function, Machine, Sort, SpecError

MOST_STATES = 3000
"""States that are looked at, breadth first, for what an action does to a label."""
_WORDS = """
accdescr acctitle as bt choice class classdef click default direction end fork hide join left lr note of rb rl
right root scale state statediagram style tb td
"""
Moves = dict[tuple[str, str], list[str]]
"""The actions that lead from one label to another."""


def labelled(machine: Machine) -> list[Function]:
    """The functions that give each element of one sort a label: what a state diagram can be drawn of."""
    return [
        f
        for f in machine.functions.values()
        if len(f.domain) == 1 and isinstance(f.domain[0], Sort) and isinstance(f.value, Enum)
    ]


def moves(
    machine: Machine, sizes: Mapping[str, int] | None = None, most: int = MOST_STATES
) -> dict[str, Moves]:
    """By function, which actions change a label into which.

    Looked at are the first ``most`` states at these sizes, and as many where each sort has one element: what
    one element can do mostly shows there.
    """
    out: dict[str, Moves] = {f.name: {} for f in labelled(machine)}
    with contextlib.suppress(SpecError):  # one element of each may be too few for this machine
        _look(machine, dict.fromkeys(machine.sorts, 1), most, out)
    _look(machine, dict(sizes or {}), most, out)
    return out


def _look(machine: Machine, sizes: Mapping[str, int], most: int, out: dict[str, Moves]) -> None:
    run = Interpreter(machine, sizes)
    layout = run.grounded.layout
    fields = [(f, layout.fields[f.name]) for f in labelled(machine)]
    cells = {field.base + k: f for f, field in fields for k in range(field.size)}
    seen: dict[Values, None] = {run.initial(): None}
    for state in (queue := [run.initial()]):  # grows
        for index, after, _ in run.successors(state):
            action = run.instances[index].name
            for cell, f in cells.items():
                if state[cell] != after[cell]:
                    pair = (str(f.value.shown(state[cell])), str(f.value.shown(after[cell])))
                    actions = out[f.name].setdefault(pair, [])
                    if action not in actions:
                        actions.append(action)
            if after not in seen and len(seen) < most and _inside(run, after):
                seen[after] = None
                queue.append(after)


def _inside(run: Interpreter, state: Values) -> bool:
    return all(
        c.lo is None or c.hi is None or c.lo <= value <= c.hi
        for c, value in zip(run.grounded.cells, state, strict=True)
    )


def state_diagram(function: Function, found: Moves) -> str:
    """A Mermaid state diagram of the labels of ``function``."""
    assert isinstance(function.value, Enum)
    first = function.value.shown(function.init.value) if isinstance(function.init.value, int) else ""
    lines = ["stateDiagram-v2"]
    called, names = dict[str, str](), Names(function.value.labels)
    for k, label in enumerate(function.value.labels):
        # words of Mermaid, and letters beyond ASCII, are a text beside a name of ours
        plain = label.isascii() and label.lower() not in _WORDS.split()
        called[label] = label if plain else names.of(label, f"label_{k}")
        if not plain:
            lines.append(f'    state "{label}" as {called[label]}')
    if first:
        lines.append(f"    [*] --> {called[first]}")
    order = {pair: (function.value.encode(pair[0]), function.value.encode(pair[1])) for pair in found}
    for pair in sorted(found, key=order.__getitem__):
        actions = ", ".join(sorted(found[pair]))
        lines.append(f"    {called[pair[0]]} --> {called[pair[1]]}: {actions}")
    return "\n".join(lines)


def sequence_diagram(example: Counterexample) -> str:
    """A Mermaid sequence diagram of a counterexample; what breaks is a note at its end."""
    speak: Any = speaker_of(example.header)
    rows: list[tuple[str, list[Message]]] = []
    for k, step in enumerate(example.steps):
        said = [m for e in step.observed for m in speak(e)]
        again = "repeated forever: " if k == example.loop else ""
        rows.append((f"{again}{step.number}. {call(step.action, step.arguments)}", said))
    lanes = [lane for lane in speak.lanes if any(lane in (m.source, m.to) for _, said in rows for m in said)]
    lanes = lanes or speak.lanes[:1]
    names = {lane: f"L{k}" for k, lane in enumerate(lanes)}
    lines = ["sequenceDiagram", *(f"    participant {names[lane]} as {lane}" for lane in lanes)]
    over = names[lanes[0]] if len(lanes) == 1 else f"{names[lanes[0]]},{names[lanes[-1]]}"
    for title, said in rows or [("the initial state", [])]:
        lines.append(f"    Note over {over}: {_plain(title)}")
        for m in said:
            arrow = "-->>" if m.kind == "answer" and m.source != m.to else "->>"
            lines.append(f"    {names[m.source]}{arrow}{names[m.to]}: {_plain(m.text)}")
    why = example.diagnosis.conjunct or example.condition
    lines.append(f"    Note over {over}: {_plain(f'{example.invariant} is broken: {why}')}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text without the characters that end a statement of Mermaid."""
    return text.replace(";", ",").replace("#", "no. ").replace("\n", " ")
