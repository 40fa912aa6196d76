"""Bounded model checking: a shortest run to each violation, by z3, one more step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import z3

from kvfence.checker.core import interrupts
from kvfence.checker.engines.base import (
    FIRST,
    Bounds,
    Engine,
    Finding,
    Path,
    Progress,
    Report,
    Result,
    Until,
    Verdict,
)
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt.finite import Target, Unrolled
from kvfence.spec.language import PREMISE, Grounded, Instance, Machine

DEPTH = 12
INTERRUPTED = "interrupted"


class BMC(Engine):
    """Searches all runs up to ``depth`` steps, or until ``seconds`` are over.

    ``only`` restricts the search to conditions of one id.

    It never proves by itself: what was not violated is undetermined, except where no longer run exists. Goals
    that were not reached are left out of the result.
    """

    name = "bmc"

    def __init__(self, depth: int = DEPTH, seconds: float | None = None, only: str = "") -> None:
        self.depth, self.seconds, self.only = depth, seconds, only

    def run(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        *,
        until: Until = "end",
        bounds: Bounds | None = None,  # noqa: ARG002 (every value is searched; nothing is to be bounded)
        max_states: int | None = None,  # noqa: ARG002 (no state is stored)
        memory: int | None = None,  # noqa: ARG002
        progress: Report | None = None,
    ) -> Result:
        """See ``Engine.run``; states are neither stored nor counted."""
        start = time.perf_counter()
        search = Search(Interpreter(machine, sizes), only=self.only)
        deadline = None if self.seconds is None else start + self.seconds
        search.go(self.depth, until, deadline, progress)
        return search.result(self.name, time.perf_counter() - start)


class Search:
    """A search that can be continued: ``depth`` steps are done, ``found`` has the violations by name."""

    def __init__(self, interpreter: Interpreter, only: str = "") -> None:
        self.interpreter, self.only = interpreter, only
        self.grounded: Grounded = interpreter.grounded
        self.runs = Unrolled(self.grounded)
        self.solver = self.runs.solver()
        self.depth = -1
        self.complete = False  # no run is longer than ``depth``
        self.stopped: str | None = None
        self.ignored: set[str] = set()  # conditions that are not looked for
        self.found: dict[str, Path] = {}
        self.goals: dict[str, Path] = {}
        self.targets: dict[str, Target] = {}

    def go(
        self, depth: int, until: Until = "end", deadline: float | None = None, progress: Report | None = None
    ) -> None:
        """Search all runs of up to ``depth`` steps."""
        started = time.perf_counter()
        try:
            while self.depth < depth and not self.complete and self.stopped is None:
                if deadline is not None:
                    left = deadline - time.perf_counter()
                    if left <= 0:
                        self.stopped = f"the time was over at depth {self.depth + 1}"
                        return
                    self.solver.set("timeout", int(left * 1000) + 1)
                self._deepen(until)
                if progress is not None:
                    rate = self.depth / max(time.perf_counter() - started, 1e-9)
                    progress(Progress(self.depth + 1, 1, self.depth, rate))
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED

    def _deepen(self, until: Until) -> None:
        runs, solver = self.runs, self.solver
        k = runs.add_state()
        if k == 0:
            solver.add(runs.is_initial(0))
        else:
            solver.add(runs.step(k - 1))
            answer = self._ask([])
            if answer is None:
                return
            if answer == z3.unsat:
                self.complete, self.depth = True, k - 1
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
            if self.stopped is None and until == "first" and self.found:
                self.stopped = FIRST
            if self.stopped is not None:
                return
        goals = [] if self.only else [(p, n) for p, n in self.grounded.goals if p.id != PREMISE]
        self._collect(
            {p.name: runs.truth(n, k) for p, n in goals if p.name not in self.goals},
            k,
            lambda name, model: self._goal(name, model, k),
        )
        self.depth = k

    def _collect(self, wanted: dict[str, object], k: int, record: Callable[[str, z3.ModelRef], None]) -> None:
        """Asks for all of ``wanted`` at once, and again for those that the answers did not show."""
        while wanted and self.stopped is None:
            some = z3.Bool(f"some {k} {len(wanted)} {next(iter(wanted))}", self.runs.context)
            self.solver.add(z3.Implies(some, self.runs.some(list(wanted.values()))))
            answer = self._ask([some])
            if answer is None or answer == z3.unsat:
                return
            model = self.solver.model()
            shown = [name for name, term in wanted.items() if z3.is_true(model.eval(term, True))]
            for name in shown:
                record(name, model)
                del wanted[name]

    def _ask(self, assumptions: list[z3.BoolRef]) -> z3.CheckSatResult | None:
        answer = self.solver.check(*assumptions)
        if answer == z3.unknown:
            reason = self.solver.reason_unknown()
            if "interrupted" in reason:
                raise interrupts.from_library()
            self.stopped = f"z3 did not answer at depth {self.depth + 1} ({reason})"
            return None
        return answer

    def _violation(self, target: Target, model: z3.ModelRef, k: int) -> None:
        steps, text = self.runs.taken(model, k), target.text
        if target.extra:
            blamed = self.runs.culprit(model, k, target.name)
            assert blamed is not None
            steps, text = [*steps, blamed[0]], blamed[1]
        self.found[target.name] = self.interpreter.path(steps, target.id, target.name, text)

    def _goal(self, name: str, model: z3.ModelRef, k: int) -> None:
        steps: list[Instance] = self.runs.taken(model, k)
        prop = next(p for p, _ in self.grounded.goals if p.name == name)
        self.goals[name] = self.interpreter.path(steps, "", name, prop.doc or name)

    def result(self, engine: str, seconds: float) -> Result:
        """What was found so far."""
        g = self.grounded
        stopped = self.stopped
        if stopped is None and not self.complete:
            stopped = f"runs of more than {self.depth} steps were not searched"
        verdict = Verdict.holds if stopped is None else Verdict.undetermined
        findings = {}
        for name, target in self.targets.items():
            path = self.found.get(name)
            if name != "deadlock":
                found = verdict if path is None else Verdict.violated
                findings[name] = Finding(target.id, name, target.kind, found, path)
        return Result(
            machine=g.machine.name,
            faults=tuple(sorted(g.machine.faults)),
            sizes=g.sizes,
            engine=engine,
            states=0,
            transitions=0,
            depth=max(self.depth, 0),
            seconds=seconds,
            findings=findings,
            coverage={},
            goals={
                name: len(self.goals[name]) if name in self.goals else None
                for name in (g.machine.goals if self.complete else self.goals)
            },
            witnesses=dict(self.goals),
            deadlock=self.found.get("deadlock"),
            stopped=stopped,
        )


def settled(result: Result, verdict: Verdict) -> Result:
    """The result with ``verdict`` for every finding that is not violated, and nothing left open."""
    findings = {
        name: f if f.verdict is Verdict.violated else replace(f, verdict=verdict)
        for name, f in result.findings.items()
    }
    return replace(result, findings=findings, stopped=None)
