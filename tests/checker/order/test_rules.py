"""The checker reports each program that breaks an ordering rule, and none that keeps it."""

import itertools
from typing import get_args

import pytest

from kvfence.checker.order.happens_before import explain
from kvfence.checker.order.missing import broken_by
from kvfence.checker.order.races import INVARIANTS, OrderChecker, Race
from kvfence.checker.order.ranges import What
from kvfence.reference.order_programs.order_rules import RULES, Twins
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import Run, exhaustive, hunt, in_order, seeded, witness
from kvfence.spec import order as od

by_rule = pytest.mark.parametrize("twins", RULES, ids=lambda twins: twins.rule)


def races(program: Program, run: Run) -> list[Race]:
    checker = OrderChecker(program.header)
    checker.apply_all(run.trace)
    return checker.races


@by_rule
def test_a_broken_rule_is_reported_with_both_accesses_and_the_missing_edge(twins: Twins) -> None:
    found = races(twins.broken, in_order(twins.broken))
    assert len(found) == 1
    assert found[0].invariant == twins.invariant
    assert twins.says in found[0].missing
    accesses = found[0].first, found[0].second
    assert any(access.write for access in accesses)
    assert all(access.name for access in accesses)


@by_rule
def test_a_broken_rule_is_reported_whatever_the_timing_was(twins: Twins) -> None:
    for run in (hunt(twins.broken), *(seeded(twins.broken, seed) for seed in range(10))):
        assert races(twins.broken, run)


@by_rule
def test_a_kept_rule_is_never_reported(twins: Twins) -> None:
    for run in (*exhaustive(twins.kept), *(seeded(twins.kept, seed) for seed in range(10))):
        assert races(twins.kept, run) == []


@by_rule
def test_a_witness_of_the_race_corrupts_on_the_virtual_device(twins: Twins) -> None:
    run = in_order(twins.broken)
    why = explain(twins.broken.header, run.trace, races(twins.broken, run)[0])
    program = Program(why.header, why.program)
    executed = [witness(program, steps) for steps in why.witnesses]
    assert [run.corrupt for run in executed] == [True, False]
    assert not any(run.stuck for run in executed)


def test_what_a_pair_of_accesses_can_break_is_counted() -> None:
    """Each invariant of the table can be broken by some pair, and no pair breaks another."""
    whats: tuple[What, ...] = ("kernel", "copy", "host", "release")
    kinds: tuple[od.RegionKind, ...] = get_args(od.RegionKind)
    pairs = itertools.product(whats, (False, True), whats, (False, True), kinds)
    assert {broken_by(*pair) for pair in pairs} == set(INVARIANTS)
