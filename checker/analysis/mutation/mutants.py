"""Mutants: copies of a machine with one small fault each, made from the traced graph.

Guards are only ever weakened, so that a mutant may do more than the machine, never just less. Updates are
dropped or changed. Nothing is traced again: a mutant shares all expressions with its machine but the changed
one. A change that gives the same expression, or one made already, is left out, and so are changes of ghosts:
fields that only record what happens.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvfence.spec.language import Action, Bool, Enum, Expr, Function, Guard, Int, Machine
from kvfence.spec.language.evaluate import spell
from kvfence.spec.language.expr import FALSE, And, Or, apply, constant, make, rebuilt

Change = tuple[str, Expr]  # what was changed, and the expression that comes out
_DUAL = {"forall": "exists", "exists": "forall", "lt": "le", "le": "lt"}


class Kind(StrEnum):
    """What is changed."""

    guard = "drop guard"
    fence = "weaken guard"
    update = "drop update"
    release = "forget release"
    value = "change update"
    design = "named design"


@dataclass(frozen=True)
class Mutant:
    """A machine with one fault; ``name`` says which, starting with the action that has it."""

    name: str
    kind: Kind
    action: str
    machine: Machine


def mutants(machine: Machine) -> list[Mutant]:
    """Every mutant of a machine, in the order of its actions; no two have the same name."""
    found: list[Mutant] = []
    times: Counter[str] = Counter()
    for action in machine.actions.values():
        for kind, text, changed in _of_action(action, machine.ghosts):
            name = f"{action.name}: {text}"
            times[name] += 1
            name = name if times[name] == 1 else f"{name} (place {times[name]})"
            mutated = copy.copy(machine)
            mutated.actions = {**machine.actions, action.name: changed}
            found.append(Mutant(name, kind, action.name, mutated))
    return found


def _of_action(action: Action, ghosts: Collection[str]) -> Iterator[tuple[Kind, str, Action]]:
    for kind, text, guards in _guards(action):
        changed = copy.copy(action)
        changed.guards = guards
        yield kind, text, changed
    for kind, text, function, e in _updates(action, ghosts):
        changed = copy.copy(action)
        changed.updates = {**action.updates}
        if e is None:
            del changed.updates[function]
        else:
            changed.updates[function] = e
        yield kind, text, changed


def _guards(action: Action) -> Iterator[tuple[Kind, str, tuple[Guard, ...]]]:
    """The guard with one conjunct dropped, or with one conjunct weakened inside."""
    split = [Guard(e, g.where) for g in action.guards for e in conjuncts(g.expr)]
    for k, guard in enumerate(split):
        rest = (*split[:k], *split[k + 1 :])
        yield Kind.guard, f"without guard {spell(guard.expr)}", rest
        for text, e in _unlike(guard.expr, weakened(guard.expr)):
            yield Kind.fence, f"guard: {text}", (*split[:k], Guard(e, guard.where), *split[k + 1 :])


def conjuncts(e: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction; of another expression, itself."""
    return e.args if e.op == "and" else (e,)


def _updates(action: Action, ghosts: Collection[str]) -> Iterator[tuple[Kind, str, Function, Expr | None]]:
    """One assignment dropped, or one change inside it."""
    for function, e in action.updates.items():
        if function.name in ghosts:
            continue
        old = apply(function, function.formals)
        release = function.value is Bool and shrinks(e, old)
        kind, lost = (Kind.release, "released") if release else (Kind.update, "assigned")
        yield kind, f"{function.name} is not {lost}", function, None
        for text, new in _unlike(e, varied(e)):
            if new is not old:
                yield Kind.value, f"{function.name}: {text}", function, new


def _unlike(e: Expr, changes: Iterator[Change]) -> Iterator[Change]:
    made = {e.uid}
    for text, new in changes:
        if new.uid not in made:
            made.add(new.uid)
            yield text, new


def shrinks(e: Expr, old: Expr) -> bool:
    """Whether an update of a relation can only take elements out of it."""
    if e is old or e is FALSE:
        return True
    if e.op == "and":
        return any(shrinks(a, old) for a in e.args)
    if e.op == "or":
        return all(shrinks(a, old) for a in e.args)
    return e.op == "ite" and shrinks(e.args[1], old) and shrinks(e.args[2], old)


def _becomes(old: Expr, new: Expr) -> str:
    return f"{spell(old)} -> {spell(new)}"


def _inside(e: Expr, part: Iterator[Change], k: int) -> Iterator[Change]:
    """The changes of argument ``k`` as changes of ``e``."""
    for text, new in part:
        yield text, rebuilt(e, (*e.args[:k], new, *e.args[k + 1 :]))


def _without_one(e: Expr) -> Iterator[Change]:
    join = And if e.op == "and" else Or
    for k, a in enumerate(e.args):
        yield f"without {spell(a)}", join(*e.args[:k], *e.args[k + 1 :])


def weakened(e: Expr) -> Iterator[Change]:
    """Conditions that hold wherever ``e`` does, by one small change."""
    yield from _loosened(e, True)


def _loosened(e: Expr, up: bool) -> Iterator[Change]:
    """``e`` made weaker (``up``) or stronger by one small change."""
    if e.op == ("and" if up else "or"):
        yield from _without_one(e)
    if e.op in (("forall", "lt") if up else ("exists", "le")):
        other = make(_DUAL[e.op], Bool, e.args, e.value)
        yield _becomes(e, other), other
    if e.op == "le" and up:
        other = e.args[0] <= e.args[1] + 1
        yield _becomes(e, other), other
    if e.op in ("and", "or", "forall", "exists"):
        for k, a in enumerate(e.args):
            yield from _inside(e, _loosened(a, up), k)
    if e.op == "not":
        yield from _inside(e, _loosened(e.args[0], not up), 0)


def varied(e: Expr) -> Iterator[Change]:
    """Other values for an update, each by one small change."""
    if e.op == "const":
        other = _next_value(e)
        if other is not None:
            yield _becomes(e, other), other
    elif e.op in ("and", "or"):
        yield from _without_one(e)
    elif e.op == "ite":
        yield f"as if always {spell(e.args[0])}", e.args[1]
        yield f"as if never {spell(e.args[0])}", e.args[2]
    elif e.op in ("add", "sub"):
        a, b = e.args
        other = a - b if e.op == "add" else a + b
        yield _becomes(e, other), other
        yield _becomes(e, a), a
    elif e.op in _DUAL:
        other = make(_DUAL[e.op], Bool, e.args, e.value)
        yield _becomes(e, other), other
    if e.op not in ("apply", "count"):
        for k, a in enumerate(e.args):
            yield from _inside(e, varied(a), k)


def _next_value(e: Expr) -> Expr | None:
    """Another constant of the type: the other truth value, the next label, the next number."""
    assert isinstance(e.value, int)
    if isinstance(e.type, Enum):
        return constant(e.type, (e.value + 1) % len(e.type.labels))
    if e.type is Bool:
        return constant(Bool, 1 - e.value)
    return constant(e.type, e.value + 1) if isinstance(e.type, Int) else None
