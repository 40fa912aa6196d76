"""Proofs for sorts of any size and runs of any length.

All conditions are proved by one induction: they hold initially, and each action keeps each of them when all
held before. A condition that z3 cannot prove so is taken out of what is assumed, and the rest is asked again,
until what is left keeps itself. What was taken out is looked for in the runs of a finite size: found, it is
violated; else it is undetermined, and a counterexample to induction says what a lemma must exclude.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from kvfence.checker.engines.base import (
    FIRST,
    Bounds,
    Engine,
    Finding,
    Kind,
    Path,
    Progress,
    Proof,
    Report,
    Result,
    Until,
    Verdict,
)
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt import conditions as say
from kvfence.checker.engines.smt import induction, recheck
from kvfence.checker.engines.smt.bmc import INTERRUPTED, Search
from kvfence.checker.engines.smt.conditions import DEADLOCK, Condition, Question, Unsupported
from kvfence.checker.engines.smt.export import export
from kvfence.checker.engines.smt.houdini import infer, with_lemmas
from kvfence.checker.engines.smt.solve import SECONDS, Answer, Outcome, ask
from kvfence.spec.language import Machine, SpecError

SEARCH_DEPTH = 16  # steps of the runs in which a condition that is not proved is looked for
SEARCH_SECONDS = 60.0
CTI_SECONDS = 10.0
SMALL = 2  # elements of each sort when steps are tried before z3 is asked about any size


class Unbounded(Engine):
    """Proves for any number of elements of every sort, and any number of steps.

    ``folder``: where the proof goes as SMT-LIB 2 files. ``second``: the solver that decides it a second time.
    ``seconds``: the most that one question may take in one attempt. The sizes that a run is given are those
    of the finite runs in which counterexamples are looked for. ``infer``: when the machine's own lemmas are
    not enough, look for others.
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

    def run(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        *,
        until: Until = "end",
        bounds: Bounds | None = None,  # noqa: ARG002 (unbounded Ints stay unbounded)
        max_states: int | None = None,  # noqa: ARG002 (no state is stored)
        memory: int | None = None,  # noqa: ARG002
        progress: Report | None = None,
    ) -> Result:
        """See ``Engine.run``. Goals and coverage are left to the engines that explore."""
        start = time.perf_counter()
        machine.finished()
        attempt = Attempt(machine, self.seconds, progress, start)
        stopped: str | None = None
        search: Search | None = None
        try:
            attempt.prove()
            if attempt.open and self.infer and attempt.finished:
                own = [p for name, p in machine.lemmas.items() if name not in attempt.open]
                machine = with_lemmas(machine, [*own, *infer(machine)])
                attempt = Attempt(machine, self.seconds, progress, start)
                attempt.prove()
            self._look_again(machine, attempt)
            if attempt.open:
                search = self._search(machine, sizes, attempt, until)
                self._explain(machine, attempt, search)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        return self._result(machine, attempt, search, stopped, time.perf_counter() - start)

    def _look_again(self, machine: Machine, attempt: Attempt) -> None:
        """Decide each proved question once more, and write it down."""
        proved = [a for a in attempt.answers if a.question.of not in attempt.open]
        for answer in proved:
            attempt.again.look(answer.question.name, answer.text, recheck.by_z3, recheck.SECONDS)
            attempt.count()
        doubtful = {*attempt.again.wrong, *attempt.again.open}
        for answer in proved:
            if answer.question.name in doubtful:
                why = f"a fresh z3 did not confirm {answer.question.name}"
                attempt.reject(why)
                break
        if self._decide is not None:
            for answer in proved:
                attempt.second.look(answer.question.name, answer.text, self._decide, recheck.SECOND_SECONDS)
                attempt.count()
            if attempt.second.wrong:
                attempt.reject(f"{self.second} says that {attempt.second.wrong[0]} does not follow")
        if self.folder is not None:
            export(machine.name, proved, self.folder)

    def _search(
        self, machine: Machine, sizes: Mapping[str, int] | None, attempt: Attempt, until: Until
    ) -> Search:
        """Look for the open conditions in runs of a finite size."""
        search = Search(Interpreter(machine, sizes))
        search.ignored = {c.name for c in attempt.conditions} - set(attempt.open)
        search.go(SEARCH_DEPTH, until, time.perf_counter() + self.search_seconds)
        if search.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        return search

    def _explain(self, machine: Machine, attempt: Attempt, search: Search) -> None:
        """Say of what is open why it is not proved; not where a violation was found, which says more.

        Nor where nothing was asked, for a reason that is known.
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
    ) -> Result:
        found: dict[str, Path] = dict(search.found) if search else {}
        complete = stopped is None and attempt.finished
        findings: dict[str, Finding] = {}
        for id_, name, kind in attempt.stated():
            path = found.get(name)
            sure = complete and name not in attempt.open
            unbroken = Verdict.holds if sure else Verdict.undetermined
            verdict = unbroken if path is None else Verdict.violated
            findings[name] = Finding(id_, name, kind, verdict, path)
        remaining = {name: why for name, why in attempt.open.items() if name not in found}
        if stopped is None and remaining:
            many = f"{len(remaining)} conditions were" if len(remaining) > 1 else "1 condition was"
            stopped = f"{many} not proved"
        if stopped is None and found:
            stopped = FIRST if search and search.stopped == FIRST else None
        return Result(
            machine=machine.name,
            faults=tuple(sorted(machine.faults)),
            sizes=search.grounded.sizes if search else {},
            engine=self.name,
            states=0,
            transitions=0,
            depth=max(search.depth, 0) if search else 0,
            seconds=seconds,
            findings=findings,
            coverage={},
            goals={},
            deadlock=found.get(DEADLOCK),
            stopped=stopped,
            proof=Proof(
                questions=attempt.asked,
                seconds=attempt.spent,
                open=remaining,
                rechecked=attempt.again.agreed,
                second=self.second,
                second_open=tuple(attempt.second.open),
                exported=str(self.folder) if self.folder else None,
            ),
        )


@dataclass
class Attempt:
    """One attempt to prove a machine: ``open`` says why a condition is not proved."""

    machine: Machine
    limit: float
    progress: Report | None
    started: float
    conditions: list[Condition] = field(default_factory=list)
    kept: list[Condition] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    failures: dict[str, Answer] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    asked: int = 0
    finished: bool = False
    again: recheck.Checked = field(default_factory=recheck.Checked)
    second: recheck.Checked = field(default_factory=recheck.Checked)

    def __post_init__(self) -> None:
        # Lemmas are about the sound design, but may help with others: there they are tried, and not judged.
        self.conditions = say.conditions(self.machine)
        self.judged = {c.name for c in self.conditions if c.kind != "lemma" or not self.machine.faults}
        self.done = 0

    def stated(self) -> list[tuple[str, str, Kind]]:
        """Every condition and check: id, name, kind."""
        checks: list[tuple[str, str, Kind]] = [
            (c.id, c.name, "check") for a in self.machine.actions.values() for c in a.checks
        ]
        rest = [(c.id, c.name, c.kind) for c in self.conditions if c.name in self.judged]
        return [*(r for r in rest if r[2] != "range"), *checks, *(r for r in rest if r[2] == "range")]

    def prove(self) -> None:
        """Find out what keeps itself, and what follows from it."""
        try:
            say.supported(self.machine)
        except Unsupported as reason:
            self.reject(str(reason))
            return
        starts = [self._ask(say.start_question(c)) for c in self.conditions]
        self.kept = [c for c, a in zip(self.conditions, starts, strict=True) if self._settled(a)]
        first = True
        while True:
            steps, failed = self._round(self.kept, stop=first)
            if not failed:
                break
            if first:
                failed |= self._broken_when_small()
            self.kept = [c for c in self.kept if c.name not in failed]
            first = False
        rest = [*say.check_questions(self.machine, self.kept), say.deadlock_question(self.machine, self.kept)]
        answers = [self._ask(q) for q in rest]
        for a in answers:
            self._settled(a)
        names = {c.name for c in self.kept}
        self.answers = [
            *(a for a in (*starts, *steps) if a.question.of in names),
            *(a for a in answers if a.outcome is Outcome.yes),
        ]
        self.finished = True

    def _broken_when_small(self) -> set[str]:
        """What some step breaks at a small size already, whatever else holds: there is no need to ask."""
        try:
            step = induction.Inductive(self.machine, dict.fromkeys(self.machine.sorts, SMALL))
        except SpecError:
            return set()
        names = [c.name for c in self.kept if c.name in step.names]
        broken = set(names) - set(step.keep_themselves(names))
        for name in broken & self.judged:
            self.open.setdefault(name, f"a step breaks it when every sort has {SMALL} elements")
        return broken

    def _round(self, given: Sequence[Condition], stop: bool) -> tuple[list[Answer], set[str]]:
        """Ask whether every action keeps each of ``given``; the answers, and what is not kept.

        ``stop``: at the first that is not.
        """
        answers, failed = [], set()
        for c in given:
            for action in self.machine.actions.values():
                question = say.step_question(c, action, given)
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
        self.count()
        return answer

    def count(self) -> None:
        """Tell how many questions have been decided."""
        self.done += 1
        if self.progress is not None:
            rate = self.done / max(time.perf_counter() - self.started, 1e-9)
            self.progress(Progress(self.done, 0, 0, rate, unit="questions"))

    def _settled(self, answer: Answer) -> bool:
        if answer.outcome is Outcome.yes:
            return True
        q = answer.question
        if q.of in {c.name for c in self.conditions} - self.judged:
            return False
        why = answer.reason or f"z3 has a state in which it fails ({q.case})"
        self.failures.setdefault(q.of, answer)
        self.open.setdefault(q.of, why)
        return False

    def reject(self, why: str) -> None:
        """Nothing is proved, for this reason."""
        for _, name, _ in self.stated():
            self.open.setdefault(name, why)
        self.open.setdefault(DEADLOCK, why)
