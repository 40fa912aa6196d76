"""Counting over sorts of any size: each count is an integer, tied to its set by what holds of finite sets.

``Count(Block, lambda b: P(b))`` is outside first-order logic. Here it becomes an unknown integer (a function
of its free variables). A question contains facts about it, each true of any finite sets:

* ``thresholds``: it is at least k iff k pairwise distinct elements have P, for small k;
* ``size``: it lies between 0 and the number of elements of the sort;
* ``flips``: if P before and after a step agree except at some named elements, the count changes by the number
  of those that gain P less the number that lose it.

The facts are expressions of the language, so that they can be checked at every finite size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvfence.checker.engines.smt.conditions import Question, Unsupported
from kvfence.spec.language import And, Bool, Expr, If, Iff, Implies, Not, Or, Sort, Type
from kvfence.spec.language.expr import FALSE, equal, limit, make, rebuilt, show, substitute, variable

THRESHOLDS = 3  # counts below this one are distinguished

_names: dict[tuple[str, int, int], Expr] = {}


def _canonical(role: str, t: Type, number: int) -> Expr:
    """The variable that stands for the ``number``-th variable in that role."""
    key = (role, id(t), number)
    if key not in _names:
        _names[key] = variable("bound", t, f"{role}{number}")
    return _names[key]


class Counter:
    """A count up to the names of its variables: ``term`` over ``formals``; ``actuals`` are those of one use.

    Parameters that are labels, truth values or integers stay what they are.
    """

    def __init__(self, count: Expr) -> None:
        order: list[Expr] = []
        _outer(count, set(), order)
        self.actuals = tuple(order)
        self.formals = tuple(_canonical("y", v.type, k) for k, v in enumerate(order))
        named = substitute(count, {v.uid: f for v, f in zip(order, self.formals, strict=True)})
        self.term = _renamed(named, 0)
        assert isinstance(self.term.value, tuple)
        self.over: tuple[Expr, ...] = self.term.value
        self.body = self.term.args[0]


def _outer(e: Expr, inner: set[int], order: list[Expr]) -> None:
    """The free variables of ``e`` in the order in which they are met."""
    if e.op in ("param", "bound"):
        plain = e.op == "param" and not isinstance(e.type, Sort)
        if not plain and e.uid not in inner and all(e is not v for v in order):
            order.append(e)
        return
    within = inner | {v.uid for v in e.value} if isinstance(e.value, tuple) else inner
    for a in e.args:
        if a.free:
            _outer(a, within, order)


def _renamed(e: Expr, depth: int) -> Expr:
    """``e`` with its quantified variables named by how deep they lie."""
    args = e.args
    value = e.value
    if isinstance(value, tuple):
        new = tuple(_canonical("x", v.type, depth + k) for k, v in enumerate(value))
        args = tuple(substitute(a, {v.uid: n for v, n in zip(value, new, strict=True)}) for a in args)
        depth += len(new)
        args = tuple(_renamed(a, depth) for a in args)
        return make(e.op, e.type, args, new)
    args = tuple(_renamed(a, depth) for a in args)
    if all(a is b for a, b in zip(args, e.args, strict=True)):
        return e
    return rebuilt(e, args)


def counts_in(expressions: Iterable[Expr]) -> list[Expr]:
    """The count nodes, inner ones first."""
    visited: dict[int, Expr] = {}

    def visit(e: Expr) -> None:
        if e.uid not in visited:
            for a in e.args:
                visit(a)
            visited[e.uid] = e

    for e in expressions:
        visit(e)
    return [e for e in visited.values() if e.op == "count"]


def facts(question: Question) -> list[Expr]:
    """The facts about the counts of a question."""
    counts = counts_in((*question.given, question.goal, *(c for pair in question.counts for c in pair)))
    counters: dict[int, Counter] = {}
    for counter in map(Counter, counts):
        counters.setdefault(counter.term.uid, counter)
    out = [fact for counter in counters.values() for fact in (*thresholds(counter), *size(counter))]
    out += [flips(before, after, question.fixed) for before, after in question.counts]
    return list({fact.uid: fact for fact in out}.values())


def thresholds(counter: Counter) -> Iterator[Expr]:
    """count ≥ k iff k pairwise distinct witnesses exist."""
    for k in range(1, THRESHOLDS + 1):
        copies = [tuple(variable("bound", v.type, f"{v.value}_{j}") for v in counter.over) for j in range(k)]
        have = [
            substitute(counter.body, {v.uid: c for v, c in zip(counter.over, copy, strict=True)})
            for copy in copies
        ]
        apart = [
            Not(And(*(equal(p, q) for p, q in zip(copies[i], copies[j], strict=True))))
            for i in range(k)
            for j in range(i)
        ]
        body = And(*have, *apart)
        flat = tuple(v for copy in copies for v in copy)
        exist = body if body.op == "const" else make("exists", Bool, (body,), flat)
        yield everywhere(counter.formals, Iff(counter.term >= k, exist))


def size(counter: Counter) -> Iterator[Expr]:
    """0 ≤ count ≤ the number of elements of the sort."""
    yield everywhere(counter.formals, counter.term >= 0)
    if len(counter.over) == 1 and isinstance(counter.over[0].type, Sort):
        most = cardinality(counter.over[0].type)
        yield everywhere(counter.formals, counter.term <= most)


_sizes: dict[str, Expr] = {}


def cardinality(sort: Sort) -> Expr:
    """The number of elements of a sort."""
    if sort.name not in _sizes:
        _sizes[sort.name] = limit(lambda sizes, name=sort.name: sizes[name])  # type: ignore[misc]
    return _sizes[sort.name]


def flips(before: Expr, after: Expr, named: Sequence[Expr]) -> Expr:
    """If two sets agree except at the ``named`` elements, their counts differ by what those gain and lose."""
    assert isinstance(before.value, tuple)
    assert isinstance(after.value, tuple)
    if len(before.value) != 1:
        raise Unsupported(f"the count {show(before)} is over tuples, and a step changes it")
    (x,) = before.value
    was, now = before.args[0], after.args[0] if after.op == "count" else FALSE
    elements = [e for e in named if e.type is x.type]
    agree = Or(Iff(was, now), *(equal(x, e) for e in elements))
    only = agree if agree.op == "const" else make("forall", Bool, (agree,), (x,))
    change: Expr | int = 0
    for k, e in enumerate(elements):
        first = And(*(Not(equal(e, d)) for d in elements[:k]))
        gained, lost = (substitute(p, {x.uid: e}) for p in (now, was))
        change = change + If(And(first, gained), 1, 0) - If(And(first, lost), 1, 0)
    bound = {v.uid: v for v in (*before.free, *after.free) if v.op == "bound"}.values()
    return everywhere(tuple(bound), Implies(only, equal(after, before + change)))


def everywhere(variables: tuple[Expr, ...], body: Expr) -> Expr:
    """``body`` for all values of free ``variables``."""
    used = tuple(v for v in variables if any(v is w for w in body.free))
    return make("forall", Bool, (body,), used) if used and body.op != "const" else body
