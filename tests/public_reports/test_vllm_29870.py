"""vllm#29870: stores of a preempted request read blocks that were used again.

Preemption gives slots back while a transfer still reads them.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import LOADING, connector

from kvfence.spec import events as ev

FAULTS = [
    ("free_on_preempt", "FREEZE"),
    ("free_fenced_victim", "FREEZE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_preempted_request_whose_load_is_still_writing_is_rejected_too() -> None:
    holds([*LOADING, ev.Preempt("7", 0), ev.Free("gpu", "req:7.0", [1, 2, 3])], connector())
    breaks(
        "FREEZE",
        [
            *LOADING,
            ev.Preempt("7", 0),
            ev.Free("gpu", "req:7.0", [1, 2, 3]),
            ev.Free("gpu", "op:0.0", [1, 2]),
        ],
        connector(),
    )
