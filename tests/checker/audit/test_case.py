from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from kvfence.checker.audit.cases.case import (
    Abort,
    Case,
    Fail,
    Hold,
    Reset,
    Setup,
    Step,
    Submit,
    as_json,
    lengths,
    problem_of,
    read_case,
)
from kvfence.checker.audit.cases.workload import cases
from kvfence.checker.audit.targets import REFERENCE, VLLM
from kvfence.spec.errors import CannotRun

ONE_OF_EACH = Case(
    Setup(windows=(0, 8), depth=2),
    (Submit(8, 4), Step(3), Submit(3, 2, after=0), Abort(0), Reset(True), Hold(5), Fail()),
)


def test_a_case_is_the_same_after_writing_and_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(as_json(ONE_OF_EACH))
    assert read_case(file) == ONE_OF_EACH


def test_a_request_that_goes_on_after_another_has_the_tokens_of_both() -> None:
    assert lengths(ONE_OF_EACH) == [12, 17]


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (Case(Setup(gpu_blocks=1), ()), "gpu_blocks is 1; it must be at least 2"),
        (Case(Setup(windows=(4,)), ()), "full attention"),
        (Case(Setup(fail_rate=2.0), ()), "fail_rate is 2.0"),
        (Case(Setup(), (Submit(0, 1),)), "cannot run"),
        (Case(Setup(), (Submit(4, 1, after=0),)), "not submitted before"),
        (Case(Setup(gpu_blocks=4), (Submit(80, 1),)), "does not fit into 4 GPU blocks"),
    ],
)
def test_what_cannot_be_driven_is_refused_with_a_reason(case: Case, told: str, tmp_path: Path) -> None:
    assert told in problem_of(case)
    file = tmp_path / "case.json"
    file.write_text(as_json(case))
    with pytest.raises(CannotRun, match=r"case\.json: "):
        read_case(file)


def test_a_file_that_is_no_case_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text('{"setup": {"gpu_slots": 3}, "actions": []}')
    with pytest.raises(CannotRun, match=r"is not a case of an audit.*gpu_slots"):
        read_case(file)
    with pytest.raises(CannotRun, match="cannot be read"):
        read_case(tmp_path / "missing.json")


@given(cases(VLLM))
def test_every_case_drawn_for_vllm_can_be_driven(case: Case) -> None:
    assert problem_of(case) == ""


@given(cases(REFERENCE))
def test_every_case_drawn_for_the_reference_keeps_to_what_it_has(case: Case) -> None:
    assert problem_of(case) == ""
    setup = case.setup
    assert setup.stages == 1
    assert setup.drafts == 0
    assert not setup.priority
    assert not setup.second_connector
