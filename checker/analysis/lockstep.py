"""Lockstep: implementation and interpreted specification take the same steps and must stay in the same state.

A :class:`Driver` performs the actions of a machine on an implementation and gives the implementation's state
in terms of the machine's fields. :class:`Lockstep` takes one action at a time in both, and compares.
:func:`state_machine` makes a Hypothesis state machine of that, with one rule for each action.

A specification leaves choices open, and an implementation makes them: which block is evicted, or that one
call evicts and allocates. So the driver answers which steps of the specification the call amounts to. Each of
them must be enabled in its turn. What the specification does not enable must be refused, where the
implementation has a way to refuse it, and a refusal must change nothing.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec import events as ev
from kvfence.spec.files.traces import TraceWriter
from kvfence.spec.language import PREMISE, Instance, changes
from kvfence.spec.language.view import FieldLayout, Shown

Args: TypeAlias = Mapping[str, Any]
Step: TypeAlias = tuple[str, Args]
"""An action of the machine with its arguments."""
Observed: TypeAlias = Shown | Collection[object] | Mapping[Any, Shown]
"""A plain variable's value; a relation's true places; or a function's value for each place.

A place is an index, or a tuple of them when the field has several.
"""

_REFUSAL = "refused"
_SELDOM = 4


class CannotHere(Exception):  # noqa: N818 - an answer, not an error
    """The implementation has no way to perform this action here. Raised before anything is changed.

    >>> raise CannotHere("the engine frees blocks itself")
    Traceback (most recent call last):
    kvfence.checker.analysis.lockstep.CannotHere: the engine frees blocks itself
    """


class Driver(Protocol):
    """The implementation's side.

    >>> class Pool:
    ...     header, unobserved, events = None, (), []
    ...     free = 3
    ...     def perform(self, action, args):
    ...         self.free -= 1
    ...     def abstract(self):
    ...         return {"free": self.free}
    ...     def refusal(self, action, args):
    ...         return None
    >>> driver: Driver = Pool()
    >>> driver.perform("take", {})
    >>> driver.abstract()
    {'free': 2}
    """

    events: list[ev.Event]
    """The events of the implementation so far; the ledger judges them."""

    @property
    def unobserved(self) -> Collection[str]:
        """Fields of the machine that the implementation has no equivalent of; the others are compared."""

    @property
    def header(self) -> ev.Header | None:
        """What the numbers in the events refer to; None while nothing exists yet that could emit events."""

    def perform(self, action: str, args: Args) -> Sequence[Step] | None:
        """Perform the action. Returns the steps of the specification that it amounted to, or None.

        None stands for the action itself. Raises CannotHere.
        """

    def abstract(self) -> Mapping[str, Observed]:
        """The implementation's state: each field of the machine that is not in ``unobserved``."""

    def refusal(self, action: str, args: Args) -> type[Exception] | None:
        """What :meth:`perform` raises for an action that the specification does not enable now.

        None where the implementation leaves that to its caller.
        """


class LockstepError(AssertionError):
    """Implementation and specification disagree.

    >>> issubclass(StatesDifferError, LockstepError)
    True
    """


class StatesDifferError(LockstepError):
    """After a step that both took, a field has two values. ``fields``: their printed names.

    >>> StatesDifferError("after take()", [("free", 1, 0)]).fields
    ['free']
    """

    def __init__(self, after: str, rows: list[tuple[str, Shown, Shown]]) -> None:
        wide = max(len("field"), *(len(label) for label, _, _ in rows))
        table = [("field", "specification", "implementation")]
        table += [(label, str(spec), str(own)) for label, spec, own in rows]
        lines = [f"  {label:{wide}}  {spec:13}  {own}" for label, spec, own in table]
        super().__init__("\n".join([f"{after}: the states differ", *lines]))
        self.fields = [label for label, _, _ in rows]


class StepNotAllowedError(LockstepError):
    """The implementation took a step that the specification does not allow.

    >>> issubclass(StepNotAllowedError, LockstepError)
    True
    """


class _InvariantError(LockstepError):
    """An invariant does not hold. ``invariant``: its id."""

    def __init__(self, after: str, invariant: str, text: str) -> None:
        super().__init__(f"{after}: {text}")
        self.invariant = invariant


class PropertyBrokenError(_InvariantError):
    """A check of a step, or an invariant, does not hold in the specification. ``invariant``: its id.

    >>> str(PropertyBrokenError("after take()", "COUNT", "free == 3"))
    'after take(): free == 3'
    """


class StepFailedError(LockstepError):
    """The implementation cannot do what the specification allows.

    >>> issubclass(StepFailedError, LockstepError)
    True
    """


