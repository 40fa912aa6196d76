"""Grounding: a machine at given sort sizes, as expressions over numbered cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from kvfence.spec.language.errors import SpecError, close, fail
from kvfence.spec.language.expr import Expr, show
from kvfence.spec.language.machine import Action, Function, LeadsTo, Machine, Property
from kvfence.spec.language.nodes import INF, Facts, Graph, Node, ends_under, learn
from kvfence.spec.language.premises import premises
from kvfence.spec.language.sizes import bound_at
from kvfence.spec.language.state import LateIndex, misfit
from kvfence.spec.language.types import BoolType, Int, Type
from kvfence.spec.language.view import Layout, Shown, View

Env = dict[int, int]  # value of each variable, by uid
_LINEAR = 8  # a choice among more cells halves them, which keeps expressions shallow


class Cell:
    """One value of the state. ``lo`` and ``hi`` are None for an unbounded Int."""

    def __init__(
        self, number: int, function: Function, label: str, init: int, ends: tuple[int, int] | None
    ) -> None:
        self.number, self.function, self.label, self.init = number, function, label, init
        self.lo = ends[0] if ends else None
        self.hi = ends[1] if ends else None


class GroundCheck:
    """What must hold when an instance is taken: a check of the action, or a bounded Int staying in range."""

    def __init__(self, id_: str, name: str, text: str, holds: Node, cell: int | None = None) -> None:
        self.id, self.name, self.text, self.holds, self.cell = id_, name, text, holds, cell


def _shown_args(params: Sequence[Expr], values: Sequence[int]) -> dict[str, Shown]:
    return {str(p.value): p.type.shown(v) for p, v in zip(params, values, strict=True)}


class Instance:
    """An action with its arguments.

    ``values`` are the arguments as integers, ``args`` as people read them. ``updates`` maps a cell to its
    next value and leaves out cells that stay as they are. ``checks`` come in the order of the
    action; ``ranges`` are the ways in which a value may leave its range, where the guard does not exclude it.
    """

    def __init__(self, index: int, action: Action, values: tuple[int, ...]) -> None:
        self.index, self.action, self.values = index, action, values
        self.name = action.name
        self.args = _shown_args(action.params, values)
        self.guard: Node
        self.updates: dict[int, Node] = {}
        self.checks: tuple[GroundCheck, ...] = ()
        self.ranges: tuple[GroundCheck, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.args.items())})"


class LivenessInstance:
    """A liveness property with its arguments; ``when`` is None for the beginning of a run."""

    def __init__(self, stated: LeadsTo, values: tuple[int, ...], when: Node | None, then: Node) -> None:
        self.stated, self.when, self.then = stated, when, then
        self.name, self.values = stated.name, values
        self.args = _shown_args(stated.params, values)


class Grounded:
    """A machine at given sizes: cells, instances that can be taken, and properties as nodes.

    ``invariants`` are the machine's, then, unless a fault is switched on, its lemmas. ``goals`` are the
    machine's, then the premises of its conditions.
    """

    def __init__(self, machine: Machine, sizes: Mapping[str, int] | None = None) -> None:
        self.machine = machine.finished()
        self.sizes = _sizes(machine, sizes or {})
        self.graph = Graph()
        self.layout = Layout()
        self.cells: list[Cell] = []
        self._base: dict[Function, int] = {}
        self._memo: dict[tuple[int, ...], Node] = {}
        self._nodes: list[Node] = []
        for f in machine.functions.values():
            self._lay_out(f)
        self.initial = tuple(c.init for c in self.cells)
        self.instances: list[Instance] = []
        for action in machine.actions.values():
            self._instantiate(action)
        lemmas = () if machine.faults else machine.lemmas.values()
        self.invariants = [(p, self._property(p)) for p in (*machine.invariants.values(), *lemmas)]
        self.goals = [(p, self._property(p)) for p in (*machine.goals.values(), *premises(machine))]
        t = machine.terminal_states
        self.terminal = self._property(t) if t else self.graph.false

    def liveness(self) -> Iterator[LivenessInstance]:
        """The liveness properties, one for each choice of arguments."""
        for p in self.machine.liveness.values():
            for env in self._extended({}, p.params, f" of {p.name}"):
                self._bounded(p.late, env, {})
                when = None if p.when is None else self._ground(p.when, env)
                yield LivenessInstance(p, tuple(env.values()), when, self._ground(p.then, env))

    def view(self, state: Sequence[int]) -> View:
        """A state tuple, readable by name."""
        return View(self.layout, state)

    def now(self, cell: int) -> Node:
        """The value of a cell before a step, as a node."""
        return self._nodes[cell]

    def ends(self, t: Type, what: str) -> tuple[int, int]:
        """Smallest and largest value of a finite type at these sizes."""
        ends = t.range(self.sizes)
        assert ends is not None, what
        if ends[0] > ends[1]:
            raise fail(
                f"{what} has no value at sizes {self.sizes}: its Int goes from {ends[0]} to {ends[1]}; "
                "use larger sizes or other bounds",
                self.machine.where,
            )
        return ends

    def _lay_out(self, f: Function) -> None:
        domain = [(t, *self.ends(t, f"an index of {f.name}")) for t in f.domain]
        ends = None if isinstance(f.value, Int) and not f.value.bounded else self.ends(f.value, f.name)
        field = self.layout.add(f.name, domain, f.value)
        self._base[f] = field.base
        for k, at in enumerate(field.indices()):
            init = self._ground(f.init, {v.uid: i for v, i in zip(f.formals, at, strict=True)})
            if init.op != "const":
                raise fail(
                    f"the init of {field.label(at)} is not a constant; it cannot read the state", f.where
                )
            if ends and not ends[0] <= init.value <= ends[1]:
                raise fail(
                    f"the init of {field.label(at)} is {init.value}, outside {ends[0]} to {ends[1]}; "
                    "start inside the range or widen it",
                    f.where,
                )
            number = field.base + k
            self.cells.append(Cell(number, f, field.label(at), init.value, ends))
            boolean = isinstance(f.value, BoolType)
            fixed = ends is not None and ends[0] == ends[1]
            self._nodes.append(
                self.graph.const(init.value, boolean)
                if fixed
                else self.graph.cell(number, boolean, ends or (-INF, INF))
            )

    def _instantiate(self, action: Action) -> None:
        for env in self._extended({}, action.params, f" of {action}"):
            values = tuple(env.values())
            guard = self.graph.junction("and", (self._ground(g.expr, env) for g in action.guards))
            if guard is self.graph.false:
                continue
            facts: Facts = {}
            learn(guard, True, facts)
            self._bounded(action.late, env, facts)
            instance = Instance(len(self.instances), action, values)
            instance.guard = guard
            for f, next_value in action.updates.items():
                field = self.layout.fields[f.name]
                for k, at in enumerate(field.indices()):
                    env.update({v.uid: i for v, i in zip(f.formals, at, strict=True)})
                    node = self._ground(next_value, env)
                    if node is not self._nodes[field.base + k]:
                        instance.updates[field.base + k] = node
            instance.checks = tuple(
                GroundCheck(c.id, c.name, c.text, self._ground(c.expr, env)) for c in action.checks
            )
            instance.ranges = tuple(self._ranges(instance, facts))
            self.instances.append(instance)

    def _ranges(self, instance: Instance, facts: Facts) -> Iterator[GroundCheck]:
        for number, node in instance.updates.items():
            cell, g = self.cells[number], self.graph
            if cell.lo is None or cell.hi is None:
                continue
            lo, hi = ends_under(node, facts)
            if lo < cell.lo or hi > cell.hi:
                inside = g.junction(
                    "and", (g.at_most(g.const(cell.lo), node), g.at_most(node, g.const(cell.hi)))
                )
                text = f"{cell.label} stays in {cell.lo} to {cell.hi}"
                yield GroundCheck("RANGE", f"range of {cell.function.name}", text, inside, number)

    def _property(self, p: Property) -> Node:
        self._bounded(p.late, {}, {})
        return self._ground(p.expr, {})

    def _bounded(self, late: Sequence[LateIndex], env: Env, facts: Facts) -> None:
        for index in late:
            lo, hi = self.ends(index.function.domain[index.position], index.function.name)
            for full in self._extended(env, [v for v in index.expr.free if v.uid not in env]):
                known = ends_under(self._ground(index.expr, full), facts)
                if known[0] < lo or known[1] > hi:
                    raise misfit(
                        index.function,
                        index.position,
                        show(index.expr),
                        f"{known[0]} to {known[1]}",
                        f"Int({lo}, {hi}) at sizes {self.sizes}",
                        where=index.where,
                    )

    def _extended(self, env: Env, variables: Sequence[Expr], of: str = "") -> Iterator[Env]:
        """``env`` with every choice of values for ``variables``; ``of`` says in errors what has these."""
        ends = (self.ends(v.type, f"{v.value}{of}") for v in variables)
        ranges = [range(lo, hi + 1) for lo, hi in ends]
        for values in itertools.product(*ranges):
            yield {**env, **{v.uid: x for v, x in zip(variables, values, strict=True)}}

    def _ground(self, e: Expr, env: Env) -> Node:
        key = (e.uid, *[env[v.uid] for v in e.free])
        node = self._memo.get(key)
        if node is None:
            node = self._memo[key] = self._build(e, env)
        return node

    def _build(self, e: Expr, env: Env) -> Node:
        g, op, args = self.graph, e.op, e.args
        if op == "const":
            assert isinstance(e.value, int)
            return g.const(e.value, isinstance(e.type, BoolType))
        if op in ("param", "bound"):
            return g.const(env[e.uid], isinstance(e.type, BoolType))
        if op == "limit":
            assert callable(e.value)
            return g.const(bound_at(e.value, self.sizes))
        if op == "index":
            return self._ground(args[0], env)
        if op == "apply":
            assert isinstance(e.value, Function)
            return self._lookup(e.value, [self._ground(a, env) for a in args], ())
        if op in ("and", "or"):
            return g.junction(op, (self._ground(a, env) for a in args))
        if op == "not":
            return g.negation(self._ground(args[0], env))
        if op == "ite":
            c = self._ground(args[0], env)
            if c.op == "const":
                return self._ground(args[1] if c.value else args[2], env)
            return g.ite(c, self._ground(args[1], env), self._ground(args[2], env))
        if op in ("forall", "exists", "count"):
            assert isinstance(e.value, tuple)
            bodies = (self._ground(args[0], full) for full in self._extended(env, e.value))
            return (
                g.total(list(bodies))
                if op == "count"
                else g.junction("and" if op == "forall" else "or", bodies)
            )
        a, b = (self._ground(x, env) for x in args)
        build = {"eq": g.equal, "lt": g.less, "le": g.at_most, "add": g.add, "sub": g.subtract}
        return build[op](a, b)

    def _lookup(self, f: Function, indices: Sequence[Node], fixed: tuple[int, ...]) -> Node:
        """The cell at ``indices``, choosing among cells where an index is not a constant.

        Outside the domain the value is that of the nearest cell; only guarded reads get there.
        """
        if len(fixed) == len(indices):
            cell = self.layout.fields[f.name].cell(fixed)
            assert cell is not None
            return self._nodes[cell]
        index = indices[len(fixed)]
        _, lo, hi = self.layout.fields[f.name].domain[len(fixed)]
        if index.op == "const":
            return self._lookup(f, indices, (*fixed, min(max(index.value, lo), hi)))
        g = self.graph

        def choose(a: int, b: int) -> Node:
            if a == b:
                return self._lookup(f, indices, (*fixed, a))
            if b - a < _LINEAR:
                at = g.equal(index, g.const(a, index.boolean))
                return g.ite(at, self._lookup(f, indices, (*fixed, a)), choose(a + 1, b))
            middle = (a + b) // 2
            return g.ite(g.at_most(index, g.const(middle)), choose(a, middle), choose(middle + 1, b))

        return choose(lo, hi)


def _sizes(machine: Machine, given: Mapping[str, int]) -> dict[str, int]:
    for name, size in given.items():
        if name not in machine.sorts:
            raise SpecError(f"machine {machine.name} has no sort {name}; {close(name, machine.sorts)}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SpecError(f"size of {name} is {size!r}; a sort has at least one element")
    return {name: given.get(name, sort.default) for name, sort in machine.sorts.items()}


def ground(machine: Machine, sizes: Mapping[str, int] | None = None) -> Grounded:
    """The machine at ``sizes`` (sort name to number of elements; the sorts' defaults where unsaid).

    SpecError for a sort the machine lacks, a size below 1, a fault it never consults, an initial value
    outside its range, or an index that may miss its domain at these sizes.
    """
    return Grounded(machine, sizes)


__all__ = ["Cell", "GroundCheck", "Grounded", "Instance", "LivenessInstance", "ground"]
