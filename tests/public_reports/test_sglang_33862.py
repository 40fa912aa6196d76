"""sglang#33862: the storage tier silently starves.

Each node keeps a mirror on the host, which no one gives back, until every backup is refused.
"""

from judged import breaks, holds, story, twin_accepted
from situations import STORED

from kvfence.spec import events as ev

DONE: list[ev.Event] = [
    ev.Finish("7", 0, "length", 32),
    ev.Drop("7", 0, 1, 1, "off"),
    ev.Free("gpu", "req:7.0", [1, 2]),
    ev.Retire("7", 0),
]
STORED_AND_KEPT: list[ev.Event] = [event for event in STORED if event != ev.Free("cpu", "op:0.0", [0])]


def test_the_starving_tier_is_rejected_and_its_twin_is_accepted() -> None:
    found = story("mirror_pins_starve", "scheduling")
    assert found.counterexamples[0].invariant == "PROGRESS"
    twin_accepted("mirror_pins_starve")


def test_a_connector_that_holds_a_slot_of_the_tier_when_nothing_is_left_to_do_is_rejected_too() -> None:
    holds([*STORED, *DONE, ev.Quiesce()])
    breaks("NO-LEAK", [*STORED_AND_KEPT, *DONE, ev.Quiesce()])
