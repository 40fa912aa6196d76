"""The interpreter: a machine run one concrete step at a time, and breadth first from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvfence.checker.engines import base
from kvfence.checker.engines.explicit import python_source as source
from kvfence.spec.language import GroundCheck, Grounded, Instance, Machine, Property, SpecError, View, ground
from kvfence.spec.language.nodes import Node

Values = tuple[int, ...]


class Failure(NamedTuple):
    """A check that does not hold in a step."""

    id: str
    name: str
    text: str


class Interpreter:
    """A machine at given sizes, run step by step.

    States are tuples of integers, one per cell; ``view`` makes them readable. ``instances`` lists every
    action with every choice of arguments. SpecError as ``ground`` raises it.

    >>> from kvfence.language import Int, Machine
    >>> machine = Machine("blocks")
    >>> _ = machine.function("free", value=Int(0, 3), init=3)
    >>> @machine.action()
    ... def take(s):
    ...     s.require(s.free > 0)
    ...     s.free = s.free - 1
    >>> run = Interpreter(machine)
    >>> state, failures = run.step(run.initial(), run.enabled(run.initial())[0])
    >>> run.view(state).free, failures
    (2, [])
    """

    def __init__(self, machine: Machine, sizes: Mapping[str, int] | None = None) -> None:
        self._begin(machine, ground(machine, sizes))

    @classmethod
    def of(cls, grounded: Grounded) -> Interpreter:
        """The interpreter of a machine that is grounded already."""
        run = cls.__new__(cls)
        run._begin(grounded.machine, grounded)
        return run

    def _begin(self, machine: Machine, grounded: Grounded) -> None:
        self.grounded = grounded
        self.machine, self.sizes, self.instances = machine, grounded.sizes, grounded.instances
        self._compiled: dict[str, Callable[[Values], Any]] = {}
        self._steps: dict[int, Callable[[Values], tuple[Values, tuple[int, ...]]]] = {}

    def initial(self) -> Values:
        """The initial state."""
        return self.grounded.initial

    def enabled(self, state: Values) -> list[Instance]:
        """The instances whose guard holds in ``state``."""
        return [self.instances[i] for i in self._function("enabled", source.enabled_source)(state)]

    def step(self, state: Values, instance: Instance) -> tuple[Values, list[Failure]]:
        """The state after ``instance`` and the checks that fail. ValueError when it is not enabled."""
        if instance.index not in self._function("enabled", source.enabled_source)(state):
            raise ValueError(f"{instance} is not enabled in {self.view(state)}")
        return self._step(state, instance)

    def failures(self, state: Values, instance: Instance) -> list[Failure]:
        """The checks that fail when an enabled ``instance`` is taken."""
        return self._step(state, instance)[1]

    def _step(self, state: Values, instance: Instance) -> tuple[Values, list[Failure]]:
        step = self._steps.get(instance.index)
        if step is None:
            step = self._steps[instance.index] = _compile("step", source.step_source(self.grounded, instance))
        after, failing = step(state)
        return after, [Failure(c.id, c.name, c.text) for c in failed(instance, failing)]

    def successors(self, state: Values) -> list[tuple[int, Values, tuple[int, ...]]]:
        """(instance index, next state, positions of failing checks) for every enabled instance."""
        found: list[tuple[int, Values, tuple[int, ...]]] = self._function(
            "successors", source.successors_source
        )(state)
        return found

    def violated(self, state: Values) -> list[Property]:
        """The invariants that do not hold in ``state``."""
        wrong = self._false("violated", [n for _, n in self.grounded.invariants], state)
        return [self.grounded.invariants[k][0] for k in wrong]

    def reached(self, state: Values) -> list[Property]:
        """The goals that hold in ``state``, premises of invariants (with the id PREMISE) among them."""
        unmet = set(self._false("unmet", [n for _, n in self.grounded.goals], state))
        return [p for k, (p, _) in enumerate(self.grounded.goals) if k not in unmet]

    def terminal(self, state: Values) -> bool:
        """Whether ``state`` may have no successor."""
        return not self._false("terminal", [self.grounded.terminal], state)

    def view(self, state: Values) -> View:
        """The state, readable by name."""
        return self.grounded.view(state)

    def find(self, name: str, **args: base.Shown) -> Instance:
        """The instance of action ``name`` with these arguments. LookupError when there is none."""
        for i in self.instances:
            if i.name == name and i.args == args:
                return i
        if name not in self.machine.actions:
            raise LookupError(f"machine {self.machine.name} has no action {name}")
        raise LookupError(
            f"{name} has no instance with {args} at sizes {self.sizes}, or none that can be taken"
        )

    def events(self, state: Values, instance: Instance, after: Values) -> list[object]:
        """The observable events of a step; none for an action without any. SpecError where its map fails."""
        event = instance.action.event
        if event is None:
            return []
        try:
            return list(event(self.view(state), self.view(after), **instance.args))
        except SpecError:
            raise
        except Exception as problem:
            raise SpecError(
                f"{instance.action.where}: the event of action {instance.name} fails for {instance}: "
                f"{type(problem).__name__}: {problem}; mend what event= gives"
            ) from problem

    def trace(self, path: base.Path | Sequence[Instance]) -> tuple[object, list[object]]:
        """The trace of a path: the machine's header for these sizes (None without one) and the events.

        ValueError when a step of the path is not enabled.
        """
        steps = [self.find(s.action, **s.args) for s in path.steps] if isinstance(path, base.Path) else path
        header = self.machine.header_of(self.sizes) if self.machine.header_of else None
        state, out = self.initial(), []
        for instance in steps:
            after, _ = self.step(state, instance)
            out += self.events(state, instance, after)
            state = after
        return header, out

    def path(self, steps: Sequence[Instance], id_: str = "", name: str = "", text: str = "") -> base.Path:
        """The run that takes ``steps`` from the initial state."""
        state, taken = self.initial(), []
        for i in steps:
            state, _ = self._step(state, i)
            taken.append(base.Step(i.name, dict(i.args), i.action.doc, self.view(state)))
        return base.Path(self.view(self.initial()), tuple(taken), id_, name, text)

    def path_to(self, steps: Mapping[int, Sequence[Instance]]) -> base.PathTo:
        """Paths to sightings, of which ``steps`` has the ways by the sighting's ``id``."""
        return lambda sighting, id_, name, text: self.path(steps[id(sighting)], id_, name, text)

    def _function(self, name: str, of: Callable[[Grounded], str]) -> Callable[[Values], Any]:
        if name not in self._compiled:
            self._compiled[name] = _compile(name, of(self.grounded))
        return self._compiled[name]

    def _false(self, name: str, nodes: list[Node], state: Values) -> list[int]:
        found: list[int] = self._function(name, lambda g: source.false_source(g, name, nodes))(state)
        return found


