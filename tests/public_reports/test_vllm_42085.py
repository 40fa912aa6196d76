"""vllm#42085: the same GPU block several times in one transfer ends in an over-pop.

A list with duplicates: each naming is counted, and the free list grows beyond the pool.
"""

from judged import breaks, faults, holds
from situations import CACHED

from kvfence.spec import events as ev

PINNED: list[ev.Event] = [
    *CACHED,
    ev.Alloc("gpu", "op:0.0", [1, 2]),
    ev.Touch("cpu", "op:0.0", [0, 1]),
]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    duplicate_in_store_list="UNIQUE", over_pop="CONSERVE", allocate_unchecked="CONSERVE"
)


def test_a_load_that_writes_two_sources_into_one_slot_is_rejected_too() -> None:
    holds([*PINNED, ev.Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 2], [4242, 4343])])
    breaks("UNIQUE", [*PINNED, ev.Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 1], [4242, 4343])])
