"""Machines as plain data, which is drawn, made smaller, judged directly, and printed as a machine file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partialmethod
from typing import Any, TypeVar

K = TypeVar("K")

Bound = int | tuple[str, int]  # a number, or the size of a sort plus a number


@dataclass(frozen=True)
class T:
    """A type: ``kind`` is bool, int, enum or sort. An int without bounds has None for both."""

    kind: str
    name: str = ""
    lo: Bound | None = None
    hi: Bound | None = None
    labels: tuple[str, ...] = ()

    def ends(self, sizes: dict[str, int]) -> tuple[int, int]:
        """Smallest and largest value at these sizes; of a bounded type."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "enum":
            return 0, len(self.labels) - 1
        if self.kind == "sort":
            return 0, sizes[self.name] - 1
        assert self.lo is not None
        assert self.hi is not None
        return _end(self.lo, sizes), _end(self.hi, sizes)

    @property
    def bounded(self) -> bool:
        """Whether there is a smallest and a largest value."""
        return self.kind != "int" or self.lo is not None

    def same(self, other: T) -> bool:
        """Whether values of the two may be compared and assigned."""
        return self.kind == other.kind and (self.kind == "int" or self.name == other.name)

    def lit(self, value: int) -> Node:
        """A constant."""
        return Node("lit", self, (), value)

    def var(self, name: str) -> Node:
        """A parameter or bound variable."""
        return Node("var", self, (), name)

    def ite(self, condition: Node, then: Node, otherwise: Node) -> Node:
        """The one value if a condition holds, else the other."""
        return Node("if", self, (condition, then, otherwise))

    def count(self, variable: str, condition: Node) -> Node:
        """How many values of the type meet a condition."""
        return Node("count", INT, (condition,), ((variable, self),))

    def shown(self, value: int) -> bool | int | str:
        """A value the way views show it."""
        return bool(value) if self.kind == "bool" else self.labels[value] if self.kind == "enum" else value


def _end(b: Bound, sizes: dict[str, int]) -> int:
    return b if isinstance(b, int) else sizes[b[0]] + b[1]


BOOL = T("bool")
INT = T("int")


@dataclass(frozen=True)
class Node:
    """An expression. ``data``: the value of a ``lit``, the name of a ``var``, the field of a ``read``, …

    ``forall``, ``exists`` and ``count`` have their variables, (name, type) each, in ``data``.
    """

    op: str
    type: T
    args: tuple[Node, ...] = ()
    data: object = None

    def __add__(self, other: Node | int) -> Node:
        return Node("add", INT, (self, _number(other)))

    def __sub__(self, other: Node | int) -> Node:
        return Node("sub", INT, (self, _number(other)))

    def compared(self, op: str, other: Node | int) -> Node:
        """A comparison with ``other``: eq, ne, lt, le, gt or ge."""
        return Node(op, BOOL, (self, _number(other)))

    __lt__ = partialmethod(compared, "lt")
    __le__ = partialmethod(compared, "le")
    __gt__ = partialmethod(compared, "gt")
    __ge__ = partialmethod(compared, "ge")

    def __invert__(self) -> Node:
        return Node("not", BOOL, (self,))


def _number(x: Node | int) -> Node:
    return INT.lit(x) if isinstance(x, int) else x


TRUE, FALSE = BOOL.lit(1), BOOL.lit(0)


@dataclass(frozen=True)
class Field:
    """A function of the state; ``init`` is over the variables i0, i1, …"""

    name: str
    domain: tuple[T, ...]
    value: T
    init: Node


