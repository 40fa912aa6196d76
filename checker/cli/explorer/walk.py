"""A walk through a machine: the state after a list of action indexes, and what can be said of it.

Nothing is explored in advance: a position is reached by taking its steps. Indexes are those of the machine's
actions with their arguments, in the order in which the interpreter lists them; they depend on the machine and
its sizes only, so a link with them leads to the same place again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvfence.checker.analysis.counterexamples import reasons
from kvfence.checker.analysis.diagnosis import false_guards
from kvfence.checker.analysis.named_specs import named_spec
from kvfence.checker.analysis.verify import machines_for
from kvfence.checker.core.names import SOUND
from kvfence.checker.engines.base import Path
from kvfence.checker.engines.explicit.interpret import Interpret, Interpreter, Values
from kvfence.checker.engines.native import Native
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import Instance, Machine, changes, flat
from kvfence.spec.language.evaluate import Evaluator
from kvfence.spec.language.nodes import Node
from kvfence.spec.language.view import FieldLayout
from kvfence.spec.machines import MACHINES

SLOTS: Final = ("Block", "Slot", "Host")
"""Sorts whose elements are shown as a row of slots, in this order of preference."""
MOST_STEPS: Final = 2_000
MEMORY: Final = 2 << 30

Json = dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """One step of a walk."""

    instance: Instance
    before: Values
    after: Values
    failed: tuple[str, ...]


@dataclass
class Explorer:
    """Positions of one machine in several designs, ``machines`` by design; ``sizes`` by sort."""

    machines: Mapping[str, Machine]
    sizes: Mapping[str, int]
    _walkers: dict[str, Interpreter] = field(default_factory=dict)
    _found: dict[str, dict[str, Path]] = field(default_factory=dict)

    @property
    def designs(self) -> list[str]:
        """The designs that can be walked, the first one first."""
        return list(self.machines)

    def walker(self, design: str) -> Interpreter:
        """The interpreter of a design. CannotRun for one that is not there."""
        if design not in self.machines:
            raise unknown("design", design, self.machines, f"there is {', '.join(self.machines)}")
        if design not in self._walkers:
            machine = self.machines[design]
            own = {sort: n for sort, n in self.sizes.items() if sort in machine.sorts}
            self._walkers[design] = Interpreter(machine, own)
        return self._walkers[design]

    def position(self, design: str, path: Sequence[int], other: str | None = None) -> Json:
        """Everything about the state after ``path``; CannotRun for a step that cannot be taken.

        ``other``: a design whose state after the same actions is compared.
        """
        walker = self.walker(design)
        taken = self._walk(walker, path)
        state = taken[-1].after if taken else walker.initial()
        machine = walker.machine
        enabled = walker.enabled(state)
        terminal = not enabled and walker.terminal(state)
        differing, beside = self._compared(walker, taken, state, other) if other else ({}, None)
        found: Json = {
            "machine": machine.name,
            "doc": (machine.doc or "").strip().split("\n\n")[0],
            "design": design,
            "designs": self.designs,
            "sizes": dict(walker.sizes),
            "path": list(path),
            "steps": [_step(walker, one) for one in taken],
            "tables": _tables(walker, state, differing),
            "slots": _slots(walker, state),
            "actions": [{"index": i.index, "name": str(i), "doc": _first(i.action.doc)} for i in enabled],
            "stuck": "" if enabled else ("an end" if terminal else "a deadlock"),
            "invariants": _conditions(walker, state, taken),
            "goals": _goals(walker, state),
            "jumps": _jumps(machine),
        }
        if beside:
            found["other"] = beside
        return found

    def search(self, design: str, name: str) -> list[int]:
        """The indexes of a shortest path to a violation of ``name`` or to the goal of that name.

        CannotRun when there is none; the whole machine is searched the first time that a design is asked.
        """
        walker = self.walker(design)
        if design not in self._found:
            result = Native(threads=1).run(walker.machine, walker.sizes, until="end", memory=MEMORY)
            if result.overflow:  # too much for 64 bits
                result = Interpret().run(walker.machine, walker.sizes, until="end", memory=MEMORY)
            paths = {one.name: one.path for one in result.findings.values() if one.path is not None}
            if result.deadlock is not None:
                paths["deadlock"] = result.deadlock
            self._found[design] = {**paths, **result.witnesses}
        path = self._found[design].get(name)
        if path is None:
            raise CannotRun(f"{design} has no way to {name.replace('_', ' ')} at these sizes")
        return [walker.find(step.action, **step.args).index for step in path.steps]

    def translate(self, design: str, path: Sequence[int], to: str) -> list[int]:
        """The indexes of the same actions in another design, as far as it has and allows them."""
        taken = self._walk(self.walker(design), path)
        return [instance.index for instance, _ in _followed(self.walker(to), taken)]

    def _walk(self, walker: Interpreter, path: Sequence[int]) -> list[Taken]:
        if len(path) > MOST_STEPS:
            raise CannotRun(f"a path of {len(path)} steps: at most {MOST_STEPS} are walked")
        state, out = walker.initial(), list[Taken]()
        known = {i.index: i for i in walker.instances}
        for number, index in enumerate(path, 1):
            instance = known.get(index)
            where = f"step {number} of the path"
            if instance is None:
                raise CannotRun(f"{where}: machine {walker.machine.name} has no action {index}")
            try:
                after, failures = walker.step(state, instance)
            except ValueError:
                raise CannotRun(f"{where}, {instance}, cannot be taken there") from None
            out.append(Taken(instance, state, after, tuple(failure.name for failure in failures)))
            state = after
        return out

    def _compared(
        self, walker: Interpreter, taken: list[Taken], state: Values, other: str
    ) -> tuple[dict[str, str], Json]:
        """By label, another design's values that differ after the same actions; and which it refuses."""
        theirs = self.walker(other)
        states = [theirs.initial(), *(after for _, after in _followed(theirs, taken))]
        mine, others = flat(walker.view(state)), flat(theirs.view(states[-1]))
        differ = [label for label in mine if label in others and mine[label] != others[label]]
        differing = {label: _text(others[label]) for label in differ}
        if len(states) > len(taken):
            return differing, {"design": other, "refused": None, "why": ""}
        why = _refusal(theirs, states[-1], taken[len(states) - 1].instance)
        return differing, {"design": other, "refused": len(states), "why": why}


