"""sglang#13483: host memory is corrupt after a prefetch that ended early.

The tail of a transfer is released twice, by two code paths.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import PROMISED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("double_release", "CONSERVE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_pin_that_is_given_back_twice_is_rejected_too() -> None:
    holds([*PROMISED, ev.Withdraw("7", 0), ev.Free("cpu", "hit:7.0", [0, 1])], connector())
    breaks("CONSERVE", [*PROMISED, ev.Withdraw("7", 0), ev.Free("cpu", "hit:7.0", [0, 0])], connector())
