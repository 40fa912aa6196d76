"""What a proof leaves open: whether the machine ever does what the proof is about.

A proof says nothing about actions that cannot be taken, goals out of reach, and premises that are never met.
Engines that ask a solver get that from an exploration at given sizes, which ends as soon as every action,
goal and premise was observed; the result says so in ``searched``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kvfence.checker.engines import base
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine, SpecError
from kvfence.spec.language.premises import premises

STATES = 5_000_000
SECONDS = 30.0
MEMORY = 2 << 30  # bytes, unless the caller sets a limit
SLOW_STATES = 100_000  # for a machine that only the interpreter can run


class Exercised(base.Engine):
    """``engine``, followed by a search for the actions, goals and premises that its proof is about.

    The search is at the sizes of the run, for at most ``seconds`` and ``states``. What it finds violated is
    violated; what it does not reach leaves the answer undetermined.
    """

    def __init__(self, engine: base.Engine, seconds: float = SECONDS, states: int = STATES) -> None:
        self.engine, self.name = engine, engine.name
        self.seconds, self.states = seconds, states

    def run(self, machine: Machine, sizes: Mapping[str, int] | None = None, **limits: Any) -> base.Result:
        """See ``Engine.run``; ``memory`` and ``max_states`` also limit the search."""
        result = self.engine.run(machine, sizes, **limits)
        if result.verdict is base.Verdict.violated or result.stopped == base.INTERRUPTED:
            return result
        start = time.perf_counter()
        try:
            joined = _joined(result, self._explored(machine, sizes, **limits))
        except (SpecError, CannotRun) as why:
            joined = _unexplored(result, machine, str(why))
        return replace(joined, seconds=joined.seconds + time.perf_counter() - start)

    def _explored(self, machine: Machine, sizes: Mapping[str, int] | None, **limits: Any) -> base.Result:
        """The search, by the native engine if its 64 bits suffice."""
        from kvfence.checker.engines.explicit.interpret import Interpret
        from kvfence.checker.engines.native import Native

        end = time.perf_counter() + self.seconds
        progress: base.Report | None = limits.get("progress")
        bounds: base.Bounds | None = limits.get("bounds")

        def in_time(state: base.Progress) -> None:
            if progress is not None:
                progress(state)
            if time.perf_counter() > end:
                raise base.Stop(f"the {self.seconds:g} s for it were over")

        most = min(self.states, limits.get("max_states") or self.states)
        common: dict[str, Any] = {"until": "seen", "bounds": bounds, "progress": in_time}
        common["memory"] = limits.get("memory") or MEMORY
        whole = {name: sort.default for name, sort in machine.sorts.items()} | dict(sizes or {})
        if bounds or all(f.value.range(whole) is not None for f in machine.functions.values()):
            found = Native(note=lambda _line: None).run(machine, sizes, max_states=most, **common)
            if found.overflow is None:
                return found
        return Interpret().run(machine, sizes, max_states=min(most, SLOW_STATES), **common)


def _joined(result: base.Result, search: base.Result) -> base.Result:
    """The result of the engine, with what the search reached."""
    stopped = None if search.stopped == base.SEEN else search.stopped
    findings = _undetermined(result, (*search.not_met, *search.unjudged))
    findings |= {name: found for name, found in search.findings.items() if found.path is not None}
    return replace(
        result,
        findings=findings,
        deadlock=search.deadlock if result.deadlock is None else result.deadlock,
        coverage=search.coverage,
        goals={**search.goals, **{name: depth for name, depth in result.goals.items() if depth is not None}},
        witnesses={**search.witnesses, **result.witnesses},
        premises=search.premises,
        unmet=search.unmet,
        unjudged=search.unjudged,
        searched=base.Searched(search.engine, search.sizes, search.states, stopped),
        stopped=base.INTERRUPTED if stopped == base.INTERRUPTED else result.stopped,
    )


def _undetermined(result: base.Result, names: Collection[str]) -> dict[str, base.Finding]:
    """The findings, those of ``names`` undetermined unless they are violated."""
    return {
        name: replace(f, verdict=base.Verdict.undetermined)
        if name in names and f.verdict is base.Verdict.holds
        else f
        for name, f in result.findings.items()
    }


def _unexplored(result: base.Result, machine: Machine, why: str) -> base.Result:
    """The result for a machine that cannot be explored: every action, goal and premise may be missing."""
    unmet: dict[str, str] = {}
    for p in premises(machine):
        unmet[p.of] = f"{unmet[p.of]}; {p.text}" if p.of in unmet else p.text
    unjudged = tuple(c.name for a in machine.actions.values() for c in a.checks)
    return replace(
        result,
        findings=_undetermined(result, (*unmet, *unjudged)),
        coverage=dict.fromkeys(machine.actions, 0),
        goals={**dict.fromkeys(machine.goals), **result.goals},
        premises=dict.fromkeys(unmet),
        unmet=unmet,
        unjudged=unjudged,
        searched=base.Searched("none", {}, 0, f"there was none: {why}"),
    )
