"""vllm#27697: blocks are never offloaded.

The cursor advances before the job is queued, and an early exit leaves the job out.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import QUEUED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("cursor_before_queue", "CURSOR"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_cursor_that_passes_one_block_more_than_was_queued_is_rejected_too() -> None:
    holds([*QUEUED, ev.Cursor("7", 0, to=1)], connector())
    breaks("CURSOR", [*QUEUED, ev.Cursor("7", 0, to=2)], connector())
