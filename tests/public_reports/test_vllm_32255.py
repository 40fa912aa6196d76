"""vllm#32255: a load writes into freed blocks after an abort.

An abort frees what a load in flight still writes; or, the other way round, nobody frees it.
"""

from judged import breaks, faults, holds
from situations import PROMISED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    free_on_abort="FREEZE", leak_on_abort="NO-LEAK", pin_leak_on_abort="NO-LEAK"
)


def test_an_abort_before_the_load_is_issued_that_keeps_the_pins_is_rejected_too() -> None:
    holds(
        [
            *PROMISED,
            ev.Finish("7", 0, "abort", 0),
            ev.Withdraw("7", 0),
            ev.Free("cpu", "hit:7.0", [0, 1]),
            ev.Retire("7", 0),
        ]
    )
    breaks(
        "NO-LEAK",
        [
            *PROMISED,
            ev.Finish("7", 0, "abort", 0),
            ev.Withdraw("7", 0),
            ev.Free("cpu", "hit:7.0", [0]),
            ev.Retire("7", 0),
        ],
    )
