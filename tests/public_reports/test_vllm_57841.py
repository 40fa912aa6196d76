"""vllm#57841: nothing runs, and the cache is nearly full.

A request without blocks stands in front of one that holds some.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import LANDED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("blockless_head", "PROGRESS"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_two_ready_requests_of_which_none_runs_is_rejected_too() -> None:
    holds([*LANDED, ev.Round(ready=2), ev.Round(ready=2), ev.Dispatch(0, ["7"], [16])], connector())
    breaks("PROGRESS", [*LANDED, ev.Round(ready=2), ev.Round(ready=2), ev.Round(ready=2)], connector())
