"""Runs the mutants of a machine: which condition notices each, and what the unnoticed ones do.

A mutant is explored at growing sizes until a condition notices it. That search goes on to its end, or to a
multiple of the machine's states, so that other conditions which notice it are known too. A mutant without a
new step in any state that the machine reaches behaves as the machine does, and is not explored. If the
machine states PROGRESS, that is judged for the mutants that nothing else notices, at the last of the sizes.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvfence.checker.analysis.liveness import requires_progress
from kvfence.checker.analysis.mutation.behaviour import Comparison
from kvfence.checker.analysis.mutation.mutants import Kind, Mutant, conjuncts, mutants
from kvfence.checker.core.processes import ProcessDied, side_by_side
from kvfence.checker.engines.base import Log, Stop
from kvfence.checker.engines.explicit.numpy_search import Reachable
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.engines.word_size import TooWide
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Action, Machine, Premise, SpecError, ground
from kvfence.spec.language.evaluate import spell
from kvfence.spec.machines import MACHINES

Sizes = Mapping[str, int]
Report = Callable[[str, int, int], None]  # machine, mutants done, mutants in all

# Smallest first: a mutant that is noticed at one size is not tried at the next.
STAGES: dict[str, tuple[dict[str, int], ...]] = {
    "block_pool": ({"Block": 3}, {}),
    "geometry": ({"Group": 1}, {"Token": 3}, {"Token": 4}, {}),
    "loads": ({"Block": 3, "Group": 1}, {"Request": 3, "Block": 3, "Group": 1}, {}),
    "lookup": ({"Block": 2}, {}),
    "ranks": ({"Operation": 1, "Rank": 1}, {"Operation": 1}, {}),
    "scheduling": ({"Request": 1, "Block": 1}, {"Request": 1}, {"Request": 2}),
    "stream_order": ({"Slot": 1, "Operation": 1}, {"Slot": 1}, {"Operation": 1}, {}),
    "tiers": ({"Operation": 1}, {}),
    "transfer": (
        {"Block": 1, "Operation": 1},
        {"Block": 2, "Operation": 1, "Rank": 1},
        {"Block": 1, "Rank": 1},
        {"Request": 1, "Rank": 1, "Host": 2},
        {"Rank": 1},
    ),
}
MAX_STATES = 8_000_000
ENOUGH = 3  # times the states of the machine are explored of a mutant that is noticed
MEMORY = 2 << 30
INTERRUPTED = "interrupted"
DEADLOCK, RANGE = "deadlock", "a value stays in its range"


class Fate(StrEnum):
    """What became of a mutant."""

    killed = "killed"
    same = "same behaviour"
    accepted = "accepted"
    survived = "survived"
    undetermined = "undetermined"


@dataclass(frozen=True)
class Outcome:
    """A mutant's fate.

    ``noticed``: the depth at which each condition first fails, by the condition's name. ``sizes``: those at
    which it was noticed, or the last ones tried. ``new``: its first new step. ``why``: the machine's reason
    to accept it, or what stopped the search.
    """

    name: str
    kind: Kind
    fate: Fate
    sizes: dict[str, int]
    noticed: dict[str, int] = field(default_factory=dict)
    new: str = ""
    why: str = ""


@dataclass
class Campaign:
    """All mutants of one machine.

    ``conditions``: the machine's invariants and checks by name, with their ids. ``vacuous``: invariants whose
    premise no state meets at any of the sizes. ``stale``: acceptances that fit no surviving mutant.
    ``may_idle``: conditions that the machine says are implied, and why. ``ghosts``: fields
    whose assignments are left as they are, and why.
    ``missing``: mutants not tried when the run was stopped.
    """

    machine: str
    conditions: dict[str, str]
    outcomes: list[Outcome] = field(default_factory=list)
    vacuous: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    may_idle: dict[str, str] = field(default_factory=dict)
    ghosts: dict[str, str] = field(default_factory=dict)
    states: list[tuple[dict[str, int], int]] = field(default_factory=list)
    missing: int = 0
    stopped: str | None = None
    seconds: float = 0.0

    def of(self, fate: Fate) -> list[Outcome]:
        """The mutants with this fate."""
        return [o for o in self.outcomes if o.fate is fate]


class _Stage:
    """The machine at one of its sizes, its mutants compared with it."""

    def __init__(self, machine: Machine, given: Sequence[Mutant], sizes: Sizes, memory: int) -> None:
        self.grounded = ground(machine, sizes)
        self.sizes, self.memory = self.grounded.sizes, memory
        self.base = Reachable(self.grounded, memory=memory).log
        if self.base.stopped:
            raise Stop(self.base.stopped)
        self.stop_if_unsound(_violations(self.base))
        fitting = [m for m in given if m.kind is not Kind.design and _fits(m, sizes)]
        self.unfit = {m.name for m in given} - {m.name for m in fitting}
        self.comparison = Comparison(machine, fitting, sizes, memory)
        self.ways = self.comparison.differing([m.name for m in fitting])

    def stop_if_unsound(self, broken: Mapping[str, int]) -> None:
        """Raises Stop if the machine itself violates something: all its mutants would be noticed."""
        if broken:
            raise Stop(f"the machine itself breaks {', '.join(broken)}")

    def differs(self, m: Mutant) -> bool:
        """Whether the mutant has a new step at these sizes, as far as that is known beforehand."""
        return m.name in self.ways or m.name in self.unfit

    def noticed(self, m: Mutant) -> tuple[dict[str, int], str | None]:
        """Which conditions fail, with the depth; and why the search was stopped, if it was."""
        sizes = {**self.sizes, **(DESIGNS[m.name].sizes if m.kind is Kind.design else {})}
        try:
            grounded = ground(m.machine, sizes)
        except SpecError:
            return {"a step that cannot be evaluated": 0}, None
        enough = min(MAX_STATES, ENOUGH * self.comparison.states + 10_000)
        try:
            log = Reachable(grounded, memory=self.memory, max_states=enough).log
        except TooWide as why:
            return {}, str(why)
        if log.stopped and not log.bad and enough < MAX_STATES:
            log = Reachable(grounded, memory=self.memory, max_states=MAX_STATES).log
        found = _violations(log)
        if not log.stopped and m.kind is not Kind.design:
            found |= _missing(log, self.base)
            found = found or _lost(log, self.base, premises=True)  # what else is noticed says more
        return found, log.stopped

    def broken(self, m: Mutant) -> tuple[dict[str, int], str | None]:
        """Which liveness properties are violated, by a run of how many steps; why that was not found out."""
        result = Liveness().run(m.machine, self.sizes, max_states=MAX_STATES)
        return {p.name: len(p) for p in result.violated}, result.stopped


def _fits(m: Mutant, sizes: Sizes) -> bool:
    try:
        ground(m.machine, sizes)
    except SpecError:
        return False
    return True


def _violations(log: Log) -> dict[str, int]:
    ranges = {c.name for i in log.grounded.instances for c in i.ranges}
    found: dict[str, int] = {}
    for name, sighting in log.failed.items():
        depth = sighting.depth + (sighting.instance is not None)
        key = RANGE if name in ranges else name
        found[key] = min(depth, found.get(key, depth))
    if log.dead is not None:
        found[DEADLOCK] = log.dead.depth
    return found


def _missing(log: Log, base: Log) -> dict[str, int]:
    """Goals and actions that the machine reaches and the mutant does not; as deep as the search went."""
    goals, actions = _lost(log, base, premises=False), _taken(base)
    return goals | {f"action {name}": log.depth for name in actions if name not in _taken(log)}


def _lost(log: Log, base: Log, premises: bool) -> dict[str, int]:
    """Goals, or premises, that the machine meets and the mutant does not; as deep as the search went."""
    names = [p.name for p, _ in base.grounded.goals if isinstance(p, Premise) is premises]
    return {f"goal {name}": log.depth for name in names if name in base.reached and name not in log.reached}


def _taken(log: Log) -> set[str]:
    return {i.name for i, n in zip(log.grounded.instances, log.taken, strict=True) if n}


def run(
    machine: Machine,
    stages: Sequence[Sizes] | None = None,
    *,
    memory: int = MEMORY,
    progress: Report | None = None,
    only: str | None = None,
    workers: int | None = None,
) -> Campaign:
    """Tries every mutant of ``machine``, and the named designs that touch it.

    ``stages``: the sizes, smallest first; by default those of STAGES, or the machine's own. ``memory`` in
    bytes for one search. ``only``: mutants whose name fits this pattern. ``workers``: searches at a time; by
    default one for each core. Ctrl-C keeps what was found. SpecError for sizes that do not exist.
    """
    start = time.perf_counter()
    designs = _designs(machine.name)
    given = [*_with_the_checks_of(designs, machine, mutants(machine)), *designs]
    given = [m for m in given if only is None or _fits_name(m.name, only)]
    if not given:
        return Campaign(machine.name, {})
    may_idle = {a.name: a.why for a in machine.accepted_idle}
    out = Campaign(machine.name, _stated(machine), may_idle=may_idle, ghosts=dict(machine.ghosts))
    todo = {m.name: m for m in given}
    differed: dict[str, str] = {}
    stopped: dict[str, str] = {}
    vacuous: set[str] | None = None
    sizes: dict[str, int] = {}

    def judge(stage: _Stage, by: Callable[[Mutant], tuple[dict[str, int], str | None]]) -> None:
        new = [m for m in todo.values() if stage.differs(m)]
        for m, (found, why) in side_by_side(by, new, workers):
            if progress is not None:
                progress(machine.name, len(given) - len(todo), len(given))
            if found:
                out.outcomes.append(Outcome(m.name, m.kind, Fate.killed, stage.sizes, found))
                del todo[m.name]
                continue
            if why:
                stopped[m.name] = why
            if m.name in stage.ways and m.name not in differed:
                differed[m.name] = str(stage.comparison.behaviour(m.name, stage.ways[m.name]))

    try:
        for wanted in stages if stages is not None else STAGES.get(machine.name, ({},)):
            stage = _Stage(machine, list(todo.values()), wanted, memory)
            sizes = stage.sizes
            out.states.append((sizes, stage.comparison.states))
            unmet = _vacuous(stage.base)
            vacuous = unmet if vacuous is None else vacuous & unmet
            judge(stage, stage.noticed)
        if requires_progress(machine):
            stage.stop_if_unsound(stage.broken(Mutant("", Kind.design, "", machine))[0])
            judge(stage, stage.broken)
    except KeyboardInterrupt:
        out.stopped = INTERRUPTED
    except (Stop, ProcessDied) as stop:
        out.stopped = str(stop)
    if out.stopped:
        out.missing = len(todo)
    else:
        out.outcomes += _rest(machine, todo, differed, stopped, sizes)
    order = {m.name: k for k, m in enumerate(given)}
    out.outcomes.sort(key=lambda o: order[o.name])
    out.vacuous = sorted(vacuous or ())
    if only is None and not out.stopped:
        out.stale = _stale(machine, out.outcomes)
    out.seconds = time.perf_counter() - start
    return out


def _stated(machine: Machine) -> dict[str, str]:
    """The ids of the machine's invariants, lemmas, checks and liveness properties by name."""
    checks = {c.name: c.id for a in machine.actions.values() for c in a.checks}
    liveness = {p.name: p.id for p in machine.liveness.values()} if requires_progress(machine) else {}
    properties = (*machine.invariants.values(), *machine.lemmas.values())
    return {p.name: p.id for p in properties} | liveness | checks