def _followed(walker: Interpreter, taken: Sequence[Taken]) -> Iterator[tuple[Instance, Values]]:
    """The same actions in another design, as far as it has and allows them, each with the state after it."""
    state = walker.initial()
    for one in taken:
        instance = _same(walker, state, one.instance)
        if instance is None:
            return
        state, _ = walker.step(state, instance)
        yield instance, state


def _same(walker: Interpreter, state: Values, instance: Instance) -> Instance | None:
    """The same action in another design, if it can be taken there."""
    return next(
        (i for i in walker.enabled(state) if (i.name, i.args) == (instance.name, instance.args)), None
    )


def _refusal(walker: Interpreter, state: Values, instance: Instance) -> str:
    action = walker.machine.actions.get(instance.name)
    if action is None or {str(p.value) for p in action.params} != set(instance.args):
        return f"it has no {instance}"
    evaluator = Evaluator(walker.grounded.layout, walker.sizes)
    false = false_guards(evaluator, action, evaluator.bind(action, instance.args), state)
    return f"{instance} requires " + " and ".join(guard.text for guard in false)


def _step(walker: Interpreter, one: Taken) -> Json:
    changed = changes(walker.view(one.before), walker.view(one.after))
    return {
        "index": one.instance.index,
        "name": str(one.instance),
        "doc": _first(one.instance.action.doc),
        "changes": [f"{label}: {_text(a)} → {_text(b)}" for label, (a, b) in changed.items()],
        "failed": list(one.failed),
    }


def _tables(walker: Interpreter, state: Values, differing: Mapping[str, str]) -> list[Json]:
    """One table for each list of sorts that fields are indexed by."""
    layout = walker.grounded.layout.fields
    groups: dict[tuple[str, ...], list[FieldLayout]] = {}
    for one in layout.values():
        groups.setdefault(tuple(str(t) for t, _, _ in one.domain), []).append(one)
    tables = []
    for domain, fields in sorted(groups.items(), key=lambda g: len(g[0])):
        rows = []
        for indices in fields[0].indices():
            shown = [str(t.shown(i)) for i, (t, _, _) in zip(indices, fields[0].domain, strict=True)]
            cells = []
            for one in fields:
                at = one.cell(indices)
                value = _text(one.value.shown(state[at])) if at is not None else ""
                label = one.label(indices)
                cells.append({"value": value, "label": label, "other": differing.get(label)})
            rows.append({"of": ", ".join(shown), "cells": cells})
        title = " by ".join(domain) if domain else "whole machine"
        tables.append({"title": title, "columns": [one.name for one in fields], "rows": rows})
    return tables


