"""Spacer: lets z3 look for an invariant at given sizes, and checks whatever it answers.

It runs in a process of its own with a time limit, since it may crash, hang or be wrong. What it answers is
only a candidate: a fresh solver checks that it holds initially, that every step keeps it, and that it implies
all conditions.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import z3

from kvfence.checker.engines.smt.finite import Unrolled
from kvfence.checker.engines.smt.search import FiniteEngine, Search
from kvfence.checker.engines.smt.solve import checked

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


class NoInvariant(Exception):  # noqa: N818 (not a fault: the reason why an answer stays undetermined)
    """Spacer answered with no invariant."""


class Spacer(FiniteEngine):
    """Looks for an invariant at given sizes, for ``seconds``, by ``command``; small machines only.

    Runs of up to ``depth`` steps are searched first. ``command`` reads the Horn clauses from its input; tests
    put others in its place.
    """

    name = "spacer"

    def __init__(
        self, seconds: float = SECONDS, command: Sequence[str] = COMMAND, depth: int = DEPTH
    ) -> None:
        self.seconds: float = seconds
        self.command, self.depth = tuple(command), depth

    def prove(self, search: Search) -> str | None:
        """Searches a few steps, then asks Spacer, unless something is violated."""
        search.deepen_to(self.depth)
        if search.ended or search.found:
            return search.unsearched
        runs = Unrolled(search.grounded, integers=True)
        runs.add_state()
        runs.add_state()
        holds = runs.every([term for _, term in runs.conditions(0).values()])
        step = runs.step(0)
        try:
            candidate = self._candidate(_clauses(runs, step, holds))
        except NoInvariant as reason:
            return str(reason)
        return _refuted(runs, step, holds, candidate)

    def _candidate(self, clauses: str) -> str:
        """The invariant that Spacer finds, as SMT-LIB; NoInvariant says why there is none."""
        try:
            done = subprocess.run(
                self.command, input=clauses, capture_output=True, text=True, timeout=self.seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoInvariant(f"Spacer did not answer in {self.seconds:g} s") from None
        if done.returncode != 0:
            raise NoInvariant(f"Spacer ended with exit code {done.returncode}")
        verdict, _, text = done.stdout.partition("\n")
        if verdict.strip() == "unsat":
            raise NoInvariant("Spacer says that a condition is violated, and no run of a few steps shows it")
        if verdict.strip() != "sat" or not text.strip():
            raise NoInvariant("Spacer did not decide")
        return text


def _clauses(runs: Unrolled, step: Any, holds: Any) -> str:
    """The Horn clauses: initial states are in the invariant, steps stay in it, and it implies ``holds``."""
    here, there = runs.states[0], runs.states[1]
    sorts = [x.sort() for x in here]
    inside = z3.Function(NAME, *sorts, z3.BoolSort(runs.context))
    solver = z3.SolverFor("HORN", ctx=runs.context)
    solver.add(z3.ForAll(here, z3.Implies(runs.is_initial(0), inside(*here))))
    both = [*here, *there, *runs.choices]
    solver.add(z3.ForAll(both, z3.Implies(z3.And(inside(*here), step), inside(*there))))
    solver.add(z3.ForAll(here, z3.Implies(inside(*here), holds)))
    return str(solver.to_smt2())


def _refuted(runs: Unrolled, step: Any, holds: Any, text: str) -> str | None:
    """What the candidate fails, in words: the base, the step, or the conditions; None if nothing."""
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
        if checked(solver) != z3.unsat:
            return f"the invariant that Spacer found {fault}"
    return None
