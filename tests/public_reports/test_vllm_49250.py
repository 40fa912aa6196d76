"""vllm#49250: wrong output after a failed load of a shared block.

A sharer takes the failed block for computed.
"""

from judged import breaks, faults, holds
from situations import LANDED, LOADING

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    sharer_not_rolled_back="FAIL-CLOSED",
    keep_label_on_failure="FAIL-CLOSED",
    shared_before_landing="USE-READY",
    register_before_landing="USE-READY",
)


def test_a_step_that_runs_on_a_load_that_has_not_landed_is_rejected_too() -> None:
    holds([*LANDED, ev.Dispatch(0, ["7"], [16])])
    breaks("USE-READY", [*LOADING, ev.Dispatch(0, ["7"], [16])])
