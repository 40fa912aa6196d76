"""Each public report: its faults and its sibling are rejected, and their sound twins are accepted."""

import re

import pytest
from judged import breaks, holds, rejected, story, twin_accepted
from reports import REPORTS, Report

from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS


@pytest.mark.parametrize(
    ("design", "invariant"),
    [
        pytest.param(design, invariant, id=f"{report.name}-{design}")
        for report in REPORTS
        for design, invariant in report.faults.items()
    ],
)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


@pytest.mark.parametrize(
    "report", [pytest.param(row, id=f"{row.name}: {row.sibling}") for row in REPORTS if row.sibling]
)
def test_a_sibling_of_the_report_is_rejected_too(report: Report) -> None:
    holds([*report.before, *report.sound], report.header)
    breaks(report.invariant, [*report.before, *report.faulty], report.header)


def test_vllm_45138_the_stranded_request_is_rejected_and_its_twin_is_accepted() -> None:
    rejected("placeholder_not_rolled_back", "PROGRESS", reported_as="COUNT")
    twin_accepted("placeholder_not_rolled_back")


def test_sglang_33862_the_starving_tier_is_rejected_and_its_twin_is_accepted() -> None:
    found = story("mirror_pins_starve", "scheduling")
    assert found.counterexamples[0].invariant == "PROGRESS"
    twin_accepted("mirror_pins_starve")


def test_each_report_of_a_design_or_an_invariant_has_a_test() -> None:
    described = "\n".join(f"{report.name}: {report.about}" for report in REPORTS)
    named = {report for row in (*DESIGNS.values(), *INVARIANTS) for report in row.reports}
    assert {report for report in named if not re.search(rf"{re.escape(report)}\b", described)} == set()


def test_each_report_is_named_after_project_and_number_once() -> None:
    names = [report.name for report in REPORTS]
    assert all(re.fullmatch(r"[A-Za-z]+#\d+", name) for name in names)
    assert len(set(names)) == len(names)
