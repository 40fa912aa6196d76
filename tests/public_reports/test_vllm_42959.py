"""vllm#42959: a declined store is made up for from a block that is somebody else's by now.

The cursor or the plan outlives the hold on the block.
"""

from judged import breaks, faults, holds
from situations import COMPUTED

from kvfence.spec import events as ev

ENDED_WITH_ONE: list[ev.Event] = [
    ev.Finish("7", 0, "length", 32),
    ev.Drop("7", 0, 1, 1, "off"),
    ev.Free("gpu", "req:7.0", [1, 2]),
]
TIER = ev.Alloc("cpu", "op:0.0", [0])
STORE = ev.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0])

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    late_flush="FREEZE", cursor_before_queue="CURSOR"
)


def test_a_store_of_a_block_that_its_request_has_given_back_is_rejected_too() -> None:
    holds([*COMPUTED, ev.Touch("gpu", "op:0.0", [1]), *ENDED_WITH_ONE, TIER, STORE])
    breaks("FREEZE", [*COMPUTED, *ENDED_WITH_ONE, TIER, STORE])
