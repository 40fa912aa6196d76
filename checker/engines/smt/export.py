"""Writes a proof as SMT-LIB 2 files: one for each question, unsatisfiable when the proof is right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kvfence.checker.engines.smt.conditions import START
from kvfence.checker.engines.smt.recheck import standard
from kvfence.checker.engines.smt.solve import Answer
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import write_text


def export(machine: str, answers: Iterable[Answer], folder: Path) -> int:
    """Write the questions into ``folder/machine``; how many there are. CannotRun when that cannot be."""
    here = folder / machine
    count = 0
    try:
        here.mkdir(parents=True, exist_ok=True)
        for answer in answers:
            count += 1
            path = here / f"{count:04}-{_file_name(answer.question.name)}.smt2"
            write_text(path, _text(machine, answer))
    except OSError as problem:
        raise CannotRun(f"{here}: {problem.strerror or problem}; give another folder") from problem
    return count


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.#-]+", "_", name)


def _text(machine: str, answer: Answer) -> str:
    q = answer.question
    head = (
        f"; Machine {machine}: {q.of}, {'in ' + START if q.case == START else 'by ' + q.case}.\n"
        "; Holds for sorts of any size exactly when this is unsatisfiable.\n"
    )
    logic, body = standard(answer.text).split("\n", 1)
    return f"{head}{logic}\n(set-info :status unsat)\n{body}"
