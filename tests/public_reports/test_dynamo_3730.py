"""dynamo#3730: GPU blocks are never freed.

The leader drops its slot before the worker reports: the operation never ends. The same in dynamo#4171.
"""

from __future__ import annotations

import pytest
from judged import breaks, holds, rejected, twin_accepted
from situations import LANDED, LOADING, connector

from kvfence.spec import events as ev

FAULTS = [
    ("dropped_leader_slot", "ONCE"),
    ("lost_completion", "ONCE"),
]


@pytest.mark.parametrize(("design", "invariant"), FAULTS)
def test_the_fault_is_rejected_and_its_twin_is_accepted(design: str, invariant: str) -> None:
    rejected(design, invariant)
    twin_accepted(design)


def test_a_request_that_is_gone_while_its_load_is_open_is_rejected_too() -> None:
    holds(
        [
            *LANDED,
            ev.Finish("7", 0, "abort", 32),
            ev.Drop("7", 0, 0, 2, "off"),
            ev.Free("gpu", "req:7.0", [1, 2, 3]),
            ev.Retire("7", 0),
            ev.Quiesce(),
        ],
        connector(),
    )
    breaks(
        "NO-LEAK",
        [*LOADING, ev.Finish("7", 0, "abort", 0), ev.Free("gpu", "req:7.0", [1, 2, 3]), ev.Quiesce()],
        connector(),
    )
