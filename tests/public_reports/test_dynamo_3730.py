"""dynamo#3730: GPU blocks are never freed.

The leader drops its slot before the worker reports: the operation never ends. The same in dynamo#4171.
"""

from judged import breaks, faults, holds
from situations import LANDED, LOADING

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    dropped_leader_slot="ONCE", lost_completion="ONCE"
)


def test_a_request_that_is_gone_while_its_load_is_open_is_rejected_too() -> None:
    holds(
        [
            *LANDED,
            ev.Finish("7", 0, "abort", 32),
            ev.Drop("7", 0, 0, 2, "off"),
            ev.Free("gpu", "req:7.0", [1, 2, 3]),
            ev.Retire("7", 0),
            ev.Quiesce(),
        ]
    )
    breaks(
        "NO-LEAK",
        [*LOADING, ev.Finish("7", 0, "abort", 0), ev.Free("gpu", "req:7.0", [1, 2, 3]), ev.Quiesce()],
    )
