"""Proofs for sorts of any size and runs of any length.

All conditions are proved by one induction: they hold initially, and each action keeps each of them if all
held before. A condition that z3 cannot prove so is no longer assumed, and the others are asked again, until
those that are left are inductive. The rest is looked for in the runs of a finite size: found, it is violated;
else it is undetermined, and a counterexample to induction says what a lemma must exclude.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt import conditions, induction, recheck
from kvfence.checker.engines.smt.conditions import DEADLOCK, Condition, Question, Unsupported
from kvfence.checker.engines.smt.houdini import infer, with_lemmas
from kvfence.checker.engines.smt.search import Search, asked_result
from kvfence.checker.engines.smt.solve import SECONDS, Answer, Outcome, QuestionCount, ask
from kvfence.spec.language import Machine

SEARCH_DEPTH = 16  # steps of the runs in which a condition that is not proved is looked for
SEARCH_SECONDS = 60.0
CTI_SECONDS = 10.0


class Unbounded(base.Engine):
    """Proves for any number of elements of every sort, and any number of steps.

    ``folder``: where the proof is written as SMT-LIB 2 files. ``second``: the solver that decides it a second
    time. ``seconds``: the most that one question may take in one attempt. The sizes of a run are those of the
    finite runs in which counterexamples are looked for. ``infer``: when the machine's own lemmas do not
    suffice, look for others.
    """

    name = "smt"

    def __init__(
        self,
        folder: FilePath | None = None,
        second: str | None = None,
        seconds: float = SECONDS,
        search_seconds: float = SEARCH_SECONDS,
        infer: bool = False,
    ) -> None:
        self.folder, self.seconds, self.search_seconds = folder, seconds, search_seconds
        self.second, self.infer = second, infer
        self._decide = recheck.second_solver(second) if second else None

    def decide(
        self, machine: Machine, sizes: Mapping[str, int] | None, options: base.RunOptions
    ) -> base.Result:
        """Proves what it can, and searches for the rest. Goals and coverage are left to other engines."""
        start, progress = time.perf_counter(), options.report.progress
        attempt = Attempt(machine.finished(), self.seconds, progress)
        stopped: str | None = None
        search: Search | None = None
        try:
            attempt.prove()
            if attempt.open and self.infer and attempt.finished:
                own = [p for name, p in machine.lemmas.items() if name not in attempt.open]
                machine = with_lemmas(machine, [*own, *infer(machine)])
                attempt = Attempt(machine, self.seconds, progress)
                attempt.prove()
            self._decide_again(machine, attempt)
            if attempt.open:
                deadline = time.perf_counter() + self.search_seconds
                proved = {c.name for c in attempt.conditions} - set(attempt.open)
                search = Search(Interpreter(machine, sizes), options.until, deadline, ignored=proved)
                search.deepen_to(SEARCH_DEPTH)
                self._explain(machine, attempt, search)
        except KeyboardInterrupt:
            stopped = base.INTERRUPTED
        return self._result(machine, attempt, search, stopped, time.perf_counter() - start)

    def _decide_again(self, machine: Machine, attempt: Attempt) -> None:
        """Decides each proved question once more, and writes them all down."""
        proved = [a for a in attempt.answers if a.question.of not in attempt.open]
        attempt.decide_again(attempt.again, proved, recheck.by_z3, recheck.SECONDS)
        doubtful = {*attempt.again.wrong, *attempt.again.open}
        for name in (a.question.name for a in proved if a.question.name in doubtful):
            attempt.reject(f"a fresh z3 did not confirm {name}")
        if self._decide is not None:
            attempt.decide_again(attempt.second, proved, self._decide, recheck.SECOND_SECONDS)
            if attempt.second.wrong:
                attempt.reject(f"{self.second} says that {attempt.second.wrong[0]} does not follow")
        if self.folder is not None:
            recheck.export(machine.name, proved, self.folder)

    def _explain(self, machine: Machine, attempt: Attempt, search: Search) -> None:
        """Looks for a counterexample to induction for each open condition.

        Not if a violation was found, which says more, nor if nothing was asked.
        """
        if search.found or not attempt.finished:
            return
        assumed = [c.name for c in attempt.kept]
        deadline = time.perf_counter() + CTI_SECONDS
        for name in attempt.open:
            left = deadline - time.perf_counter()
            if left <= 0:
                return
            case = attempt.failures[name].question.case if name in attempt.failures else ""
            found = induction.counterexample(machine, name, case, [*assumed, name], left)
            if found is not None:
                attempt.open[name] = str(found)

    def _result(
        self, machine: Machine, attempt: Attempt, search: Search | None, stopped: str | None, seconds: float
    ) -> base.Result:
        found: dict[str, base.Path] = dict(search.found) if search else {}
        complete = stopped is None and attempt.finished
        findings: dict[str, base.Finding] = {}
        for id_, name, kind in attempt.stated():
            path = found.get(name)
            unbroken = complete and name not in attempt.open
            verdict = base.Verdict.holds if unbroken else base.Verdict.undetermined
            findings[name] = base.Finding(id_, name, kind, base.Verdict.violated if path else verdict, path)
        remaining = {name: why for name, why in attempt.open.items() if name not in found}
        if stopped is None and remaining:
            many = f"{len(remaining)} conditions were" if len(remaining) > 1 else "1 condition was"
            stopped = f"{many} not proved"
        if stopped is None and found:
            stopped = base.FIRST if search and search.stopped == base.FIRST else None
        proof = base.Proof(
            questions=attempt.asked,
            seconds=attempt.spent,
            open=remaining,
            rechecked=attempt.again.agreed,
            second=self.second,
            second_open=tuple(attempt.second.open),
            exported=str(self.folder) if self.folder else None,
        )
        return replace(asked_result(machine, search, self.name, seconds, findings, stopped), proof=proof)


class Attempt:
    """One attempt to prove a machine: ``open`` says why a condition is not proved."""

    def __init__(self, machine: Machine, limit: float, progress: base.Report | None) -> None:
        self.machine, self.limit, self.questions = machine, limit, QuestionCount(progress)
        self.conditions = conditions.of_machine(machine)
        # Lemmas are about the sound design, but may help with others: there they are tried, and not judged.
        self.judged = {c.name for c in self.conditions if c.kind != "lemma" or not machine.faults}
        self.kept: list[Condition] = []
        self.answers: list[Answer] = []
        self.failures: dict[str, Answer] = {}
        self.open: dict[str, str] = {}
        self.spent: dict[str, float] = {}
        self.asked = 0
        self.finished = False
        self.again, self.second = recheck.Checked(), recheck.Checked()

    def stated(self) -> list[tuple[str, str, base.Kind]]:
        """Every condition and check: id, name, kind."""
        checks: list[tuple[str, str, base.Kind]] = [
            (c.id, c.name, "check") for a in self.machine.actions.values() for c in a.checks
        ]
        rest = [(c.id, c.name, c.kind) for c in self.conditions if c.name in self.judged]
        return [*(r for r in rest if r[2] != "range"), *checks, *(r for r in rest if r[2] == "range")]

    def prove(self) -> None:
        """Finds the conditions that are inductive together, and what follows from them."""
        try:
            conditions.supported(self.machine)
        except Unsupported as reason:
            self.reject(str(reason))
            return
        starts = [self._ask(conditions.start_question(c)) for c in self.conditions]
        self.kept = [c for c, a in zip(self.conditions, starts, strict=True) if self._settled(a)]
        first = True
        while True:
            steps, failed = self._round(self.kept, stop=first)
            if not failed:
                break
            if first:
                broken = induction.broken_when_small(self.machine, [c.name for c in self.kept])
                for name in broken & self.judged:
                    self.open.setdefault(name, induction.BREAKS_WHEN_SMALL)
                failed |= broken
            self.kept = [c for c in self.kept if c.name not in failed]
            first = False
        rest = [
            *conditions.check_questions(self.machine, self.kept),
            conditions.deadlock_question(self.machine, self.kept),
        ]
        answers = [self._ask(q) for q in rest]
        names = {c.name for c in self.kept}
        self.answers = [
            *(a for a in (*starts, *steps) if a.question.of in names),
            *(a for a in answers if self._settled(a)),
        ]
        self.finished = True

    def _round(self, given: Sequence[Condition], stop: bool) -> tuple[list[Answer], set[str]]:
        """Whether every action keeps each of ``given``: the answers, and the conditions that are not kept.

        ``stop``: end at the first that is not.
        """
        answers, failed = [], set()
        for c in given:
            for action in self.machine.actions.values():
                question = conditions.step_question(c, action, given)
                if question is None:
                    continue
                answer = self._ask(question)
                answers.append(answer)
                if not self._settled(answer):
                    failed.add(c.name)
                    break
            if stop and failed:
                break
        return answers, failed

    def _ask(self, question: Question) -> Answer:
        answer = ask(question, self.limit)
        self.asked += 1
        self.spent[question.of] = self.spent.get(question.of, 0.0) + answer.seconds
        self.questions.add()
        return answer

    def decide_again(
        self, checked: recheck.Checked, proved: Sequence[Answer], decide: recheck.Decide, seconds: float
    ) -> None:
        """Decides questions by another solver, and counts them."""
        for answer in proved:
            checked.decide(answer.question.name, answer.text, decide, seconds)
            self.questions.add()

    def _settled(self, answer: Answer) -> bool:
        """Whether the answer is yes; if not, its condition is open."""
        if answer.outcome is Outcome.yes:
            return True
        name = answer.question.of
        if name not in {c.name for c in self.conditions} - self.judged:
            self.failures.setdefault(name, answer)
            self.open.setdefault(name, answer.why)
        return False

    def reject(self, why: str) -> None:
        """Leaves every condition open, for this reason."""
        for _, name, _ in self.stated():
            self.open.setdefault(name, why)
        self.open.setdefault(DEADLOCK, why)
