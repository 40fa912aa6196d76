"""vllm#31341: stored KV is corrupt.

A store that does not wait for the compute stream.
"""

from judged import faults, rejected, twin_accepted

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(store_without_barrier="STORE-READY")


def test_an_event_that_was_recorded_for_an_earlier_step_is_rejected_too() -> None:
    rejected("event_reused", "STORE-READY")
    twin_accepted("event_reused")
