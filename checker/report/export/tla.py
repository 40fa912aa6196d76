"""Exports a machine as TLA+, for sorts of any size, with a configuration for TLC at given sizes.

A sort is the set ``0 .. N - 1`` for a constant N, a label is a string, a function of the state is a TLA+
function. What a step would take out of its range is not followed, as everywhere in kvfence: ``InRange`` is a
conjunct of every step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvfence.checker.core.identifiers import Names, ascii_word
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Action, Bool, Enum, Expr, Function, Int, LeadsTo, Machine, Sort, Type
from kvfence.spec.language.sizes import bound_at

_TIMES = " \\X "
_SIGNS = {"eq": "=", "lt": "<", "le": "<=", "add": "+", "sub": "-", "and": "/\\", "or": "\\/"}
_ALL, _SOME = "\\A", "\\E"


_WORDS = """
ACTION ASSUME ASSUMPTION AXIOM BOOLEAN BY CASE CHOOSE CONSTANT CONSTANTS COROLLARY DEF DEFINE DEFS DOMAIN ELSE
ENABLED EXCEPT EXTENDS FALSE HAVE HIDE IF IN INSTANCE LAMBDA LEMMA LET LOCAL MODULE NEW OBVIOUS OMITTED ONLY
OTHER PICK PROOF PROPOSITION PROVE QED RECURSIVE STATE STRING SUBSET SUFFICES TAKE TEMPORAL THEN THEOREM TRUE
UNCHANGED UNION USE VARIABLE VARIABLES WITH WITNESS
Cardinality FiniteSets Init InRange Int Integers IsFiniteSet Nat Naturals Next Spec all vars
ACTION_CONSTRAINT ACTION_CONSTRAINTS ALIAS CHECK_DEADLOCK CONSTRAINT CONSTRAINTS INIT INVARIANT INVARIANTS
NEXT POSTCONDITION PROPERTIES PROPERTY SPECIFICATION SYMMETRY TYPE TYPE_CONSTRAINT VIEW
"""
_RESERVED = frozenset(_WORDS.split())
"""Words of the language, of what a module extends or defines, and of configurations."""


@dataclass
class _Scope:
    """Names of the free and bound variables around an expression; none is in ``taken``."""

    taken: Collection[str]
    names: dict[int, str] = field(default_factory=dict)

    def with_(self, variables: Sequence[Expr]) -> _Scope:
        depth = len(self.names)
        return _Scope(
            self.taken, {**self.names, **{v.uid: self._name(v, depth + k) for k, v in enumerate(variables)}}
        )

    def _name(self, v: Expr, depth: int) -> str:
        name = f"{_word(str(v.value))}_{depth}"  # the depth keeps those of one scope apart
        while name in self.taken:
            name = f"x_{name}"
        return name


def _word(text: str) -> str:
    """The text as an identifier of TLA+, which has a letter in it and no fairness operator before it."""
    word = ascii_word(text)
    return word if re.match(r"_*[A-Za-z]", word) and not re.match("[WS]F_", word) else f"x_{word}"


class _Spelling:
    """What the parts of a machine are called in its module."""

    def __init__(self, machine: Machine) -> None:
        self._names = Names(_RESERVED)
        for sort in machine.sorts:
            self.size(sort), self.elements(sort)
        for name in machine.functions:
            self.variable(name)
        for kind in ("actions", "invariants", "goals", "liveness"):
            for name in getattr(machine, kind):
                self.definition(kind, name)

    @property
    def taken(self) -> Collection[str]:
        return self._names.taken

    def size(self, sort: str) -> str:
        return self._names.of(("size", sort), f"N_{ascii_word(sort)}")

    def elements(self, sort: str) -> str:
        return self._names.of(("elements", sort), f"{_word(sort)}Set")

    def variable(self, name: str) -> str:
        return self._names.of(("variable", name), _word(name))

    def definition(self, kind: str, name: str) -> str:
        return self._names.of((kind, name), _word(camel(name)))

    def label(self, t: Enum, value: int) -> str:
        names = Names()
        return [names.of(label, ascii_word(label)) for label in t.labels][value]


def tla(machine: Machine, sizes: Mapping[str, int] | None = None) -> tuple[str, str]:
    """The module and its configuration for TLC; the file names are ``MACHINE.tla`` and ``MACHINE.cfg``.

    ``sizes`` by sort; the machine's own where nothing is said. They also decide bounds that depend on sizes.
    """
    machine.finished()
    at = {name: (sizes or {}).get(name, sort.default) for name, sort in machine.sorts.items()}
    module = _Module(machine, at)
    return module.text(), _configuration(machine, at, module.spelling)


def module_name(machine: Machine) -> str:
    """The name of the module, and so of its file."""
    return Names(_RESERVED).of("module", _word(machine.name))


def _configuration(machine: Machine, sizes: Mapping[str, int], spelling: _Spelling) -> str:
    lines = ["SPECIFICATION Spec" if machine.liveness else "INIT Init\nNEXT Next"]
    lines += ["CONSTANTS"] if sizes else []
    lines += [f"  {spelling.size(sort)} = {size}" for sort, size in sizes.items()]
    lines += [f"INVARIANT {spelling.definition('invariants', name)}" for name in machine.invariants]
    lines += [f"PROPERTY {spelling.definition('liveness', name)}" for name in machine.liveness]
    lines.append("CHECK_DEADLOCK FALSE")
    return "\n".join(lines) + "\n"


def camel(name: str) -> str:
    """``queue_store`` as ``QueueStore``: definitions are written so, variables as they are."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


