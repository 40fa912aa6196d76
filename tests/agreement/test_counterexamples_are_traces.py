"""Every counterexample, written out as a trace, is rejected by ``check`` with the same invariant."""

from pathlib import Path

import pytest

from kvfence.checker.analysis.verify import record, verify
from kvfence.checker.ledger.check import check_trace
from kvfence.spec.designs import DESIGNS

UNSEEN = {  # what no trace of a few steps shows, or shows sooner
    "mirror_pins_starve": "a tier that could take a copy and does not is no event",
    "preempt_beside_parked": "each preemption of the endless turns gives its blocks back, as it should",
    "promotion_during_reset": "a trace tells of a reset when it is answered, not when it begins",
    "placeholder_not_rolled_back": "the trace is rejected before that, when the placeholder stays: COUNT",
}
ELSEWHERE = {  # machines without traces that the ledger judges
    "stream_order": "its traces are order traces: see test_races_and_specification.py",
}
FAULTY = [
    (name, machine)
    for name, row in DESIGNS.items()
    if row.breaks and name not in UNSEEN
    for machine in row.machines
    if machine not in ELSEWHERE
]


@pytest.mark.parametrize(("design", "machine"), FAULTY)
def test_counterexample_of_each_design_is_rejected_for_the_invariant_it_breaks(
    design: str, machine: str, tmp_path: Path
) -> None:
    row = DESIGNS[design]
    found = verify(design, machine=machine, sizes=row.sizes)
    assert found.verdict == "violated"
    assert found.counterexamples[0].invariant == row.breaks

    trace = tmp_path / "counterexample.jsonl"
    record(found, trace)
    report = check_trace(trace)
    assert report.verdict == "violated"
    assert report.violations[0].invariant == row.breaks
    shown = found.counterexamples[0]
    before_last_step = sum(len(step.observed) for step in shown.steps[:-1])
    if row.breaks != "PROGRESS":  # which no one step breaks
        assert report.violations[0].number >= before_last_step, (
            "the trace is rejected before the step that breaks the design"
        )


@pytest.mark.parametrize("design", UNSEEN)
def test_what_a_trace_does_not_show_breaks_the_design_all_the_same(design: str, tmp_path: Path) -> None:
    row = DESIGNS[design]
    found = verify(design)
    assert found.verdict == "violated"
    assert found.counterexamples[0].invariant == row.breaks
    trace = tmp_path / "counterexample.jsonl"
    record(found, trace)
    seen = {violation.invariant for violation in check_trace(trace).violations}
    assert row.breaks not in seen
    assert seen == ({"COUNT"} if design == "placeholder_not_rolled_back" else set())


def test_every_machine_has_designs_for_all_of_its_invariants() -> None:
    from kvfence.spec.catalog import INVARIANTS

    broken = {(machine, row.breaks) for row in DESIGNS.values() for machine in row.machines}
    for invariant in INVARIANTS:
        if invariant.machines:
            assert any((machine, invariant.id) in broken for machine in invariant.machines), invariant.id
