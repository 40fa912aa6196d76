"""What must hold of a machine, and the questions whose answers prove it for any number of steps.

A question asks whether ``goal`` follows from ``given``. Both speak of one state only: the state after a step
is the state before it with each function replaced by its next value, and the initial state is the functions
replaced by their initial values. So there are no copies of the state, and nothing to say about what a step
leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvfence.checker.engines.base import Kind
from kvfence.spec.language import LEMMA, Action, And, Expr, Function, Int, Machine, Or
from kvfence.spec.language.expr import FALSE, apply, limit, make, rebuilt, substitute, variable
from kvfence.spec.language.sizes import NotPolynomial, polynomial


class Unsupported(Exception):  # noqa: N818 (not a fault: the reason why an answer stays undetermined)
    """What an engine cannot express; the text is the reason that the verdict is undetermined."""


@dataclass(frozen=True)
class Condition:
    """A condition on every reachable state."""

    id: str
    name: str
    kind: Kind
    text: str
    expr: Expr


@dataclass(frozen=True)
class Question:
    """Whether ``goal`` follows from ``given``; ``fixed`` are the constants in them.

    ``of`` is the name of the condition or check that it is about, ``case`` the action it is asked for, or
    ``START``. ``counts`` pairs each count after the step with the one before it. ``sources`` names the
    condition that each of ``given`` is, and is empty for a guard.
    """

    of: str
    case: str
    given: tuple[Expr, ...]
    goal: Expr
    fixed: tuple[Expr, ...]
    counts: tuple[tuple[Expr, Expr], ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The condition, and the case."""
        return f"{self.of}.{self.case}"


START = "the initial state"  # as no action is called
DEADLOCK = "deadlock"


def of_machine(machine: Machine, lemmas: bool = True) -> list[Condition]:
    """Invariants, lemmas, and for each bounded Int of the state that it stays in its range."""
    out = []
    for p in (*machine.invariants.values(), *(machine.lemmas.values() if lemmas else ())):
        kind: Kind = "lemma" if p.id == LEMMA else "invariant"
        out.append(Condition(p.id, p.name, kind, p.doc or p.name, p.expr))
    for f in machine.functions.values():
        if isinstance(f.value, Int) and f.value.lo is not None and f.value.hi is not None:
            value = apply(f, f.formals)
            inside = And(limit(f.value.lo) <= value, value <= limit(f.value.hi))
            body = make("forall", inside.type, (inside,), f.formals) if f.formals else inside
            text = f"{f.name} stays in its range"
            out.append(Condition("RANGE", f"range of {f.name}", "range", text, body))
    return out


def rewrite(
    e: Expr, read: Callable[[Function, tuple[Expr, ...]], Expr], counts: list[tuple[Expr, Expr]] | None = None
) -> Expr:
    """``e`` with every read of a function replaced; ``counts`` gathers its counts as (before, after)."""
    memo: dict[int, Expr] = {}

    def go(x: Expr) -> Expr:
        done = memo.get(x.uid)
        if done is not None:
            return done
        args = tuple(go(a) for a in x.args)
        if x.op == "apply":
            assert isinstance(x.value, Function)
            done = read(x.value, args)
        elif all(a is b for a, b in zip(args, x.args, strict=True)):
            done = x
        else:
            done = rebuilt(x, args)
        if x.op == "count" and counts is not None and done is not x:
            counts.append((x, done))
        memo[x.uid] = done
        return done

    return go(e)


def after(e: Expr, action: Action, counts: list[tuple[Expr, Expr]] | None = None) -> Expr:
    """``e`` in the state after ``action``, as an expression over the state before it."""

    def read(f: Function, at: tuple[Expr, ...]) -> Expr:
        now = action.updates.get(f)
        if now is None:
            return apply(f, at)
        return substitute(now, {v.uid: i for v, i in zip(f.formals, at, strict=True)})

    return rewrite(e, read, counts)


def initially(e: Expr) -> Expr:
    """``e`` in the initial state."""

    def read(f: Function, at: tuple[Expr, ...]) -> Expr:
        return substitute(f.init, {v.uid: i for v, i in zip(f.formals, at, strict=True)})

    return rewrite(e, read)


