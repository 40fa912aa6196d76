"""vllm#49250: wrong output after a failed load of a shared block.

A sharer takes the failed block for computed.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import LANDED, LOADING, connector

from kvfence.spec import events as ev

FAULTS = [
    ("sharer_not_rolled_back", "FAIL-CLOSED"),
    ("keep_label_on_failure", "FAIL-CLOSED"),
    ("shared_before_landing", "USE-READY"),
    ("register_before_landing", "USE-READY"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_step_that_runs_on_a_load_that_has_not_landed_is_rejected_too() -> None:
    holds([*LANDED, ev.Dispatch(0, ["7"], [16])], connector())
    breaks("USE-READY", [*LOADING, ev.Dispatch(0, ["7"], [16])], connector())
