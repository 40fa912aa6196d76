"""vllm#21048: a request is reported finished although a rank still transfers.

What one rank says is taken for all.
"""

from judged import breaks, faults, holds
from situations import STORING, connector

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    one_rank_enough="RANKS", complete_on_first_rank="RANKS", repeat_counts="ONCE"
)


def test_three_ranks_of_which_two_have_reported_is_rejected_too() -> None:
    holds(
        [
            *STORING,
            ev.Report(0, 0, rank=0),
            ev.Report(0, 0, rank=1),
            ev.Report(0, 0, rank=2),
            ev.Complete(0, 0),
        ],
        connector(ranks=3),
    )
    breaks(
        "RANKS",
        [*STORING, ev.Report(0, 0, rank=0), ev.Report(0, 0, rank=1), ev.Complete(0, 0)],
        connector(ranks=3),
    )
