"""Asks z3 one question at a time, in a context of its own, with a time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import z3

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
    """The answer to a question; ``reason`` says why it is unknown, ``text`` is the question in SMT-LIB 2."""

    question: Question
    outcome: Outcome
    seconds: float
    reason: str = ""
    text: str = ""


def ask(question: Question, seconds: float = SECONDS) -> Answer:
    """Whether the goal follows from what is given, for sorts of any size. KeyboardInterrupt for Ctrl-C."""
    start = time.perf_counter()
    reason, text = "", ""
    for options in ATTEMPTS:
        try:
            solver = _solver(question, options, seconds)
        except Unsupported as problem:
            return Answer(question, Outcome.unknown, time.perf_counter() - start, str(problem))
        text = text or solver.to_smt2()
        try:
            found = solver.check()
        except z3.Z3Exception as problem:
            reason = str(problem)
            continue
        if found != z3.unknown:
            outcome = Outcome.yes if found == z3.unsat else Outcome.no
            return Answer(question, outcome, time.perf_counter() - start, "", text)
        reason = solver.reason_unknown()
        if "interrupt" in reason:
            raise KeyboardInterrupt
    return Answer(question, Outcome.unknown, time.perf_counter() - start, f"z3 gave up: {reason}", text)


def _solver(question: Question, options: dict[str, object], seconds: float) -> z3.Solver:
    translator = Translator()
    solver = z3.Solver(ctx=translator.context)
    solver.set("timeout", int(seconds * 1000))
    for name, value in options.items():
        solver.set(name, value)
    solver.add(translator.formulas(question))
    return solver
