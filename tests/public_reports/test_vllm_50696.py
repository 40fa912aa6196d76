"""vllm#50696: a request attends over zeros.

A zero-fill that was dispatched earlier lands after the load.
"""

from __future__ import annotations

import pytest
from judged import rejected, twin_accepted

FAULTS = [
    ("zero_fill_after_load", "LOAD-ORDER"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_step_of_the_previous_owner_that_still_reads_when_the_load_begins_is_rejected_too() -> None:
    rejected("load_without_barrier", "LOAD-ORDER")
    twin_accepted("load_without_barrier")