def _designs(machine: str) -> list[Mutant]:
    return [
        Mutant(d.name, Kind.design, "", MACHINES[machine](d.faults))
        for d in DESIGNS.values()
        if d.breaks and machine in d.machines
    ]


def _with_the_checks_of(designs: Sequence[Mutant], machine: Machine, given: Sequence[Mutant]) -> list[Mutant]:
    """The mutants, those that are a named design as that design.

    A check that comes after an assignment reads the new value as the machine assigns it, whatever a mutant
    assigns. The design was traced with its fault, and its checks with it.
    """
    own = {name: _meaning(a) for name, a in machine.actions.items()}
    known: dict[tuple[str, str], Machine] = {}
    for d in designs:
        changed = [(n, _meaning(a)) for n, a in d.machine.actions.items() if own.get(n) != _meaning(a)]
        if len(changed) == 1 and set(d.machine.functions) == set(machine.functions):
            known[changed[0]] = d.machine
    return [
        replace(m, machine=known.get((m.action, _meaning(m.machine.actions[m.action])), m.machine))
        for m in given
    ]


def _meaning(action: Action) -> str:
    """What an action does, checks aside, in words: two machines do not share their expressions."""
    guards = {part for g in action.guards for part in map(spell, conjuncts(g.expr))}
    updates = {f.name: spell(e) for f, e in action.updates.items()}
    return repr((sorted(guards), sorted(updates.items())))


