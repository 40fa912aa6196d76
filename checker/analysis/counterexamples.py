"""Turns an engine's path into the facts of a counterexample: events, changes, and the values that matter.

The interpreter runs the path again, so the facts do not depend on the engine that found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, eq, le, lt, sub
from typing import cast

import msgspec

from kvfence.checker.analysis.diagnosis import diagnose, due
from kvfence.checker.analysis.results import Change, Counterexample, Step, Value
from kvfence.checker.engines.base import Path
from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.engines.explicit.minimise import ends_in, shorten
from kvfence.spec import events as ev
from kvfence.spec.catalog import BY_ID
from kvfence.spec.language import Expr, Grounded, Instance, Machine, SpecError, changes, flat
from kvfence.spec.language.evaluate import Env
from kvfence.spec.language.ground import LivenessInstance
from kvfence.spec.language.nodes import Node
from kvfence.spec.machines import MACHINES
from kvfence.spec.numbering import Numbering


def counterexample(
    machine: Machine, sizes: dict[str, int], path: Path, against: Machine | None = None
) -> Counterexample:
    """The facts of ``path``, which ends in a violation of ``machine`` at these sizes.

    Steps that do not matter for the violation are left out. ``against``: the machine whose guards and values
    the diagnosis compares with; by default the same machine without faults.
    """
    interpreter = Interpreter(machine, sizes)
    before = state = interpreter.initial()
    instance: Instance | None = None
    steps, run = [], []
    found = [interpreter.find(taken.action, **taken.args) for taken in path.steps]
    # no step violates a liveness property, so there is no step to shorten the path by
    kept = found if ends_in(interpreter, found, path.name) is None else shorten(interpreter, found, path.name)
    for number, instance in enumerate(kept, 1):
        before = state
        state, _ = interpreter.step(before, instance)
        run.append((before, instance, state))
        changed = changes(interpreter.view(before), interpreter.view(state))
        parts = tuple(Change(name, old, new) for name, (old, new) in changed.items())
        doc = " ".join(instance.action.doc.split())
        steps.append(Step(number, instance.name, dict(instance.args), doc, parts))
    grounded = interpreter.grounded
    steps, header, idle, untold = _as_trace(interpreter, run, steps, path.loop == len(kept))
    node, read_before = _condition(grounded, instance, path.name)
    at = before if read_before else state
    stated = _stated(machine, instance, path.name)
    owed = _violated_liveness(grounded, path.name, [interpreter.initial(), *(after for _, _, after in run)])
    if owed is not None:
        env = {v.uid: x for v, x in zip(owed.stated.params, owed.values, strict=True)}
        node, stated = owed.then, (owed.stated.then, env)
    cells = reasons(node, at) if node is not None else set()
    sound = against
    if sound is None and machine.faults and machine.name in MACHINES:
        sound = MACHINES[machine.name](frozenset())
    diagnosis = diagnose(grounded, run, stated, at, cells, sound)
    if path.loop == len(kept) and sound is not None:
        diagnosis = msgspec.structs.replace(diagnosis, due=due(grounded, state, sound))
    return Counterexample(
        machine=machine.name,
        invariant=path.id,
        name=path.name,
        condition=_sentence(path),
        start=flat(path.initial),
        steps=tuple(steps),
        values=_values(grounded, cells, at),
        read_before_last_step=read_before,
        header=header,
        diagnosis=diagnosis,
        left_out=len(found) - len(kept),
        loop=path.loop,
        idle=idle,
        untold=untold,
    )


def _as_trace(
    interpreter: Interpreter, run: list[tuple[Values, Instance, Values]], steps: list[Step], idles: bool
) -> tuple[list[Step], ev.Header | None, tuple[ev.Event, ...], str]:
    """The steps with the events they stand for, the header, and the events of idling.

    The machine's own code makes the events. If that fails, the last value is the reason, and the
    counterexample has no trace.
    """
    machine, numbered = interpreter.machine, Numbering()
    try:
        observing = []
        for step, (before, instance, after) in zip(steps, run, strict=True):
            observed = numbered(cast("list[ev.Event]", interpreter.events(before, instance, after)))
            observing.append(msgspec.structs.replace(step, observed=tuple(observed)))
        idle: list[ev.Event] = []
        if idles and machine.idle_events is not None:
            last = run[-1][2] if run else interpreter.initial()
            idle += numbered(cast("list[ev.Event]", machine.idle_events(interpreter.view(last))))
        header = cast("ev.Header", machine.header_of(interpreter.sizes)) if machine.header_of else None
    except Exception as problem:
        why = str(problem) if isinstance(problem, SpecError) else f"{type(problem).__name__}: {problem}"
        return steps, None, (), " ".join(why.split())
    return observing, header, tuple(idle), ""


def _sentence(path: Path) -> str:
    """What should hold, in words."""
    if path.text and path.text != path.name:
        return path.text
    row = BY_ID.get(path.id)
    return row.statement if row else path.name.replace("_", " ")


def _condition(grounded: Grounded, last: Instance | None, name: str) -> tuple[Node | None, bool]:
    """The condition ``name``, and whether it reads the state before the last step (as checks do)."""
    for invariant, node in grounded.invariants:
        if invariant.name == name:
            return node, False
    for check in (*last.checks, *last.ranges) if last is not None else ():
        if check.name == name:
            return check.holds, True
    return None, False


def _stated(machine: Machine, last: Instance | None, name: str) -> tuple[Expr, Env] | None:
    """The condition ``name`` as the machine states it, with the arguments of the last step."""
    for p in (*machine.invariants.values(), *machine.lemmas.values()):
        if p.name == name:
            return p.expr, {}
    if last is not None:
        env = {p.uid: v for p, v in zip(last.action.params, last.values, strict=True)}
        for check in last.action.checks:
            if check.name == name:
                return check.expr, env
    return None


def _violated_liveness(grounded: Grounded, name: str, states: Sequence[Values]) -> LivenessInstance | None:
    """The liveness property ``name``, for arguments for which the run through these states violates it."""
    for p in grounded.liveness():
        begins = [p.when is None, *(node_value(p.when, x) == 1 for x in states if p.when is not None)]
        if p.name == name and any(begins) and not node_value(p.then, states[-1]):
            return p
    return None


def _values(grounded: Grounded, cells: set[int], state: Values) -> dict[str, Value]:
    """The values of the cells, by their printed names."""
    every = flat(grounded.view(state))
    return {label: every[label] for cell in sorted(cells) if (label := grounded.cells[cell].label)}


def reasons(node: Node, state: Values) -> set[int]:
    """Cells whose values make ``node`` what it is in ``state``: one witness where one is enough."""
    return _reasons(node, state, {})


def _reasons(node: Node, state: Values, known: dict[int, int]) -> set[int]:
    if node.op == "const":
        return set()
    if node.op == "cell":
        return {node.value}
    if node.op in {"and", "or"}:
        decisive = int(node.op == "or")
        if _value(node, state, known) == decisive:
            witness = next(arg for arg in node.args if _value(arg, state, known) == decisive)
            return _reasons(witness, state, known)
    if node.op == "ite":
        chosen = node.args[1] if _value(node.args[0], state, known) else node.args[2]
        return _reasons(node.args[0], state, known) | _reasons(chosen, state, known)
    return {cell for arg in node.args for cell in _reasons(arg, state, known)}


def _value(node: Node, state: Values, known: dict[int, int]) -> int:
    if node.id not in known:
        known[node.id] = _evaluate(node, state, known)
    return known[node.id]


def node_value(node: Node, state: Values) -> int:
    """The value of a grounded node in ``state``."""
    return _value(node, state, {})


_BINARY = {"eq": eq, "lt": lt, "le": le, "add": add, "sub": sub}


def _evaluate(node: Node, state: Values, known: dict[int, int]) -> int:
    if node.op == "const":
        return node.value
    if node.op == "cell":
        return state[node.value]
    if node.op == "ite":
        condition, then, other = node.args
        return _value(then if _value(condition, state, known) else other, state, known)
    values = [_value(arg, state, known) for arg in node.args]
    if node.op == "not":
        return 1 - values[0]
    if node.op in ("and", "or"):
        return int(all(values) if node.op == "and" else any(values))
    return int(_BINARY[node.op](*values))