class _Module:
    def __init__(self, machine: Machine, sizes: Mapping[str, int]) -> None:
        self.m, self.sizes, self.spelling = machine, sizes, _Spelling(machine)
        self.outside = _Scope(self.spelling.taken)

    def text(self) -> str:
        m = self.m
        variables = ", ".join(map(self.spelling.variable, m.functions))
        out = [f"---- MODULE {module_name(m)} ----", *_comment(f"Machine {m.name} of kvfence.")]
        out += ["EXTENDS Integers, FiniteSets", ""]
        if m.sorts:
            out += [f"CONSTANTS {', '.join(map(self.spelling.size, m.sorts))}", ""]
        out += [f"{self.sort(s)} == 0 .. {self.spelling.size(name)} - 1" for name, s in m.sorts.items()]
        out += ["", f"VARIABLES {variables}", f"vars == <<{variables}>>", "", "Init =="]
        fields = {self.spelling.variable(name): f for name, f in m.functions.items()}
        out += [f"  /\\ {name} = {self.function(f, f.init, self.outside)}" for name, f in fields.items()]
        ranges = [f"  /\\ {name} \\in {self.range(f)}" for name, f in fields.items() if self.bounded(f)]
        out += ["", "InRange ==", *(ranges or ["  TRUE"])]
        for action in m.actions.values():
            out += ["", *self.action(action)]
        some = (self.quantified(_SOME, a.params, self.call(a)) for a in m.actions.values())
        out += ["", "Next ==", *(f"  \\/ {step}" for step in some), "", *self.fairness()]
        for kind, properties in (("invariants", m.invariants), ("goals", m.goals)):
            for p in properties.values():
                out += ["", *_comment(f"{p.id or 'goal'}: {p.doc or p.name.replace('_', ' ')}")]
                out.append(f"{self.spelling.definition(kind, p.name)} == {self.expr(p.expr, self.outside)}")
        for one in m.liveness.values():
            out += ["", *_comment(f"{one.id}: {one.doc}"), self.liveness_property(one)]
        return "\n".join([*out, "", "===="]) + "\n"

    def sort(self, s: Type) -> str:
        return self.spelling.elements(s.name)

    def type(self, t: Type) -> str:
        if isinstance(t, Sort):
            return self.sort(t)
        if t is Bool:
            return "BOOLEAN"
        if isinstance(t, Enum):
            return "{" + ", ".join(f'"{self.spelling.label(t, k)}"' for k in range(len(t.labels))) + "}"
        ends = t.range(self.sizes) if isinstance(t, Int) else None
        return "Int" if ends is None else f"({ends[0]} .. {ends[1]})"

    def range(self, f: Function) -> str:
        value = self.type(f.value)
        return f"[{_TIMES.join(self.type(t) for t in f.domain)} -> {value}]" if f.domain else value

    def bounded(self, f: Function) -> bool:
        return isinstance(f.value, Int) and f.value.bounded

    def function(self, f: Function, e: Expr, scope: _Scope) -> str:
        """``e`` at every index of ``f``, as a TLA+ function."""
        if not f.domain:
            return self.expr(e, scope)
        inner = scope.with_(f.formals)
        return f"[{self.over(f.formals, inner)} |-> {self.expr(e, inner)}]"

    def over(self, variables: Sequence[Expr], scope: _Scope) -> str:
        """Variables of ``scope``, each with the set that it ranges over."""
        return ", ".join(f"{scope.names[v.uid]} \\in {self.type(v.type)}" for v in variables)

    def quantified(self, quantifier: str, params: Sequence[Expr], text: str) -> str:
        """``text`` under a quantifier of the parameters, if there are any."""
        over = self.over(params, self.outside.with_(params))
        return f"{quantifier} {over} : {text}" if over else text

    def call(self, a: Action) -> str:
        """An action with its parameters."""
        scope = self.outside.with_(a.params)
        names = ", ".join(scope.names[p.uid] for p in a.params)
        return f"{self.spelling.definition('actions', a.name)}{f'({names})' if names else ''}"

    def action(self, a: Action) -> Iterator[str]:
        scope = self.outside.with_(a.params)
        yield from _comment(a.doc)
        yield f"{self.call(a)} =="
        for guard in a.guards:
            for e in guard.expr.args if guard.expr.op == "and" else (guard.expr,):
                yield f"  /\\ {self.expr(e, scope)}"
        for f, e in a.updates.items():
            yield f"  /\\ {self.spelling.variable(f.name)}' = {self.function(f, e, scope)}"
        same = [self.spelling.variable(name) for name, f in self.m.functions.items() if f not in a.updates]
        if same:
            yield f"  /\\ UNCHANGED <<{', '.join(same)}>>"
        if any(self.bounded(f) for f in a.updates):
            yield "  /\\ InRange'"

    def fairness(self) -> Iterator[str]:
        yield "Spec == Init /\\ [][Next]_vars"
        for a in self.m.actions.values():
            if a.fair is None:
                continue
            fair = f"{'WF' if a.fair == 'weak' else 'SF'}_vars({self.call(a)})"
            every = self.quantified(_ALL, a.params, fair)
            # in parentheses: a quantifier reaches as far as it can, over the conjuncts that follow
            yield f"  /\\ ({every})" if a.params else f"  /\\ {fair}"

    def liveness_property(self, p: LeadsTo) -> str:
        scope = self.outside.with_(p.params)
        then = self.expr(p.then, scope)
        body = f"<>({then})" if p.when is None else f"(({self.expr(p.when, scope)}) ~> ({then}))"
        return f"{self.spelling.definition('liveness', p.name)} == {self.quantified(_ALL, p.params, body)}"

    def expr(self, e: Expr, scope: _Scope) -> str:
        a = e.args
        if e.op == "const":
            assert isinstance(e.value, int)
            return self.constant(e.type, e.value)
        if e.op in ("param", "bound"):
            return scope.names[e.uid]
        if e.op == "limit":
            assert callable(e.value)
            return str(bound_at(e.value, self.sizes))
        if e.op == "index":
            return self.expr(a[0], scope)
        if e.op == "apply":
            assert isinstance(e.value, Function)
            indices = ", ".join(self.expr(x, scope) for x in a)
            name = self.spelling.variable(e.value.name)
            return f"{name}[{indices}]" if a else name
        if e.op in _SIGNS:
            return f"({f' {_SIGNS[e.op]} '.join(self.expr(x, scope) for x in a)})"
        if e.op == "not":
            return f"~{self.expr(a[0], scope)}"
        if e.op == "ite":
            c, x, y = (self.expr(x, scope) for x in a)
            return f"(IF {c} THEN {x} ELSE {y})"
        if isinstance(e.value, tuple):
            return self._quantified(e, e.value, scope)
        raise CannotRun(f"TLA+ export does not know {e.op}")

    def constant(self, t: Type, value: int) -> str:
        if t is Bool:
            return "TRUE" if value else "FALSE"
        return f'"{self.spelling.label(t, value)}"' if isinstance(t, Enum) else str(value)

    def _quantified(self, e: Expr, variables: tuple[Expr, ...], scope: _Scope) -> str:
        inner = scope.with_(variables)
        body = self.expr(e.args[0], inner)
        names = [inner.names[v.uid] for v in variables]
        over = self.over(variables, inner)
        if e.op in ("forall", "exists"):
            return f"({_ALL if e.op == 'forall' else _SOME} {over} : {body})"
        if len(names) == 1:
            return f"Cardinality({{{over} : {body}}})"
        every = _TIMES.join(self.type(v.type) for v in variables)
        parts = " ".join(f"{name} == all[{k}]" for k, name in enumerate(names, 1))
        return f"Cardinality({{all \\in {every} : LET {parts} IN {body}}})"


def _comment(text: str) -> Iterator[str]:
    if text.strip():
        yield f"\\* {' '.join(text.split())}"
