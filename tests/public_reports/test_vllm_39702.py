"""vllm#39702: a promised hit is evicted before it is allocated for.

A promise without a holder: between the two phases of a lookup nothing keeps the blocks, and asking again
adds to what the first answer took.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import CACHED, connector

from kvfence.spec import events as ev

PROMISE = ev.Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1])


FAULTS = [
    ("unpinned_lookup", "PIN"),
    ("pins_added_not_replaced", "PURE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_promise_of_two_blocks_of_which_one_is_pinned_is_rejected_too() -> None:
    holds([*CACHED, ev.Touch("cpu", "hit:7.0", [0, 1]), PROMISE], connector())
    breaks("PIN", [*CACHED, ev.Touch("cpu", "hit:7.0", [0]), PROMISE], connector())