def arbitrary(e: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """``ForAll(x, body)`` as its body about one arbitrary x: what remains, and the constants for it."""
    constants: list[Expr] = []
    while e.op == "forall":
        assert isinstance(e.value, tuple)
        fresh = [variable("param", v.type, f"{v.value}_") for v in e.value]
        constants += fresh
        e = substitute(e.args[0], {v.uid: c for v, c in zip(e.value, fresh, strict=True)})
    return e, tuple(constants)


def start_question(c: Condition) -> Question:
    """Whether ``c`` holds initially."""
    goal, fixed = arbitrary(initially(c.expr))
    return Question(c.name, START, (), goal, fixed)


def step_question(c: Condition, action: Action, given: Sequence[Condition]) -> Question | None:
    """Whether ``action`` keeps ``c`` when all of ``given`` hold before it; None when it cannot touch ``c``.

    That an Int stays in its range may follow from what it counts, so for ranges the conditions with counts
    are assumed after the step too: they are proved without any range after the step.
    """
    body, fixed = arbitrary(c.expr)
    counts: list[tuple[Expr, Expr]] = []
    goal = after(body, action, counts)
    if goal is body:
        return None
    assumed, sources = _assumed(action, given)
    if c.kind == "range":
        for d in given:
            pairs: list[tuple[Expr, Expr]] = []
            then = after(d.expr, action, pairs)
            if pairs and d.kind != "range":
                assumed.append(then)
                sources.append(d.name)
                counts += pairs
    constants = (*action.params, *fixed)
    return Question(c.name, action.name, tuple(assumed), goal, constants, tuple(counts), tuple(sources))


def _assumed(action: Action, given: Sequence[Condition]) -> tuple[list[Expr], list[str]]:
    """What is known before a step of ``action``, and which condition each of it is."""
    guards = [g.expr for g in action.guards]
    return [*guards, *(d.expr for d in given)], [*("" for _ in guards), *(d.name for d in given)]


def check_questions(machine: Machine, given: Sequence[Condition]) -> Iterator[Question]:
    """Whether each check of each action holds whenever the action is taken."""
    for action in machine.actions.values():
        assumed, sources = _assumed(action, given)
        for check in action.checks:
            goal, fixed = arbitrary(check.expr)
            constants = (*action.params, *fixed)
            yield Question(check.name, action.name, tuple(assumed), goal, constants, sources=tuple(sources))


def deadlock_question(machine: Machine, given: Sequence[Condition]) -> Question:
    """Whether some action can be taken, or the state may be the last one."""
    ways = [machine.terminal_states.expr if machine.terminal_states else FALSE]
    for action in machine.actions.values():
        enabled = And(*(g.expr for g in action.guards))
        ways.append(some(action.params, enabled))
    known, names = tuple(d.expr for d in given), tuple(d.name for d in given)
    return Question(DEADLOCK, "any state", known, Or(*ways), (), sources=names)


def some(variables: Sequence[Expr], body: Expr) -> Expr:
    """Whether the body is true for some values of free ``variables``."""
    bound = tuple(variable("bound", v.type, str(v.value)) for v in variables)
    inner = substitute(body, {v.uid: b for v, b in zip(variables, bound, strict=True)})
    return inner if inner.op == "const" or not bound else make("exists", inner.type, (inner,), bound)


def supported(machine: Machine) -> None:
    """Unsupported for what makes a machine depend on its sizes in a way that no proof here covers.

    SpecError for a bound that asks for the size of a sort which the machine lacks.
    """
    sorts = frozenset(machine.sorts)
    for what, bound in machine.bounds():
        try:
            polynomial(bound, sorts, f"the bound of {what} of machine {machine.name}")
        except NotPolynomial as reason:
            raise Unsupported(str(reason)) from reason
    for action in machine.actions.values():
        if action.late:
            raise Unsupported(
                f"an index in action {action.name} has a range that depends on the sort sizes "
                f"({action.late[0].where})"
            )
    for p in (*machine.invariants.values(), *machine.lemmas.values()):
        if p.late:
            raise Unsupported(f"{p.name} has an index whose range depends on the sort sizes")
