"""Spacer is not believed: whatever its process does, the verdict is right."""

import sys

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.smt.spacer import Spacer
from kvfence.spec.machines import MACHINES


def _saying(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"import sys; sys.stdin.read(); print({text!r})"


def test_an_invariant_that_spacer_finds_is_confirmed() -> None:
    result = Spacer(depth=2).run(small.lock())
    assert result.verdict is Verdict.holds


def test_a_violation_is_found_before_spacer_is_asked() -> None:
    result = Spacer(depth=2, command=_saying("sat")).run(small.lock(forgetful=True))
    assert [len(p) for p in result.violated] == [2]


LIES = {
    "everything": ("sat\n(assert true)", "does not imply the conditions"),
    "nothing": ("sat\n(assert false)", "does not hold initially"),
    "the initial state": ("sat\n(assert (and c3 (not c0) (not c1) (not c2)))", "is not kept by every step"),
    "not a formula": ("sat\n(assert (and c0", "is not a formula over the state"),
    "other variables": ("sat\n(assert nonsense)", "is not a formula over the state"),
    "a violation that is none": ("unsat", "no run of a few steps shows it"),
    "no answer": ("unknown", "did not decide"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_undetermined_and_the_reason_is_given(lie: str) -> None:
    text, reason = LIES[lie]
    result = Spacer(depth=2, command=_saying(text)).run(small.lock())
    assert result.verdict is Verdict.undetermined
    assert Verdict.holds not in {f.verdict for f in result.findings.values()}
    assert reason in (result.stopped or "")


def test_a_lie_about_a_wrong_machine_does_not_hide_its_fault() -> None:
    result = Spacer(depth=1, command=_saying("sat\n(assert true)")).run(small.lock(forgetful=True))
    assert result.verdict is Verdict.undetermined


@pytest.mark.parametrize(
    ("program", "seconds", "reason"),
    [("import os; os.abort()", 60.0, "exit code"), ("import time; time.sleep(600)", 2.0, "did not answer")],
)
def test_a_process_that_crashes_or_hangs_is_undetermined_and_ended(
    program: str, seconds: float, reason: str
) -> None:
    spacer = Spacer(depth=2, seconds=seconds, command=(sys.executable, "-c", program))
    result = spacer.run(small.lock())
    assert result.verdict is Verdict.undetermined
    assert reason in (result.stopped or "")


@pytest.mark.slow
def test_spacer_answers_rightly_or_not_at_all_for_the_pool() -> None:
    result = Spacer(depth=2).run(MACHINES["block_pool"](frozenset()), {"Block": 2, "Holder": 1, "Key": 1})
    assert result.verdict in (Verdict.holds, Verdict.undetermined)
