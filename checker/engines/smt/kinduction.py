"""k-induction at given sizes: short runs are good, and k good states in a row are followed by a good one.

The first part is never left out. A machine that gets stuck before k steps has no k states in a row from
there, so the second part alone says nothing about it.
"""

from __future__ import annotations

import time

import z3

from kvfence.checker.engines.smt.finite import Unrolled
from kvfence.checker.engines.smt.search import FiniteEngine, Search
from kvfence.checker.engines.smt.solve import checked

LENGTH = 8


class KInduction(FiniteEngine):
    """Proves at given sizes, for any number of steps, by up to ``length`` states in a row.

    All conditions are proved together, the lemmas of a sound machine among them. What is not violated and not
    proved is undetermined. Goals are only looked for as far as the runs of the first part go.
    """

    name = "kinduction"

    def __init__(self, length: int = LENGTH, seconds: float | None = None) -> None:
        self.length, self.seconds = length, seconds

    def prove(self, search: Search) -> str | None:
        """Tries one state in a row, then two, and so on."""
        step = _Step(search)
        for length in range(1, self.length + 1):
            search.deepen_to(length - 1)  # states reached by fewer than ``length`` steps
            if search.ended or step.holds(length):
                return None
        return step.reason or f"{self.length} good states in a row do not make the next one good"


class _Step:
    """The second part, continued from one length to the next."""

    def __init__(self, base: Search) -> None:
        self.base = base
        self.runs = Unrolled(base.grounded)
        self.solver = self.runs.solver()
        self.runs.add_state()
        self.solver.add(self.runs.in_range(0))
        self.length = 0
        self.reason: str | None = None

    def _assumed(self, name: str) -> z3.BoolRef:
        """That a condition is assumed; one that turns out to be violated at a later depth no longer is."""
        return z3.Bool(f"assumed {name}", self.runs.context)

    def holds(self, length: int) -> bool:
        """Whether ``length`` good states in a row are always followed by a good one."""
        runs, solver = self.runs, self.solver
        broken = set(self.base.found)  # what is violated anyway is neither assumed nor asked
        while self.length < length:
            k = self.length
            for name, (_, holds) in runs.conditions(k).items():
                solver.add(z3.Implies(self._assumed(name), holds))
            runs.add_state()
            solver.add(runs.step(k), runs.in_range(k + 1))
            self.length += 1
        if self.base.deadline is not None:
            solver.set("timeout", max(1, int((self.base.deadline - time.perf_counter()) * 1000)))
        asked = {name: holds for name, (_, holds) in runs.conditions(length).items() if name not in broken}
        bad = z3.Bool(f"bad after {length}", runs.context)
        solver.add(z3.Implies(bad, z3.Not(runs.every(list(asked.values())))))
        answer = checked(solver, bad, *map(self._assumed, asked))
        if answer == z3.unknown:
            self.reason = f"z3 did not answer for {length} states in a row ({solver.reason_unknown()})"
        return bool(answer == z3.unsat)
