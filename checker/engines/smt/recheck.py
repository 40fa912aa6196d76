"""Decides a proof again, question by question, and writes it down for other solvers.

A question is SMT-LIB 2 text, which is unsatisfiable if the proof is right. A fresh z3 decides it, and cvc5 if
that is wanted.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import z3

from kvfence.checker.engines.smt.conditions import START
from kvfence.checker.engines.smt.solve import Answer, checked
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import write_text

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
        answer = checked(solver)
    except z3.Z3Exception:
        return None
    return None if answer == z3.unknown else bool(answer == z3.unsat)


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
    """What another solver said: how often it agreed; names of questions that are ``wrong`` or ``open``."""

    def __init__(self) -> None:
        self.agreed = 0
        self.wrong: list[str] = []
        self.open: list[str] = []

    def decide(self, name: str, text: str, by: Decide, seconds: float) -> None:
        """Decides one question again."""
        answer = by(text, seconds)
        if answer is None:
            self.open.append(name)
        elif answer:
            self.agreed += 1
        else:
            self.wrong.append(name)


def export(machine: str, answers: Iterable[Answer], folder: Path) -> int:
    """Writes the questions into ``folder/machine``; how many. CannotRun if that cannot be written."""
    here = folder / machine
    count = 0
    try:
        here.mkdir(parents=True, exist_ok=True)
        for count, answer in enumerate(answers, 1):
            name = re.sub(r"[^A-Za-z0-9_.#-]+", "_", answer.question.name)
            write_text(here / f"{count:04}-{name}.smt2", _text(machine, answer))
    except OSError as problem:
        raise CannotRun(f"{here}: {problem.strerror or problem}; give another folder") from problem
    return count


def _text(machine: str, answer: Answer) -> str:
    q = answer.question
    head = (
        f"; Machine {machine}: {q.of}, {'in ' + START if q.case == START else 'by ' + q.case}.\n"
        "; Holds for sorts of any size exactly when this is unsatisfiable.\n"
    )
    logic, body = standard(answer.text).split("\n", 1)
    return f"{head}{logic}\n(set-info :status unsat)\n{body}"