@dataclass(frozen=True)
class Stmt:
    """``require`` or ``check`` (``name`` is the id); ``set`` or ``update`` of the field ``name``.

    ``index`` has the indices of a ``set``, ``over`` the variables of an ``update``.
    """

    kind: str
    expr: Node
    name: str = ""
    index: tuple[Node, ...] = ()
    over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Action:
    """An action with its parameters, (name, type) each."""

    name: str
    fair: str | None
    params: tuple[tuple[str, T], ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Prop:
    """An invariant, a lemma (id LEMMA), or a goal (id GOAL)."""

    id: str
    name: str
    expr: Node


@dataclass(frozen=True)
class Pledge:
    """A promise about whole runs; ``when`` None is the beginning of a run."""

    name: str
    params: tuple[tuple[str, T], ...]
    when: Node | None
    then: Node


@dataclass(frozen=True)
class Recipe:
    """A machine. ``noise`` names fields and actions that have nothing to do with the others."""

    sorts: tuple[tuple[str, int], ...]
    enums: tuple[T, ...]
    fields: tuple[Field, ...]
    actions: tuple[Action, ...]
    invariants: tuple[Prop, ...] = ()
    lemmas: tuple[Prop, ...] = ()
    goals: tuple[Prop, ...] = ()
    terminal: Node | None = None
    liveness: tuple[Pledge, ...] = ()
    ghosts: tuple[str, ...] = ()
    bounds: tuple[tuple[str, int, int], ...] = ()
    noise: frozenset[str] = field(default_factory=frozenset)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the sorts."""
        return dict(self.sorts)

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """The bounds of unbounded Ints that a run is given."""
        return {name: (lo, hi) for name, lo, hi in self.bounds}

    def parts(self) -> tuple[Recipe, list[Recipe]]:
        """What the properties are about, and each field of the noise with its own actions."""
        fields = tuple(f for f in self.fields if f.name not in self.noise)
        actions = tuple(a for a in self.actions if a.name not in self.noise)
        beside = []
        for f in (f for f in self.fields if f.name in self.noise):
            own = tuple(a for a in self.actions if a.body and a.body[0].name == f.name)
            beside.append(Recipe(self.sorts, self.enums, (f,), own))
        return replace(self, fields=fields, actions=actions, noise=frozenset()), beside


def nodes(e: Node) -> Iterator[Node]:
    """Every node of an expression."""
    yield e
    for a in e.args:
        yield from nodes(a)


def within(part: Any, kind: type[K]) -> Iterator[K]:
    """Everything of one kind in a part of a machine: all its expressions (``Node``), or all types (``T``)."""
    if isinstance(part, kind):
        yield part
    elif isinstance(part, tuple):
        for x in part:
            yield from within(x, kind)
    elif is_dataclass(part):
        for f in fields(part):
            yield from within(getattr(part, f.name), kind)


def mapped(part: Any, change: Callable[[Node], Node]) -> Any:
    """A part of a machine with every expression replaced by what ``change`` makes of it."""
    if isinstance(part, Node):
        return change(part)
    if isinstance(part, tuple):
        return tuple(mapped(x, change) for x in part)
    if is_dataclass(part):
        return replace(part, **{f.name: mapped(getattr(part, f.name), change) for f in fields(part)})
    return part


def variants(part: Any, of: Callable[[Node], Iterable[Node]]) -> Iterator[Any]:
    """Copies of a part of a machine, each with one expression replaced by one of those that ``of`` gives."""
    if isinstance(part, Node):
        yield from of(part)
    elif isinstance(part, tuple):
        for k, x in enumerate(part):
            yield from ((*part[:k], y, *part[k + 1 :]) for y in variants(x, of))
    elif is_dataclass(part):
        for f in fields(part):
            yield from (replace(part, **{f.name: y}) for y in variants(getattr(part, f.name), of))


# Printing: a machine file.

SIGNS = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {
    "and": "And",
    "or": "Or",
    "not": "Not",
    "implies": "Implies",
    "iff": "Iff",
    "if": "If",
    "isin": "IsIn",
    "index": "Index",
}
_WORDS = {"forall": "ForAll", "exists": "Exists", "count": "Count"}


def type_text(t: T) -> str:
    """A type as a machine file writes it."""
    if t.kind == "bool":
        return "Bool"
    if t.kind == "int":
        return "Int()" if t.lo is None else f"Int({_bound(t.lo)}, {_bound(t.hi)})"
    return f"{t.kind}_{t.name}"


def _bound(b: Bound | None) -> str:
    if isinstance(b, tuple):
        more = f" {'+' if b[1] > 0 else '-'} {abs(b[1])}" if b[1] else ""
        return f'lambda sizes: sizes["{b[0]}"]{more}'
    return str(b)


def expr_text(e: Node) -> str:
    """An expression as a machine file writes it."""
    a = [expr_text(x) for x in e.args]
    if e.op == "lit":
        assert isinstance(e.data, int)
        if e.type.kind == "enum":
            return f"enum_{e.type.name}.{e.type.labels[e.data]}"
        return str(bool(e.data)) if e.type.kind == "bool" else str(e.data)
    if e.op == "var":
        return str(e.data)
    if e.op == "read":
        return f"s.{e.data}[{', '.join(a)}]" if a else f"s.{e.data}"
    if e.op == "get":
        index = a[0] if len(a) == 2 else f"({', '.join(a[:-1])})"
        return f"s.{e.data}.get({index}, {a[-1]})"
    if e.op in SIGNS:
        return f"({a[0]} {SIGNS[e.op]} {a[1]})"
    if e.op in _WORDS:
        over = _variables(e)
        types = ", ".join(type_text(t) for _, t in over)
        return f"{_WORDS[e.op]}({types}, lambda {', '.join(n for n, _ in over)}: {a[0]})"
    return f"{_CALLS[e.op]}({', '.join(a)})"


def _variables(e: Node) -> tuple[tuple[str, T], ...]:
    assert isinstance(e.data, tuple)
    return e.data


HEAD = """from kvfence.spec.language import (
    And, Bool, Count, Enum, Exists, Expr, ForAll, If, Iff, Implies, Index, Int, IsIn, Machine, Not, Or, State,
)
"""


def machine_text(r: Recipe) -> str:
    """The machine as a file with a function ``build``."""
    out = [HEAD, "", "def build() -> Machine:", '    m = Machine("drawn", "Drawn at random.")']
    add = out.append
    for name, size in r.sorts:
        add(f'    sort_{name} = m.sort("{name}", default={size})')
    for t in r.enums:
        add(f'    enum_{t.name} = Enum("{t.name}", "{" ".join(t.labels)}")')
    for f in r.fields:
        over = ", ".join(f"i{k}" for k in range(len(f.domain)))
        init = f"lambda {over}: {expr_text(f.init)}" if f.domain else expr_text(f.init)
        domain = "".join(f", {type_text(t)}" for t in f.domain)
        add(f'    m.function("{f.name}"{domain}, value={type_text(f.value)}, init={init})')
    for name in r.ghosts:
        add(f'    m.ghost("{name}", why="it records what happens")')
    for a in r.actions:
        params = "".join(f", {n}={type_text(t)}" for n, t in a.params)
        out += ["", f"    @m.action(fair={a.fair!r}{params})"]
        add(f"    def {a.name}(s: State{''.join(f', {n}: Expr' for n, _ in a.params)}) -> None:")
        out += ["        " + _statement(x) for x in a.body] or ["        pass"]
    for p in (*r.invariants, *r.lemmas, *r.goals):
        head = {"LEMMA": "m.lemma", "GOAL": "m.goal"}.get(p.id, f'm.invariant("{p.id}")')
        out += ["", f"    @{head}", f"    def {p.name}(s: State) -> Expr:"]
        out += ['        """Drawn."""', f"        return {expr_text(p.expr)}"]
    if r.terminal is not None:
        out += ["", f"    m.terminal(lambda s: {expr_text(r.terminal)})"]
    for q in r.liveness:
        names = "".join(f", {n}" for n, _ in q.params)
        params = "".join(f", {n}={type_text(t)}" for n, t in q.params)
        parts = ", ".join(f"lambda s{names}: {expr_text(e)}" for e in (q.when, q.then) if e is not None)
        add(f'    m.{"eventually" if q.when is None else "leads_to"}("{q.name}", {parts}{params})')
    out += ["    return m", ""]
    return "\n".join(out)


def _statement(x: Stmt) -> str:
    e = expr_text(x.expr)
    if x.kind == "require":
        return f"s.require({e})"
    if x.kind == "check":
        return f's.check("{x.name}", {e}, "drawn")'
    if x.kind == "update":
        return f"s.{x.name}.update(lambda {', '.join(x.over)}: {e})"
    index = ", ".join(expr_text(i) for i in x.index)
    return f"s.{x.name}[{index}] = {e}" if index else f"s.{x.name} = {e}"


def build(r: Recipe) -> object:
    """The machine of a recipe, from its text."""
    scope: dict[str, object] = {}
    exec(compile(machine_text(r), "<drawn>", "exec"), scope)
    made = scope["build"]
    assert callable(made)
    return made()
