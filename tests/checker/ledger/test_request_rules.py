"""Each rule about requests and steps has a passing and a failing twin that names that invariant."""

import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec.events import (
    Admit,
    Alloc,
    Cursor,
    Dispatch,
    Drop,
    Event,
    Finish,
    Free,
    Group,
    Header,
    Label,
    Lookup,
    Pool,
    Preempt,
    Process,
    Quiesce,
    Reset,
    Retire,
    Submit,
    Touch,
    Withdraw,
)

HEADER = Header(
    producer="test", pools=(Pool("gpu", 8, null=0), Pool("cpu", 6)), groups=(Group("gpu", 4),), depth=2
)

CACHED = [
    Alloc("cpu", "op:0.0", [1, 2, 3]),
    Label("cpu", [1, 2, 3], [11, 12, 13]),
    Free("cpu", "op:0.0", [1, 2, 3]),
    Submit("1", 0, 16),
]
PINNED = [*CACHED, Touch("cpu", "hit:1.0", [1, 2])]
PROMISED = [*PINNED, Lookup("1", 0, 0, 8, "cpu", [1, 2])]
REPEATED = [*PROMISED, Touch("cpu", "hit:1.0", [3]), Lookup("1", 0, 0, 12, "cpu", [1, 2, 3])]
SHORTER = [*PROMISED, Lookup("1", 0, 0, 4, "cpu", [1])]
ADMITTED = [Submit("1", 0, 9), Admit("1", 0, 0, 0, 9, 9), Alloc("gpu", "req:1.0", [1, 2, 3])]
RUN = [*ADMITTED, Dispatch(0, ["1"], [9])]
DONE = [*RUN, Process(0)]
FINISHED = [*DONE, Finish("1", 0, "stop", 9), Free("gpu", "req:1.0", [3, 2, 1])]
COVERED = [*FINISHED[:-2], Drop("1", 0, 0, 2, "resident"), *FINISHED[-2:]]
PREEMPTED = [*DONE, Preempt("1", 0), Free("gpu", "req:1.0", [3, 2, 1])]

