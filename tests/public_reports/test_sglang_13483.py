"""sglang#13483: host memory is corrupt after a prefetch that ended early.

The tail of a transfer is released twice, by two code paths.
"""

from judged import breaks, faults, holds
from situations import PROMISED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(double_release="CONSERVE")


def test_a_pin_that_is_given_back_twice_is_rejected_too() -> None:
    holds([*PROMISED, ev.Withdraw("7", 0), ev.Free("cpu", "hit:7.0", [0, 1])])
    breaks("CONSERVE", [*PROMISED, ev.Withdraw("7", 0), ev.Free("cpu", "hit:7.0", [0, 0])])
