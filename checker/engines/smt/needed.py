"""Proves some conditions of a machine for any size, with only what they need.

What the step of a condition leans on is read off each proof: the lemmas and invariants that z3 made use of.
They are proved in turn, until what is needed keeps itself. Every answer is decided again by a new z3 that
is given no more than that. What cannot be proved is leant on no longer, and what leant on it is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvfence.checker.engines.base import Progress, Report
from kvfence.checker.engines.smt import conditions as say
from kvfence.checker.engines.smt import induction, recheck
from kvfence.checker.engines.smt.conditions import DEADLOCK, Question, Unsupported
from kvfence.checker.engines.smt.solve import SECONDS, Answer, Outcome, ask, text_of, with_only
from kvfence.spec.language import Machine, SpecError

CTI_SECONDS = 5.0
SMALL = 2  # elements of each sort when steps are tried before z3 is asked about any size


def named(machine: Machine, invariant: str) -> list[str]:
    """The names of all conditions and checks by which the machine states an invariant, RANGE or DEADLOCK."""
    if invariant == "DEADLOCK":
        return [DEADLOCK]
    own = [c.name for c in say.conditions(machine, lemmas=False) if c.id == invariant]
    checks = [c.name for a in machine.actions.values() for c in a.checks if c.id == invariant]
    return list(dict.fromkeys((*own, *checks)))


class OutOfTime(Exception):  # noqa: N818 (not a fault: the reason why an answer stays undetermined)
    """The time for all proofs is over."""


@dataclass(frozen=True)
class Support:
    """Why conditions hold for any size, or why that is not known.

    ``open`` is empty if they are proved, and says else what failed. ``needs``: the names of all conditions
    that the induction keeps, lemmas among them. ``questions`` were each decided again by a new z3; the
    second solver decided all but ``second_open``. ``seconds`` of this attempt alone: what an earlier one had
    proved costs nothing.
    """

    open: str
    needs: tuple[str, ...] = ()
    questions: int = 0
    second_open: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class _Proved:
    """A question that is answered, with the conditions it leans on, and its text for other solvers."""

    name: str
    uses: tuple[str, ...]
    text: str
    second: bool | None = None
    asked_second: bool = False


class Prover:
    """Proves conditions of one machine, one call after the other; answers are kept between calls.

    ``false``: names of conditions that are known not to hold. ``deadline``: in ``time.perf_counter`` terms.
    ``second``: another solver that decides every question once more. CannotRun when it is not there.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        false: Collection[str] = (),
        deadline: float | None = None,
        second: str | None = None,
        progress: Report | None = None,
    ) -> None:
        self.machine = machine.finished()
        self.deadline, self.progress = deadline, progress
        self.second = second
        self._decide = recheck.second_solver(second) if second else None
        known = {c.name: c for c in say.conditions(self.machine)}
        self.candidates = {name: c for name, c in known.items() if name not in false}
        self.dropped = {name: "it is violated" for name in known if name in false}
        self._proved: dict[str, list[_Proved]] = {}
        self._tried_small, self._failed_case = False, ""
        self._asked, self._started = 0, time.perf_counter()

    def prove(self, names: Sequence[str]) -> Support:
        """Whether the conditions, checks or ``deadlock`` of these names hold for any size."""
        start = time.perf_counter()
        try:
            say.supported(self.machine)
            while True:
                needs, failed = self._closed(names)
                if not failed:
                    break
                if failed in names:
                    return Support(self._explained(failed), seconds=time.perf_counter() - start)
            undecided = self._by_second(needs)
        except Unsupported as reason:
            return Support(str(reason), seconds=time.perf_counter() - start)
        except OutOfTime:
            return Support("the time for proofs was over", seconds=time.perf_counter() - start)
        answers = sum(len(self._proved[name]) for name in needs)
        keeps = tuple(name for name in needs if name in self.candidates)
        return Support("", keeps, answers, undecided, time.perf_counter() - start)

    def _closed(self, names: Sequence[str]) -> tuple[list[str], str]:
        """All that the named conditions lean on; or the name of one that is not proved, and is dropped."""
        needs = list(dict.fromkeys(names))
        for name in needs:  # grows meanwhile
            if name not in self._proved:
                answers = []
                for question in self._questions(name):
                    answer = self._answered(question)
                    if answer is None:
                        return needs, name
                    answers.append(answer)
                self._proved[name] = answers
            for used in (used for answer in self._proved[name] for used in answer.uses):
                if used not in needs:
                    needs.append(used)
        return needs, ""

    def _questions(self, name: str) -> Iterator[Question]:
        given = list(self.candidates.values())
        if name == DEADLOCK:
            yield say.deadlock_question(self.machine, given)
        elif name in self.candidates:
            condition = self.candidates[name]
            yield say.start_question(condition)
            for action in self.machine.actions.values():
                question = say.step_question(condition, action, given)
                if question is not None:
                    yield question
        else:
            yield from (q for q in say.check_questions(self.machine, given) if q.of == name)

    def _answered(self, question: Question) -> _Proved | None:
        """The question's answer; None if it is not proved, and then its condition is dropped."""
        answer = self._ask(question)
        if answer.outcome is not Outcome.yes:
            if not self._tried_small:
                self._drop_what_breaks_when_small()
            why = answer.reason or f"z3 has a state in which it fails ({question.case})"
            self._drop(question.of, why, question.case)
            return None
        places = answer.used if answer.used is not None else range(len(question.given))
        less = with_only(question, places) if question.sources else question
        text = text_of(less)
        if not self._confirmed(text):
            less, text = question, answer.text
            if not self._confirmed(text):
                self._drop(question.of, f"a fresh z3 did not confirm {question.name}", question.case)
                return None
        return _Proved(question.name, tuple(dict.fromkeys(s for s in less.sources if s)), text)

    def _ask(self, question: Question) -> Answer:
        limit = SECONDS
        if self.deadline is not None:
            limit = min(limit, self.deadline - time.perf_counter())
            if limit <= 0:
                raise OutOfTime
        answer = ask(question, limit, track=bool(question.sources))
        late = self.deadline is not None and time.perf_counter() >= self.deadline
        if answer.outcome is Outcome.unknown and late:
            raise OutOfTime
        self._count()
        return answer

    def _confirmed(self, text: str) -> bool:
        return recheck.by_z3(text, recheck.SECONDS) is True

    def _count(self) -> None:
        self._asked += 1
        if self.progress is not None:
            rate = self._asked / max(time.perf_counter() - self._started, 1e-9)
            self.progress(Progress(self._asked, 0, 0, rate, unit="questions"))

    def _drop(self, name: str, why: str, case: str = "") -> None:
        """Lean on a condition no more: what did is proved no longer."""
        self.dropped.setdefault(name, why)
        self._failed_case = case
        if self.candidates.pop(name, None) is not None:
            self._proved = {
                of: answers
                for of, answers in self._proved.items()
                if of != name and all(name not in answer.uses for answer in answers)
            }

    def _drop_what_breaks_when_small(self) -> None:
        """What some step breaks at a small size already, whatever else holds, need not be asked about."""
        self._tried_small = True
        try:
            step = induction.Inductive(self.machine, dict.fromkeys(self.machine.sorts, SMALL))
        except SpecError:
            return
        names = [name for name in self.candidates if name in step.names]
        for name in set(names) - set(step.keep_themselves(names)):
            self._drop(name, f"a step breaks it when every sort has {SMALL} elements")

    def _explained(self, name: str) -> str:
        """Why a condition is not proved: a state that shows it, and which lemmas are not kept."""
        why = f"{name} is not proved: {self.dropped[name]}"
        left = CTI_SECONDS if self.deadline is None else self.deadline - time.perf_counter()
        found = None
        if left > 0:
            assumed = [*self.candidates, name]
            found = induction.counterexample(
                self.machine, name, self._failed_case, assumed, min(left, CTI_SECONDS)
            )
        lemmas = [lemma for lemma in self.machine.lemmas if lemma in self.dropped and lemma != name]
        broken = f"; lemmas that are not kept: {', '.join(lemmas)}" if lemmas else ""
        return (str(found) if found is not None else why) + broken

    def _by_second(self, needs: Collection[str]) -> tuple[str, ...]:
        """What the second solver did not decide. OutOfTime, Unsupported if it objects."""
        if self._decide is None:
            return ()
        undecided = []
        for answer in (answer for name in needs for answer in self._proved[name]):
            if not answer.asked_second:
                limit = recheck.SECOND_SECONDS
                if self.deadline is not None:
                    limit = min(limit, self.deadline - time.perf_counter())
                answer.second = self._decide(answer.text, limit) if limit > 0 else None
                answer.asked_second = True
                self._count()
            if answer.second is False:
                raise Unsupported(f"{self.second} says that {answer.name} does not follow")
            if answer.second is None:
                undecided.append(answer.name)
        return tuple(undecided)
