"""Checks a proof again: each answered question, as SMT-LIB 2 text, by a fresh z3 and, if wanted, by cvc5."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from typing import Any

import z3

from kvfence.checker.core import interrupts
from kvfence.spec.errors import CannotRun

SECONDS = 10.0
SECOND_SECONDS = 5.0
SECOND_SOLVERS = ("cvc5",)

# Instances from matching first; then all of them, small ones first.
CVC5_ATTEMPTS: tuple[dict[str, str], ...] = ({}, {"enum-inst": "true"})

Decide = Callable[[str, float], bool | None]


def by_z3(text: str, seconds: float = SECONDS) -> bool | None:
    """Whether a fresh z3 finds the text unsatisfiable; None when it does not decide in time."""
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.set("timeout", int(seconds * 1000))
    solver.set("smt.random_seed", 11)
    try:
        solver.from_string(text)
        answer = solver.check()
    except z3.Z3Exception:
        return None
    if answer == z3.unknown:
        if "interrupt" in solver.reason_unknown():
            raise interrupts.from_library()
        return None
    return bool(answer == z3.unsat)


def by_cvc5(text: str, seconds: float = SECOND_SECONDS) -> bool | None:
    """Whether cvc5 finds the text unsatisfiable; None when it does not decide in time."""
    cvc5 = _cvc5()
    deadline = time.perf_counter() + seconds
    for options in CVC5_ATTEMPTS:
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        solver = cvc5.Solver(cvc5.TermManager())
        for name, value in {**options, "tlimit-per": str(int(left * 1000) + 1)}.items():
            solver.setOption(name, value)
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, standard(text), "question")
        symbols = parser.getSymbolManager()
        answer = ""
        while not (command := parser.nextCommand()).isNull():
            answer = command.invoke(solver, symbols).strip() or answer
        if answer in ("unsat", "sat"):
            return bool(answer == "unsat")
    return None


def _cvc5() -> Any:
    try:
        return importlib.import_module("cvc5")
    except ImportError as missing:
        raise CannotRun(
            "the second solver cvc5 is not installed: pip install cvc5, or leave out --second-solver"
        ) from missing


def second_solver(name: str) -> Decide:
    """The solver of that name; CannotRun when there is none, or it is not installed."""
    if name not in SECOND_SOLVERS:
        raise CannotRun(f"there is no second solver {name!r}: there is {', '.join(SECOND_SOLVERS)}")
    _cvc5()
    return by_cvc5


def standard(text: str) -> str:
    """The text as any solver reads it: a logic first, nothing of z3's own."""
    body = "\n".join(line for line in text.splitlines() if not re.match(r"\(set-(info|option)|;", line))
    return f"(set-logic ALL)\n{body}\n"


class Checked:
    """How the second look went: ``wrong`` and ``open`` are the names of questions."""

    def __init__(self) -> None:
        self.agreed = 0
        self.wrong: list[str] = []
        self.open: list[str] = []
        self.seconds = 0.0

    def look(self, name: str, text: str, decide: Decide, seconds: float) -> None:
        """Decide one text again."""
        start = time.perf_counter()
        answer = decide(text, seconds)
        self.seconds += time.perf_counter() - start
        if answer is None:
            self.open.append(name)
        elif answer:
            self.agreed += 1
        else:
            self.wrong.append(name)
