"""LMCache#4955: another request's KV under an old key.

A store reads its source after preemption has freed it; the flush in between does nothing, on one rank or
for what is still queued. The same in LMCache#5248.
"""

from judged import breaks, faults, holds
from situations import STORING, connector

from kvfence.spec import events as ev

GIVEN_UP = ev.Free("gpu", "req:7.0", [1])
LET_GO = ev.Free("gpu", "op:0.0", [1])

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    free_on_preempt="FREEZE", flush_misses_queued="FREEZE", noop_flush_on_one_rank="FREEZE"
)


def test_a_store_whose_source_is_let_go_while_one_rank_still_reads_is_rejected_too() -> None:
    holds(
        [*STORING, GIVEN_UP, ev.Report(0, 0, rank=0), ev.Report(0, 0, rank=1), ev.Complete(0, 0), LET_GO],
        connector(ranks=2),
    )
    breaks("FREEZE", [*STORING, GIVEN_UP, ev.Report(0, 0, rank=0), LET_GO], connector(ranks=2))
