"""What every engine answers with, and how an exploration of reachable states is summed up."""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from kvfence.spec.language import (
    LEMMA,
    PREMISE,
    Grounded,
    Instance,
    Machine,
    Premise,
    SpecError,
    View,
    changes,
    flat,
)

Until = Literal["first", "seen", "end"]
Kind = Literal["invariant", "lemma", "check", "range", "promise"]
Bounds = Mapping[str, tuple[int, int]]
CellBounds = Mapping[int, tuple[int, int]]
"""Bounds of the cells of unbounded Ints, by number."""
Shown = bool | int | str


class Verdict(StrEnum):
    """The answer to a question; undetermined never counts as a pass."""

    holds = "holds"
    violated = "violated"
    undetermined = "undetermined"


@dataclass(frozen=True)
class Step:
    """One step of a path: the action, its arguments, its one-line meaning, and the state after it."""

    action: str
    args: dict[str, Shown]
    doc: str
    after: View

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{k}={v}' for k, v in self.args.items())})"


@dataclass(frozen=True)
class Path:
    """A run of the machine from its initial state, and what is wrong (or reached) at its end.

    ``id`` is an invariant of the catalogue, ``DEADLOCK``, ``RANGE``, or empty for a goal. With ``RANGE`` the
    last state holds the value out of range. A run that violates a liveness property goes on for ever:
    the steps from ``loop`` on (counted from 0) are repeated, and if there are none, nothing more happens.
    """

    initial: View
    steps: tuple[Step, ...]
    id: str
    name: str
    text: str
    loop: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        """True: a path of no steps, which ends in the initial state, is a path."""
        return True

    def __str__(self) -> str:
        lines, before = [f"{self.id or 'goal'} {self.name}: {self.text}".strip()], self.initial
        for k, step in enumerate(self.steps, 1):
            if k - 1 == self.loop:
                lines.append("     again and again:")
            lines.append(f"{k:3}. {step}  {step.doc.splitlines()[0] if step.doc else ''}".rstrip())
            lines += [
                f"       {name}: {old} -> {new}" for name, (old, new) in changes(before, step.after).items()
            ]
            before = step.after
        if self.loop == len(self.steps):
            lines.append("     nothing more happens")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """The path as plain values, ready for JSON."""
        steps = [
            {"action": s.action, "args": s.args, "doc": s.doc, "after": flat(s.after)} for s in self.steps
        ]
        whole = {"id": self.id, "name": self.name, "text": self.text, "initial": flat(self.initial)}
        return {**whole, "steps": steps, "loop": self.loop}


@dataclass(frozen=True)
class Finding:
    """The verdict on one invariant, lemma, step check or range; ``path`` is a shortest counterexample."""

    id: str
    name: str
    kind: Kind
    verdict: Verdict
    path: Path | None = None


@dataclass(frozen=True)
class Proof:
    """How an answer for sorts of any size was proved.

    ``questions`` were asked of z3, and ``seconds`` says how long they took for each condition. ``open`` says
    why a condition is not proved, with a counterexample to induction if one was found. ``rechecked``
    questions were decided again by a new z3, and ``second`` names another solver that decided all but
    ``second_open``.
    ``exported`` is the folder that the questions were written to.
    """

    questions: int
    seconds: dict[str, float]
    open: dict[str, str] = field(default_factory=dict)
    rechecked: int = 0
    second: str | None = None
    second_open: tuple[str, ...] = ()
    exported: str | None = None


@dataclass(frozen=True)
class Searched:
    """The search that taken actions, goals and premises are from where it was not the engine's own.

    ``stopped`` says why not all reachable states were seen; None when they were, or when nothing was left to
    be seen.
    """

    engine: str
    sizes: dict[str, int]
    states: int
    stopped: str | None = None


