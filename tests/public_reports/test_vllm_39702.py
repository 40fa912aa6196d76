"""vllm#39702: a promised hit is evicted before it is allocated for.

A promise without a holder: between the two phases of a lookup nothing keeps the blocks, and asking again
adds to what the first answer took.
"""

from judged import breaks, faults, holds
from situations import CACHED

from kvfence.spec import events as ev

PROMISE = ev.Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1])

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    unpinned_lookup="PIN", pins_added_not_replaced="PURE"
)


def test_a_promise_of_two_blocks_of_which_one_is_pinned_is_rejected_too() -> None:
    holds([*CACHED, ev.Touch("cpu", "hit:7.0", [0, 1]), PROMISE])
    breaks("PIN", [*CACHED, ev.Touch("cpu", "hit:7.0", [0]), PROMISE])
