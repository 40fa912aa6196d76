"""vllm#49674: preemptions in turn, and no progress.

A retry counts on blocks of a victim that stay fenced. Its opposite, a victim whose blocks come free at
once, is unsafe.
"""

from judged import breaks, faults, holds
from situations import ADMITTED, connector

from kvfence.spec import events as ev

TWO_STEPS: list[ev.Event] = [*ADMITTED, ev.Dispatch(0, ["7"], [16]), ev.Dispatch(1, ["7"], [16])]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    fenced_victim_spin="PROGRESS", free_fenced_victim="FREEZE"
)


def test_a_victim_of_two_steps_in_flight_whose_slots_come_free_after_one_is_rejected_too() -> None:
    holds(
        [*TWO_STEPS, ev.Preempt("7", 0), ev.Process(0), ev.Process(1), ev.Free("gpu", "req:7.0", [1, 2])],
        connector(depth=2),
    )
    breaks(
        "FREEZE",
        [*TWO_STEPS, ev.Preempt("7", 0), ev.Process(0), ev.Free("gpu", "req:7.0", [1, 2])],
        connector(depth=2),
    )
