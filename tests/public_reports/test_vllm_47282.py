"""vllm#47282: a window slides on tokens that are not confirmed, and a load takes the block.

A slot is given back on an optimistic count while a dispatched step still reads it. The same in
vllm#47291, vllm#47653 and vllm#47728.
"""

from judged import breaks, faults, holds
from situations import ADMITTED, connector

from kvfence.spec import events as ev

TWO_STEPS: list[ev.Event] = [*ADMITTED, ev.Dispatch(0, ["7"], [16]), ev.Dispatch(1, ["7"], [16])]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    free_before_processed="FREEZE", load_without_barrier="LOAD-ORDER"
)


def test_a_slot_given_back_after_one_of_two_steps_in_flight_is_rejected_too() -> None:
    holds([*TWO_STEPS, ev.Process(0), ev.Process(1), ev.Free("gpu", "req:7.0", [1])], connector(depth=2))
    breaks("FREEZE", [*TWO_STEPS, ev.Process(0), ev.Free("gpu", "req:7.0", [1])], connector(depth=2))
