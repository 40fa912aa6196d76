"""Compares two designs, machine by machine: verdicts, shortest stories, behaviours, goals, state counts."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from kvfence import __version__
from kvfence.checker.analysis.counterexamples import counterexample
from kvfence.checker.analysis.liveness import liveness_sizes
from kvfence.checker.analysis.named_specs import Built, NamedSpec, named_spec
from kvfence.checker.analysis.results import MachineFacts, own_titles
from kvfence.checker.analysis.review import differences
from kvfence.checker.analysis.review.behaviours import behaviours
from kvfence.checker.analysis.review.facts import (
    SIDES,
    Behaviours,
    Effect,
    InvariantReview,
    MachineReview,
    Review,
)
from kvfence.checker.analysis.review.proofs import Proofs, Proving
from kvfence.checker.analysis.verify import INTERRUPTED, MachineProgress, check_sorts, machine_facts
from kvfence.checker.core import interrupts
from kvfence.checker.core.names import MOST_PAIRS
from kvfence.checker.engines.base import Path, Progress, Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.engines.native import Native
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import LEMMA, And, Bool, Function, Guard, Machine, Not, Or, Property, SpecError
from kvfence.spec.language.expr import apply

BUILT_IN = ("DEADLOCK", "RANGE")
"""Conditions of every machine; where a design does not list one, nothing there can break it."""
MOST_LIVENESS_STATES = 300_000
"""States of a graph on which liveness properties are decided."""


_Verdicts: TypeAlias = Sequence[Verdict | None]
"""Those of the base and of the change; None where a design does not state the condition."""


@dataclass(frozen=True)
class _Limits:
    """What a review may cost: ``memory`` in bytes for one search, ``pairs`` of states."""

    memory: int | None
    threads: int
    pairs: int
    symmetry: bool


def review(
    base: str,
    change: str,
    *,
    machine: str | None = None,
    sizes: Mapping[str, int] | None = None,
    memory: int | None = None,
    threads: int = 1,
    pairs: int = MOST_PAIRS,
    symmetry: bool = True,
    proving: Proving | None = Proving(),  # noqa: B008 (frozen)
    progress: MachineProgress | None = None,
) -> Review:
    """Compares the specification ``change`` with ``base``; see ``named_specs.named_spec`` for their names.

    ``sizes`` by sort, where they differ from those of the machines and designs. ``pairs``: how many pairs of
    states a search for new or lost behaviours may look at. ``proving``: how long to look for proofs of what
    the change concerns; with None nothing is proved. CannotRun for a design, a machine, a sort or a solver
    that does not exist. Ctrl-C keeps what was found; what was not begun is undetermined.

    >>> found = review("sound", "unpinned_lookup", machine="lookup", proving=None)
    >>> found.verdict
    'worse'
    """
    start = time.perf_counter()
    proofs = Proofs(proving)
    named = named_spec(base), named_spec(change)
    limits = _Limits(memory, threads, pairs, symmetry)
    found: list[MachineReview] = []
    unchanged: list[str] = []
    names, only_base, only_change = _paired(*named, machine)
    built = [(named[0].builders[one](), named[1].builders[other]()) for one, other in names]
    check_sorts(sizes or {}, [b.machine for pair in built for b in pair])
    known = [spec.sizes for spec in named]
    whole = {sort: max(own.get(sort, 0) for own in known) for own in known for sort in own}
    whole |= sizes or {}
    interrupted = False
    for pair in built:
        name = pair[1].machine.name
        if differences.same(pair[0].machine, pair[1].machine):
            unchanged.append(name)
            continue
        if interrupted:
            found.append(_not_compared(name, "not begun: interrupted"))
            continue
        comparison = _Comparison(pair, whole, limits, proofs, progress)
        try:
            found.append(comparison.review())
            interrupted = comparison.interrupted
        except KeyboardInterrupt:  # outside of a search: while something is compiled, for instance
            if not interrupts.pressed():
                raise
            interrupted = True
            found.append(_not_compared(name, "interrupted before it was compared"))
    out = Review(
        version=__version__,
        base=base,
        change=change,
        base_summary=named[0].summary,
        change_summary=named[1].summary,
        verdict="same",
        machines=tuple(found),
        unchanged=tuple(unchanged),
        only_base=only_base,
        only_change=only_change,
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )
    return _judged(out)


def _judged(found: Review) -> Review:
    verdict: Literal["same", "different", "better", "worse", "mixed", "undetermined"] = "same"
    if found.worse:
        verdict = "mixed" if found.better else "worse"
    elif found.open:
        verdict = "undetermined"
    elif found.better:
        verdict = "better"
    elif found.machines or found.only_change:
        verdict = "different"
    return replace(found, verdict=verdict)


def _not_compared(machine: str, note: str, sizes: Mapping[str, int] | None = None) -> MachineReview:
    return MachineReview(machine=machine, sizes=dict(sizes or {}), same=False, notes=(note,))


def _paired(
    base: NamedSpec, change: NamedSpec, machine: str | None
) -> tuple[list[tuple[str, str]], tuple[str, ...], tuple[str, ...]]:
    """The names of machines to compare with each other, and of those that only base or only change has."""
    wanted = [*dict.fromkeys((*base.touched, *change.touched))]
    if machine is not None:
        if machine not in wanted:
            raise unknown("machine in these designs", machine, wanted, f"there is {', '.join(wanted)}")
        wanted = [machine]
    if len(base.builders) == 1 or len(change.builders) == 1:  # a machine of a file
        few, many = (base, change) if len(base.builders) == 1 else (change, base)
        (name,) = few.builders
        partner = name if name in many.builders else many.touched[0] if len(many.touched) == 1 else ""
        if not partner:
            raise CannotRun(
                f"{few.name} is machine {name}, and {many.name} has none of that name: "
                f"it has {', '.join(many.builders)}"
            )
        return [(name, partner) if few is base else (partner, name)], (), ()
    return (
        [(name, name) for name in wanted if name in base.builders and name in change.builders],
        tuple(name for name in wanted if name not in change.builders),
        tuple(name for name in wanted if name not in base.builders),
    )


@dataclass
class _Comparison:
    """One machine of the base and one of the change, explored and compared."""

    built: tuple[Built, Built]
    sizes: Mapping[str, int]
    limits: _Limits
    proofs: Proofs
    progress: MachineProgress | None
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.machines = (self.built[0].machine, self.built[1].machine)
        self.name = self.machines[1].name

    def review(self) -> MachineReview:
        """Everything that is found out about the pair."""
        base = self._explored(self.machines[0], "base")
        if self.interrupted:
            return _not_compared(
                self.name, f"interrupted after {base.states:,} states of the base", base.sizes
            )
        change = self._explored(self.machines[1], "change")
        results = (base, change)
        liveness = [None, None] if self.interrupted else [self._liveness_result(m) for m in self.machines]
        new, lost = self._behaviours()
        facts = [  # liveness properties are judged apart from the rest
            replace(machine_facts(result, machine=machine), unjudged=())
            for result, machine in zip(results, self.machines, strict=True)
        ]
        rows = [*self._invariants(results, facts), *self._liveness(liveness)]
        self.proofs.interrupted |= self.interrupted
        restated = differences.restated(*self.machines)
        rows = self.proofs.added(
            rows, self.machines, facts, liveness, restated, lambda side: self._report(f"proof of the {side}")
        )
        self.interrupted = self.proofs.interrupted
        ends = zip(SIDES, (base.stopped, change.stopped), strict=True)
        stopped = [f"the {side} was not explored to the end: {why}" for side, why in ends if why]
        pairs = zip(SIDES, facts, strict=True)
        return MachineReview(
            machine=self.name,
            sizes=change.sizes,
            same=False,
            base=facts[0],
            change=facts[1],
            invariants=tuple(rows),
            new=new,
            lost=lost,
            goals_lost=_unreached(base, change),
            goals_gained=_unreached(change, base),
            actions_lost=_untaken(base, change),
            actions_gained=_untaken(change, base),
            lines=differences.lines(*self.built),
            differences=differences.parts(*self.machines),
            notes=(*stopped, *(f"the {side} {text}" for side, own in pairs for text in _undecided(own))),
        )

    def _report(self, what: str) -> Callable[[Progress], None] | None:
        progress = self.progress
        return None if progress is None else lambda state: progress(f"{self.name}, {what}", state)

    def _explored(self, machine: Machine, side: str) -> Result:
        sizes = {sort: size for sort, size in self.sizes.items() if sort in machine.sorts}
        native = Native(threads=self.limits.threads, symmetry=self.limits.symmetry, note=lambda _line: None)
        result = native.run(machine, sizes, memory=self.limits.memory, progress=self._report(side))
        if result.overflow:  # too much for 64 bits
            result = Interpret().run(machine, sizes, memory=self.limits.memory, progress=self._report(side))
        self.interrupted |= result.stopped == INTERRUPTED
        return result

    def _behaviours(self) -> tuple[Behaviours, Behaviours]:
        """What only the change, and what only the base can do."""
        if self.interrupted:
            return Behaviours(), Behaviours()
        limits, report = self.limits, self._report("steps side by side")
        try:
            new, lost = behaviours(
                *self.machines, self.sizes, most=limits.pairs, threads=limits.threads, progress=report
            )
        except SpecError as error:
            new = lost = Behaviours(complete=False, why=str(error))
        self.interrupted = INTERRUPTED in (new.why, lost.why)
        return new, lost

    def _row(
        self, id_: str, verdicts: _Verdicts, result: Result | None, path: Path | None, **rest: Any
    ) -> InvariantReview:
        """What the change does to one condition.

        Where that is an effect, the side that ``path`` of ``result`` violates is compared with the other.
        """
        (base, change), at = verdicts, _violating(verdicts)
        effect, story = effect_of(base, change), None
        if result is not None and path is not None and effect in ("worse", "better"):
            story = counterexample(self.machines[at], result.sizes, path, self.machines[1 - at])
        rest |= {"story": story, "story_of": "" if story is None else SIDES[at]}
        return InvariantReview(invariant=id_, effect=effect, base=base, change=change, **rest)

    def _invariants(self, results: Sequence[Result], facts: Sequence[MachineFacts]) -> list[InvariantReview]:
        ids = [row.id for row in INVARIANTS]
        stated = {c.invariant for own in facts for c in own.conditions}
        # lemmas are stated by sound designs only: what proofs assume, not what a design must satisfy
        ids = [id_ for id_ in (*ids, *sorted(stated - {*ids, *BUILT_IN, LEMMA}), *BUILT_IN) if id_ in stated]
        firsts: dict[int, set[str]] = {}
        titles = own_titles(reversed(facts))
        out = []
        for id_ in ids:
            verdicts = [_verdict(own, id_) for own in facts]
            at = _violating(verdicts)
            paths = [p for p in results[at].violated if p.id == id_]
            path, sentence = next(iter(paths), None), titles.get(id_, "")
            row = self._row(id_, verdicts, results[at], path, sentence=sentence)
            if row.story is not None and at not in firsts:
                firsts[at] = self._breaks_first(at, results[at])
            first = row.story is None or id_ in firsts[at]
            out.append(replace(row, conditions=tuple(dict.fromkeys(p.name for p in paths)), first=first))
        return out

    def _breaks_first(self, at: int, result: Result) -> set[str]:
        """The invariants that a run can break while all others still hold."""
        broken = {p.id for p in result.violated}
        if len(broken) < 2 or self.interrupted:
            return broken
        found = self._explored(stopping(self.machines[at]), SIDES[at])
        return {p.id for p in found.violated} if found.stopped is None else broken

    # Liveness properties.

    def _liveness(self, results: Sequence[Result | None]) -> list[InvariantReview]:
        out: list[InvariantReview] = []
        if not any(results):
            return out
        base, change = self.machines
        for name in dict.fromkeys((*base.liveness, *change.liveness)):
            findings = [r.findings.get(name) if r else None for r in results]
            verdicts = [f.verdict if f else None for f in findings]
            at = _violating(verdicts)
            finding, id_ = findings[at], (change.liveness.get(name) or base.liveness[name]).id
            row = self._row(id_, verdicts, results[at], finding.path if finding else None, kind="progress")
            out.append(replace(row, conditions=(name,), sizes=self._smaller(results)))
        return out

    def _smaller(self, results: Sequence[Result | None]) -> dict[str, int]:
        """The sizes at which liveness was judged, if they are smaller than those of everything else."""
        sizes = next((r.sizes for r in reversed(results) if r), {})
        sorts = self.machines[1 if results[1] else 0].sorts
        return sizes if any(sizes[s] < self.sizes.get(s, sorts[s].default) for s in sorts if sizes) else {}

    def _liveness_result(self, machine: Machine) -> Result | None:
        """The verdicts on liveness properties, at the largest of ever smaller sizes that fit."""
        if not machine.liveness:
            return None
        whole = {sort: self.sizes.get(sort, s.default) for sort, s in machine.sorts.items()}
        sizes, report, memory = liveness_sizes(machine, whole), self._report("promises"), self.limits.memory
        while True:
            result = Liveness().run(
                machine, sizes, max_states=MOST_LIVENESS_STATES, memory=memory, progress=report
            )
            largest = max(sizes, key=lambda sort: sizes[sort], default=None)
            if result.stopped in (None, INTERRUPTED) or largest is None or sizes[largest] < 2:
                break
            sizes[largest] -= 1
        self.interrupted |= result.stopped == INTERRUPTED
        return result


def stopping(machine: Machine) -> Machine:
    """The machine, except that it takes no step after the first violation of an invariant or a check."""
    out = copy.copy(machine)
    broken = Function("broken_already", (), Bool, False, machine.where)
    out.functions = {**machine.functions, broken.name: broken}
    now = apply(broken, ())
    intact = And(*(p.expr for p in machine.invariants.values()))
    out.actions = {}
    for name, action in machine.actions.items():
        changed = copy.copy(action)
        changed.guards = (*action.guards, Guard(And(Not(now), intact), action.where))
        changed.updates = {**action.updates, broken: Not(And(*(c.expr for c in action.checks)))}
        out.actions[name] = changed
    over = Or(now, Not(intact))
    if machine.terminal_states is not None:
        over = Or(machine.terminal_states.expr, over)
    out.terminal_states = Property("", "terminal", "", over, (), where=machine.where)
    return out


def effect_of(base: Verdict | None, change: Verdict | None) -> Effect:
    """What a change of one verdict means; None where a design does not state the condition."""
    if base is change:
        return "open" if change is Verdict.undetermined else "same"
    if change is Verdict.violated or change is None:
        return "worse"
    if change is Verdict.undetermined:
        return "open"
    return "better" if base is Verdict.violated else "same"


def _violating(verdicts: _Verdicts) -> int:
    """Which side a counterexample is of: 1, the change, if that violates the condition, else 0."""
    return int(verdicts[1] is Verdict.violated)


def _verdict(facts: MachineFacts, id_: str) -> Verdict | None:
    found = facts.verdict_on(id_)
    if found is None and id_ in BUILT_IN:
        return Verdict.undetermined if facts.stopped else Verdict.holds
    return found


def _undecided(facts: MachineFacts) -> Iterator[str]:
    """Why a design is undetermined, whatever its states."""
    if facts.states_nothing:
        yield "states no invariant, check or liveness property"
    for text in facts.undeclared.values():
        yield f"has an unknown id: {text}"


def _unreached(one: Result, other: Result) -> tuple[str, ...]:
    """Goals that ``one`` reaches and ``other`` does not, as far as that is known."""
    if other.stopped:
        return ()
    return tuple(n for n, depth in one.goals.items() if depth is not None and other.goals.get(n) is None)


def _untaken(one: Result, other: Result) -> tuple[str, ...]:
    """Actions that both have and only ``one`` ever takes."""
    if other.stopped:
        return ()
    return tuple(n for n, times in one.coverage.items() if times and other.coverage.get(n) == 0)
