"""What a run of ``kvfence verify`` found out: the one structure that is printed as text and as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from kvfence.checker.engines.base import Proof, Searched, Verdict
from kvfence.spec import events as ev

Value = bool | int | str

_WORST_FIRST = (Verdict.violated, Verdict.undetermined, Verdict.holds)


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The worst of the verdicts: one violated is violated, else one undetermined is undetermined."""
    return min(verdicts, key=_WORST_FIRST.index, default=None)


class Change(msgspec.Struct, frozen=True):
    """One value of the state that a step changed, by its printed name (``pin[0, 2]``)."""

    name: str
    before: Value
    after: Value


class Step(msgspec.Struct, frozen=True):
    """One numbered event of a counterexample; ``observed`` are the trace events that the step stands for."""

    number: int
    action: str
    arguments: dict[str, Value]
    doc: str
    changes: tuple[Change, ...]
    observed: tuple[ev.Event, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """A part of a condition, in words, and its value."""

    text: str
    value: Value


class Guard(msgspec.Struct, frozen=True):
    """A conjunct of a guard, in words, and its place in the machine's file."""

    text: str
    where: str


class Difference(msgspec.Struct, frozen=True):
    """A value after a step, and what it is after the same step of the sound design."""

    name: str
    here: Value
    sound: Value


class Prevention(msgspec.Struct, frozen=True):
    """What the sound design does at a step instead: ``guards`` refuse it, or ``updates`` differ."""

    step: int
    action: str
    guards: tuple[Guard, ...] = ()
    updates: tuple[Difference, ...] = ()
    no_such_action: bool = False


class Diagnosis(msgspec.Struct, frozen=True):
    """Why a run ends in a violation.

    ``conjunct``: what is false, its variables filled in, and ``parts`` the values of its parts. ``made_by``:
    the last step that changed one of the values, or the last of all where none did. ``prevented``: the steps
    at which the sound design differs. ``due``: of a run in which nothing more happens, the steps that the
    sound design cannot put off for ever at its end.
    """

    conjunct: str = ""
    parts: tuple[Part, ...] = ()
    made_by: int | None = None
    prevented: tuple[Prevention, ...] = ()
    due: tuple[str, ...] = ()


class Counterexample(msgspec.Struct, frozen=True):
    """A path to a violation, as short as it gets by leaving out steps.

    ``values``: those that make the condition false, in the last state or, for a condition on the last step
    itself (``read_before_last_step``), in the state before it. ``header``: that of the path as a trace.
    ``left_out``: steps of the path as it was found that turned out not to matter. ``loop``, of a run that
    violates a liveness property: the steps after the first so many are taken again and again; if there are
    none, nothing more happens, which the trace events ``idle`` express. ``untold``: why the steps could not
    be given as events.
    """

    machine: str
    invariant: str
    name: str
    condition: str
    start: dict[str, Value]
    steps: tuple[Step, ...]
    values: dict[str, Value]
    read_before_last_step: bool = False
    header: ev.Header | None = None
    diagnosis: Diagnosis = Diagnosis()
    left_out: int = 0
    loop: int | None = None
    idle: tuple[ev.Event, ...] = ()
    untold: str = ""

    @property
    def length(self) -> str:
        """Where the violation is, in words: after so many events, or at once."""
        count = len(self.steps)
        return f"{count} event{'s' * (count != 1)}" if count else "in the initial state"

    @property
    def trace(self) -> Iterator[ev.Event]:
        """The trace events of all steps, which follow ``header`` in a trace file."""
        return itertools.chain(*(step.observed for step in self.steps), self.idle)


class Condition(msgspec.Struct, frozen=True):
    """The verdict on one condition of a machine: ``name`` is its own, ``invariant`` that of the catalogue."""

    invariant: str
    name: str
    verdict: Verdict


class JudgedLiveness(msgspec.Struct, frozen=True):
    """The graph on which liveness properties were judged."""

    sizes: dict[str, int]
    states: int
    stopped: str | None = None


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One machine at one size: how far it was explored and what was found.

    ``vacuous``: conditions with a premise that no reachable state meets, so that they hold of nothing;
    ``unmet`` says of what, in words. ``unevaluated``: checks of steps that are never taken. ``searched``: who
    looked for taken actions, goals and premises, if it was not the engine. ``declared``: what ids of the
    machine's own stand for, and ``undeclared``: of unknown ids, what to do about them.
    ``states_nothing``: the machine has no invariant, check or liveness property; ``judged_none``: it has, and
    none was judged. ``proof``: of an answer for any size, whose ``sizes`` are those at which counterexamples
    were looked for, if any were. ``symmetry``: sorts up to whose renaming states were counted. ``promised``:
    at which sizes its liveness properties were judged, with the states of the graph; ``unjudged`` ones were
    not. ``note``: why another engine than the one by default explored.
    """

    machine: str
    sizes: dict[str, int]
    engine: str
    verdict: Verdict
    states: int
    transitions: int
    depth: int
    seconds: float
    conditions: tuple[Condition, ...]
    taken: dict[str, int]
    goals: dict[str, int | None]
    vacuous: tuple[str, ...] = ()
    unmet: dict[str, str] = {}
    unevaluated: tuple[str, ...] = ()
    searched: Searched | None = None
    declared: dict[str, str] = {}
    undeclared: dict[str, str] = {}
    states_nothing: bool = False
    judged_none: bool = False
    stopped: str | None = None
    proof: Proof | None = None
    symmetry: tuple[str, ...] = ()
    promised: JudgedLiveness | None = None
    unjudged: tuple[str, ...] = ()
    note: str = ""

    @property
    def never_taken(self) -> tuple[str, ...]:
        """Actions that no reachable state enables."""
        return tuple(name for name, times in self.taken.items() if times == 0)

    @property
    def goals_missed(self) -> tuple[str, ...]:
        """Goals that no reachable state meets."""
        return tuple(name for name, depth in self.goals.items() if depth is None)

    def verdict_on(self, invariant: str) -> Verdict | None:
        """The verdict on an invariant: the worst of its conditions, None when the machine states none."""
        return worst(condition.verdict for condition in self.conditions if condition.invariant == invariant)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """All machines of one run.

    ``expected``: the invariant that the design is known to break, empty for the sound one; ``reports``: the
    public reports it is known from. ``not_yet``: invariants of the catalogue that no machine states so far,
    when all machines were run. ``not_begun``: machines left out after Ctrl-C.

    >>> found = verify("unpinned_lookup", machine="lookup", engine="interpret")
    >>> found.expected, [step.action for step in found.counterexamples[0].steps][-1]
    ('PIN', 'lookup')
    """

    version: str
    design: str
    verdict: Verdict
    expected: str
    summary: str
    reports: tuple[str, ...]
    machines: tuple[MachineFacts, ...]
    not_yet: tuple[str, ...]
    not_begun: tuple[str, ...]
    counterexamples: tuple[Counterexample, ...]
    seconds: float


_UNKNOWN = "neither in the catalogue nor declared"


def own_titles(machines: Iterable[MachineFacts]) -> dict[str, str]:
    """What ids stand for that are in no catalogue, as far as the machines declare it."""
    out: dict[str, str] = {}
    for machine in machines:
        for id_, text in (machine.declared | dict.fromkeys(machine.undeclared, _UNKNOWN)).items():
            out.setdefault(id_, text)
    return out
