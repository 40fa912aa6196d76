"""vllm#48959: a valid load fails a bound.

A window that does not begin at a block's edge lies in one block more than its length suggests.
"""

from judged import breaks, faults, holds
from situations import connector

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(aligned_window_bound="GEOMETRY")


def test_a_short_window_in_the_middle_of_two_blocks_is_rejected_too() -> None:
    holds(
        [ev.Submit("7", 0, 40), ev.Geometry("7", 0, group=0, tokens=40, needed=2, bound=2)],
        connector(ev.Group("gpu", 16, window=16, kind="sliding")),
    )
    breaks(
        "GEOMETRY",
        [ev.Submit("7", 0, 40), ev.Geometry("7", 0, group=0, tokens=40, needed=2, bound=1)],
        connector(ev.Group("gpu", 16, window=16, kind="sliding")),
    )
