from __future__ import annotations

from kvfence.checker.audit.cases.case import Abort, Action, Case, Setup, Step, Submit, problem_of
from kvfence.checker.audit.cases.shrink import shrink, without


def always() -> bool:
    return True


def big_case() -> Case:
    actions: list[Action] = [Submit(20, 8, family=1, shared=20), Step(9), Submit(12, 4, after=0), Step(3)]
    actions += [Submit(16, 4), Step(4), Abort(2), Step(16), Submit(8, 8, family=2), Abort(3)]
    return Case(Setup(gpu_blocks=40, lazy=True, delay=12, seed=99, depth=2), tuple(actions))


def test_only_what_matters_is_left() -> None:
    def an_abort_after_a_long_request(case: Case) -> bool:
        submits = [a for a in case.actions if isinstance(a, Submit)]
        return any(isinstance(a, Abort) and submits[a.request].prompt >= 7 for a in case.actions)

    small = shrink(big_case(), an_abort_after_a_long_request, always)
    assert small.actions == (Submit(7, 1), Abort(0))
    assert small.setup == Setup(gpu_blocks=40)


def test_what_need_not_wait_for_a_moment_does_not() -> None:
    case = Case(Setup(), (Submit(4, 1), Step(2, until_waits=True), Abort(1, live=True, waits=True)))
    small = shrink(case, lambda candidate: len(candidate.actions) == 3, always)
    assert small.actions == (Submit(1, 1), Step(1), Abort(0, live=True))


def test_what_shows_nothing_smaller_stays_as_it_is() -> None:
    case = big_case()
    assert shrink(case, lambda candidate: candidate == case, always) == case


def test_no_more_time_ends_it_with_the_smallest_so_far() -> None:
    left = iter([True] * 12)
    small = shrink(big_case(), lambda _: True, lambda: next(left, False))
    assert small.size < big_case().size


def test_requests_are_numbered_anew_when_one_before_them_is_left_out() -> None:
    case = Case(Setup(), (Submit(4, 1), Submit(8, 1), Submit(2, 1, after=1), Abort(2), Abort(0)))
    assert without(case, 0, 1).actions == (Submit(8, 1), Submit(2, 1, after=0), Abort(1))
    assert without(case, 1, 2).actions == (Submit(4, 1), Abort(0))


def test_every_candidate_can_be_driven() -> None:
    tried: list[Case] = []

    def shows(case: Case) -> bool:
        tried.append(case)
        return len(tried) % 3 == 0

    shrink(big_case(), shows, lambda: len(tried) < 300)
    assert tried
    assert not [case for case in tried if problem_of(case)]
