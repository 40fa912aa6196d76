"""Finds lemmas (Houdini): clauses over the machine's own vocabulary that every step keeps.

A candidate says that one fact about some elements implies another, or that two elements with given facts are
the same. Those false in a state that was reached go first; then those that some step breaks although all
others held before, until the rest is inductive. Of the rest, only what the machine's own conditions
depend on is kept. All this happens at a small size: what is found is a proposal, which the proof for any size
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
from kvfence.checker.engines.smt.translate import values_of
from kvfence.spec.language import LEMMA, Bool, Expr, Function, Int, Machine, Not, Or, Property, Sort, Type
from kvfence.spec.language.expr import apply, equal, make, show, substitute, variable

STATES = 4000  # reached by random runs, at which candidates are tried
RUN = 60  # steps of a random run
LITERALS_OF_INT = 3  # an Int with more values yields no facts


@dataclass(frozen=True)
class Fact:
    """A truth value over ``variables``, at most one of each sort."""

    expr: Expr
    variables: tuple[Expr, ...]


def infer(machine: Machine, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> list[Property]:
    """Lemmas that the machine's conditions depend on, at these sizes (by default two of each sort)."""
    small = dict.fromkeys(machine.sorts, 2) | dict(sizes or {})
    proposed = candidates(machine)
    shadow = with_lemmas(machine, proposed)
    interpreter = Interpreter(shadow, small)
    names = _never_false(interpreter, {p.name for p in proposed}, random.Random(seed))
    kept = [p for p in proposed if p.name in names]
    return _needed(machine, kept, small)


def _needed(machine: Machine, proposed: Sequence[Property], sizes: Mapping[str, int]) -> list[Property]:
    """The candidates that are inductive and that the machine's conditions depend on, directly or not."""
    step = Inductive(with_lemmas(machine, proposed), sizes)
    names = [p.name for p in proposed]
    own = [name for name in step.names if name not in names]
    left = step.keep_themselves(names, own)
    given = [*left, *own]
    wanted, done, todo = set[str](), set[str](), [n for n in own if step.enough(n, given) is not None]
    while todo:
        name = todo.pop()
        if name not in done:
            done.add(name)
            more = [n for n in step.enough(name, given, left) or () if n not in own]
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
    facts += _quantified(machine, one)
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
        elements = [i for i in at if i.op == "bound"]
        used = tuple({i.uid: i for i in elements}.values())
        if len(used) < len(elements):
            continue  # two elements of one sort
        value = apply(f, at)
        if f.value is Bool:
            yield Fact(value, used)
        else:
            yield from (Fact(equal(value, v), used) for v in _few(f.value))


def _quantified(machine: Machine, variables: Mapping[str, Expr]) -> Iterator[Fact]:
    """The quantified parts of guards and invariants, such as "a request holds b"."""
    visited: set[int] = set()
    emitted: set[int] = set()
    guards = (g.expr for a in machine.actions.values() for g in a.guards)
    stack = [*guards, *(p.expr for p in machine.invariants.values())]
    while stack:
        e = stack.pop()
        if e.uid in visited:
            continue
        visited.add(e.uid)
        stack += e.args
        sorts = [v.type.name for v in e.free if isinstance(v.type, Sort)]
        if e.op in ("forall", "exists") and len(sorts) == len(e.free) == len(set(sorts)):
            fact = substitute(e, {v.uid: variables[v.type.name] for v in e.free})
            if fact.uid not in emitted:
                emitted.add(fact.uid)
                yield Fact(fact, fact.free)


def _few(t: Type) -> list[Expr]:
    """The values of a type that has few; none of another."""
    values = values_of(t) or []
    return [] if isinstance(t, Int) and len(values) > LITERALS_OF_INT else values


def _add(clauses: dict[int, Expr], body: Expr) -> None:
    if body.op == "const":
        return
    closed = make("forall", Bool, (body,), body.free) if body.free else body
    clauses[closed.uid] = closed


def _never_false(interpreter: Interpreter, names: set[str], draw: random.Random) -> set[str]:
    """The conditions among ``names`` that hold in every state that random runs reach."""
    alive, visited = set(names), set()
    state = interpreter.initial()
    for step in range(STATES):
        if state not in visited:
            visited.add(state)
            alive -= {p.name for p in interpreter.violated(state)}
        successors = interpreter.successors(state)
        if not successors or step % RUN == RUN - 1:
            state = interpreter.initial()
        else:
            state = draw.choice(successors)[1]
    return alive
