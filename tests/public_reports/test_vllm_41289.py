"""vllm#41289: the same GPU blocks are offloaded twice.

A key becomes known only when its store has landed: whoever hits the block before stores it again.
"""

from judged import breaks, faults, holds
from situations import COMPUTED

from kvfence.spec import events as ev

HELD_TWICE: list[ev.Event] = [
    *COMPUTED,
    ev.Touch("gpu", "op:0.0", [1, 2]),
    ev.Alloc("cpu", "op:0.0", [0, 1]),
]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(duplicate_in_flight_store="UNIQUE")


def test_one_store_that_carries_a_key_twice_is_rejected_too() -> None:
    holds([*HELD_TWICE, ev.Queue(0, 0, "store", "gpu", [1, 2], "cpu", [0, 1], [4242, 4343])])
    breaks("UNIQUE", [*HELD_TWICE, ev.Queue(0, 0, "store", "gpu", [1, 2], "cpu", [0, 1], [4242, 4242])])
