"""vllm#45138: a request is stranded in the running queue.

Counts are rolled back after a failed load, and one of them is forgotten.
"""

from judged import breaks, faults, holds, rejected, twin_accepted
from situations import PROMISED

from kvfence.spec import events as ev

test_the_fault_is_rejected_and_its_twin_is_accepted = faults(
    count_not_rolled_back="COUNT", count_promised="COUNT"
)


def test_the_stranded_request_is_rejected_and_its_twin_is_accepted() -> None:
    rejected("placeholder_not_rolled_back", "PROGRESS", reported_as="COUNT")
    twin_accepted("placeholder_not_rolled_back")


def test_tokens_of_a_hit_that_are_computed_as_well_is_rejected_too() -> None:
    holds([*PROMISED, ev.Admit("7", 0, local=0, external=32, compute=16, total=48)])
    breaks("COUNT", [*PROMISED, ev.Admit("7", 0, local=0, external=32, compute=32, total=48)])
