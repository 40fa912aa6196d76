"""A violation is told with its event, its values, and who did what to the slots."""

from kvfence.checker.ledger.state.violation import Violation
from kvfence.checker.ledger.violation_text import event_text, value_text, violation_text
from kvfence.spec import events as ev

VIOLATION = Violation(
    invariant="PIN",
    number=7,
    event=ev.Evict("cpu", [5]),
    condition="nobody pins an evicted slot",
    values={"promises": 1},
    pool="cpu",
    slots=(5,),
    holders={5: ("hit:3.0",)},
    history={5: ((2, ev.Alloc("cpu", "op:1.0", [5])), (6, ev.Touch("cpu", "hit:3.0", [5])))},
)


def test_everything_that_is_known_is_told() -> None:
    told = violation_text(VIOLATION, width=100)
    for part in (
        "PIN",
        "event 7",
        "nobody pins an evicted slot",
        "evict pool=cpu slots=[5]",
        "promises = 1",
        "hit:3.0",
    ):
        assert part in told
    assert told.index("2: alloc") < told.index("6: touch")


def test_lines_keep_to_the_width() -> None:
    assert all(len(line) <= 60 for line in violation_text(VIOLATION, width=60).splitlines())


def test_fields_with_their_default_are_left_out() -> None:
    assert event_text(ev.Alloc("gpu", "req:1.0", [1, 2])) == "alloc pool=gpu holder=req:1.0 slots=[1, 2]"
    assert event_text(ev.Alloc("gpu", "req:1.0", [1], free=3)).endswith("free=3")


def test_a_long_list_ends_with_how_many_more() -> None:
    assert value_text(list(range(100))).endswith("and 88 more]")
