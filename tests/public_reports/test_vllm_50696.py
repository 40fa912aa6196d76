"""vllm#50696: a request attends over zeros.

A zero-fill that was dispatched earlier lands after the load.
"""

from judged import faults, rejected, twin_accepted

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(zero_fill_after_load="LOAD-ORDER")


def test_a_step_of_the_previous_owner_that_still_reads_when_the_load_begins_is_rejected_too() -> None:
    rejected("load_without_barrier", "LOAD-ORDER")
    twin_accepted("load_without_barrier")