class NotRefusedError(LockstepError):
    """The implementation did not refuse, as it should, what the specification does not allow.

    >>> issubclass(NotRefusedError, LockstepError)
    True
    """


class TraceRefusedError(_InvariantError):
    """The ledger, or the check of the recorded trace, finds a violation. ``invariant``: its id.

    >>> TraceRefusedError("after take()", "PIN", "PIN violated by event 1").invariant
    'PIN'
    """


@dataclass
class Coverage:
    """What the runs of a lockstep test covered.

    >>> from kvfence.language import Int, Machine
    >>> machine = Machine("blocks")
    >>> _ = machine.function("free", value=Int(0, 3), init=3)
    >>> @machine.action()
    ... def take(s):
    ...     s.require(s.free > 0)
    ...     s.free = s.free - 1
    >>> class Pool:
    ...     header, unobserved, events = None, (), []
    ...     free = 3
    ...     def perform(self, action, args):
    ...         self.free -= 1
    ...     def abstract(self):
    ...         return {"free": self.free}
    ...     def refusal(self, action, args):
    ...         return None
    >>> coverage = Coverage()
    >>> Lockstep(Interpreter(machine), Pool(), coverage).play([("take", {}), ("take", {})])
    >>> coverage.taken["take"], len(coverage.states)
    (2, 3)
    """

    runs: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    """Steps of the specification, by action."""
    cannot: Counter[str] = field(default_factory=Counter)
    """Actions that the implementation could not perform where they were asked for."""
    refused: Counter[str] = field(default_factory=Counter)
    """Actions that were not allowed, and refused."""
    goals: Counter[str] = field(default_factory=Counter)
    """Steps after which a goal of the machine held."""
    states: set[Values] = field(default_factory=set)
    """Different states of the specification."""
    events: int = 0
    """Events judged."""

    def __str__(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {n}" for name, n in sorted(counts.items())) or "none"

        return (
            f"{self.runs} runs, {self.taken.total()} steps, {len(self.states)} states, {self.events} events; "
            f"taken: {listed(self.taken)}; refused: {listed(self.refused)}; "
            f"cannot be performed: {listed(self.cannot)}; goals: {listed(self.goals)}"
        )


class Lockstep:
    """One run of ``driver`` beside ``spec``.

    ``judge``: whether the driver's events are judged by the ledger after each step, and the recorded trace at
    the end. Raises :class:`LockstepError`, from the start on if the initial states differ, and ValueError
    when the driver gives fields that the machine does not have, or leaves some out.

    >>> from kvfence.language import Int, Machine
    >>> machine = Machine("blocks")
    >>> _ = machine.function("free", value=Int(0, 3), init=3)
    >>> @machine.action()
    ... def take(s):
    ...     s.require(s.free > 0)
    ...     s.free = s.free - 1
    >>> class Pool:
    ...     header, unobserved, events = None, (), []
    ...     free = 3
    ...     def perform(self, action, args):
    ...         self.free -= 1
    ...     def abstract(self):
    ...         return {"free": self.free}
    ...     def refusal(self, action, args):
    ...         return None
    >>> both = Lockstep(Interpreter(machine), Pool())
    >>> both.play([("take", {})] * 3)
    >>> both.enabled("take")
    []
    """

    def __init__(
        self, spec: Interpreter, driver: Driver, coverage: Coverage | None = None, *, judge: bool = True
    ) -> None:
        self.spec, self.driver, self.judge = spec, driver, judge
        self.coverage = coverage if coverage is not None else Coverage()
        self.coverage.runs += 1
        self.state = spec.initial()
        self.steps = 0
        self._ledger: Ledger | None = None
        self._judged = 0
        self._enabled: dict[str, list[Instance]] = {}
        self._refusals: list[tuple[Instance, type[Exception]]] | None = None
        self._fields = self._observed_fields()
        self._enter(self.state)
        self._compare("at the start")

    def enabled(self, action: str) -> list[Instance]:
        """The instances of ``action`` that the specification allows now."""
        return self._enabled.get(action, [])

    def refusals(self) -> list[tuple[Instance, type[Exception]]]:
        """What the specification does not allow now and the implementation must refuse, with its error."""
        if self._refusals is None:
            allowed = {i.index for instances in self._enabled.values() for i in instances}
            self._refusals = [
                (i, error)
                for i in self.spec.instances
                if i.index not in allowed and (error := self.driver.refusal(i.name, i.args)) is not None
            ]
        return self._refusals

    def take(self, instance: Instance) -> None:
        """Take a step that the specification allows."""
        self.steps += 1
        try:
            performed = self.driver.perform(instance.name, instance.args)
        except CannotHere as why:
            self.coverage.cannot[instance.name] += 1
            self._compare(f"after {instance}, which cannot be performed here ({why})")
            return
        except LockstepError:
            raise
        except Exception as error:
            raise StepFailedError(
                f"{instance} is allowed, and fails: {type(error).__name__}: {error}"
            ) from error
        asked = [(instance.name, instance.args)]
        steps = asked if performed is None else list(performed)
        after = f"after {instance}"
        if steps != asked:
            after += f", taken as {', '.join(map(_shown, steps)) or 'no step'}"
        for step in steps:
            self._follow(step, after)
        self._compare(after)
        self._judge(after)

    def play(self, scene: Iterable[Step]) -> None:
        """Take the steps of ``scene``, each with the first allowed instance that has the arguments given.

        ValueError when there is none.
        """
        for name, args in scene:
            for instance in self.enabled(name):
                if args.items() <= instance.args.items():
                    self.take(instance)
                    break
            else:
                raise ValueError(
                    f"the scene's step {_shown((name, args))} is not allowed where {self._situation()}"
                )

    def refuse(self, instance: Instance, error: type[Exception]) -> None:
        """Ask for a step that is not allowed: ``error`` must come, and nothing may change."""
        self.steps += 1
        accepted = f"{instance} is not allowed, and not refused with {error.__name__}"
        try:
            self.driver.perform(instance.name, instance.args)
        except error:
            pass
        except CannotHere:
            self.coverage.cannot[instance.name] += 1
            return
        except Exception as other:
            raise NotRefusedError(f"{accepted}, but with {type(other).__name__}: {other}") from other
        else:
            raise NotRefusedError(accepted)
        self.coverage.refused[instance.name] += 1
        after = f"after {instance} was refused"
        self._compare(after)
        self._judge(after)

    def finish(self) -> None:
        """The end of the run: the trace as it is recorded must be accepted, too."""
        header = self.driver.header
        if not self.judge or header is None or not self.driver.events:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl"
            with TraceWriter(path, header) as record:
                for event in self.driver.events:
                    record(event)
            report = check_trace(path)
        for violation in report.violations:
            raise TraceRefusedError("the recorded trace is refused", violation.invariant, str(violation))
        if report.verdict != "holds":
            raise TraceRefusedError("the recorded trace is not accepted", "", report.verdict)

    def _enter(self, state: Values) -> None:
        self.state = state
        self.coverage.states.add(state)
        self._refusals = None
        self._enabled = {}
        for instance in self.spec.enabled(state):
            self._enabled.setdefault(instance.name, []).append(instance)

    def _follow(self, step: Step, after: str) -> None:
        """Take one step in the specification."""
        name, args = step
        found = [i for i in self.enabled(name) if i.args == args]
        if not found:
            raise StepNotAllowedError(
                f"{after}: the specification does not allow {_shown(step)} where {self._situation()}"
            )
        state, failures = self.spec.step(self.state, found[0])
        for failure in failures:
            raise PropertyBrokenError(after, failure.id, _fails(failure.id, failure.text or failure.name))
        self.coverage.taken[name] += 1
        self._enter(state)
        for wrong in self.spec.violated(state):
            raise PropertyBrokenError(after, wrong.id, _fails(wrong.id, wrong.name))
        self.coverage.goals.update(goal.name for goal in self.spec.reached(state) if goal.id != PREMISE)

    def _observed_fields(self) -> list[tuple[FieldLayout, list[object]]]:
        """The fields to compare, each with its places in the order of the state's cells."""
        fields = self.spec.grounded.layout.fields
        given, left_out = set(self.driver.abstract()), set(self.driver.unobserved)
        for name in sorted((given | left_out) - fields.keys()):
            raise ValueError(
                f"the machine {self.spec.machine.name} has no field {name}; drop it in the driver"
            )
        for name in sorted(fields.keys() - given - left_out):
            raise ValueError(
                f"the driver does not give {name}; add it to abstract(), or to unobserved and say why"
            )
        view = self.spec.view(self.state)
        return [
            (layout, list(getattr(view, name)) if layout.domain else [None])
            for name, layout in fields.items()
            if name in given
        ]

    def _compare(self, after: str) -> None:
        own, state = self.driver.abstract(), self.state
        rows: list[tuple[str, Shown, Shown]] = []
        for layout, places in self._fields:
            found: Any = own[layout.name]
            if not layout.domain:
                found = {None: found}
            by_place = isinstance(found, Mapping)
            for cell, place in enumerate(places, layout.base):
                spec = layout.value.shown(state[cell])
                have = found[place] if by_place else place in found
                if spec != have:
                    at = next(islice(layout.indices(), cell - layout.base, None))
                    rows.append((layout.label(at), spec, have))
        if rows:
            raise StatesDifferError(after, rows)

    def _situation(self) -> str:
        """The specification's state, without what is still as it was at the start."""
        changed = changes(self.spec.view(self.spec.initial()), self.spec.view(self.state))
        return ", ".join(f"{label}={now}" for label, (_, now) in changed.items()) or "nothing has happened"

    def _judge(self, after: str) -> None:
        header = self.driver.header
        if not self.judge or header is None:
            return
        if self._ledger is None:
            self._ledger = Ledger(header, "count")
        while self._judged < len(self.driver.events):
            violation = self._ledger.apply(self.driver.events[self._judged])
            self._judged += 1
            self.coverage.events += 1
            if violation is not None:
                raise TraceRefusedError(after, violation.invariant, str(violation))


def _fails(invariant: str, text: str) -> str:
    return f"{invariant} does not hold: {text}"


def _shown(step: Step) -> str:
    name, args = step
    return f"{name}({', '.join(f'{k}={v}' for k, v in args.items())})"


def state_machine(
    start: Callable[[], Lockstep],
    actions: Iterable[str],
    stateful: Any,
    strategies: Any,
    *,
    seldom: Collection[str] = (),
    scenes: Sequence[Sequence[Step]] = (),
) -> type[Any]:
    """A Hypothesis state machine: an example is a run of ``start()``, with one rule for each of ``actions``.

    A rule draws among the instances that the specification allows. One more rule, ``refused``, draws among
    those that it does not allow and the implementation must refuse. Rules named in ``seldom`` are on offer at
    every fourth step only, and when there is no other: name what ends things, so that runs get somewhere. A
    run begins with one of ``scenes`` (see :meth:`Lockstep.play`) or from the initial state: give scenes that
    lead to where the rare steps are.

    ``stateful`` and ``strategies`` are Hypothesis's modules of these names; they are handed in so that the
    checker works without Hypothesis.

    >>> from hypothesis import settings, stateful, strategies
    >>> from kvfence.language import Int, Machine
    >>> machine = Machine("blocks")
    >>> _ = machine.function("free", value=Int(0, 3), init=3)
    >>> @machine.action()
    ... def take(s):
    ...     s.require(s.free > 0)
    ...     s.free = s.free - 1
    >>> class Pool:
    ...     header, unobserved, events = None, (), []
    ...     free = 3
    ...     def perform(self, action, args):
    ...         self.free -= 1
    ...     def abstract(self):
    ...         return {"free": self.free}
    ...     def refusal(self, action, args):
    ...         return None
    >>> runs = state_machine(lambda: Lockstep(Interpreter(machine), Pool()), ["take"], stateful, strategies)
    >>> few = settings(max_examples=3, stateful_step_count=3, database=None)
    >>> stateful.run_state_machine_as_test(runs, settings=few)
    """
    names = list(actions)
    often = [name for name in names if name not in seldom]

    def set_up(self: Any) -> None:
        stateful.RuleBasedStateMachine.__init__(self)
        self.lockstep = start()

    def begin(self: Any, scene: Sequence[Step]) -> None:
        self.lockstep.play(scene)

    def tear_down(self: Any) -> None:
        self.lockstep.finish()

    def rule(
        name: str, body: Callable[[Any, Any], None], choices: Callable[[Lockstep], Sequence[object]]
    ) -> Any:
        def on_offer(self: Any) -> bool:
            lockstep: Lockstep = self.lockstep
            now = name not in seldom or lockstep.steps % _SELDOM == _SELDOM - 1
            return bool(choices(lockstep)) and (now or not any(map(lockstep.enabled, often)))

        body.__name__ = body.__qualname__ = name
        return stateful.precondition(on_offer)(stateful.rule(data=strategies.data())(body))

    def allowed(name: str) -> Any:
        def take(self: Any, data: Any) -> None:
            self.lockstep.take(data.draw(strategies.sampled_from(self.lockstep.enabled(name)), label=name))

        return rule(name, take, lambda lockstep: lockstep.enabled(name))

    def refused(self: Any, data: Any) -> None:
        choices = self.lockstep.refusals()
        name = data.draw(strategies.sampled_from(sorted({i.name for i, _ in choices})), label=_REFUSAL)
        mine = [(i, error) for i, error in choices if i.name == name]
        self.lockstep.refuse(*data.draw(strategies.sampled_from(mine), label=_REFUSAL))

    members: dict[str, Any] = {"__init__": set_up, "teardown": tear_down}
    members |= {action: allowed(action) for action in names}
    if scenes:
        members["begin"] = stateful.initialize(scene=strategies.sampled_from([(), *scenes]))(begin)
    members[_REFUSAL] = rule(_REFUSAL, refused, Lockstep.refusals)
    return type("LockstepMachine", (stateful.RuleBasedStateMachine,), members)
