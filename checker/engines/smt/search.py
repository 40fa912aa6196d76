"""Bounded search by z3, one more step at a time, and the base class of the engines that do it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt.finite import Target, Unrolled
from kvfence.checker.engines.smt.solve import checked
from kvfence.spec.language import PREMISE, Machine


class FiniteEngine(base.Engine):
    """An engine that searches runs of a few steps at given sizes with z3, and may prove the rest.

    It stores no states, so bounds and limits of states and memory do not apply.

    ``seconds`` limit the whole run. ``only`` restricts it to conditions of one id. Goals that the search did
    not reach are left out of the result.
    """

    seconds: float | None = None
    only = ""

    def decide(
        self, machine: Machine, sizes: Mapping[str, int] | None, options: base.RunOptions
    ) -> base.Result:
        """Searches, and sums up; what was found before Ctrl-C is kept."""
        start = time.perf_counter()
        deadline = None if self.seconds is None else start + self.seconds
        search = Search(
            Interpreter(machine, sizes), options.until, deadline, options.report.progress, only=self.only
        )
        try:
            unproved = self.prove(search)
        except KeyboardInterrupt:
            search.stopped = unproved = base.INTERRUPTED
        return search.result(self.name, time.perf_counter() - start, unproved)

    @abstractmethod
    def prove(self, search: Search) -> str | None:
        """Takes the search as far as the engine goes; why what it did not violate is not proved, or None."""


@dataclass(eq=False)
class Search:
    """A search that can be continued: ``depth`` steps are done, ``found`` has the violations by name.

    ``only``: look for conditions of this id. ``ignored``: names of conditions not to look for. ``deadline``:
    in ``time.perf_counter`` terms.
    """

    interpreter: Interpreter
    until: base.Until = "end"
    deadline: float | None = None
    progress: base.Report | None = None
    only: str = field(default="", kw_only=True)
    ignored: Collection[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self.grounded, self.started = self.interpreter.grounded, time.perf_counter()
        self.runs = Unrolled(self.grounded)
        self.solver = self.runs.solver()
        self.depth, self.complete = -1, False  # complete: no run is longer than ``depth``
        self.stopped: str | None = None
        self.found: dict[str, base.Path] = {}
        self.goals: dict[str, base.Path] = {}
        self.targets: dict[str, Target] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing is left to search, or the search was stopped."""
        return self.complete or self.stopped is not None

    @property
    def unsearched(self) -> str:
        """The runs that were not searched, as a reason why nothing is proved."""
        return f"runs of more than {self.depth} steps were not searched"

    def deepen_to(self, depth: int) -> None:
        """Searches all runs of up to ``depth`` steps. KeyboardInterrupt for Ctrl-C."""
        while self.depth < depth and not self.ended:
            if self.deadline is not None:
                left = self.deadline - time.perf_counter()
                if left <= 0:
                    self.stopped = f"the time was over at depth {self.depth + 1}"
                    return
                self.solver.set("timeout", int(left * 1000) + 1)
            self._deepen()
            if self.progress is not None:
                rate = self.depth / max(time.perf_counter() - self.started, 1e-9)
                self.progress(base.Progress(self.depth + 1, 1, self.depth, rate))

    def _deepen(self) -> None:
        runs = self.runs
        k = runs.add_state()
        self.solver.add(runs.step(k - 1) if k else runs.is_initial(0))
        if k:
            answer = self._ask()
            if answer == z3.unsat:
                self.complete, self.depth = True, k - 1
            if answer != z3.sat:
                return
        conditions = runs.conditions(k)
        for target, _ in conditions.values():
            self.targets.setdefault(target.name, target)
        for extra in (0, 1):  # what a state shows comes before what needs one more step
            wanted = {
                name: z3.Not(holds)
                for name, (target, holds) in conditions.items()
                if target.extra == extra
                and name not in self.found
                and name not in self.ignored
                and self.only in ("", target.id)
            }
            self._collect(wanted, k, lambda name, model: self._violation(conditions[name][0], model, k))
            if self.stopped is None and self.until == "first" and self.found:
                self.stopped = base.FIRST
            if self.stopped is not None:
                return
        goals = [] if self.only else [(p, n) for p, n in self.grounded.goals if p.id != PREMISE]
        texts = {p.name: p.doc or p.name for p, _ in goals}

        def reached(name: str, model: z3.ModelRef) -> None:
            self.goals[name] = self.interpreter.path(runs.taken(model, k), "", name, texts[name])

        self._collect({p.name: runs.truth(n, k) for p, n in goals if p.name not in self.goals}, k, reached)
        self.depth = k

    def _collect(self, wanted: dict[str, Any], k: int, record: Callable[[str, z3.ModelRef], None]) -> None:
        """Asks for all of ``wanted`` at once, and again for those that the answers did not show."""
        while wanted and self.stopped is None:
            some = z3.Bool(f"some {k} {len(wanted)} {next(iter(wanted))}", self.runs.context)
            self.solver.add(z3.Implies(some, self.runs.some(list(wanted.values()))))
            if self._ask(some) != z3.sat:
                return
            model = self.solver.model()
            shown = [name for name, term in wanted.items() if z3.is_true(model.eval(term, True))]
            for name in shown:
                record(name, model)
                del wanted[name]

    def _ask(self, *assumptions: z3.BoolRef) -> z3.CheckSatResult:
        answer = checked(self.solver, *assumptions)
        if answer == z3.unknown:
            reason = self.solver.reason_unknown()
            self.stopped = f"z3 did not answer at depth {self.depth + 1} ({reason})"
        return answer

    def _violation(self, target: Target, model: z3.ModelRef, k: int) -> None:
        steps, text = self.runs.taken(model, k), target.text
        if target.extra:
            blamed = self.runs.culprit(model, k, target.name)
            assert blamed is not None
            steps, text = [*steps, blamed[0]], blamed[1]
        self.found[target.name] = self.interpreter.path(steps, target.id, target.name, text)

    def result(self, engine: str, seconds: float, unproved: str | None) -> base.Result:
        """What was found; ``unproved`` says why longer runs may violate more, None if they do not."""
        g = self.grounded
        stopped = self.stopped if self.ended else unproved
        verdict = base.Verdict.holds if stopped is None else base.Verdict.undetermined
        findings = {}
        for name, target in self.targets.items():
            path = self.found.get(name)
            if name != "deadlock":
                found = verdict if path is None else base.Verdict.violated
                findings[name] = base.Finding(target.id, name, target.kind, found, path)
        wanted = g.machine.goals if self.complete else self.goals
        goals = {name: len(self.goals[name]) if name in self.goals else None for name in wanted}
        result = asked_result(g.machine, self, engine, seconds, findings, stopped)
        return replace(result, goals=goals, witnesses=dict(self.goals))


def asked_result(
    machine: Machine,
    search: Search | None,
    engine: str,
    seconds: float,
    findings: dict[str, base.Finding],
    stopped: str | None,
) -> base.Result:
    """The result of an engine that stores no states: its findings, and how far the search went."""
    return base.Result(
        machine=machine.name,
        faults=tuple(sorted(machine.faults)),
        sizes=search.grounded.sizes if search else {},
        engine=engine,
        states=0,
        transitions=0,
        depth=max(search.depth, 0) if search else 0,
        seconds=seconds,
        findings=findings,
        coverage={},
        goals={},
        deadlock=search.found.get("deadlock") if search else None,
        stopped=stopped,
    )
