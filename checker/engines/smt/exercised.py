"""What a proof leaves open: whether the machine ever does what the proof is about.

That no state breaks a condition says nothing of actions that cannot be taken, of goals out of reach, and of
premises that are never met. Engines that ask a solver borrow this from an exploration at given sizes, which
ends as soon as everything was seen; the result says so in ``searched``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from kvfence.checker.engines.base import (
    SEEN,
    Bounds,
    Engine,
    Finding,
    Progress,
    Report,
    Result,
    Searched,
    Stop,
    Until,
    Verdict,
)
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine, SpecError
from kvfence.spec.language.premises import premises

STATES = 5_000_000
SECONDS = 30.0
MEMORY = 2 << 30  # bytes, where nobody said
SLOW_STATES = 100_000  # of a machine that only the interpreter can run
INTERRUPTED = "interrupted"


class Exercised(Engine):
    """``engine``, and beside its proof a search for what was taken, reached and met.

    The search is at the sizes of the run, for at most ``seconds`` and ``states``. What it finds violated is
    violated; what it does not come by leaves the answer undetermined.
    """

    def __init__(self, engine: Engine, seconds: float = SECONDS, states: int = STATES) -> None:
        self.engine, self.name = engine, engine.name
        self.seconds, self.states = seconds, states

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
        """See ``Engine.run``; ``memory`` and ``max_states`` also limit the search."""
        result = self.engine.run(
            machine,
            sizes,
            until=until,
            bounds=bounds,
            max_states=max_states,
            memory=memory,
            progress=progress,
        )
        if result.verdict is Verdict.violated or result.stopped == INTERRUPTED:
            return result
        start = time.perf_counter()
        try:
            seen = self._explored(machine, sizes, bounds, max_states, memory or MEMORY, progress)
        except (SpecError, CannotRun) as why:
            joined = _not_looked_at(result, machine, str(why))
        else:
            joined = _joined(result, seen)
        return replace(joined, seconds=joined.seconds + time.perf_counter() - start)

    def _explored(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None,
        bounds: Bounds | None,
        max_states: int | None,
        memory: int,
        progress: Report | None,
    ) -> Result:
        from kvfence.checker.engines.explicit.interpret import Interpret
        from kvfence.checker.engines.native import Native

        end = time.perf_counter() + self.seconds

        def in_time(state: Progress) -> None:
            if progress is not None:
                progress(state)
            if time.perf_counter() > end:
                raise Stop(f"the {self.seconds:g} s for it were over")

        most = min(self.states, max_states or self.states)
        unbounded = any(f.value.range(_sizes(machine, sizes)) is None for f in machine.functions.values())
        if not unbounded or bounds:
            seen = Native(note=lambda _line: None).run(
                machine,
                sizes,
                until="seen",
                bounds=bounds,
                max_states=most,
                memory=memory,
                progress=in_time,
            )
            if seen.overflow is None:
                return seen  # else numbers that no 64 bits hold: slowly, then
        return Interpret().run(
            machine,
            sizes,
            until="seen",
            bounds=bounds,
            max_states=min(most, SLOW_STATES),
            memory=memory,
            progress=in_time,
        )


def _sizes(machine: Machine, sizes: Mapping[str, int] | None) -> dict[str, int]:
    return {name: sort.default for name, sort in machine.sorts.items()} | dict(sizes or {})


def _joined(result: Result, seen: Result) -> Result:
    """The result, with what the search saw."""
    stopped = None if seen.stopped == SEEN else seen.stopped
    findings: dict[str, Finding] = dict(result.findings)
    for name in (*seen.not_met, *seen.unjudged):
        if name in findings and findings[name].verdict is Verdict.holds:
            findings[name] = replace(findings[name], verdict=Verdict.undetermined)
    findings |= {name: found for name, found in seen.findings.items() if found.path is not None}
    return replace(
        result,
        findings=findings,
        deadlock=seen.deadlock if result.deadlock is None else result.deadlock,
        coverage=seen.coverage,
        goals={**seen.goals, **{name: depth for name, depth in result.goals.items() if depth is not None}},
        witnesses={**seen.witnesses, **result.witnesses},
        premises=seen.premises,
        unmet=seen.unmet,
        unjudged=seen.unjudged,
        searched=Searched(seen.engine, seen.sizes, seen.states, stopped),
        stopped=INTERRUPTED if stopped == INTERRUPTED else result.stopped,
    )


def _not_looked_at(result: Result, machine: Machine, why: str) -> Result:
    """The result of a machine that cannot be explored: whatever could be missing, is."""
    unmet: dict[str, str] = {}
    for p in premises(machine):
        unmet[p.of] = f"{unmet[p.of]}; {p.text}" if p.of in unmet else p.text
    unjudged = tuple(c.name for a in machine.actions.values() for c in a.checks)
    findings = {
        name: replace(f, verdict=Verdict.undetermined) if name in unmet or name in unjudged else f
        for name, f in result.findings.items()
    }
    return replace(
        result,
        findings=findings,
        coverage=dict.fromkeys(machine.actions, 0),
        goals={**dict.fromkeys(machine.goals), **result.goals},
        premises=dict.fromkeys(unmet),
        unmet=unmet,
        unjudged=unjudged,
        searched=Searched("none", {}, 0, f"there was none: {why}"),
    )
