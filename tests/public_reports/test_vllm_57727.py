"""vllm#57727: a reset succeeds, and the CPU tier goes on serving.

One tier is reset, and the answer hides that another was not.
"""

from judged import breaks, faults, holds
from situations import CACHED

from kvfence.spec import events as ev

LABELLED: list[ev.Event] = [
    *CACHED,
    ev.Alloc("gpu", "req:6.0", [1]),
    ev.Label("gpu", [1], [4242]),
    ev.Free("gpu", "req:6.0", [1]),
]

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    reset_one_tier="RESET", reset_skips_a_tier="RESET"
)


def test_a_reset_that_clears_the_tier_and_not_the_gpu_is_rejected_too() -> None:
    holds([*LABELLED, ev.Reset(ok=True, pools=["gpu", "cpu"])])
    breaks("RESET", [*LABELLED, ev.Reset(ok=True, pools=["cpu"])])
