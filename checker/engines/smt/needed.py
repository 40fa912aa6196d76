"""Proves some conditions of a machine for any size, with only what they need.

Each proof shows which lemmas and invariants z3 used for a condition. These are proved in turn, until all that
is used is proved. Every answer is decided again by a fresh z3 that is given no more than that. A condition
that cannot be proved is no longer used, and what used it is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvfence.checker.engines.base import Report
from kvfence.checker.engines.smt import conditions, induction, recheck
from kvfence.checker.engines.smt.conditions import DEADLOCK, Question, Unsupported
from kvfence.checker.engines.smt.solve import SECONDS, Answer, Outcome, QuestionCount, ask, text_of, with_only
from kvfence.spec.language import Machine

CTI_SECONDS = 5.0


def named(machine: Machine, invariant: str) -> list[str]:
    """The names of all conditions and checks by which the machine states an invariant, RANGE or DEADLOCK."""
    if invariant == "DEADLOCK":
        return [DEADLOCK]
    own = [c.name for c in conditions.of_machine(machine, lemmas=False) if c.id == invariant]
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
    """A question that is answered, the conditions that its proof uses, and its text for other solvers."""

    name: str
    uses: tuple[str, ...]
    text: str
    second: bool | None = None
    asked_second: bool = False


@dataclass(eq=False)
class Prover:
    """Proves conditions of one machine, one call after the other; answers are kept between calls.

    ``false``: names of conditions that are known not to hold. ``deadline``: in ``time.perf_counter`` terms.
    ``second``: another solver that decides every question once more. CannotRun when it is not there.
    """

    machine: Machine
    false: Collection[str] = ()
    deadline: float | None = None
    second: str | None = None
    progress: Report | None = None

    def __post_init__(self) -> None:
        self.machine = self.machine.finished()
        self._decide = recheck.second_solver(self.second) if self.second else None
        known = {c.name: c for c in conditions.of_machine(self.machine)}
        self.candidates = {name: c for name, c in known.items() if name not in self.false}
        self.dropped = {name: "it is violated" for name in known if name in self.false}
        self._proved: dict[str, list[_Proved]] = {}
        self._tried_small, self._failed_case = False, ""
        self._questions_decided = QuestionCount(self.progress)

    def prove(self, names: Sequence[str]) -> Support:
        """Whether the conditions, checks or ``deadlock`` of these names hold for any size."""
        start = time.perf_counter()
        try:
            conditions.supported(self.machine)
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
        """All that the proofs of the named conditions use, and the name of one that fails, if any."""
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
            yield conditions.deadlock_question(self.machine, given)
        elif name in self.candidates:
            condition = self.candidates[name]
            yield conditions.start_question(condition)
            for action in self.machine.actions.values():
                question = conditions.step_question(condition, action, given)
                if question is not None:
                    yield question
        else:
            yield from (q for q in conditions.check_questions(self.machine, given) if q.of == name)

    def _answered(self, question: Question) -> _Proved | None:
        """The question's answer; None if it is not proved, and then its condition is dropped."""
        answer = self._ask(question)
        if answer.outcome is not Outcome.yes:
            if not self._tried_small:
                self._tried_small = True
                for name in induction.broken_when_small(self.machine, self.candidates):
                    self._drop(name, induction.BREAKS_WHEN_SMALL)
            self._drop(question.of, answer.why, question.case)
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

    def _limited(self, seconds: float) -> float:
        """``seconds``, or the time that is left if that is less."""
        return seconds if self.deadline is None else min(seconds, self.deadline - time.perf_counter())

    def _ask(self, question: Question) -> Answer:
        limit = self._limited(SECONDS)
        if limit <= 0:
            raise OutOfTime
        answer = ask(question, limit, track=bool(question.sources))
        if answer.outcome is Outcome.unknown and self._limited(SECONDS) <= 0:
            raise OutOfTime
        self._questions_decided.add()
        return answer

    def _confirmed(self, text: str) -> bool:
        return recheck.by_z3(text, recheck.SECONDS) is True

    def _drop(self, name: str, why: str, case: str = "") -> None:
        """Stops using a condition: what used it is no longer proved."""
        self.dropped.setdefault(name, why)
        self._failed_case = case
        if self.candidates.pop(name, None) is not None:
            self._proved = {
                of: answers
                for of, answers in self._proved.items()
                if of != name and all(name not in answer.uses for answer in answers)
            }

    def _explained(self, name: str) -> str:
        """Why a condition is not proved: a state that shows it, and which lemmas are not kept."""
        why = f"{name} is not proved: {self.dropped[name]}"
        left = self._limited(CTI_SECONDS)
        found = None
        if left > 0:
            assumed = [*self.candidates, name]
            found = induction.counterexample(self.machine, name, self._failed_case, assumed, left)
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
                limit = self._limited(recheck.SECOND_SECONDS)
                answer.second = self._decide(answer.text, limit) if limit > 0 else None
                answer.asked_second = True
                self._questions_decided.add()
            if answer.second is False:
                raise Unsupported(f"{self.second} says that {answer.name} does not follow")
            if answer.second is None:
                undecided.append(answer.name)
        return tuple(undecided)
