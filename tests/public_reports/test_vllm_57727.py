"""vllm#57727: a reset succeeds, and the CPU tier goes on serving.

One tier is reset, and the answer hides that another was not.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import CACHED, connector

from kvfence.spec.events import Alloc, Event, Free, Label, Reset

LABELLED: list[Event] = [
    *CACHED,
    Alloc("gpu", "req:6.0", [1]),
    Label("gpu", [1], [4242]),
    Free("gpu", "req:6.0", [1]),
]


FAULTS = [
    ("reset_one_tier", "RESET"),
    ("reset_skips_a_tier", "RESET"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_reset_that_clears_the_tier_and_not_the_gpu_is_rejected_too() -> None:
    holds([*LABELLED, Reset(ok=True, pools=["gpu", "cpu"])], connector())
    breaks("RESET", [*LABELLED, Reset(ok=True, pools=["cpu"])], connector())
