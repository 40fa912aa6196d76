"""Expressions as z3 terms: sorts uninterpreted, labels as an enumeration, every Int as an integer.

Quantifiers over labels, truth values and literal ranges are written out; those over sorts stay.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from operator import add, eq, le, lt, mul, sub
from typing import Any

import z3

from kvfence.checker.core.identifiers import Names, ascii_word
from kvfence.checker.engines.smt.conditions import Question, Unsupported
from kvfence.checker.engines.smt.counters import Counter, facts
from kvfence.spec.language import Bool, Enum, Expr, Function, Int, Sort, Type
from kvfence.spec.language.expr import constant, substitute
from kvfence.spec.language.sizes import NotPolynomial, polynomial
from kvfence.spec.language.types import INTEGER

Term = Any  # z3 is untyped
_BUILD = {"not": z3.Not, "ite": z3.If, "eq": eq, "lt": lt, "le": le, "add": add, "sub": sub}


class Translator:
    """Translates expressions in one z3 context; equal expressions become one term."""

    def __init__(self, context: Term = None) -> None:
        self.context = context or z3.Context()
        self._sorts: dict[int, Term] = {}
        self._labels: dict[int, list[Term]] = {}
        self._functions: dict[Function, Term] = {}
        self._counters: dict[int, tuple[Counter, Term]] = {}  # a counter's uid is its own while it is kept
        self._terms: dict[int, Term] = {}
        self._used_sizes: dict[str, Term] = {}
        self._names = Names()

    def sort(self, t: Type) -> Term:
        """The z3 sort of a type."""
        if t is Bool:
            return z3.BoolSort(self.context)
        if isinstance(t, Int):
            return z3.IntSort(self.context)
        if id(t) not in self._sorts:
            if isinstance(t, Enum):
                name = self._name("enum", t, t.name)
                labels = [self._names.of((id(t), x), f"{name}.{ascii_word(x)}") for x in t.labels]
                self._sorts[id(t)], self._labels[id(t)] = z3.EnumSort(name, labels, ctx=self.context)
            else:
                self._sorts[id(t)] = z3.DeclareSort(self._name("sort", t, t.name), self.context)
        return self._sorts[id(t)]

    def _name(self, kind: str, what: object, name: str) -> str:
        """A symbol of SMT-LIB for a name of the machine: with its kind before it, no word of the language."""
        return self._names.of((kind, id(what)), f"{kind}.{ascii_word(name)}")

    def formulas(self, question: Question) -> list[Term]:
        """Terms that cannot all be true together exactly when the question's answer is yes."""
        bounds, given, rest = self.parts(question)
        return [*bounds, *given.values(), *rest]

    def parts(self, question: Question) -> tuple[list[Term], dict[int, Term], list[Term]]:
        """These terms: bounds of the constants, what is given by its place among the question's, the rest."""
        given = {k: self.term(e) for k, e in enumerate(question.given) if not _is_true(e)}
        counts = [self.term(e) for e in facts(question) if not _is_true(e)]
        bounds = [self.term(inside) for v in question.fixed for inside in _inside(v)]
        goal = z3.Not(self.term(question.goal), self.context)
        sizes = [size >= 1 for size in self._used_sizes.values()]
        return bounds, given, [*counts, *sizes, goal]

    def term(self, e: Expr) -> Term:
        """The z3 term of ``e``. Unsupported for what only finite engines can read."""
        if e.uid not in self._terms:
            self._terms[e.uid] = self._build(e)
        return self._terms[e.uid]

    def _build(self, e: Expr) -> Term:
        op, value = e.op, e.value
        if op == "const":
            return self._constant(e.type, value)
        if op in ("param", "bound"):
            return z3.Const(f"{ascii_word(str(value))}!{e.uid}", self.sort(e.type))
        if op == "limit":
            return self._limit(e)
        if op == "index":
            raise Unsupported("it numbers the elements of a sort, which only a finite size has")
        if op == "apply":
            assert isinstance(value, Function)
            return self._function(value)(*map(self.term, e.args))
        if op in ("forall", "exists"):
            return self._quantified(e)
        if op == "count":
            return self._count(e)
        a = [self.term(x) for x in e.args]
        return (z3.And if op == "and" else z3.Or)(a) if op in ("and", "or") else _BUILD[op](*a)

    def _constant(self, t: Type, value: object) -> Term:
        assert isinstance(value, int)
        if t is Bool:
            return z3.BoolVal(bool(value), self.context)
        if isinstance(t, Int):
            return z3.IntVal(value, self.context)
        self.sort(t)
        return self._labels[id(t)][value]

    def _limit(self, e: Expr) -> Term:
        assert callable(e.value)
        try:
            terms = polynomial(e.value)
        except NotPolynomial as problem:
            raise Unsupported(str(problem)) from problem
        parts = []
        for sorts, times in terms.items():
            factors = [self.size(sort) for sort in sorts]
            number = [z3.IntVal(times, self.context)] if times != 1 or not factors else []
            parts.append(functools.reduce(mul, [*number, *factors]))
        return functools.reduce(add, parts) if parts else z3.IntVal(0, self.context)

    def size(self, sort: str) -> Term:
        """The number of elements of a sort."""
        if sort not in self._used_sizes:
            self._used_sizes[sort] = z3.Int(
                self._names.of(("size", sort), f"size of {ascii_word(sort)}"), self.context
            )
        return self._used_sizes[sort]

    def _function(self, f: Function) -> Term:
        if f not in self._functions:
            self._functions[f] = z3.Function(
                self._name("s", f, f.name), *(self.sort(t) for t in (*f.domain, f.value))
            )
        return self._functions[f]

    def _quantified(self, e: Expr) -> Term:
        assert isinstance(e.value, tuple)
        finite = [v for v in e.value if values_of(v.type) is not None]
        if not finite:
            return self._over(e.op, e.value, self.term(e.args[0]))
        kept = tuple(v for v in e.value if values_of(v.type) is None)
        bodies = []
        for choice in itertools.product(*(values_of(v.type) or () for v in finite)):
            body = substitute(e.args[0], {v.uid: c for v, c in zip(finite, choice, strict=True)})
            bodies.append(self._over(e.op, kept, self.term(body)))
        return (z3.And if e.op == "forall" else z3.Or)(bodies)

    def _over(self, op: str, variables: tuple[Expr, ...], body: Term) -> Term:
        if not variables:
            return body
        inside = [self.term(c) for v in variables for c in _inside(v)]
        consts = [self.term(v) for v in variables]
        if op == "forall":
            return z3.ForAll(consts, z3.Implies(z3.And(inside), body) if inside else body)
        return z3.Exists(consts, z3.And(*inside, body) if inside else body)

    def _count(self, e: Expr) -> Term:
        counter = Counter(e)
        known = self._counters.get(counter.term.uid)
        if known is None:
            sorts = [self.sort(v.type) for v in counter.formals]
            declared = z3.Function(f"count {len(self._counters)}", *sorts, z3.IntSort(self.context))
            known = self._counters[counter.term.uid] = (counter, declared)
        return known[1](*(self.term(v) for v in counter.actuals))


def _is_true(e: Expr) -> bool:
    return e.op == "const" and bool(e.value)


def values_of(t: Type) -> list[Expr] | None:
    """All values of a type, if they are known without the sizes of sorts; else None."""
    if isinstance(t, Sort) or (isinstance(t, Int) and t.literal is None):
        return None
    ends = t.range({})
    assert ends is not None
    # Integers are one kind of constant whatever their range: equal numbers must be one node.
    return [constant(INTEGER if isinstance(t, Int) else t, v) for v in range(ends[0], ends[1] + 1)]


def _inside(v: Expr) -> Iterator[Expr]:
    """What is known of a variable from its type."""
    from kvfence.spec.language.state import within

    yield from within(v, v.type)
