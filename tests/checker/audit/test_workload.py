"""What is drawn: cases that fit, with some features each, and every feature in some of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvfence.checker.audit.cases.case import Abort, Case, Fail, Hold, Reset, Submit, problem_of
from kvfence.checker.audit.cases.setup_features import Reach
from kvfence.checker.audit.cases.swarm import ODDS, features
from kvfence.checker.audit.cases.workload import case_of
from kvfence.checker.audit.targets import REFERENCE, VLLM

MANY = 600


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    return [case_of(VLLM, random.Random(seed)) for seed in range(MANY)]


def test_what_is_drawn_can_be_driven(drawn: list[Case]) -> None:
    assert [problem for case in drawn if (problem := problem_of(case))] == []


def test_a_case_depends_on_nothing_but_where_it_is_drawn_from() -> None:
    assert case_of(VLLM, random.Random(7)) == case_of(VLLM, random.Random(7))
    assert case_of(VLLM, random.Random(7)) != case_of(VLLM, random.Random(8))


@pytest.mark.parametrize(
    ("reach", "lacks"),
    [
        (VLLM, {"repeats"}),
        (REFERENCE, {"stages", "unchunked", "priority", "drafts", "second", "late launches"}),
    ],
    ids=["vllm", "reference"],
)
def test_each_feature_is_on_in_some_cases_and_off_in_others(reach: Reach, lacks: set[str]) -> None:
    counts = Counter(name for seed in range(MANY) for name in features(reach, random.Random(seed)))
    assert set(counts) == set(ODDS) - lacks
    assert max(counts.values()) < MANY


def test_all_that_production_runs_is_drawn(drawn: list[Case]) -> None:
    setups = [case.setup for case in drawn]
    actions = [action for case in drawn for action in case.actions]
    for drawn_somewhere in (
        any(setup.priority for setup in setups),
        any(setup.ranks > 1 and setup.stages > 1 for setup in setups),
        any(setup.drafts for setup in setups),
        any(setup.drafts and setup.depth > 1 for setup in setups),
        any(setup.lazy for setup in setups),
        any(setup.tier == "disk" for setup in setups),
        any(setup.second_connector for setup in setups),
        any(not setup.chunked for setup in setups),
        any(len(setup.windows) > 2 for setup in setups),
        any(isinstance(action, Reset) and action.running for action in actions),
        any(isinstance(action, Reset) and not action.tier for action in actions),
        any(isinstance(action, Fail) for action in actions),
        any(isinstance(action, Hold) for action in actions),
        any(isinstance(action, Submit) and action.after >= 0 for action in actions),
    ):
        assert drawn_somewhere


def test_pipelines_do_not_draft(drawn: list[Case]) -> None:
    assert not any(case.setup.drafts and case.setup.stages > 1 for case in drawn)


def test_an_abort_among_the_living_counts_from_the_last_one() -> None:
    assert Abort(0, live=True).chosen(9, (2, 5, 7)) == 7
    assert Abort(2, live=True).chosen(9, (2, 5, 7)) == 2
    assert Abort(3, live=True).chosen(9, (2, 5, 7)) == 7
    assert Abort(3, live=True).chosen(9, ()) == -1
    assert Abort(3).chosen(9, (2, 5, 7)) == 3
    assert Abort(9).chosen(9, (2, 5, 7)) == -1


def test_an_abort_of_one_that_waits_takes_another_when_none_does() -> None:
    assert Abort(0, live=True, waits=True).chosen(9, (2, 5, 7), (2, 5)) == 5
    assert Abort(1, live=True, waits=True).chosen(9, (2, 5, 7), (2, 5)) == 2
    assert Abort(0, live=True, waits=True).chosen(9, (2, 5, 7)) == 7
    assert Abort(0, live=True).chosen(9, (2, 5, 7), (2, 5)) == 7


def test_events_wait_for_a_request_that_waits_where_the_target_can_tell(drawn: list[Case]) -> None:
    def waits(case: Case) -> bool:
        return any(getattr(action, "until_waits", False) for action in case.actions)

    assert not any(map(waits, drawn))
    able = [case_of(REFERENCE, random.Random(seed)) for seed in range(100)]
    assert 20 < sum(map(waits, able)) < 100
    assert any(isinstance(a, Abort) and a.waits for case in able for a in case.actions)
    assert [problem for case in able if (problem := problem_of(case))] == []
