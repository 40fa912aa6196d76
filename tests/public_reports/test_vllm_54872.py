"""vllm#54872: the late answer for one request is applied to another.

An answer is matched by key alone.
"""

from judged import breaks, faults, holds
from situations import STORED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(answers_by_key="ONCE", ignore_generation="ONCE")


def test_a_report_of_a_transfer_that_is_over_is_rejected_too() -> None:
    holds([*STORED, ev.Stale(0, 0, rank=0)])
    breaks("ONCE", [*STORED, ev.Report(0, 0, rank=0)])
