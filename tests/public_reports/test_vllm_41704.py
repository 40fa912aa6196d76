"""vllm#41704: the last full block of a request is never stored.

Stores are planned before the step that completes the block is counted, and finishing clears what is left.
"""

from judged import breaks, faults, holds
from situations import COMPUTED

from kvfence.spec import events as ev

ENDED: list[ev.Event] = [*COMPUTED, ev.Finish("7", 0, "length", 32)]
FREED = ev.Free("gpu", "req:7.0", [1, 2])

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(no_flush_on_finish="FLUSH")


def test_a_request_that_ends_at_its_length_and_drops_only_its_first_block_is_rejected_too() -> None:
    holds([*ENDED, ev.Drop("7", 0, 0, 2, "off"), FREED, ev.Retire("7", 0)])
    breaks("FLUSH", [*ENDED, ev.Drop("7", 0, 0, 1, "off"), FREED, ev.Retire("7", 0)])
