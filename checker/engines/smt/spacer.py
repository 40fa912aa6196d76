"""Spacer: lets z3 look for an invariant at given sizes, and believes nothing that it says.

It runs in a process of its own with a time limit, since it may crash, hang or be wrong. What it answers is
only a candidate: a fresh solver checks that it holds initially, that every step keeps it, and that it implies
all conditions.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import z3

from kvfence.checker.core import interrupts
from kvfence.checker.engines.base import Bounds, Engine, Report, Result, Until, Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt.bmc import INTERRUPTED, Search, settled
from kvfence.checker.engines.smt.finite import Unrolled
from kvfence.spec.language import Machine

SECONDS = 60.0
DEPTH = 6  # steps of the runs that are searched first
NAME = "invariant"

# Reads Horn clauses; prints the answer and, if there is an invariant, the invariant over c0, c1, …
_CHILD = f"""
import sys, z3
solver = z3.SolverFor("HORN")
solver.from_string(sys.stdin.read())
answer = solver.check()
print(answer)
if answer == z3.sat:
    model = solver.model()
    for d in model.decls():
        if d.name() == "{NAME}":
            given = [z3.Const(f"c{{k}}", d.domain(k)) for k in range(d.arity())]
            body = z3.substitute_vars(model[d].else_value(), *given)
            print("(assert", body.sexpr() + ")")
"""

COMMAND = (sys.executable, "-c", _CHILD)


class Spacer(Engine):
    """Looks for an invariant at given sizes, for ``seconds``, by ``command``; small machines only.

    ``command`` reads the Horn clauses from its input; tests put others in its place.
    """

    name = "spacer"

    def __init__(
        self, seconds: float = SECONDS, command: Sequence[str] = COMMAND, depth: int = DEPTH
    ) -> None:
        self.seconds, self.command, self.depth = seconds, tuple(command), depth

    def run(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        *,
        until: Until = "end",
        bounds: Bounds | None = None,  # noqa: ARG002 (every value is searched)
        max_states: int | None = None,  # noqa: ARG002 (no state is stored)
        memory: int | None = None,  # noqa: ARG002
        progress: Report | None = None,
    ) -> Result:
        """See ``Engine.run``. Runs of a few steps are searched first; goals are left to others."""
        from dataclasses import replace

        start = time.perf_counter()
        base = Search(Interpreter(machine, sizes))
        base.go(self.depth, until, start + self.seconds, progress)
        why = None
        if base.stopped is None and not base.complete and not base.found:
            try:
                why = self._prove(base)
            except KeyboardInterrupt:
                base.stopped = INTERRUPTED
            if why is None and base.stopped is None:
                return settled(base.result(self.name, time.perf_counter() - start), Verdict.holds)
        result = base.result(self.name, time.perf_counter() - start)
        return replace(result, stopped=why) if why else result

    def _prove(self, base: Search) -> str | None:
        """Why the machine is not proved; None when it is."""
        runs = Unrolled(base.grounded, integers=True)
        runs.add_state()
        runs.add_state()
        holds = runs.every([term for _, term in runs.conditions(0).values()])
        step = runs.step(0)
        answer = self._ask(_clauses(runs, step, holds))
        if answer.startswith("!"):
            return answer[1:]
        return _confirm(runs, step, holds, answer)

    def _ask(self, clauses: str) -> str:
        try:
            done = subprocess.run(
                self.command, input=clauses, capture_output=True, text=True, timeout=self.seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"!Spacer did not answer in {self.seconds:g} s"
        if done.returncode != 0:
            return f"!Spacer ended with exit code {done.returncode}"
        verdict, _, text = done.stdout.partition("\n")
        if verdict.strip() == "unsat":
            return "!Spacer says that a condition is violated, and no run of a few steps shows it"
        if verdict.strip() != "sat" or not text.strip():
            return "!Spacer did not decide"
        return text


def _clauses(runs: Unrolled, step: Any, holds: Any) -> str:
    """Initial states are in the invariant, steps stay in it, and in it all conditions hold."""
    here, there = runs.states[0], runs.states[1]
    sorts = [x.sort() for x in here]
    inside = z3.Function(NAME, *sorts, z3.BoolSort(runs.context))
    solver = z3.SolverFor("HORN", ctx=runs.context)
    solver.add(z3.ForAll(here, z3.Implies(runs.is_initial(0), inside(*here))))
    both = [*here, *there, *runs.choices]
    solver.add(z3.ForAll(both, z3.Implies(z3.And(inside(*here), step), inside(*there))))
    solver.add(z3.ForAll(here, z3.Implies(inside(*here), holds)))
    return str(solver.to_smt2())


def _confirm(runs: Unrolled, step: Any, holds: Any, text: str) -> str | None:
    """Check the candidate: base, step, property. What fails, or None."""
    given = {f"c{k}": x for k, x in enumerate(runs.states[0])}
    try:
        candidate = runs.every(list(z3.parse_smt2_string(text, decls=given, ctx=runs.context)))
    except z3.Z3Exception:
        return "what Spacer answered is not a formula over the state"
    later = z3.substitute(candidate, *zip(runs.states[0], runs.states[1], strict=True))
    questions = {
        "does not hold initially": z3.And(runs.is_initial(0), z3.Not(candidate)),
        "is not kept by every step": z3.And(candidate, step, z3.Not(later)),
        "does not imply the conditions": z3.And(candidate, z3.Not(holds)),
    }
    for fault, wrong in questions.items():
        solver = z3.Solver(ctx=runs.context)
        solver.set("timeout", int(SECONDS * 1000))
        solver.add(wrong)
        answer = solver.check()
        if answer == z3.unknown and "interrupt" in solver.reason_unknown():
            raise interrupts.from_library()
        if answer != z3.unsat:
            return f"the invariant that Spacer found {fault}"
    return None
