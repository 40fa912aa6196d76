"""Why a run ends in a violation: what is false, which step made it so, what a sound design does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvfence.checker.analysis.results import Diagnosis, Difference, Guard, Part, Prevention
from kvfence.spec.language import Action, Expr, Grounded, Instance, Machine, ground
from kvfence.spec.language.evaluate import Env, Evaluator, Values, spell

Step = tuple[Values, Instance, Values]  # the state before, the step, the state after


def diagnose(
    grounded: Grounded,
    taken: Sequence[Step],
    condition: tuple[Expr, Env] | None,
    at: Values,
    reasons: set[int],
    sound: Machine | None,
) -> Diagnosis:
    """The diagnosis of a run of ``grounded``.

    ``condition``: what is false in the state ``at``, with its variables; None where it is not an expression
    (a deadlock, a range). ``reasons``: cells whose values make it false. ``sound``: the same machine without
    faults; None where the machine is that already.
    """
    conjunct = ""
    parts: Iterator[Part] = iter(())
    if condition is not None:
        evaluator = Evaluator(grounded.layout, grounded.sizes)
        e, env = false_part(evaluator, *condition, at)
        conjunct, parts = implication(e, env), _parts(evaluator, e, env, at)
    return Diagnosis(
        conjunct=conjunct,
        parts=tuple(dict.fromkeys(parts)),
        made_by=_made_by(taken, reasons),
        prevented=tuple(_preventions(grounded, taken, sound)) if sound is not None else (),
    )


def false_part(evaluator: Evaluator, e: Expr, env: Env, state: Values) -> tuple[Expr, Env]:
    """The innermost conjunct of ``e`` that is false in ``state``, with values for its variables."""
    if e.op == "forall":
        wrong = next(c for c in evaluator.choices(e, env) if not evaluator.value(e.args[0], state, c))
        return false_part(evaluator, e.args[0], wrong, state)
    if e.op == "and":
        wrong_arg = next(a for a in e.args if not evaluator.value(a, state, env))
        return false_part(evaluator, wrong_arg, env, state)
    if e.op == "not" and e.args[0].op == "exists":
        inner = e.args[0]
        witness = next(c for c in evaluator.choices(inner, env) if evaluator.value(inner.args[0], state, c))
        return ~inner.args[0], witness
    return e, env


def implication(e: Expr, env: Env) -> str:
    """``e`` in words; an "or" that was written as an implication is an implication."""
    if e.op == "or" and e.args[0].op == "not":
        rest = [spell(a, env) if len(e.args) == 2 else f"({spell(a, env)})" for a in e.args[1:]]
        return f"{spell(e.args[0].args[0], env)} implies {' or '.join(rest)}"
    return spell(e, env)


def _parts(evaluator: Evaluator, e: Expr, env: Env, state: Values) -> Iterator[Part]:
    """The parts of a false conjunct with their values."""
    inner = e.args[0] if e.args else e
    if e.op == "not" and inner.op not in ("eq", "lt", "le"):
        yield from _parts(evaluator, inner, env, state)
    elif e.op in ("or", "and", "eq", "lt", "le", "add", "sub", "ite", "not"):
        for a in e.args:
            yield from _parts(evaluator, a, env, state)
    elif e.op in ("apply", "forall", "exists", "count"):
        yield Part(spell(e, env), e.type.shown(evaluator.value(e, state, env)))


def _made_by(taken: Sequence[Step], reasons: set[int]) -> int | None:
    """The number of the last step that changed one of the cells; the last step of all where none did."""
    for number in range(len(taken), 0, -1):
        before, _, after = taken[number - 1]
        if any(before[c] != after[c] for c in reasons):
            return number
    return len(taken) or None


def false_guards(evaluator: Evaluator, action: Action, env: Env, state: Values) -> tuple[Guard, ...]:
    """The parts of the action's guard that are false in ``state``."""
    return tuple(
        Guard(spell(part, env), g.where)
        for g in action.guards
        for part in (g.expr.args if g.expr.op == "and" else (g.expr,))
        if not evaluator.value(part, state, env)
    )


def due(grounded: Grounded, state: Values, sound: Machine) -> tuple[str, ...]:
    """The steps that the sound design must take some time after ``state``: those with a fairness mark."""
    other, translated = _of_sound(grounded, sound)
    evaluator = Evaluator(other.layout, other.sizes)
    there = translated(state)
    return tuple(
        str(i)
        for i in other.instances
        if i.action.fair and not false_guards(evaluator, i.action, evaluator.bind(i.action, i.args), there)
    )


def _of_sound(grounded: Grounded, sound: Machine) -> tuple[Grounded, Callable[[Values], Values]]:
    """The sound machine at the same sizes, and how to read a state of the other one as one of its own."""
    other = ground(sound, {k: v for k, v in grounded.sizes.items() if k in sound.sorts})
    own = {c.label: c.number for c in grounded.cells}

    def translated(state: Values) -> Values:
        return tuple(state[own[c.label]] if c.label in own else c.init for c in other.cells)

    return other, translated


def _preventions(grounded: Grounded, taken: Sequence[Step], sound: Machine) -> Iterator[Prevention]:
    """For each step at which the sound design differs: its guards that are false, or its other values."""
    other, translated = _of_sound(grounded, sound)
    evaluator = Evaluator(other.layout, other.sizes)
    own = {c.label for c in grounded.cells}

    for number, (before, instance, after) in enumerate(taken, 1):
        action = sound.actions.get(instance.name)
        if action is None or {str(p.value) for p in action.params} != set(instance.args):
            yield Prevention(number, instance.name, no_such_action=True)
            continue
        state = translated(before)
        env = evaluator.bind(action, instance.args)
        if false := false_guards(evaluator, action, env, state):
            yield Prevention(number, instance.name, guards=false)
            continue
        would, is_ = evaluator.after(action, state, env), translated(after)
        differences = tuple(
            Difference(c.label, c.function.value.shown(a), c.function.value.shown(b))
            for c, a, b in zip(other.cells, is_, would, strict=True)
            if a != b and c.label in own
        )
        if differences:
            yield Prevention(number, instance.name, updates=differences)
