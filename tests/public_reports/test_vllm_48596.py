"""vllm#48596: the final block is lost, and then read after it was used again.

What is stored at the end is submitted when the blocks are gone.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import QUEUED, STORED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("late_flush", "FREEZE"),
    ("no_flush_on_finish", "FLUSH"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_final_store_that_is_issued_after_its_source_was_let_go_is_rejected_too() -> None:
    holds([*STORED, ev.Free("gpu", "req:7.0", [1])], connector())
    breaks("FREEZE", [*QUEUED, ev.Free("gpu", "req:7.0", [1]), ev.Free("gpu", "op:0.0", [1])], connector())
