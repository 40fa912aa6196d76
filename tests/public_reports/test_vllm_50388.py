"""vllm#50388: a failed block cannot be told from another group's.

Ids are unique in a group only. The same in vllm#56855 and vllm#47812.
"""

from judged import breaks, faults, holds
from situations import LOADING

from kvfence.spec import events as ev

FAILED: list[ev.Event] = [*LOADING, ev.Report(0, 0, rank=0, ok=False), ev.Complete(0, 0, ok=False)]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    block_ids_unique_only_in_group="FAIL-CLOSED",
    invalid_in_one_group_only="FAIL-CLOSED",
    failure_after_completion="FAIL-CLOSED",
)


def test_a_failed_load_after_which_the_request_runs_on_is_rejected_too() -> None:
    holds([*FAILED, ev.Rollback("7", 0, 0)])
    breaks("FAIL-CLOSED", [*FAILED, ev.Dispatch(0, ["7"], [16])])
