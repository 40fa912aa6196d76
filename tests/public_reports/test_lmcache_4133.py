"""LMCache#4133: fewer tokens are retrieved than were promised.

Pins are broken between lookup and retrieval, and what comes back is counted as the whole.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import CACHED, PROMISED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("evict_pinned", "PIN"),
    ("partial_load_counted_whole", "FAIL-CLOSED"),
    ("lost_file_still_found", "FAIL-CLOSED"),
    ("unpinned_verdict", "PIN"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_the_last_block_of_a_promise_that_is_evicted_is_rejected_too() -> None:
    holds([*CACHED, ev.Evict("cpu", [1])], connector())
    breaks("PIN", [*PROMISED, ev.Evict("cpu", [1])], connector())
