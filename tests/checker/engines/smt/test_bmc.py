"""Bounded model checking finds what exploring finds, after as few steps, and claims only what it searched."""

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.smt.bmc import BMC
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

# Bounded model checking asks for states, and no state violates a liveness property. What can be asked of runs
# that violate one by stopping is in test_bmc_of_liveness.py.
PAIRS = [(d.name, m) for d in DESIGNS.values() if d.breaks not in ("", "PROGRESS") for m in d.machines]
# Designs whose shortest counterexample z3 needs many seconds for.
DEEP = {
    *("free_on_abort", "leak_on_abort", "ignore_generation", "keep_label_on_failure"),
    *("reset_ignores_in_flight", "reset_one_tier", "register_before_landing", "lost_completion"),
}


@pytest.mark.parametrize(
    ("design", "machine"), [pytest.param(*p, marks=[pytest.mark.slow] if p[0] in DEEP else []) for p in PAIRS]
)
def test_a_faulty_design_is_refuted_after_as_few_steps_as_by_exploring(design: str, machine: str) -> None:
    row = DESIGNS[design]
    built = MACHINES[machine](row.faults)
    sizes = {sort: size for sort, size in row.sizes.items() if sort in built.sorts}
    explored = Explore().run(built, sizes, until="first")
    shortest = len(explored.violated[0])
    found = BMC(depth=shortest).run(built, sizes, until="first")
    assert found.violated
    assert {(p.id, len(p)) for p in found.violated} == {(p.id, len(p)) for p in explored.violated}
    run = Interpreter(built, sizes)
    for path in found.violated:  # the path is one of the machine's
        state = run.initial()
        for step in path.steps:
            state, _ = run.step(state, run.find(step.action, **step.args))


def test_what_was_not_searched_is_undetermined() -> None:
    result = BMC(depth=2).run(small.lock())
    assert result.verdict is Verdict.undetermined
    assert {f.verdict for f in result.findings.values()} == {Verdict.undetermined}
    assert result.stopped == "runs of more than 2 steps were not searched"


def test_where_no_run_is_longer_the_search_is_complete() -> None:
    result = BMC(depth=9).run(small.stuck())
    assert result.stopped is None
    assert result.findings["not_negative"].verdict is Verdict.holds
    assert (result.deadlock and len(result.deadlock)) == len(Explore().run(small.stuck()).violated[0]) == 4


def test_no_violation_is_missed_one_step_below_the_shortest() -> None:
    assert BMC(depth=1).run(small.lock(forgetful=True)).violated == ()
    assert [len(p) for p in BMC(depth=2).run(small.lock(forgetful=True)).violated] == [2]


def test_unbounded_integers_are_searched_too() -> None:
    result = BMC(depth=3).run(small.counted(wrong_by=1), {"Seat": 2}, until="first")
    assert [(p.id, len(p)) for p in result.violated] == [("COUNT", 1)]


def test_time_that_is_over_is_said() -> None:
    result = BMC(depth=50, seconds=0.0).run(small.lock())
    assert result.verdict is Verdict.undetermined
    assert "time was over" in (result.stopped or "")
