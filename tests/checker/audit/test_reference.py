"""The reference under audit: sound it is clean, and each faulty design is found."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kvfence.checker.adapters.reference import designs
from kvfence.checker.audit.campaign import campaign
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
