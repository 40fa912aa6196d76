"""vllm#42571: the same physical block twice in the free list.

One release names a block twice.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import COMPUTED, connector

from kvfence.spec import events as ev

FAULTS = [
    ("over_pop", "CONSERVE"),
    ("duplicate_in_store_list", "UNIQUE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_request_that_releases_a_slot_of_its_table_twice_is_rejected_too() -> None:
    holds([*COMPUTED, ev.Drop("7", 0, 0, 2, "off"), ev.Free("gpu", "req:7.0", [1, 2])], connector())
    breaks(
        "CONSERVE", [*COMPUTED, ev.Drop("7", 0, 0, 2, "off"), ev.Free("gpu", "req:7.0", [1, 1])], connector()
    )