TWINS = [
    # Submit.
    ("an id is submitted once", [Submit("1", 0, 9)], Submit("1", 1, 9), Submit("1", 0, 9), "ONCE"),
    ("a preempted one may be told again", PREEMPTED, Submit("1", 1, 9), Submit("1", 0, 9), "ONCE"),
    ("what is submitted acts", [Submit("1", 0, 9)], Lookup("1", 0, 0, 0), Lookup("2", 0, 0, 0), "ONCE"),
    (
        "what is gone does nothing",
        [*COVERED, Retire("1", 0)],
        Submit("1", 1, 9),
        Drop("1", 0, 0, 1, "lazy"),
        "ONCE",
    ),
    # Lookup.
    ("a promise is held", PINNED, Lookup("1", 0, 0, 8, "cpu", [1, 2]), None, ""),
    ("a promise without a pin", CACHED, None, Lookup("1", 0, 0, 8, "cpu", [1, 2]), "PIN"),
    (
        "what is promised is cached",
        [*CACHED, Alloc("cpu", "hit:1.0", [4])],
        None,
        Lookup("1", 0, 0, 4, "cpu", [4]),
        "PIN",
    ),
    (
        "a hit is no longer than the request",
        PINNED,
        Lookup("1", 0, 8, 8, "cpu", [1, 2]),
        Lookup("1", 0, 9, 8, "cpu", [1, 2]),
        "COUNT",
    ),
    ("a hit is not negative", CACHED, Lookup("1", 0, 8, 0), Lookup("1", 0, -1, 0), "COUNT"),
    (
        "pins are what is promised",
        PINNED,
        Lookup("1", 0, 0, 8, "cpu", [1, 2]),
        Lookup("1", 0, 0, 4, "cpu", [1]),
        "PURE",
    ),
    ("a lookup may be repeated", PROMISED, Lookup("1", 0, 0, 8, "cpu", [1, 2]), None, ""),
    ("and find more", REPEATED, Lookup("1", 0, 0, 12, "cpu", [1, 2, 3]), None, ""),
    (
        "and less, if pins go",
        [*SHORTER, Free("cpu", "hit:1.0", [2])],
        Lookup("1", 0, 0, 4, "cpu", [1]),
        None,
        "",
    ),
    ("pins that stay", SHORTER, Free("cpu", "hit:1.0", [2]), Lookup("1", 0, 0, 4, "cpu", [1]), "PURE"),
    (
        "pins that stay until admission",
        SHORTER,
        Free("cpu", "hit:1.0", [2]),
        Admit("1", 0, 0, 4, 12, 16),
        "PURE",
    ),
    # Admit.
    ("tokens add up", PROMISED, Admit("1", 0, 0, 8, 8, 16), Admit("1", 0, 0, 8, 9, 16), "COUNT"),
    ("not by negative numbers", PROMISED, Admit("1", 0, 0, 8, 8, 16), Admit("1", 0, 16, 8, -8, 16), "COUNT"),
    ("no more than promised", PROMISED, Admit("1", 0, 0, 4, 12, 16), Admit("1", 0, 0, 12, 4, 16), "COUNT"),
    (
        "nothing without a promise",
        [*PROMISED, Withdraw("1", 0)],
        Admit("1", 0, 0, 0, 16, 16),
        Admit("1", 0, 0, 8, 8, 16),
        "COUNT",
    ),
    (
        "a promise not taken is over",
        [*PROMISED, Admit("1", 0, 0, 0, 16, 16)],
        Free("cpu", "hit:1.0", [1, 2]),
        None,
        "",
    ),
    # Ends.
    ("a generation is preempted once", DONE, Preempt("1", 0), None, ""),
    ("not after it finished", FINISHED, None, Preempt("1", 0), "ONCE"),
    ("a generation finishes once", DONE, Finish("1", 0, "stop", 9), Finish("1", 0, "stop", 8), "COUNT"),
    ("not again", FINISHED, None, Finish("1", 0, "abort", 9), "ONCE"),
    (
        "an unprocessed step is not confirmed",
        RUN,
        Finish("1", 0, "abort", 0),
        Finish("1", 0, "abort", 9),
        "COUNT",
    ),
    ("a preempted generation is not dispatched", PREEMPTED, Dispatch(1, ["1"], [9]), None, ""),
    ("a finished request is not dispatched", FINISHED, Dispatch(1, [], []), Dispatch(1, ["1"], [1]), "ONCE"),
    # Cursor.
    (
        "the cursor passes dropped blocks",
        [*DONE, Drop("1", 0, 0, 2, "lazy")],
        Cursor("1", 0, 2),
        Cursor("1", 0, 3),
        "CURSOR",
    ),
    (
        "the cursor passes no gap",
        [*DONE, Drop("1", 0, 1, 1, "lazy")],
        Drop("1", 0, 0, 1, "lazy"),
        Cursor("1", 0, 1),
        "CURSOR",
    ),
    (
        "the cursor goes on",
        [*DONE, Drop("1", 0, 0, 2, "lazy"), Cursor("1", 0, 1)],
        Cursor("1", 0, 1),
        Cursor("1", 0, 0),
        "CURSOR",
    ),
    (
        "a new generation begins again",
        [*DONE, Drop("1", 0, 0, 2, "lazy"), Cursor("1", 0, 2), Preempt("1", 0)],
        Cursor("1", 1, 0),
        Cursor("1", 1, 2),
        "CURSOR",
    ),
    # Retire.
    ("all blocks are accounted for", COVERED, Retire("1", 0), None, ""),
    ("a block is forgotten", FINISHED, None, Retire("1", 0), "FLUSH"),
    ("a preempted table is not flushed", PREEMPTED, Retire("1", 0), None, ""),
    ("a table stays behind", [*COVERED[:-1]], None, Retire("1", 0), "NO-LEAK"),
    ("a pin stays behind", PINNED, None, Retire("1", 0), "NO-LEAK"),
    ("a promise stays open", PROMISED, None, Retire("1", 0), "NO-LEAK"),
    # Steps.
    (
        "steps are numbered",
        [*ADMITTED, Dispatch(4, [], [])],
        Dispatch(5, ["1"], [9]),
        Dispatch(6, ["1"], [9]),
        "ONCE",
    ),
    ("steps are no more than allowed", RUN, Dispatch(1, ["1"], [1]), None, ""),
    ("steps run too far ahead", [*RUN, Dispatch(1, ["1"], [1])], Process(0), Dispatch(2, ["1"], [1]), "ONCE"),
    ("steps end in order", [*RUN, Dispatch(1, ["1"], [1])], Process(0), Process(1), "ONCE"),
    ("a step ends once", DONE, Dispatch(1, ["1"], [1]), Process(0), "ONCE"),
    # The whole.
    (
        "a reset clears what it says",
        CACHED,
        Reset(ok=True, pools=["gpu", "cpu"]),
        Reset(ok=True, pools=["gpu"]),
        "RESET",
    ),
    ("a refused reset clears nothing", CACHED, Reset(ok=False), None, ""),
    ("nothing is held when quiet", CACHED, Quiesce(), None, ""),
    ("a held slot is not quiet", ADMITTED, None, Quiesce(), "NO-LEAK"),
    ("a step is not quiet", [Dispatch(0, [], [])], Process(0), Quiesce(), "NO-LEAK"),
]


def judge(events: list[Event], header: Header = HEADER) -> list[str]:
    """The invariants that ``events`` violate, in order."""
    ledger = Ledger(header)
    return [violation.invariant for event in events if (violation := ledger.apply(event)) is not None]


@pytest.mark.parametrize(
    ("before", "sound"), [pytest.param(b, s, id=name) for name, b, s, _, _ in TWINS if s is not None]
)
def test_accepted(before: list[Event], sound: Event) -> None:
    assert judge([*before, sound]) == []


@pytest.mark.parametrize(
    ("before", "faulty", "invariant"),
    [pytest.param(b, f, i, id=n) for n, b, _, f, i in TWINS if f is not None],
)
def test_rejected(before: list[Event], faulty: Event, invariant: str) -> None:
    assert judge([*before, faulty]) == [invariant]


def test_a_trace_may_begin_in_the_middle() -> None:
    """What no event told is not held against the connector."""
    events = [
        Lookup("7", 3, 0, 0),
        Dispatch(41, ["7", "8"], [1, 1]),
        Process(41),
        Finish("7", 3, "stop", 99),
        Cursor("8", 0, 0),
        Retire("7", 3),
    ]
    assert judge(events, Header(producer="test", pools=(Pool("gpu", 8),))) == []


def test_without_groups_blocks_are_not_counted() -> None:
    header = Header(producer="test", pools=(Pool("gpu", 8, null=0), Pool("cpu", 6)))
    assert judge([*FINISHED, Retire("1", 0)], header) == []
    assert judge([*FINISHED, Retire("1", 0)]) == ["FLUSH"]