def _vacuous(base: Log) -> set[str]:
    """Conditions with a premise that no state met."""
    return {p.of for p, _ in base.grounded.goals if isinstance(p, Premise) and p.name not in base.reached}


def _rest(
    machine: Machine,
    todo: Mapping[str, Mutant],
    differed: Mapping[str, str],
    stopped: Mapping[str, str],
    sizes: dict[str, int],
) -> list[Outcome]:
    """The fates of the mutants that nothing noticed at any size."""
    out = []
    for name, m in todo.items():
        accepted = next((a for a in machine.accepted if _fits_name(name, a.name)), None)
        fate, why = Fate.survived, ""
        if accepted is not None and name in differed:
            fate, why = Fate.accepted, accepted.why
        elif name in stopped:
            fate, why = Fate.undetermined, stopped[name]
        elif name not in differed and m.kind is not Kind.design:
            fate = Fate.same
        out.append(Outcome(name, m.kind, fate, sizes, new=differed.get(name, ""), why=why))
    return out


def _fits_name(name: str, pattern: str) -> bool:
    # fnmatch would read the brackets of an index as a set of characters
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _stale(machine: Machine, outcomes: Sequence[Outcome]) -> list[str]:
    """Acceptances that accept nothing: what they name is noticed, or does not exist."""
    out = []
    for a in machine.accepted_idle:
        if any(a.name in o.noticed for o in outcomes) or a.name not in _stated(machine):
            out.append(f"{a.name} as idle ({a.where}) is wrong: it notices something, or does not exist")
    for a in machine.accepted:
        fates = {o.fate for o in outcomes if _fits_name(o.name, a.name)}
        if not fates & {Fate.accepted, Fate.undetermined}:
            wrong = "is noticed by now" if Fate.killed in fates else "fits no mutant"
            out.append(f"{a.name!r} ({a.where}) {wrong}; drop the acceptance or correct its name")
    return out
