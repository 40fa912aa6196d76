"""vllm#57841: nothing runs, and the cache is nearly full.

A request without blocks stands in front of one that holds some.
"""

from judged import breaks, faults, holds
from situations import LANDED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(blockless_head="PROGRESS")


def test_two_ready_requests_of_which_none_runs_is_rejected_too() -> None:
    holds([*LANDED, ev.Round(ready=2), ev.Round(ready=2), ev.Dispatch(0, ["7"], [16])])
    breaks("PROGRESS", [*LANDED, ev.Round(ready=2), ev.Round(ready=2), ev.Round(ready=2)])
