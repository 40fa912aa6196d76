"""vllm#27697: blocks are never offloaded.

The cursor advances before the job is queued, and an early exit leaves the job out.
"""

from judged import breaks, faults, holds
from situations import QUEUED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(cursor_before_queue="CURSOR")


def test_a_cursor_that_passes_one_block_more_than_was_queued_is_rejected_too() -> None:
    holds([*QUEUED, ev.Cursor("7", 0, to=1)])
    breaks("CURSOR", [*QUEUED, ev.Cursor("7", 0, to=2)])
