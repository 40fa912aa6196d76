"""sglang#28468: host slots are freed in the middle of a copy.

The destination of a copy in flight has no holder.
"""

from judged import breaks, faults, holds
from situations import STORING

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(unpinned_destination="FREEZE")


def test_the_destination_of_a_store_that_is_let_go_before_its_report_is_rejected_too() -> None:
    holds([*STORING, ev.Report(0, 0, rank=0), ev.Complete(0, 0), ev.Free("cpu", "op:0.0", [0])])
    breaks("FREEZE", [*STORING, ev.Free("cpu", "op:0.0", [0])])