def failed(instance: Instance, positions: Sequence[int]) -> list[GroundCheck]:
    """The checks at ``positions``, counted through the checks and then the ranges of an instance."""
    both = (*instance.checks, *instance.ranges)
    return [both[k] for k in positions]


def _compile(name: str, text: str) -> Callable[[Values], Any]:
    scope: dict[str, Any] = {}
    exec(compile(text, f"<{name}>", "exec"), scope)
    function: Callable[[Values], Any] = scope[name]
    return function


class Interpret(base.Engine):
    """Breadth-first exploration with the interpreter: slow, simple, the yardstick of the other engines."""

    name = "interpret"

    def decide(
        self, machine: Machine, sizes: Mapping[str, int] | None, options: base.RunOptions
    ) -> base.Result:
        """See ``Engine.run``. ``memory`` is estimated from the number of states."""
        search = _Search(Interpreter(machine, sizes), options)
        with search.log.stopping():
            search.explore()
        search.finish()
        return search.log.result(self.name, options.report.seconds(), search.path)


class _Search:
    def __init__(self, interpreter: Interpreter, options: base.RunOptions) -> None:
        self.run, self.log = interpreter, base.Log(interpreter.grounded)
        self.options, self.report = options, options.report
        self.limits = base.cell_bounds(interpreter.grounded, options.bounds, required=False)
        # tuple, its integers shared, dict entry and parent: measured, rounded up
        each = 200 + 8 * len(interpreter.grounded.cells)
        self.memory_states = options.memory // each if options.memory else None
        self.parents: dict[Values, tuple[Values, int] | None] = {interpreter.initial(): None}
        self.left_bounds: str | None = None
        self.level = 0  # depth of the states in ``fresh``
        self.fresh: list[Values] = []  # found, not yet judged

    def explore(self) -> None:
        """Level by level until nothing is new."""
        frontier = [self.run.initial()]
        while frontier:
            for state in frontier:
                self._look(state)
            self.fresh = []
            self.log.stop_if_enough(self.options.until)
            self.level += 1
            for state in frontier:
                self._expand(state, len(frontier))
            self.log.stop_if_enough(self.options.until)
            frontier = self.fresh
        if self.left_bounds:
            raise base.Stop(self.left_bounds)

    def finish(self) -> None:
        """Complete the log, judging what was found but not yet judged when the search was stopped."""
        if self.log.stopped and self.log.stopped != base.FIRST:
            for state in self.fresh:
                self._look(state)
        self.log.states = len(self.parents)

    def _look(self, state: Values) -> None:
        for p in self.run.violated(state):
            self.log.failed.setdefault(p.name, base.Sighting(state, self.level))
        for p in self.run.reached(state):
            self.log.reached.setdefault(p.name, base.Sighting(state, self.level))

    def _expand(self, state: Values, frontier: int) -> None:
        log, parents, depth = self.log, self.parents, self.level - 1
        found = self.run.successors(state)
        if not found and log.dead is None and not self.run.terminal(state):
            log.dead = base.Sighting(state, depth)
        for index, after, failing in found:
            log.taken[index] += 1
            log.transitions += 1
            inside = True
            if failing:
                instance = self.run.instances[index]
                for c in failed(instance, failing):
                    log.failed.setdefault(c.name, base.Sighting(state, depth, instance, c.text))
                    inside = inside and c.cell is None
            if self.limits and inside:
                inside = self._inside(after)
            if inside and after not in parents:
                parents[after] = (state, index)
                self.fresh.append(after)
                log.depth = self.level
        self._limit(frontier)

    def _inside(self, state: Values) -> bool:
        for cell, (lo, hi) in self.limits.items():
            if not lo <= state[cell] <= hi:
                self.left_bounds = self.left_bounds or base.bounds_left(self.run.grounded, cell, self.limits)
                return False
        return True

    def _limit(self, frontier: int) -> None:
        n, most = len(self.parents), self.options.max_states
        if most is not None and n > most:
            raise base.Stop(f"more than {most} states")
        if self.memory_states is not None and n > self.memory_states:
            raise base.Stop("the memory limit was reached")
        self.report(lambda: base.Progress(n, frontier, self.level - 1, self.report.rate(n)))

    def path(self, sighting: base.Sighting, id_: str, name: str, text: str) -> base.Path:
        """The way to a sighting by the parents kept."""
        steps = [sighting.instance] if sighting.instance else []
        state = sighting.state
        assert isinstance(state, tuple)
        while (parent := self.parents[state]) is not None:
            state, index = parent
            steps.insert(0, self.run.instances[index])
        return self.run.path(steps, id_, name, text)
