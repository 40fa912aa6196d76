"""Compares two designs, machine by machine: verdicts, shortest stories, behaviours, goals, state counts."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from msgspec.structs import replace

from kvfence.checker.analysis.counterexamples import counterexample
from kvfence.checker.analysis.liveness import liveness_sizes
from kvfence.checker.analysis.results import MachineFacts, own_titles
from kvfence.checker.analysis.review import differences
from kvfence.checker.analysis.review.behaviours import behaviours
from kvfence.checker.analysis.review.facts import Behaviours, Effect, InvariantReview, MachineReview, Review
from kvfence.checker.analysis.review.proofs import Proofs, Proving
from kvfence.checker.analysis.review_sides import Built, Side, side
from kvfence.checker.analysis.verify import INTERRUPTED, machine_facts
from kvfence.checker.core import interrupts
from kvfence.checker.core.names import MOST_PAIRS
from kvfence.checker.engines.base import Engine, Finding, Progress, Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.engines.native import Native
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import LEMMA, And, Bool, Function, Guard, Machine, Not, Or, Property, SpecError
from kvfence.spec.language.expr import apply

BUILT_IN = ("DEADLOCK", "RANGE")
"""Conditions of every machine; where a side does not list one, nothing there can break it."""
MOST_LIVENESS_STATES = 300_000
"""States of a graph on which promises about whole runs are decided."""
MachineProgress = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Options:
    """What a review may cost. ``sizes`` by sort, ``memory`` in bytes for one search, ``pairs`` of states."""

    sizes: Mapping[str, int]
    memory: int | None = None
    threads: int = 1
    pairs: int = MOST_PAIRS
    symmetry: bool = True


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
    """Compares the side ``change`` with the side ``base``; ``review_sides.side`` makes them.

    ``sizes`` by sort, where they differ from those of the machines and designs. ``pairs``: how many pairs of
    states a search for new or lost behaviours may look at. ``proving``: how long to look for proofs of what
    the change concerns; with None nothing is proved. CannotRun for a side, a machine, a sort or a solver
    that does not exist. Ctrl-C keeps what was found; what was not begun is undetermined.

    >>> found = review("sound", "unpinned_lookup", machine="lookup", proving=None)
    >>> found.verdict
    'worse'
    """
    start = time.perf_counter()
    proofs = Proofs(proving)
    ours, theirs = side(base), side(change)
    options = Options(dict(sizes or {}), memory, threads, pairs, symmetry)
    found: list[MachineReview] = []
    unchanged: list[str] = []
    pairs_of, only_base, only_change = _paired(ours, theirs, machine)
    built = [(ours.builders[one](), theirs.builders[other]()) for one, other in pairs_of]
    _known_sorts(options.sizes, [b.machine for pair in built for b in pair])
    interrupted = False
    for one, other in built:
        if differences.same(one.machine, other.machine):
            unchanged.append(other.machine.name)
            continue
        if interrupted:
            note = "not begun: interrupted"
            found.append(MachineReview(machine=other.machine.name, sizes={}, same=False, notes=(note,)))
            continue
        compared = _Comparison(one, other, ours, theirs, options, proofs, progress)
        try:
            found.append(compared.review())
            interrupted = compared.interrupted
        except KeyboardInterrupt:  # outside of a search: while something is compiled, for instance
            if not interrupts.pressed():
                raise
            interrupted = True
            note = "interrupted before it was compared"
            found.append(MachineReview(machine=other.machine.name, sizes={}, same=False, notes=(note,)))
    out = Review(
        version=version("kvfence"),
        base=base,
        change=change,
        base_summary=ours.summary,
        change_summary=theirs.summary,
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


def _paired(
    ours: Side, theirs: Side, machine: str | None
) -> tuple[list[tuple[str, str]], tuple[str, ...], tuple[str, ...]]:
    """Machines of the two sides that stand for each other, and those that only one side has."""
    wanted = [*dict.fromkeys((*ours.touched, *theirs.touched))]
    if machine is not None:
        if machine not in wanted:
            raise unknown("machine in these designs", machine, wanted, f"there is {', '.join(wanted)}")
        wanted = [machine]
    if len(ours.builders) == 1 or len(theirs.builders) == 1:  # a machine of a file
        few, many = (ours, theirs) if len(ours.builders) == 1 else (theirs, ours)
        (name,) = few.builders
        partner = name if name in many.builders else many.touched[0] if len(many.touched) == 1 else ""
        if not partner:
            raise CannotRun(
                f"{few.name} is machine {name}, and {many.name} has none of that name: "
                f"it has {', '.join(many.builders)}"
            )
        pair = (name, partner) if few is ours else (partner, name)
        return [pair], (), ()
    both = [(name, name) for name in wanted if name in ours.builders and name in theirs.builders]
    return (
        both,
        tuple(name for name in wanted if name not in theirs.builders),
        tuple(name for name in wanted if name not in ours.builders),
    )


def _known_sorts(sizes: Mapping[str, int], machines: Iterable[Machine]) -> None:
    sorts = {sort for machine in machines for sort in machine.sorts}
    for sort in sizes:
        if sort not in sorts:
            raise unknown("sort", sort, sorts, f"there is {', '.join(sorted(sorts))}")


class _Comparison:
    """One machine of each side, explored and compared."""

    def __init__(
        self,
        one: Built,
        other: Built,
        ours: Side,
        theirs: Side,
        options: Options,
        proofs: Proofs,
        progress: MachineProgress | None,
    ) -> None:
        self.one, self.other = one, other
        self.base, self.change = one.machine, other.machine
        self.options, self.proofs, self.progress = options, proofs, progress
        self.interrupted = False
        known = {s: max(ours.sizes.get(s, 0), theirs.sizes.get(s, 0)) for s in {*ours.sizes, *theirs.sizes}}
        self.sizes = {**known, **options.sizes}

    def review(self) -> MachineReview:
        """Everything that is found out about the pair."""
        base = self._explored(self.base)
        if self.interrupted:
            note = f"interrupted after {base.states:,} states of the base"
            return MachineReview(machine=self.change.name, sizes=base.sizes, same=False, notes=(note,))
        change = self._explored(self.change)
        kept = self._judged_liveness()
        notes = [
            f"{name} was not explored to the end: {result.stopped}"
            for name, result in (("the base", base), ("the change", change))
            if result.stopped
        ]
        new = lost = Behaviours()
        if not self.interrupted:
            try:
                new, lost = behaviours(
                    self.base,
                    self.change,
                    self.sizes,
                    most=self.options.pairs,
                    threads=self.options.threads,
                    progress=self._report("steps side by side"),
                )
            except SpecError as error:
                new = lost = Behaviours(complete=False, why=str(error))
            self.interrupted = self.interrupted or INTERRUPTED in (new.why, lost.why)
        facts = self._facts(base, self.base), self._facts(change, self.change)
        notes += [
            f"{name} {text}"
            for name, side_facts in (("the base", facts[0]), ("the change", facts[1]))
            for text in _undecided(side_facts)
        ]
        rows = [*self._invariants(base, change, facts), *self._liveness(kept)]
        rows = self._with_evidence(rows, facts, kept)
        return MachineReview(
            machine=self.change.name,
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
            lines=differences.lines(self.one, self.other),
            differences=differences.parts(self.base, self.change),
            notes=tuple(notes),
        )

    def _facts(self, result: Result, machine: Machine) -> MachineFacts:
        # promises are judged apart from the rest
        return replace(machine_facts(result, machine=machine), unjudged=())

    def _sizes_of(self, machine: Machine) -> dict[str, int]:
        return {sort: size for sort, size in self.sizes.items() if sort in machine.sorts}

    def _report(self, what: str) -> Callable[[Progress], None] | None:
        progress = self.progress
        return None if progress is None else lambda state: progress(f"{self.change.name}, {what}", state)

    def _explored(self, machine: Machine) -> Result:
        engine: Engine = Native(
            threads=self.options.threads, symmetry=self.options.symmetry, note=lambda _line: None
        )
        result = engine.run(
            machine,
            self._sizes_of(machine),
            memory=self.options.memory,
            progress=self._report("base" if machine is self.base else "change"),
        )
        if result.overflow:  # too much for 64 bits
            result = Interpret().run(
                machine,
                self._sizes_of(machine),
                memory=self.options.memory,
                progress=self._report("base" if machine is self.base else "change"),
            )
        self.interrupted = self.interrupted or result.stopped == INTERRUPTED
        return result

    # Safety.

    def _invariants(
        self, base: Result, change: Result, facts: tuple[MachineFacts, MachineFacts]
    ) -> list[InvariantReview]:
        ids = [row.id for row in INVARIANTS]
        stated = {c.invariant for side_facts in facts for c in side_facts.conditions}
        # lemmas are stated by sound designs only: what proofs assume, not what a design promises
        ids = [id_ for id_ in (*ids, *sorted(stated - {*ids, *BUILT_IN, LEMMA}), *BUILT_IN) if id_ in stated]
        firsts: dict[str, set[str]] = {}
        titles = own_titles(reversed(facts))
        out = []
        for id_ in ids:
            verdicts = [_verdict(side_facts, id_) for side_facts in facts]
            effect = effect_of(*verdicts)
            result, machine, against, which = (
                (change, self.change, self.base, "change")
                if verdicts[1] is Verdict.violated
                else (base, self.base, self.change, "base")
            )
            paths = [p for p in result.violated if p.id == id_]
            story, first = None, True
            if paths and effect in ("worse", "better"):
                story = counterexample(machine, result.sizes, paths[0], against)
                if which not in firsts:
                    firsts[which] = self._breaks_first(machine, result)
                first = id_ in firsts[which]
            out.append(
                InvariantReview(
                    invariant=id_,
                    effect=effect,
                    base=verdicts[0],
                    change=verdicts[1],
                    conditions=tuple(dict.fromkeys(p.name for p in paths)),
                    first=first,
                    story=story,
                    story_of="" if story is None else "change" if which == "change" else "base",
                    sentence=titles.get(id_, ""),
                )
            )
        return out

    def _breaks_first(self, machine: Machine, result: Result) -> set[str]:
        """The invariants that a run can break while all others still hold."""
        broken = {p.id for p in result.violated}
        if len(broken) < 2 or self.interrupted:
            return broken
        found = self._explored(stopping(machine))
        return {p.id for p in found.violated} if found.stopped is None else broken

    # Why what holds does hold.

    def _with_evidence(
        self,
        rows: list[InvariantReview],
        facts: tuple[MachineFacts, MachineFacts],
        kept: list[Result | None],
    ) -> list[InvariantReview]:
        self.proofs.interrupted = self.proofs.interrupted or self.interrupted
        out = self.proofs.added(
            rows,
            {"base": self.base, "change": self.change},
            {"base": facts[0], "change": facts[1]},
            {"base": kept[0], "change": kept[1]},
            differences.restated(self.base, self.change),
            lambda side: self._report(f"proof of the {side}"),
        )
        self.interrupted = self.proofs.interrupted
        return out

    # Promises about whole runs.

    def _judged_liveness(self) -> list[Result | None]:
        if self.interrupted:
            return [None, None]
        return [self._kept(machine) for machine in (self.base, self.change)]

    def _liveness(self, results: list[Result | None]) -> list[InvariantReview]:
        names = dict.fromkeys((*self.base.liveness, *self.change.liveness))
        out = []
        if not any(results):
            return []
        for name in names:
            findings: list[Finding | None] = [r.findings.get(name) if r else None for r in results]
            verdicts = [f.verdict if f else None for f in findings]
            effect = effect_of(*verdicts)
            at = 1 if verdicts[1] is Verdict.violated else 0
            finding, result = findings[at], results[at]
            story = None
            if effect in ("worse", "better") and finding and finding.path is not None and result:
                machines = (self.change, self.base) if at else (self.base, self.change)
                story = counterexample(machines[0], result.sizes, finding.path, machines[1])
            promise = self.change.liveness.get(name) or self.base.liveness[name]
            out.append(
                InvariantReview(
                    invariant=promise.id,
                    effect=effect,
                    base=verdicts[0],
                    change=verdicts[1],
                    kind="progress",
                    conditions=(name,),
                    sizes=self._smaller(results),
                    story=story,
                    story_of="" if story is None else ("base", "change")[at],
                )
            )
        return out

    def _smaller(self, results: list[Result | None]) -> dict[str, int]:
        """The sizes at which promises were judged, if they are smaller than those of everything else."""
        judged = next((r for r in reversed(results) if r), None)
        if judged is None:
            return {}
        sorts = (self.change if results[1] else self.base).sorts
        return (
            judged.sizes if any(judged.sizes[s] < self.sizes.get(s, sorts[s].default) for s in sorts) else {}
        )

    def _kept(self, machine: Machine) -> Result | None:
        """The verdicts on the promises of the machine, at the largest of ever smaller sizes that fit."""
        if not machine.liveness:
            return None
        whole = {sort: self.sizes.get(sort, s.default) for sort, s in machine.sorts.items()}
        sizes = liveness_sizes(machine, whole)
        while True:
            result = Liveness().run(
                machine,
                sizes,
                max_states=MOST_LIVENESS_STATES,
                memory=self.options.memory,
                progress=self._report("promises"),
            )
            largest = max(sizes, key=lambda sort: sizes[sort], default=None)
            if result.stopped is None or result.stopped == INTERRUPTED:
                break
            if largest is None or sizes[largest] < 2:
                break
            sizes[largest] -= 1
        self.interrupted = self.interrupted or result.stopped == INTERRUPTED
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
    """What a change of one verdict means; None where a side does not state the condition."""
    if base is change:
        return "open" if change is Verdict.undetermined else "same"
    if change is Verdict.violated or change is None:
        return "worse"
    if change is Verdict.undetermined:
        return "open"
    return "better" if base is Verdict.violated else "same"


def _verdict(facts: MachineFacts, id_: str) -> Verdict | None:
    found = facts.verdict_on(id_)
    if found is None and id_ in BUILT_IN:
        return Verdict.undetermined if facts.stopped else Verdict.holds
    return found


def _undecided(facts: MachineFacts) -> Iterator[str]:
    """Why a side is undetermined, whatever its states."""
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