@dataclass(frozen=True)
class Result:
    """What an exploration found.

    ``findings`` and ``goals`` are by name; a goal maps to the depth at which it was first reached, or None,
    and ``witnesses`` to a shortest path there. ``coverage`` counts how often each action was taken.
    ``premises`` says of each condition with premises ("if a then b", however it is written) at which depth
    the last of them was first met, or None; ``unmet`` says in words what no state met. A
    condition with an unmet premise is undetermined, and so is one of ``unjudged``, which no step evaluated.
    ``stopped`` says why not all reachable states were seen; None when they were. ``symmetry`` names the sorts
    up to whose renaming states were counted. ``searched``: which other search looked for taken actions,
    goals and premises, if one did.
    ``overflow``: the expression for which the engine's 64 bits are too few, so that it did not begin.
    """

    machine: str
    faults: tuple[str, ...]
    sizes: dict[str, int]
    engine: str
    states: int
    transitions: int
    depth: int
    seconds: float
    findings: dict[str, Finding]
    coverage: dict[str, int]
    goals: dict[str, int | None]
    witnesses: dict[str, Path] = field(default_factory=dict)
    deadlock: Path | None = None
    stopped: str | None = None
    premises: dict[str, int | None] = field(default_factory=dict)
    symmetry: tuple[str, ...] = ()
    proof: Proof | None = None
    unmet: dict[str, str] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()
    searched: Searched | None = None
    overflow: str | None = None

    @property
    def violated(self) -> tuple[Path, ...]:
        """The counterexamples, a deadlock's included, shortest first."""
        paths = [f.path for f in self.findings.values() if f.path is not None]
        return tuple(sorted([*paths, *([] if self.deadlock is None else [self.deadlock])], key=len))

    @property
    def incomplete(self) -> str | None:
        """Why something may be there that the search for actions, goals and premises did not come by."""
        return self.searched.stopped if self.searched else self.stopped

    @property
    def vacuous(self) -> tuple[str, ...]:
        """Conditions with a premise that no reachable state meets; none while the search is incomplete."""
        return () if self.incomplete else self.not_met

    @property
    def not_met(self) -> tuple[str, ...]:
        """Conditions with a premise that no state met which was seen."""
        return tuple(name for name, depth in self.premises.items() if depth is None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Why the answer cannot be ``holds`` though nothing is violated."""
        cut = self.searched.stopped if self.searched else None
        never = "was not seen to be" if cut else "was never"
        names = self.not_met if cut else self.vacuous
        unseen = (
            *(f"action {name} {never} taken" for name, n in self.coverage.items() if n == 0),
            *(f"goal {name} {never} reached" for name, depth in self.goals.items() if depth is None),
            *(f"{name} {only_because(self.unmet.get(name, ''), sure=not cut)}" for name in names),
            *(f"check {name} {never} evaluated" for name in self.unjudged),
        )
        stopped = (f"stopped: {self.stopped}",) if self.stopped else ()
        return (*stopped, *((f"{SEARCH} ended early: {cut}",) if cut and unseen else ()), *unseen)

    @property
    def verdict(self) -> Verdict:
        """Violated if anything is; undetermined if anything is missing; else holds."""
        if self.violated:
            return Verdict.violated
        return Verdict.undetermined if self.missing else Verdict.holds

    def to_dict(self) -> dict[str, object]:
        """The result as plain values, ready for JSON."""
        findings = [
            {
                "id": f.id,
                "name": f.name,
                "kind": f.kind,
                "verdict": str(f.verdict),
                "path": None if f.path is None else f.path.to_dict(),
            }
            for f in self.findings.values()
        ]
        plain = (
            "machine",
            "sizes",
            "engine",
            "states",
            "transitions",
            "depth",
            "seconds",
            "coverage",
            "goals",
            "premises",
            "unmet",
        )
        return {
            **{name: getattr(self, name) for name in plain},
            "verdict": str(self.verdict),
            "faults": list(self.faults),
            "missing": list(self.missing),
            "findings": findings,
            "witnesses": {name: p.to_dict() for name, p in self.witnesses.items()},
            "deadlock": None if self.deadlock is None else self.deadlock.to_dict(),
            "stopped": self.stopped,
            "symmetry": list(self.symmetry),
            "unjudged": list(self.unjudged),
            "searched": asdict(self.searched) if self.searched else None,
        }


def only_because(unmet: str, *, sure: bool = True) -> str:
    """Why a condition says nothing, after its name; ``unmet`` is the premise in words, if it has one."""
    if not unmet:
        return "says nothing: it is true whatever the state is"
    return f"{'holds' if sure else 'may hold'} only because no state meets its premise: {unmet}"


class Progress(NamedTuple):
    """How far an exploration is.

    ``load``: how full the table of states is, from 0 to 1; ``room``: for how many more states there is
    memory. None where the engine does not know. ``unit``: what is counted where it is not states.
    """

    states: int
    frontier: int
    depth: int
    states_per_second: float
    load: float | None = None
    room: int | None = None
    unit: str = "states"


Report = Callable[[Progress], None]
REPORT_EVERY = 0.2  # seconds


class Reporter:
    """Reports to the caller how far a run is, at most every ``REPORT_EVERY`` seconds.

    ``progress`` is the caller's function; ``start`` is when the reporter was made, in
    seconds of ``time.perf_counter``.
    """

    def __init__(self, progress: Report | None = None) -> None:
        self.progress = progress
        self.start = self._last = time.perf_counter()

    def __call__(self, now: Callable[[], Progress]) -> None:
        """Report ``now()`` if it is time to; it is not asked otherwise."""
        if self.progress is not None and time.perf_counter() - self._last >= REPORT_EVERY:
            self._last = time.perf_counter()
            self.progress(now())

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def rate(self, states: int) -> float:
        """States per second since the start."""
        return states / self.seconds()


@dataclass(frozen=True)
class RunOptions:
    """The options of ``Engine.run``; ``report`` passes on its ``progress``, and knows when the run began."""

    until: Until = "end"
    bounds: Bounds | None = None
    max_states: int | None = None
    memory: int | None = None
    report: Reporter = field(default_factory=Reporter)


class Engine(ABC):
    """Decides a machine at given sizes. An engine defines ``decide``, or ``run`` itself."""

    name: str

    def run(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        *,
        until: Until = "end",
        bounds: Bounds | None = None,
        max_states: int | None = None,
        memory: int | None = None,
        progress: Report | None = None,
    ) -> Result:
        """Explore breadth first and sum up.

        ``until="first"`` stops after the level in which something is first violated, and ``until="seen"``
        also where every action was taken and every goal and premise met. ``bounds`` limits
        unbounded Ints by function name; a step that leaves them is not followed and leaves the answer
        undetermined. ``max_states`` and ``memory`` (bytes) stop the run early; Ctrl-C does too, and what was
        found is kept. ``progress`` is called at most every 0.2 s. SpecError for a machine that cannot be
        grounded, or bounds that do not fit it.
        """
        return self.decide(machine, sizes, RunOptions(until, bounds, max_states, memory, Reporter(progress)))

    def decide(self, machine: Machine, sizes: Mapping[str, int] | None, options: RunOptions) -> Result:
        """What ``run`` answers, its options gathered."""
        raise NotImplementedError


INTERRUPTED = "interrupted"
FIRST = "the first violation was found"
SEEN = "everything was seen"
SEARCH = "the search for taken actions, goals and premises"


class Stop(Exception):  # noqa: N818 (not an error: a reason to end early)
    """Ends an exploration; the text becomes ``Result.stopped``."""


@dataclass
class Sighting:
    """Where something was first seen: a state, in the engine's own terms, and the step out of it if any."""

    state: object
    depth: int
    instance: Instance | None = None
    text: str = ""


PathTo = Callable[[Sighting, str, str, str], Path]
"""Retraces a sighting: ``path(sighting, id, name, text)``."""


def no_path(sighting: Sighting, id_: str, name: str, text: str) -> Path:
    """The ``PathTo`` of a search that has no sightings to retrace."""
    raise AssertionError((sighting, id_, name, text))


class Log:
    """What an exploration has found so far; every explorer fills one and turns it into a ``Result``."""

    def __init__(self, grounded: Grounded) -> None:
        self.grounded = grounded
        self.states = self.transitions = self.depth = 0
        self.taken = [0] * len(grounded.instances)
        self.failed: dict[str, Sighting] = {}
        self.reached: dict[str, Sighting] = {}
        self.dead: Sighting | None = None
        self.stopped: str | None = None

    @property
    def bad(self) -> bool:
        """Whether anything is violated."""
        return bool(self.failed) or self.dead is not None

    def places(self) -> list[tuple[str, dict[str, Sighting]]]:
        """Each property's name with where its sighting goes: the invariants, then the goals."""
        g = self.grounded
        return [(p.name, self.failed) for p, _ in g.invariants] + [(p.name, self.reached) for p, _ in g.goals]

    def stop_if_enough(self, until: Until) -> None:
        """Stop where what ``until`` asks for was found."""
        if until != "end" and self.bad:
            raise Stop(FIRST)
        if until == "seen" and self.covers(self.taken, self.reached):
            raise Stop(SEEN)

    def covers(self, taken: Sequence[int], reached: Iterable[str]) -> bool:
        """Whether every action was taken, by instance, and every goal and premise reached, by name."""
        g = self.grounded
        done = {i.name for i, n in zip(g.instances, taken, strict=True) if n}
        return len(done) == len(g.machine.actions) and len({*reached}) == len(g.goals)

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Keeps the reason why a search ends early: ``Stop``, or Ctrl-C."""
        try:
            yield
        except Stop as stop:
            self.stopped = str(stop)
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED

    def result(
        self, engine: str, seconds: float, path: PathTo = no_path, symmetry: tuple[str, ...] = ()
    ) -> Result:
        """The result; ``path`` retraces a sighting."""
        g = self.grounded
        complete = self.stopped is None
        depths = {p.name: self.reached[p.name].depth if p.name in self.reached else None for p, _ in g.goals}
        premises, unmet = _premises([p for p, _ in g.goals if isinstance(p, Premise)], depths)
        coverage = dict.fromkeys(g.machine.actions, 0)
        judged: set[str] = set()
        for i, n in zip(g.instances, self.taken, strict=True):
            coverage[i.name] += n
            if n:
                judged |= {c.name for c in (*i.checks, *i.ranges)}
        findings: dict[str, Finding] = {}

        def settle(id_: str, name: str, kind: Kind, text: str) -> None:
            sighting = self.failed.get(name)
            if name in findings:
                return
            if sighting is not None:
                found = path(sighting, id_, name, sighting.text or text)
                findings[name] = Finding(id_, name, kind, Verdict.violated, found)
            else:
                sure = complete and name not in unmet and (name in judged or kind not in ("check", "range"))
                findings[name] = Finding(id_, name, kind, Verdict.holds if sure else Verdict.undetermined)

        for p, _ in g.invariants:
            settle(p.id, p.name, "lemma" if p.id == LEMMA else "invariant", p.doc or p.name)
        for i in g.instances:
            for c in i.checks:
                settle(c.id, c.name, "check", c.text)
        for check in (c for a in g.machine.actions.values() for c in a.checks):
            settle(check.id, check.name, "check", check.text)  # of actions without instances, too
        for c in (c for i in g.instances for c in i.ranges):
            settle(c.id, c.name, "range", c.text)
        dead = "no action is enabled in a state that is not terminal"
        return Result(
            machine=g.machine.name,
            faults=tuple(sorted(g.machine.faults)),
            sizes=g.sizes,
            engine=engine,
            states=self.states,
            transitions=self.transitions,
            depth=self.depth,
            seconds=seconds,
            findings=findings,
            coverage=coverage,
            goals={p.name: depths[p.name] for p, _ in g.goals if p.id != PREMISE},
            premises=premises,
            unmet=unmet,
            unjudged=tuple(f.name for f in findings.values() if f.kind == "check" and f.name not in judged),
            witnesses={
                p.name: path(self.reached[p.name], "", p.name, p.doc or p.name)
                for p, _ in g.goals
                if p.name in self.reached and p.id != PREMISE
            },
            deadlock=path(self.dead, "DEADLOCK", "deadlock", dead) if self.dead else None,
            stopped=self.stopped,
            symmetry=symmetry,
        )


def _premises(
    every: Sequence[Premise], depths: Mapping[str, int | None]
) -> tuple[dict[str, int | None], dict[str, str]]:
    """By condition, when the last of its premises was first met; and what was not, in words."""
    met: dict[str, int | None] = {}
    unmet: dict[str, list[str]] = {}
    for p in every:
        depth, before = depths[p.name], met.get(p.of, 0)
        met[p.of] = None if depth is None or before is None else max(depth, before)
        if depth is None:
            unmet.setdefault(p.of, []).append(p.text)
    return met, {name: "; ".join(dict.fromkeys(texts)) for name, texts in unmet.items()}


def cell_bounds(g: Grounded, bounds: Bounds | None, required: bool) -> CellBounds:
    """Bounds of the cells of unbounded Ints; SpecError for a wrong name, or for a missing one if required."""
    given = dict(bounds or {})
    for name, (lo, hi) in given.items():
        f = g.machine.functions.get(name)
        if f is None or g.cells[g.layout.fields[name].base].lo is not None:
            raise SpecError(
                f"bounds are for unbounded Ints, and {name} of machine {g.machine.name} is not one"
            )
        if lo > hi:
            raise SpecError(f"bounds of {name} are {lo} to {hi}; the lower comes first")
    out = {}
    for c in (c for c in g.cells if c.lo is None):
        name = c.function.name
        if name in given:
            out[c.number] = given[name]
            if not given[name][0] <= c.init <= given[name][1]:
                raise SpecError(f"bounds of {name} leave out its initial value {c.init}; widen them")
        elif required:
            raise SpecError(
                f"{name} of machine {g.machine.name} is an unbounded Int; give bounds={{{name!r}: (lo, hi)}} "
                "or interpret the machine"
            )
    return out


def bounds_left(g: Grounded, cell: int, limits: CellBounds) -> str:
    """Why a search is incomplete: a step would have taken an unbounded Int out of its bounds."""
    lo, hi = limits[cell]
    return f"{g.cells[cell].label} leaves its bounds {lo} to {hi}"


def in_ranges(g: Grounded, state: Sequence[int], limits: CellBounds) -> bool:
    """Whether every value of a state is in its range, or in the bounds given for it."""
    ends = (limits.get(cell.number, (cell.lo, cell.hi)) for cell in g.cells)
    return all(
        (lo is None or lo <= value) and (hi is None or value <= hi)
        for value, (lo, hi) in zip(state, ends, strict=True)
    )