def _slots(walker: Interpreter, state: Values) -> list[Json]:
    """A row of slots: each with what the fields of its own say."""
    sort = next((name for name in SLOTS if name in walker.machine.sorts), None)
    if sort is None:
        return []
    every = walker.grounded.layout.fields.values()
    fields = [one for one in every if [str(t) for t, _, _ in one.domain] == [sort]]
    begun = _said(fields, 0, walker.initial())
    texts = [_said(fields, n, state) for n in range(walker.sizes[sort])]
    looks = {text: look for look, text in enumerate(dict.fromkeys([begun, *sorted(texts)]))}
    shown = ((f"{sort} {n}", text) for n, text in enumerate(texts))
    return [{"name": name, "text": text or "nothing", "look": looks[text]} for name, text in shown]


def _said(fields: Sequence[FieldLayout], n: int, state: Values) -> str:
    said = []
    for one in fields:
        at = one.cell((n,))
        value = one.value.shown(state[at]) if at is not None else False
        if value is True:
            said.append(one.name)
        elif value is not False and value != 0:
            said.append(str(value) if isinstance(value, str) else f"{one.name} {value}")
    return " · ".join(said)


def _conditions(walker: Interpreter, state: Values, taken: list[Taken]) -> list[Json]:
    wrong = {p.name for p in walker.violated(state)}
    out = []
    for p, node in walker.grounded.invariants:
        bad = p.name in wrong
        values = _values(walker, node, state) if bad else ""
        out.append({"id": p.id, "name": p.name, "doc": _first(p.doc), "holds": not bad, "values": values})
    for name in taken[-1].failed if taken else ():
        out.append({"id": "", "name": name, "doc": "A check of the last step.", "holds": False, "values": ""})
    return out


def _values(walker: Interpreter, node: Node, state: Values) -> str:
    every = flat(walker.view(state))
    labels = [walker.grounded.cells[cell].label for cell in sorted(reasons(node, state))]
    return "  ".join(f"{label} = {_text(every[label])}" for label in labels if label in every)


def _goals(walker: Interpreter, state: Values) -> list[Json]:
    here = {p.name for p in walker.reached(state)}
    goals = walker.machine.goals.items()
    return [{"name": name, "doc": _first(p.doc), "here": name in here} for name, p in goals]


def _jumps(machine: Machine) -> list[Json]:
    """What can be searched for: violations by invariant, checks of steps, a deadlock, goals."""
    found = {p.name: f"violation of {p.id}: {p.name}" for p in machine.invariants.values()}
    for action in machine.actions.values():
        found |= {check.name: f"violation of {check.id}: {check.name}" for check in action.checks}
    found |= {"deadlock": "deadlock"} | {name: f"goal: {name}" for name in machine.goals}
    return [{"name": name, "text": text.replace("_", " ")} for name, text in found.items()]


def _first(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def explorer_of(machine: str, design: str | None, sizes: dict[str, int]) -> Explorer:
    """The explorer of a machine in all of its designs, ``design`` first. CannotRun for unknown names."""
    if machine in MACHINES:
        first = design or SOUND
        machines_for(first, machine, sizes)
        names = [SOUND, *(name for name, row in DESIGNS.items() if row.breaks and machine in row.machines)]
        order = dict.fromkeys([first, *names])
        needed = {**DESIGNS[first].sizes, **sizes}
        return Explorer({name: MACHINES[machine](DESIGNS[name].faults) for name in order}, needed)
    if ".py" not in machine:
        raise unknown("machine", machine, MACHINES, f"there is {', '.join(MACHINES)}; a file is FILE.py:NAME")
    own: dict[str, Machine] = {}
    for text in [design, machine] if design else [machine]:
        own[text] = next(iter(named_spec(text).builders.values()))().machine
    machines_for(SOUND, machine, sizes)
    return Explorer(own, sizes)
