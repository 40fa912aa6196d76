"""Behaviours that only one of two machines has: shortest action sequences that the other cannot take.

Both machines take the same actions with the same arguments, side by side. An instance of an action has one
outcome, so a sequence of instances leads each machine to one state, and the pair of states says which
instances either can take next. The pairs are the states of one combined machine; a step that only one of them
can take is its violation, and breadth-first search finds a shortest way to it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from kvfence.checker.analysis.diagnosis import false_guards
from kvfence.checker.analysis.review.differences import weaker_only
from kvfence.checker.analysis.review.facts import Behaviour, Behaviours, Taken
from kvfence.checker.core.c_build import CannotCompile
from kvfence.checker.core.names import MOST_PAIRS
from kvfence.checker.engines.base import FIRST, Log, Report, Reporter, RunOptions, Stop
from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.engines.native.exploration import Exploration, Model
from kvfence.checker.engines.word_size import TooWide, word_bounds
from kvfence.spec.language import Grounded, Instance, Machine, Property, ground
from kvfence.spec.language.evaluate import Evaluator
from kvfence.spec.language.expr import TRUE
from kvfence.spec.language.nodes import Graph, Node

_MOST_IN_PYTHON = 50_000
_BUILDERS = {"not": "negation", "eq": "equal", "lt": "less", "le": "at_most", "sub": "subtract"}
"""The method of a graph that builds a node, where it is not named as the operation of the node."""


def behaviours(
    base: Machine,
    change: Machine,
    sizes: Mapping[str, int],
    *,
    most: int = MOST_PAIRS,
    threads: int = 1,
    progress: Report | None = None,
) -> tuple[Behaviours, Behaviours]:
    """What only ``change`` can do, and what only ``base`` can: shortest first steps of each kind.

    ``sizes`` by sort, for the sorts that both machines have. ``most`` pairs of states are looked at; with 0
    nothing is looked for. Neither machine may have an unbounded Int.
    """
    if not most:
        unknown = Behaviours(complete=False, why="it was not asked for")
        return unknown, unknown
    pair = _Pair(*(ground(m, {k: v for k, v in sizes.items() if k in m.sorts}) for m in (base, change)))
    new = lost = Behaviours()
    if not weaker_only(change, base):
        new = _search(pair, "new", most, threads, progress)
    if not weaker_only(base, change):
        lost = _search(pair, "lost", most, threads, progress)
    return new, lost


class _Pair:
    """Two grounded machines and, per instance of either, the nodes of both over cells of one state."""

    def __init__(self, base: Grounded, change: Grounded) -> None:
        self.base, self.change = base, change
        self.joint = copy.copy(base)
        self.joint.graph, self.joint.layout = Graph(), copy.copy(base.layout)
        self.joint.cells = list(base.cells)
        shift = len(base.cells)
        for cell in change.cells:
            moved = copy.copy(cell)
            moved.number, moved.label = cell.number + shift, f"change.{cell.label}"
            self.joint.cells.append(moved)
        self.joint.initial = (*base.initial, *change.initial)
        here, there = _Moved(self.joint.graph, 0), _Moved(self.joint.graph, shift)
        false = self.joint.graph.false
        of_base, of_change = ({(i.name, i.values): i for i in g.instances} for g in (base, change))
        self.joint.instances = []
        self.alone: dict[str, dict[tuple[str, tuple[int, ...]], Node]] = {"new": {}, "lost": {}}
        for key in dict.fromkeys((*of_base, *of_change)):
            one, other = of_base.get(key), of_change.get(key)
            guards = here(one.guard) if one else false, there(other.guard) if other else false
            graph = self.joint.graph
            for kind, yes, no in (("new", guards[1], guards[0]), ("lost", guards[0], guards[1])):
                alone = graph.junction("and", (yes, graph.negation(no)))
                if alone is not false:
                    self.alone[kind][key] = alone
            both = graph.junction("and", guards)
            if one is None or other is None or both is false:
                continue
            step = Instance(len(self.joint.instances), one.action, one.values)
            # a step that takes a value out of its range is not followed
            inside = [here(r.holds) for r in one.ranges] + [there(r.holds) for r in other.ranges]
            step.guard = graph.junction("and", (both, *inside))
            if step.guard is false:
                continue
            step.updates = {c: here(n) for c, n in one.updates.items()}
            step.updates |= {c + shift: there(n) for c, n in other.updates.items()}
            self.joint.instances.append(step)
        self.joint.terminal, self.joint.goals, self.joint.invariants = self.joint.graph.true, [], []

    def asking(self, kind: str) -> tuple[Grounded, list[str]]:
        """The combined machine, violated where an action can be taken by one side only; these actions."""
        by_action: dict[str, list[Node]] = {}
        for (name, _), node in self.alone[kind].items():
            by_action.setdefault(name, []).append(node)
        g, graph = copy.copy(self.joint), self.joint.graph
        g.invariants = [
            (Property(kind, name, "", TRUE, (), where=""), graph.negation(graph.junction("or", nodes)))
            for name, nodes in by_action.items()
        ]
        return g, list(by_action)

    def behaviour(self, kind: str, action: str, way: Sequence[Instance]) -> Behaviour:
        """The behaviour that ends with a step of ``action`` in the pair of states that ``way`` leads to."""
        own, other = (self.change, self.base) if kind == "new" else (self.base, self.change)
        states = {}
        for g in (own, other):
            run, state = Interpreter.of(g), g.initial
            for step in way:
                state, _ = run.step(state, run.find(step.name, **step.args))
            states[id(g)] = state
        run = Interpreter.of(own)
        able = {(i.name, i.values) for i in Interpreter.of(other).enabled(states[id(other)])}
        last = next(
            i for i in run.enabled(states[id(own)]) if i.name == action and (i.name, i.values) not in able
        )
        steps = tuple(Taken(i.name, dict(i.args), " ".join(i.action.doc.split())) for i in (*way, last))
        return Behaviour(steps, refusals(other, states[id(other)], last))


def refusals(g: Grounded, state: tuple[int, ...], step: Instance) -> tuple[str, ...]:
    """Why the machine refuses the step in that state: its guards that are false, each with its place."""
    action = g.machine.actions.get(step.name)
    if action is None:
        return (f"there is no action {step.name}",)
    if {str(p.value) for p in action.params} != set(step.args):
        return (f"{step.name} takes other parameters: {action!r}",)
    evaluator = Evaluator(g.layout, g.sizes)
    false = false_guards(evaluator, action, evaluator.bind(action, step.args), state)
    return tuple(f"{guard.text} ({guard.where})" if guard.where else guard.text for guard in false)


class _Moved:
    """Copies nodes into another graph, their cells moved on by ``shift``."""

    def __init__(self, graph: Graph, shift: int) -> None:
        self.graph, self.shift = graph, shift
        self.known: dict[int, Node] = {}

    def __call__(self, node: Node) -> Node:
        if node.id not in self.known:
            self.known[node.id] = self._copied(node)
        return self.known[node.id]

    def _copied(self, n: Node) -> Node:
        g = self.graph
        if n.op == "const":
            return g.const(n.value, n.boolean)
        if n.op == "cell":
            return g.cell(n.value + self.shift, n.boolean, (n.lo, n.hi))
        args = [self(a) for a in n.args]
        if n.op in ("and", "or"):
            return g.junction(n.op, args)
        built: Node = getattr(g, _BUILDERS.get(n.op, n.op))(*args)
        return built


def _search(pair: _Pair, kind: str, most: int, threads: int, progress: Report | None) -> Behaviours:
    asked, actions = pair.asking(kind)
    if not actions:
        return Behaviours()
    interpreter = Interpreter.of(asked)
    log = Log(asked)
    try:
        model = Model(interpreter, word_bounds(asked, None))
    except (CannotCompile, TooWide):
        ways = _in_python(interpreter, log, min(most, _MOST_IN_PYTHON))
    else:
        ways = _in_c(model, log, most, threads, progress)
    found = tuple(pair.behaviour(kind, name, way) for name, way in ways.items())
    why = "" if log.stopped in (None, FIRST) else str(log.stopped)
    return Behaviours(found, complete=not why, states=log.states, why=why)


def _in_c(
    model: Model, log: Log, most: int, threads: int, progress: Report | None
) -> dict[str, list[Instance]]:
    search = Exploration(model, log, threads, RunOptions(max_states=most, report=Reporter(progress)))
    try:
        search.open()
        search.explore("first")
    except Stop as stop:
        log.stopped = str(stop)
    except KeyboardInterrupt:
        log.stopped = "interrupted"
    try:
        steps = search.finish()
    finally:
        search.close()
    asked = {p.name for p, _ in log.grounded.invariants}
    found = {name: steps.get(id(sighting)) for name, sighting in log.failed.items() if name in asked}
    return {name: way for name, way in found.items() if way is not None}


def _in_python(run: Interpreter, log: Log, most: int) -> dict[str, list[Instance]]:
    ways_to: dict[Values, list[Instance]] = {run.initial(): []}
    frontier = [run.initial()]
    found: dict[str, list[Instance]] = {}
    while frontier:
        for state in frontier:
            for p in run.violated(state):
                found.setdefault(p.name, ways_to[state])
        if found or len(ways_to) > most:
            break
        fresh = []
        for state in frontier:
            for index, after, _ in run.successors(state):
                if after not in ways_to:
                    ways_to[after] = [*ways_to[state], run.instances[index]]
                    fresh.append(after)
        frontier = fresh
    log.states = len(ways_to)
    if frontier and not found:
        log.stopped = f"more than {most} states"
    return found
