"""vllm#48596: the final block is lost, and then read after it was used again.

What is stored at the end is submitted when the blocks are gone.
"""

from judged import breaks, faults, holds
from situations import QUEUED, STORED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(late_flush="FREEZE", no_flush_on_finish="FLUSH")


def test_a_final_store_that_is_issued_after_its_source_was_let_go_is_rejected_too() -> None:
    holds([*STORED, ev.Free("gpu", "req:7.0", [1])])
    breaks("FREEZE", [*QUEUED, ev.Free("gpu", "req:7.0", [1]), ev.Free("gpu", "op:0.0", [1])])
