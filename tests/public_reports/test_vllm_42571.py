"""vllm#42571: the same physical block twice in the free list.

One release names a block twice.
"""

from judged import breaks, faults, holds
from situations import COMPUTED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    over_pop="CONSERVE", duplicate_in_store_list="UNIQUE"
)


def test_a_request_that_releases_a_slot_of_its_table_twice_is_rejected_too() -> None:
    holds([*COMPUTED, ev.Drop("7", 0, 0, 2, "off"), ev.Free("gpu", "req:7.0", [1, 2])])
    breaks("CONSERVE", [*COMPUTED, ev.Drop("7", 0, 0, 2, "off"), ev.Free("gpu", "req:7.0", [1, 1])])
