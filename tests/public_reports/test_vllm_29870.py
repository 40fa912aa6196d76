"""vllm#29870: stores of a preempted request read blocks that were used again.

Preemption gives slots back while a transfer still reads them.
"""

from judged import breaks, faults, holds
from situations import LOADING

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    free_on_preempt="FREEZE", free_fenced_victim="FREEZE"
)


def test_a_preempted_request_whose_load_is_still_writing_is_rejected_too() -> None:
    holds([*LOADING, ev.Preempt("7", 0), ev.Free("gpu", "req:7.0", [1, 2, 3])])
    breaks(
        "FREEZE",
        [
            *LOADING,
            ev.Preempt("7", 0),
            ev.Free("gpu", "req:7.0", [1, 2, 3]),
            ev.Free("gpu", "op:0.0", [1, 2]),
        ],
    )
