"""A machine at given sizes as z3 terms: states of one term per cell, and the step between two of them.

Values are bit-vectors just wide enough for every number that can occur; with an unbounded Int in the state
they are integers. What must hold is always a predicate of one state: a check of a step is asked of every step
that the state allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add, eq, le, lt, sub
from typing import Any

import z3

from kvfence.checker.engines.base import Kind
from kvfence.spec.language import LEMMA, Grounded, Instance
from kvfence.spec.language.ground import Cell
from kvfence.spec.language.nodes import INF, Node

Term = Any  # z3 is untyped
Values = tuple[int, ...]
_BINARY = {"eq": eq, "lt": lt, "le": le, "add": add, "sub": sub}


@dataclass(frozen=True)
class Target:
    """A condition to be violated, or a goal to be met; ``extra`` counts the step that shows it."""

    id: str
    name: str
    kind: Kind
    text: str
    extra: int


class Unrolled:
    """Runs of the machine of any length, step by step, in one z3 context."""

    def __init__(self, grounded: Grounded, *, integers: bool = False) -> None:
        self.grounded = grounded
        self.context = z3.Context()
        self.integers = integers or any(c.lo is None for c in grounded.cells)
        self.width = _width(grounded)
        self.states: list[list[Term]] = []
        self.choices: list[Term] = []
        self._memo: list[dict[int, Term]] = []

    def solver(self, seconds: float | None = None) -> Term:
        """A solver for the terms of this machine; incremental."""
        made = z3.Solver(ctx=self.context) if self.integers else z3.SolverFor("QF_FD", ctx=self.context)
        if seconds is not None:
            made.set("timeout", max(1, int(seconds * 1000)))
        return made

    def add_state(self) -> int:
        """A new state, about which nothing is known; its number."""
        k = len(self.states)
        cells = self.grounded.cells
        names = [c.label if c.label.isascii() else f"c{c.number}" for c in cells]
        self.states.append([self._cell(c, f"{name}@{k}") for c, name in zip(cells, names, strict=True)])
        self._memo.append({})
        return k

    def _cell(self, cell: Cell, name: str) -> Term:
        if self._boolean(cell.number):
            return z3.Bool(name, self.context)
        return z3.Int(name, self.context) if self.integers else z3.BitVec(name, self.width, self.context)

    def _boolean(self, number: int) -> bool:
        return self.grounded.cells[number].function.value.name == "Bool"

    def number(self, value: int) -> Term:
        """An integer constant."""
        if self.integers:
            return z3.IntVal(value, self.context)
        return z3.BitVecVal(value, self.width, self.context)

    def equals(self, k: int, number: int, value: int) -> Term:
        """Whether a cell of state ``k`` has that value."""
        cell = self.states[k][number]
        return (cell if value else z3.Not(cell)) if self._boolean(number) else cell == self.number(value)

    def is_initial(self, k: int) -> Term:
        """Whether state ``k`` is the initial one."""
        return self.every([self.equals(k, c.number, c.init) for c in self.grounded.cells])

    def in_range(self, k: int) -> Term:
        """Whether every cell of state ``k`` has a value of its type."""
        parts = []
        for c in self.grounded.cells:
            if not self._boolean(c.number) and c.lo is not None and c.hi is not None:
                x = self.states[k][c.number]
                parts += [self.number(c.lo) <= x, x <= self.number(c.hi)]
        return self.every(parts)

    def every(self, parts: Sequence[Term]) -> Term:
        """Conjunction of any number of terms."""
        return z3.And([*parts, z3.BoolVal(True, self.context)])

    def some(self, parts: Sequence[Term]) -> Term:
        """Disjunction of any number of terms."""
        return z3.Or([*parts, z3.BoolVal(False, self.context)])

    def step(self, k: int) -> Term:
        """Whether state ``k + 1`` follows state ``k`` by the instance that ``choices[k]`` names."""
        g, here, there = self.grounded, self.states[k], self.states[k + 1]
        bits, name = max(1, len(g.instances).bit_length()), f"choice@{k}"
        choice = z3.Int(name, self.context) if self.integers else z3.BitVec(name, bits, self.context)
        self.choices.append(choice)
        taken = [choice == i.index for i in g.instances]
        both = list(zip(taken, g.instances, strict=True))
        parts = [self.some([z3.And(t, self.truth(i.guard, k)) for t, i in both])]
        parts += [z3.Implies(t, self.truth(r.holds, k)) for t, i in both for r in i.ranges]
        for c in g.cells:
            by_value: dict[int, tuple[Node, list[Term]]] = {}
            for t, i in both:
                if c.number in i.updates:
                    node = i.updates[c.number]
                    by_value.setdefault(node.id, (node, []))[1].append(t)
            value = here[c.number]
            for node, when in by_value.values():
                new = self.truth(node, k) if self._boolean(c.number) else self.value(node, k)
                value = z3.If(self.some(when), new, value)
            parts.append(there[c.number] == value)
        return self.every(parts)

    def truth(self, n: Node, k: int) -> Term:
        """The truth value of a Bool node in state ``k``."""
        term = self._term(n, k)
        return term if z3.is_bool(term) else term != self.number(0)

    def value(self, n: Node, k: int) -> Term:
        """The number that a node is in state ``k``; true is 1."""
        term = self._term(n, k)
        return z3.If(term, self.number(1), self.number(0)) if z3.is_bool(term) else term

    def _term(self, n: Node, k: int) -> Term:
        memo = self._memo[k]
        if n.id not in memo:
            memo[n.id] = self._build(n, k)
        return memo[n.id]

    def _build(self, n: Node, k: int) -> Term:
        if n.op == "const":
            return z3.BoolVal(bool(n.value), self.context) if n.boolean else self.number(n.value)
        if n.op == "cell":
            return self.states[k][n.value]
        if n.op in ("and", "or"):
            return (z3.And if n.op == "and" else z3.Or)([self.truth(a, k) for a in n.args])
        if n.op == "not":
            return z3.Not(self.truth(n.args[0], k))
        if n.op == "ite":
            c, a, b = n.args
            read = self.truth if n.boolean else self.value
            return z3.If(self.truth(c, k), read(a, k), read(b, k))
        if n.op == "eq" and all(z3.is_bool(self._term(a, k)) for a in n.args):
            return self._term(n.args[0], k) == self._term(n.args[1], k)
        return _BINARY[n.op](*(self.value(x, k) for x in n.args))

    def conditions(self, k: int) -> dict[str, tuple[Target, Term]]:
        """What must hold in state ``k``, by name: invariants, lemmas, checks, ranges and ``deadlock``."""
        g = self.grounded
        out: dict[str, tuple[Target, Term]] = {}
        for p, node in g.invariants:
            kind: Kind = "lemma" if p.id == LEMMA else "invariant"
            out[p.name] = Target(p.id, p.name, kind, p.doc or p.name, 0), self.truth(node, k)
        steps: dict[str, tuple[Target, list[Term]]] = {}
        for i in g.instances:
            for kind, checks in (("check", i.checks), ("range", i.ranges)):
                for c in checks:
                    target = Target(c.id, c.name, kind, c.text, 1)
                    allowed = z3.Implies(self.truth(i.guard, k), self.truth(c.holds, k))
                    steps.setdefault(c.name, (target, []))[1].append(allowed)
        for name, (target, parts) in steps.items():
            out[name] = target, self.every(parts)
        alive = self.some([self.truth(g.terminal, k), *(self.truth(i.guard, k) for i in g.instances)])
        text = "no action is enabled in a state that is not terminal"
        out["deadlock"] = Target("DEADLOCK", "deadlock", "invariant", text, 0), alive
        return out

    def taken(self, model: Term, upto: int) -> list[Instance]:
        """The instances that lead to state ``upto`` in a model."""
        chosen = (model.eval(c, model_completion=True).as_long() for c in self.choices[:upto])
        return [self.grounded.instances[i] for i in chosen]

    def read(self, model: Term, k: int) -> Values:
        """State ``k`` of a model."""
        out = []
        for c, x in zip(self.grounded.cells, self.states[k], strict=True):
            v = model.eval(x, model_completion=True)
            if self._boolean(c.number):
                out.append(int(z3.is_true(v)))
            else:
                out.append(v.as_long() if self.integers else v.as_signed_long())
        return tuple(out)

    def culprit(self, model: Term, k: int, name: str) -> tuple[Instance, str] | None:
        """An instance that state ``k`` allows and whose check or range ``name`` fails, and what it says."""
        for i in self.grounded.instances:
            for c in (*i.checks, *i.ranges):
                if c.name == name and z3.is_true(
                    model.eval(z3.And(self.truth(i.guard, k), z3.Not(self.truth(c.holds, k))), True)
                ):
                    return i, c.text
        return None


def _width(g: Grounded) -> int:
    """Bits of a signed number that holds every number that a node or a cell can be."""
    ends = [end for n in nodes(g) for end in (n.lo, n.hi)]
    # a cell may be read nowhere, and is compared with its range all the same
    ends += [end for c in g.cells for end in (c.lo, c.hi, c.init) if end is not None]
    most = max(1, *(abs(int(end)) for end in ends if abs(end) < INF))
    return most.bit_length() + 1


def nodes(g: Grounded) -> Iterable[Node]:
    """Every node of the machine's guards, updates, checks and properties, once."""
    visited: set[int] = set()
    stack: list[Node] = [n for _, n in (*g.invariants, *g.goals)]
    stack.append(g.terminal)
    for i in g.instances:
        stack += [i.guard, *i.updates.values(), *(c.holds for c in (*i.checks, *i.ranges))]
    while stack:
        n = stack.pop()
        if n.id not in visited:
            visited.add(n.id)
            yield n
            stack += n.args
