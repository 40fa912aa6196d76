"""vllm#52735: stores, but no hits, with speculative decoding.

A group that drafts nothing is treated as if it did: its only block is always left out. The same in
vllm#52771.
"""

from judged import breaks, faults, holds
from situations import connector

from kvfence.spec import events as ev

TABLE: list[ev.Event] = [ev.Submit("7", 0, 48), ev.Alloc("gpu", "req:7.0", [1])]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(eagle_marks_every_group="GEOMETRY")


def test_null_blocks_in_front_of_a_window_that_are_counted_is_rejected_too() -> None:
    holds(
        [*TABLE, ev.Geometry("7", 0, group=0, tokens=48, slots=[0, 0, 1], held=1)],
        connector(ev.Group("gpu", 16, window=16, kind="sliding")),
    )
    breaks(
        "GEOMETRY",
        [*TABLE, ev.Geometry("7", 0, group=0, tokens=48, slots=[0, 0, 1], held=3)],
        connector(ev.Group("gpu", 16, window=16, kind="sliding")),
    )
