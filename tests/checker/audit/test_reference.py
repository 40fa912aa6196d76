"""The reference under audit: sound it is clean, and each faulty design is found."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kvfence.checker.adapters.reference import designs
from kvfence.checker.audit.campaign import campaign
from kvfence.checker.audit.case import Case, Setup, Submit
from kvfence.checker.audit.findings import verdict_of
from kvfence.checker.audit.targets import REFERENCE, Reference
from kvfence.spec.designs import DESIGNS

QUICK = ("over_pop", "no_flush_on_finish", "cursor_not_rewound")


def test_the_sound_reference_is_clean() -> None:
    found = campaign(Reference("sound"), REFERENCE, budget=600, seed=2, most=80)
    assert [finding.key for finding in found.findings] == []
    assert verdict_of(found) == "holds"
    assert found.counts["loads"]
    assert found.counts["preemptions"]


def test_a_long_prompt_behind_a_hit_in_a_sliding_group_fits_when_it_is_alone() -> None:
    setup = Setup(
        gpu_blocks=28, cpu_blocks=4, block_size=8, windows=(0, 32), depth=2, token_budget=8, seed=35318
    )
    case = Case(setup, (Submit(32, 1, 1, 32), Submit(121, 1, 1, 32)))
    assert Reference("sound").run(case).sightings == ()


@pytest.mark.parametrize("design", QUICK)
def test_a_faulty_design_is_found(design: str) -> None:
    expected = DESIGNS[design].breaks
    found = campaign(Reference(design), REFERENCE, budget=20, seed=2, until=expected, most=500)
    assert expected in {finding.sighting.invariant for finding in found.findings}


@pytest.mark.slow
@pytest.mark.parametrize("design", designs())
def test_every_faulty_design_is_found(design: str) -> None:
    expected = DESIGNS[design].breaks
    found = campaign(Reference(design), REFERENCE, budget=300, seed=1, until=expected)
    assert expected in {finding.sighting.invariant for finding in found.findings}
