"""vllm#52170: after preemption the store cursor points behind the new table.

The table begins anew, and the cursor does not.
"""

from judged import breaks, faults, holds
from situations import COMPUTED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(cursor_not_rewound="CURSOR")


def test_a_cursor_that_jumps_over_a_block_in_the_middle_is_rejected_too() -> None:
    holds([*COMPUTED, ev.Drop("7", 0, 0, 2, "tier_full"), ev.Cursor("7", 0, to=2)])
    breaks("CURSOR", [*COMPUTED, ev.Drop("7", 0, 1, 1, "tier_full"), ev.Cursor("7", 0, to=2)])
