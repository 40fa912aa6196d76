"""LMCache#4133: fewer tokens are retrieved than were promised.

Pins are broken between lookup and retrieval, and what comes back is counted as the whole.
"""

from judged import breaks, faults, holds
from situations import CACHED, PROMISED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    evict_pinned="PIN",
    partial_load_counted_whole="FAIL-CLOSED",
    lost_file_still_found="FAIL-CLOSED",
    unpinned_verdict="PIN",
)


def test_the_last_block_of_a_promise_that_is_evicted_is_rejected_too() -> None:
    holds([*CACHED, ev.Evict("cpu", [1])])
    breaks("PIN", [*PROMISED, ev.Evict("cpu", [1])])
