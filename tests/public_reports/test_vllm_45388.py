"""vllm#45388: nothing runs although a loaded request is ready.

The head of the queue does not fit, and those behind it that hold blocks are never looked at. The same in
vllm#45387.
"""

from judged import breaks, faults, holds
from situations import LANDED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(head_blocks_holder="PROGRESS")


def test_rounds_without_a_step_while_a_landed_load_waits_is_rejected_too() -> None:
    holds([*LANDED, ev.Round(ready=1), ev.Round(ready=1), ev.Dispatch(0, ["7"], [16])])
    breaks("PROGRESS", [*LANDED, ev.Round(ready=1), ev.Round(ready=1), ev.Round(ready=1)])
