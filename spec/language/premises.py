"""What a condition says nothing without: the premises of its implications, however they are written.

``a implies b`` says something only where ``a`` is met, and so do ``b or not a``, ``not (a and not b)``,
``if a then b else true`` and ``not exists (a and not b)``, alone or as parts of a larger condition. What they
have in common: without ``b``, some reached state must break the condition. So each demand here is the
condition with one group of alternatives taken out, and a premise is met where that is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from kvfence.spec.language.evaluate import spell
from kvfence.spec.language.expr import FALSE, TRUE, And, Expr, Not, Or, make, substitute, variable
from kvfence.spec.language.machine import LEMMA, Action, Machine, Property
from kvfence.spec.language.types import Bool, Int

PREMISE = "PREMISE"  # stands where an invariant has its id: what some state has to meet

Kind = Literal["all", "any", "forall", "exists", "literal"]
_NESTED = 3  # equivalences within one another that are taken apart


class Premise(Property):
    """A condition that some reachable state has to meet for the condition called ``of`` to say anything.

    ``text`` says in words what is to be met; it is empty for a condition that is true whatever the state is.
    """

    def __init__(self, of: str, kind: str, number: int, text: str, expr: Expr, *, where: str) -> None:
        name = f"premise {number} of {of}"
        super().__init__(PREMISE, name, f"what {of} is about: {text}", expr, (), where=where)
        self.of, self.kind, self.text = of, kind, text


def premises(machine: Machine) -> list[Premise]:
    """The premises of a machine's invariants and checks and, unless a fault is switched on, its lemmas."""
    lemmas = () if machine.faults else machine.lemmas.values()
    out: list[Premise] = []
    for p in (*machine.invariants.values(), *lemmas):
        kind = "lemma" if p.id == LEMMA else "invariant"
        out += _of(p.name, kind, p.expr, p.where, conclusion=False)
    for action in machine.actions.values():
        for c in action.checks:
            out += _of(c.name, "check", c.expr, c.where, conclusion=True, action=action)
    return out


def _of(
    name: str, kind: str, e: Expr, where: str, *, conclusion: bool, action: Action | None = None
) -> Iterator[Premise]:
    """The premises of one condition; what a check says follows from its action being taken."""
    if e is TRUE and action is None:
        yield Premise(name, kind, 1, "", FALSE, where=where)
        return
    whole = taken_apart(e)
    for number, (met, relied_on) in enumerate(demands(whole, conclusion), 1):
        reached = Not(whole.without(relied_on))
        if action is not None:
            reached = _in_a_step(action, reached)
        yield Premise(name, kind, number, spell(met), reached, where=where)


def _in_a_step(action: Action, reached: Expr) -> Expr:
    """Whether some instance of the action can be taken in a state where ``reached`` is true of it."""
    bound = tuple(variable("bound", p.type, str(p.value)) for p in action.params)
    whole = And(*(g.expr for g in action.guards), reached)
    body = substitute(whole, {p.uid: b for p, b in zip(action.params, bound, strict=True)})
    return make("exists", Bool, (body,), bound) if bound and body.op != "const" else body


@dataclass(eq=False, slots=True)
class Part:
    """A part of a condition, negations pushed down to its literals.

    ``negated``: it stands under a negation in the condition as written. ``premise``: the first so many of the
    alternatives of an ``any`` are what was written as the premise of an implication, negated.
    """

    kind: Kind
    parts: tuple[Part, ...] = ()
    _: KW_ONLY
    negated: bool
    expr: Expr = TRUE
    over: object = None
    premise: int = 0

    @property
    def reads(self) -> bool:
        """Whether it depends on the state."""
        return _reads(self.expr) if self.kind == "literal" else any(p.reads for p in self.parts)

    def opposite(self) -> Expr:
        """Its negation, pushed down to the literals, to be read."""
        if self.kind == "literal":
            return Not(self.expr)
        inner = [p.opposite() for p in self.parts]
        if self.kind in ("all", "any"):
            return Or(*inner) if self.kind == "all" else And(*inner)
        kind = "exists" if self.kind == "forall" else "forall"
        return inner[0] if inner[0].op == "const" else make(kind, Bool, (inner[0],), self.over)

    def without(self, gone: Sequence[Part]) -> Expr:
        """The condition with the parts ``gone`` taken as false."""
        if any(self is g for g in gone):
            return FALSE
        if self.kind == "literal":
            return self.expr
        inner = [p.without(gone) for p in self.parts]
        if self.kind in ("all", "any"):
            return And(*inner) if self.kind == "all" else Or(*inner)
        return inner[0] if inner[0].op == "const" else make(self.kind, Bool, (inner[0],), self.over)


