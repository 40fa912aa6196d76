"""vllm#39726: a reset with transfers in flight fails or leaks.

Holds and trackers of transfers survive the reset, and their completion brings entries back.
"""

from judged import breaks, faults, holds
from situations import STORING

from kvfence.spec import events as ev

RESET = ev.Reset(ok=True, pools=["gpu", "cpu"])

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    reset_ignores_in_flight="RESET", store_resurrects_key="RESET", reset_forgets_transfers="NO-LEAK"
)


def test_a_store_from_before_the_reset_that_brings_its_key_back_is_rejected_too() -> None:
    holds([*STORING, RESET, ev.Report(0, 0, rank=0), ev.Complete(0, 0), ev.Free("cpu", "op:0.0", [0])])
    breaks(
        "RESET",
        [
            *STORING,
            RESET,
            ev.Report(0, 0, rank=0),
            ev.Complete(0, 0),
            ev.Label("cpu", [0], [4242], op=0, gen=0),
        ],
    )
