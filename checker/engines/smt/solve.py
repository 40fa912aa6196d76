"""Asks z3 one question at a time, in a context of its own and with a time limit, and counts questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import z3

from kvfence.checker.core import interrupts
from kvfence.checker.engines.base import Progress, Report
from kvfence.checker.engines.smt.conditions import Question, Unsupported
from kvfence.checker.engines.smt.translate import Translator

ATTEMPTS: tuple[dict[str, object], ...] = ({}, {"smt.mbqi": False, "smt.random_seed": 7})
SECONDS = 4.0  # for each attempt


class Outcome(StrEnum):
    """Whether the goal follows: ``no`` means that z3 has a model in which it does not."""

    yes = "yes"
    no = "no"
    unknown = "unknown"


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    ``reason`` says why it is unknown, ``text`` is the question in SMT-LIB 2. ``used``, if it was asked for
    and the answer is yes: the positions, among what is given, of what suffices.
    """

    question: Question
    outcome: Outcome
    seconds: float
    reason: str = ""
    text: str = ""
    used: tuple[int, ...] | None = None

    @property
    def why(self) -> str:
        """Why the goal is not known to follow."""
        return self.reason or f"z3 has a state in which it fails ({self.question.case})"


class QuestionCount:
    """How many questions were decided, reported as progress."""

    def __init__(self, progress: Report | None) -> None:
        self.progress, self.done, self.started = progress, 0, time.perf_counter()

    def add(self) -> None:
        """Counts one more question."""
        self.done += 1
        if self.progress is not None:
            rate = self.done / max(time.perf_counter() - self.started, 1e-9)
            self.progress(Progress(self.done, 0, 0, rate, unit="questions"))


def checked(solver: z3.Solver, *assumptions: z3.BoolRef) -> z3.CheckSatResult:
    """The solver's answer. KeyboardInterrupt for a Ctrl-C that z3 noticed in place of Python."""
    answer = solver.check(*assumptions)
    if answer == z3.unknown and "interrupt" in solver.reason_unknown():
        raise interrupts.from_library()
    return answer


def ask(question: Question, seconds: float = SECONDS, *, track: bool = False) -> Answer:
    """Whether the goal follows from what is given, for sorts of any size. KeyboardInterrupt for Ctrl-C.

    ``seconds`` limits each attempt. ``track``: also find out which of what is given the proof uses.
    """
    start = time.perf_counter()
    reason, text = "", ""
    for options in ATTEMPTS:
        try:
            solver, labels = _solver(question, options, seconds, track)
        except Unsupported as problem:
            return Answer(question, Outcome.unknown, time.perf_counter() - start, str(problem))
        text = text or solver.to_smt2()
        try:
            found = checked(solver)
        except z3.Z3Exception as problem:
            reason = str(problem)
            continue
        if found != z3.unknown:
            outcome = Outcome.yes if found == z3.unsat else Outcome.no
            used = None
            if track and found == z3.unsat:
                used = tuple(sorted(labels[label.get_id()] for label in solver.unsat_core()))
            return Answer(question, outcome, time.perf_counter() - start, "", text, used)
        reason = solver.reason_unknown()
    return Answer(question, Outcome.unknown, time.perf_counter() - start, f"z3 gave up: {reason}", text)


def with_only(question: Question, used: Sequence[int]) -> Question:
    """The question with only what is given at the positions ``used``."""
    return replace(
        question,
        given=tuple(question.given[k] for k in used),
        sources=tuple(question.sources[k] for k in used),
    )


def text_of(question: Question) -> str:
    """The question in SMT-LIB 2; its answer is yes where this is unsatisfiable."""
    solver, _ = _solver(question, {}, SECONDS, track=False)
    return str(solver.to_smt2())


def _solver(
    question: Question, options: dict[str, object], seconds: float, track: bool
) -> tuple[z3.Solver, dict[int, int]]:
    """A solver with the question; if tracked, also the position of each given term by the id of its label."""
    translator = Translator()
    solver = z3.Solver(ctx=translator.context)
    solver.set("timeout", int(seconds * 1000))
    for name, value in options.items():
        solver.set(name, value)
    if not track:
        solver.add(translator.formulas(question))
        return solver, {}
    bounds, given, rest = translator.parts(question)
    solver.add(bounds)
    labels = {}
    for place, term in given.items():
        label = z3.Bool(f"given {place}", translator.context)
        labels[label.get_id()] = place
        solver.assert_and_track(term, label)
    solver.add(rest)
    return solver, labels
