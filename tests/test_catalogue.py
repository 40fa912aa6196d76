"""One catalogue row names where an invariant is specified, proved, asserted and monitored: so it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.checker.engines.smt.conditions import of_machine as conditions_of
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.declared import RULES
from kvfence.reference.designs.faulty import FAULTS
from kvfence.spec import events as ev
from kvfence.spec.catalog import INVARIANTS, Invariant
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

ROOT = Path(__file__).parents[1]
BUILT = {name: build(frozenset()) for name, build in MACHINES.items()}
EACH = pytest.mark.parametrize("row", INVARIANTS, ids=lambda row: row.id)


def stated_as_safety(machine: Machine, id_: str) -> bool:
    checks = {check.id for action in machine.actions.values() for check in action.checks}
    return id_ in checks or id_ in {condition.id for condition in conditions_of(machine)}


def test_there_are_twenty() -> None:
    assert len({row.id for row in INVARIANTS}) == len(INVARIANTS) == 20


@EACH
def test_it_is_specified_in_each_machine_that_the_row_names_and_in_no_other(row: Invariant) -> None:
    promised = {name for name, m in BUILT.items() if row.id in {p.id for p in m.liveness.values()}}
    stated = {name for name, machine in BUILT.items() if stated_as_safety(machine, row.id)}
    assert set(row.machines) == stated | promised != set()


@EACH
def test_it_is_proved_for_any_size_or_judged_of_whole_runs_at_stated_sizes(row: Invariant) -> None:
    """Each machine's conditions are all proved: tests/checker/engines/smt/test_unbounded.py."""
    assert set(row.proved) == {name for name in row.machines if stated_as_safety(BUILT[name], row.id)}
    for name in set(row.machines) - set(row.proved):
        assert row.kind == "progress"
        assert BUILT[name].liveness_at
    if row.kind == "safety":
        assert row.proved == row.machines


@EACH
def test_it_is_asserted_in_the_reference_which_has_a_fault_that_breaks_it(row: Invariant) -> None:
    """That each is judged in a run: tests/reference/test_trouble.py."""
    assert row.asserted
    broken = {name for name, design in DESIGNS.items() if design.breaks == row.id}
    if row.id in {"STORE-READY", "LOAD-ORDER"}:  # of stream order, which the virtual device executes
        assert {machine for name in broken for machine in DESIGNS[name].machines} == {"stream_order"}
    else:
        assert broken & set(FAULTS)


@EACH
def test_it_is_monitored_by_rules_of_the_ledger(row: Invariant) -> None:
    """Examples: tests/test_trace_examples.py. Rules raise what they declare: tests/checker/monitor."""
    assert row.monitored
    assert Ledger(ev.Header(producer="test", pools=(ev.Pool("gpu", 2),))).kinds == RULES.keys()
    assert row.id in {id_ for declared in RULES.values() for id_ in declared.ids}


@EACH
def test_the_page_says_so(row: Invariant) -> None:
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| [{row.id}]"))
    assert [f"[{name}]" in line for name in BUILT] == [name in row.machines for name in BUILT]
    assert line.count("| yes ") == 2
