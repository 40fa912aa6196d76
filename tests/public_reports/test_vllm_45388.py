"""vllm#45388: nothing runs although a loaded request is ready.

The head of the queue does not fit, and those behind it that hold blocks are never looked at. The same in
vllm#45387.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import LANDED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("head_blocks_holder", "PROGRESS"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_rounds_without_a_step_while_a_landed_load_waits_is_rejected_too() -> None:
    holds([*LANDED, ev.Round(ready=1), ev.Round(ready=1), ev.Dispatch(0, ["7"], [16])], connector())
    breaks("PROGRESS", [*LANDED, ev.Round(ready=1), ev.Round(ready=1), ev.Round(ready=1)], connector())