def taken_apart(e: Expr, negated: bool = False, depth: int = 0) -> Part:
    """The parts of a Bool expression, or of its negation."""
    op, args = e.op, e.args
    if op == "not":
        return taken_apart(args[0], not negated, depth)
    if op in ("and", "or"):
        parts = tuple(taken_apart(a, negated, depth) for a in args)
        if (op == "and") != negated:
            return Part("all", parts, negated=negated)
        premise = e.value if isinstance(e.value, int) and not negated else 0
        return Part("any", parts, negated=negated, premise=premise)
    if op in ("forall", "exists"):
        kind: Kind = "forall" if (op == "forall") != negated else "exists"
        return Part(kind, (taken_apart(args[0], negated, depth),), negated=negated, over=e.value)
    if op == "ite":
        c, *results = args  # where c is true the first result counts, else the second
        arms = [
            (taken_apart(c, unmet, depth), taken_apart(x, negated, depth))
            for unmet, x in zip((True, False), results, strict=True)
        ]
        return Part(
            "all", tuple(Part("any", arm, negated=negated, premise=1) for arm in arms), negated=negated
        )
    if op == "eq" and args[0].type is Bool and depth < _NESTED:
        x, y = args
        pairs = [
            (taken_apart(x, flipped, depth + 1), taken_apart(y, flipped is negated, depth + 1))
            for flipped in (True, False)
        ]
        return Part("all", tuple(Part("any", pair, negated=negated) for pair in pairs), negated=negated)
    counted = _none_counted(e)
    if counted is not None:
        return taken_apart(counted, negated, depth)
    return Part("literal", negated=negated, expr=Not(e) if negated else e)


def _none_counted(e: Expr) -> Expr | None:
    """A comparison of a count that says "none" or "some", as a quantifier; None for another expression."""
    if e.op not in ("eq", "lt", "le"):
        return None
    a, b = e.args
    none = (e.op in ("eq", "le") and _is(b, 0)) or (e.op == "lt" and _is(b, 1))
    some = (e.op == "lt" and _is(a, 0)) or (e.op == "le" and _is(a, 1))
    if a.op == "count" and none:
        return make("forall", Bool, (Not(a.args[0]),), a.value)
    if b.op == "count" and some:
        return make("exists", Bool, (b.args[0],), b.value)
    return None


def _is(e: Expr, value: int) -> bool:
    return e.op == "const" and isinstance(e.type, Int) and e.value == value


Demand = tuple[Expr, tuple[Part, ...]]
"""What some state has to meet, and the alternatives that the condition relies on where it is met."""


def demands(part: Part, conclusion: bool = False) -> Iterator[Demand]:
    """The premises of a condition; of one that is itself what follows from a premise if ``conclusion``."""
    if part.kind in ("all", "forall"):
        for p in part.parts:
            yield from demands(p, conclusion)
    elif part.kind == "any":
        written, rest = part.parts[: part.premise], part.parts[part.premise :]
        if written:
            yield _unmet(written), rest
        yield from _alternatives(part.negated, rest, written, conclusion or bool(written))


def _alternatives(
    negated: bool, parts: Sequence[Part], given: Sequence[Part], conclusion: bool
) -> Iterator[Demand]:
    """The premises among alternatives that do not say which of them is the premise.

    Of ``b or not a`` it is ``a``. Where all or none are negated, premise and conclusion look alike: then each
    is to be relied on somewhere, unless they are what follows from a premise that was stated.
    """
    nested = [p for p in parts if p.kind == "any" and not p.premise]
    flat = [q for p in parts for q in (p.parts if p in nested else (p,))]
    inverted = {id(q) for p in nested if p.negated for q in p.parts}
    fixed = [p for p in flat if not p.reads]
    reading = [p for p in flat if p.reads]
    plain = [p for p in reading if not p.negated]
    if conclusion:  # of what is negated as a whole, only a relation says that an implication is meant
        doubtful = inverted | ({id(p) for p in flat} if negated else set())
        plain = [p for p in plain if id(p) not in doubtful or p.kind != "literal" or p.expr.op == "apply"]
    others = [p for p in reading if p not in plain]
    if plain and any(p.negated for p in others):
        yield _unmet([*given, *fixed, *others]), tuple(plain)
    elif not conclusion and (fixed or len(reading) > 1):
        for group in _grouped(reading):
            rest = [*given, *fixed, *(p for p in reading if p not in group)]
            if rest:
                yield _unmet(rest), tuple(group)
    if conclusion and len(reading) == 1:
        plain = reading
    if not conclusion or len(plain) == 1:  # alternatives of a conclusion are no premises of one another
        for p in plain:
            yield from demands(p, conclusion or bool(others))


def _grouped(parts: Sequence[Part]) -> list[list[Part]]:
    """The alternatives one by one, those together that say which labels one value may have."""
    groups: dict[object, list[Part]] = {}
    for p in parts:
        e = p.expr
        one_of = p.kind == "literal" and e.op == "eq" and e.args[1].op == "const"
        groups.setdefault(("one of", e.args[0].uid) if one_of else id(p), []).append(p)
    return list(groups.values())


def _unmet(parts: Sequence[Part]) -> Expr:
    return And(*(p.opposite() for p in parts))


def _reads(e: Expr) -> bool:
    return e.op == "apply" or any(_reads(a) for a in e.args)
