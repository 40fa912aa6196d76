"""Every counterexample, written out as a trace, is rejected by ``check`` with the same invariant."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.checker.monitor.check import check_trace
from kvfence.checker.verify import record, verify
from kvfence.spec.designs import DESIGNS

FAULTY = [
    (name, machine)
    for name, row in DESIGNS.items()
    if row.breaks
    for machine in row.machines
    if machine != "stream_order"  # its traces are order traces: see test_races_and_specification.py
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
    assert report.violations[0].number >= before_last_step, (
        "the trace is rejected before the step that breaks the design"
    )


def test_every_machine_has_designs_for_all_of_its_invariants() -> None:
    from kvfence.spec.catalog import INVARIANTS

    broken = {(machine, row.breaks) for row in DESIGNS.values() for machine in row.machines}
    for invariant in INVARIANTS:
        if invariant.machines:
            assert any((machine, invariant.id) in broken for machine in invariant.machines), invariant.id
