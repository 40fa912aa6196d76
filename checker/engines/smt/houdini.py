"""Finds lemmas: clauses over the machine's own vocabulary that every step keeps.

A candidate says that one fact about some elements implies another, or that two elements with given facts are
the same. Those false in a state that was reached go first; then those that some step breaks although all
others held before, until the rest keeps itself (Houdini). Of the rest, only what the machine's own conditions
lean on is kept. All this happens at a small size: what is found is a proposal, which the proof for any size
must confirm.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt.induction import Inductive
from kvfence.spec.language import (
    LEMMA,
    Bool,
    Enum,
    Expr,
    Function,
    Int,
    Machine,
    Not,
    Or,
    Property,
    Sort,
    Type,
)
from kvfence.spec.language.expr import apply, constant, equal, make, show, substitute, variable
from kvfence.spec.language.types import INTEGER

STATES = 4000  # reached by random runs, at which candidates are tried
RUN = 60  # steps of a random run
LITERALS_OF_INT = 3  # an Int with more values gives no facts


@dataclass(frozen=True)
class Fact:
    """A truth value over ``variables``, at most one of each sort."""

    expr: Expr
    variables: tuple[Expr, ...]


def infer(machine: Machine, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> list[Property]:
    """Lemmas that the machine's conditions lean on, at these sizes (two of each sort where unsaid)."""
    small = dict.fromkeys(machine.sorts, 2) | dict(sizes or {})
    proposed = candidates(machine)
    shadow = with_lemmas(machine, proposed)
    interpreter = Interpreter(shadow, small)
    names = _never_false(interpreter, {p.name for p in proposed}, random.Random(seed))
    kept = [p for p in proposed if p.name in names]
    return _needed(machine, kept, small)


def _needed(machine: Machine, proposed: Sequence[Property], sizes: Mapping[str, int]) -> list[Property]:
    """The candidates that keep themselves and that the machine's conditions lean on, directly or not."""
    step = Inductive(with_lemmas(machine, proposed), sizes)
    names = {p.name for p in proposed}
    own = [name for name in step.names if name not in names]
    left = step.keep_themselves([p.name for p in proposed], own)
    given = [*left, *own]
    wanted, done, todo = set[str](), set[str](), [n for n in own if step.enough(n, given) is not None]
    while todo:
        name = todo.pop()
        if name not in done:
            done.add(name)
            more = [n for n in step.enough(name, given, left) or () if n in names]
            wanted |= set(more)
            todo += more
    return [p for p in proposed if p.name in wanted]


def with_lemmas(machine: Machine, lemmas: Sequence[Property]) -> Machine:
    """The machine with these lemmas in place of its own."""
    shadow = copy.copy(machine)
    shadow.lemmas = {p.name: p for p in lemmas}
    return shadow


def candidates(machine: Machine) -> list[Property]:
    """Clauses of two facts, and clauses that say that two elements are the same."""
    one = {s.name: variable("bound", s, f"{s.name[0].lower()}0") for s in machine.sorts.values()}
    other = {s.name: variable("bound", s, f"{s.name[0].lower()}1") for s in machine.sorts.values()}
    facts = [f for g in machine.functions.values() for f in _facts(g, one)]
    facts += _spoken(machine, one)
    clauses: dict[int, Expr] = {}
    for a, b in itertools.combinations(facts, 2):
        if a.expr.op == "eq" and b.expr.op == "eq" and a.expr.args[0] is b.expr.args[0]:
            continue
        if not {v.uid for v in a.variables} & {v.uid for v in b.variables} and (a.variables and b.variables):
            continue
        for p, q in itertools.product((a.expr, Not(a.expr)), (b.expr, Not(b.expr))):
            _add(clauses, Or(p, q))
    for a, b in itertools.combinations_with_replacement(facts, 2):
        for v in a.variables:
            if any(v is w for w in b.variables):
                twin = substitute(b.expr, {v.uid: other[v.type.name]})
                _add(clauses, Or(Not(a.expr), Not(twin), equal(v, other[v.type.name])))
    return [
        Property(LEMMA, f"clause {k}: {show(e)}", "inferred", e, (), where="inferred")
        for k, e in enumerate(clauses.values())
    ]


def _facts(f: Function, variables: Mapping[str, Expr]) -> Iterator[Fact]:
    choices = [[variables[t.name]] if isinstance(t, Sort) else _few(t) for t in f.domain]
    for at in itertools.product(*choices):
        used = tuple({i.uid: i for i in at if i.op == "bound"}.values())
        if len({t.name for t in f.domain if isinstance(t, Sort)}) < sum(
            isinstance(t, Sort) for t in f.domain
        ):
            continue  # two elements of one sort
        value = apply(f, tuple(at))
        if f.value is Bool:
            yield Fact(value, used)
        elif isinstance(f.value, Enum) or len(_few(f.value)) > 0:
            for v in _few(f.value):
                yield Fact(equal(value, v), used)


def _spoken(machine: Machine, variables: Mapping[str, Expr]) -> Iterator[Fact]:
    """The quantified parts of guards and invariants, such as "somebody holds b"."""
    seen: set[int] = set()
    told: set[int] = set()
    guards = (g.expr for a in machine.actions.values() for g in a.guards)
    stack = [*guards, *(p.expr for p in machine.invariants.values())]
    while stack:
        e = stack.pop()
        if e.uid in seen:
            continue
        seen.add(e.uid)
        stack += e.args
        sorts = [v.type.name for v in e.free if isinstance(v.type, Sort)]
        if e.op in ("forall", "exists") and len(sorts) == len(e.free) == len(set(sorts)):
            fact = substitute(e, {v.uid: variables[v.type.name] for v in e.free})
            if fact.uid not in told:
                told.add(fact.uid)
                yield Fact(fact, fact.free)


def _few(t: Type) -> list[Expr]:
    """The values of a type that has few."""
    if isinstance(t, Sort) or (isinstance(t, Int) and t.literal is None):
        return []
    ends = t.range({})
    if ends is None or (isinstance(t, Int) and ends[1] - ends[0] >= LITERALS_OF_INT):
        return []
    return [constant(INTEGER if isinstance(t, Int) else t, v) for v in range(ends[0], ends[1] + 1)]


def _add(clauses: dict[int, Expr], body: Expr) -> None:
    if body.op == "const":
        return
    closed = make("forall", Bool, (body,), body.free) if body.free else body
    clauses[closed.uid] = closed


def _never_false(interpreter: Interpreter, names: set[str], draw: random.Random) -> set[str]:
    """The conditions among ``names`` that hold in every state that random runs reach."""
    alive, seen = set(names), set()
    state = interpreter.initial()
    for step in range(STATES):
        if state not in seen:
            seen.add(state)
            alive -= {p.name for p in interpreter.violated(state)}
        successors = interpreter.successors(state)
        if not successors or step % RUN == RUN - 1:
            state = interpreter.initial()
        else:
            state = draw.choice(successors)[1]
    return alive
