"""vllm#45704: a store's copy reads while compute still writes.

The copy's stream has no edge from the compute, or its reads leave the order of the stream.
"""

from judged import faults, rejected, twin_accepted

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    store_without_barrier="STORE-READY", barrier_with_any="STORE-READY"
)


def test_a_barrier_that_is_recorded_before_the_compute_is_rejected_too() -> None:
    rejected("barrier_before_compute", "STORE-READY")
    twin_accepted("barrier_before_compute")
