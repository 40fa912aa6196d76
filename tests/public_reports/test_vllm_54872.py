"""vllm#54872: the late answer for one request is applied to another.

An answer is matched by key alone.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import STORED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("answers_by_key", "ONCE"),
    ("ignore_generation", "ONCE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_report_of_a_transfer_that_is_over_is_rejected_too() -> None:
    holds([*STORED, ev.Stale(0, 0, rank=0)], connector())
    breaks("ONCE", [*STORED, ev.Report(0, 0, rank=0)], connector())
