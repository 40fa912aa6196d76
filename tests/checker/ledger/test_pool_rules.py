"""Each rule about pools has a passing and a failing twin, and the failing one names that invariant."""

import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec.events import (
    Admit,
    Alloc,
    Complete,
    Deny,
    Dispatch,
    Event,
    Evict,
    Free,
    Group,
    Header,
    Issue,
    Label,
    Lookup,
    Pool,
    Process,
    Queue,
    Report,
    Reset,
    Submit,
    Touch,
    Unlabel,
    Withdraw,
)

HEADER = Header(
    producer="test",
    pools=(Pool("gpu", 8, null=0), Pool("cpu", 6)),
    groups=(Group("gpu", 4), Group("gpu", 4, window=6)),
    depth=2,
)

ALLOC = [Alloc("gpu", "req:1.0", [1, 2], free=5)]
CACHED = [*ALLOC, Label("gpu", [1, 2], [11, 12]), Free("gpu", "req:1.0", [2, 1], free=7)]
STORING = [
    *ALLOC,
    Touch("gpu", "op:0.0", [1]),
    Alloc("cpu", "op:0.0", [3]),
    Queue(0, 0, "store", "gpu", [1], "cpu", [3], [11]),
]
STORED = [*STORING, Issue(0, 0), Report(0, 0, 0), Complete(0, 0)]
FAILED_STORE = [*STORING, Issue(0, 0), Report(0, 0, 0, ok=False), Complete(0, 0, ok=False)]
ON_CPU = [*STORED, Label("cpu", [3], [11], op=0), Free("cpu", "op:0.0", [3]), Free("gpu", "op:0.0", [1])]
PINNED = [*ON_CPU, Touch("cpu", "hit:2.0", [3])]
PROMISED = [*PINNED, Lookup("2", 0, 0, 4, "cpu", [3])]
RUNNING = [
    Submit("1", 0, 8),
    Admit("1", 0, 0, 0, 8, 8),
    Alloc("gpu", "req:1.0", [1, 2]),
    Dispatch(0, ["1"], [8]),
]
SHARED = [
    *RUNNING,
    Process(0),
    Label("gpu", [1], [11]),
    Touch("gpu", "req:2.0", [1]),
    Dispatch(1, ["1"], [1]),
]
# Window of 6 tokens, blocks of 4: token 12 reads tokens 7 to 12, which are in blocks 1 to 3.
SLIDING = [
    Submit("1", 0, 12),
    Admit("1", 0, 0, 0, 12, 12),
    Alloc("gpu", "req:1.0", [1, 2, 3, 4], group=1),
    Dispatch(0, ["1"], [12]),
    Process(0),
    Dispatch(1, ["1"], [1]),
]

TWINS = [
    # Alloc.
    (
        "a slot is given away once",
        [],
        Alloc("gpu", "req:1.0", [1, 2]),
        Alloc("gpu", "req:1.0", [1, 1]),
        "CONSERVE",
    ),
    ("a held slot is not given away", ALLOC, Alloc("gpu", "x:1", [3]), Alloc("gpu", "x:1", [2]), "CONSERVE"),
    ("the null block stays", [], Alloc("gpu", "req:1.0", [1]), Alloc("gpu", "req:1.0", [0]), "CONSERVE"),
    ("a slot exists", [], Alloc("gpu", "req:1.0", [7]), Alloc("gpu", "req:1.0", [8]), "CONSERVE"),
    ("a slot is not negative", [], Alloc("gpu", "req:1.0", [7]), Alloc("gpu", "req:1.0", [-1]), "CONSERVE"),
    (
        "a cached slot is evicted first",
        CACHED,
        Alloc("gpu", "x:1", [3]),
        Alloc("gpu", "x:1", [1]),
        "CONSERVE",
    ),
    (
        "free slots are counted",
        [],
        Alloc("gpu", "x:1", [1], free=6),
        Alloc("gpu", "x:1", [1], free=7),
        "CONSERVE",
    ),
    (
        "a slot in transfer is not given away",
        STORING,
        Alloc("cpu", "x:1", [4]),
        Alloc("cpu", "x:1", [3]),
        "FREEZE",
    ),
    # Deny.
    ("only a short pool refuses", [], Deny("gpu", "x:1", 8), Deny("gpu", "x:1", 7), "CONSERVE"),
    ("a refusal counts free slots", [], Deny("gpu", "x:1", 8, 7), Deny("gpu", "x:1", 8, 8), "CONSERVE"),
    # Touch.
    (
        "a holder joins once",
        ALLOC,
        Touch("gpu", "req:2.0", [1, 2]),
        Touch("gpu", "req:2.0", [1, 1]),
        "CONSERVE",
    ),
    (
        "a holder is not there yet",
        ALLOC,
        Touch("gpu", "req:2.0", [1]),
        Touch("gpu", "req:1.0", [1]),
        "CONSERVE",
    ),
    (
        "a transfer names a slot once",
        ALLOC,
        Touch("gpu", "op:1.0", [1]),
        Touch("gpu", "op:1.0", [1, 1]),
        "UNIQUE",
    ),
    ("pins are not added", PINNED, Touch("cpu", "hit:3.0", [3]), Touch("cpu", "hit:2.0", [3]), "PURE"),
    ("there is something to share", CACHED, Touch("gpu", "x:1", [1]), Touch("gpu", "x:1", [3]), "CONSERVE"),
    (
        "a cached slot is counted",
        CACHED,
        Touch("gpu", "x:1", [1], 6),
        Touch("gpu", "x:1", [1], 7),
        "CONSERVE",
    ),
    (
        "a held slot is counted once",
        ALLOC,
        Touch("gpu", "x:1", [1], 5),
        Touch("gpu", "x:1", [1], 4),
        "CONSERVE",
    ),
    ("nobody shares the null block", ALLOC, Touch("gpu", "x:1", [1]), Touch("gpu", "x:1", [0]), "CONSERVE"),
    # Free.
    (
        "a holder leaves what it holds",
        ALLOC,
        Free("gpu", "req:1.0", [1]),
        Free("gpu", "req:1.0", [3]),
        "CONSERVE",
    ),
    (
        "a holder leaves once",
        ALLOC,
        Free("gpu", "req:1.0", [1, 2]),
        Free("gpu", "req:1.0", [1, 1]),
        "CONSERVE",
    ),
    (
        "a stranger does not leave",
        ALLOC,
        Free("gpu", "req:1.0", [1]),
        Free("gpu", "req:2.0", [1]),
        "CONSERVE",
    ),
    (
        "freed slots are counted",
        ALLOC,
        Free("gpu", "req:1.0", [1], 6),
        Free("gpu", "req:1.0", [1], 7),
        "CONSERVE",
    ),
    ("a source stays held", STORING, Free("gpu", "req:1.0", [1]), Free("cpu", "op:0.0", [3]), "FREEZE"),
    ("a promised pin stays", [*PROMISED, Withdraw("2", 0)], Free("cpu", "hit:2.0", [3]), None, ""),
    ("a promised pin stays until then", PROMISED, None, Free("cpu", "hit:2.0", [3]), "PIN"),
    # Evict.
    ("a cached slot is evicted", CACHED, Evict("gpu", [1, 2]), Evict("gpu", [1, 1]), "CONSERVE"),
    ("only a cached slot is evicted", CACHED, Evict("gpu", [1]), Evict("gpu", [3]), "CONSERVE"),
    ("the null block is not evicted", CACHED, Evict("gpu", [1]), Evict("gpu", [0]), "CONSERVE"),
    (
        "a held slot is not evicted either",
        [*CACHED, Touch("gpu", "x:1", [2])],
        Evict("gpu", [1]),
        Evict("gpu", [2]),
        "PIN",
    ),
    ("a pinned slot is not evicted", ON_CPU, Evict("cpu", [3]), None, ""),
    ("a slot with a pin is not evicted", PINNED, None, Evict("cpu", [3]), "PIN"),
    ("a promised slot is not evicted", PROMISED, None, Evict("cpu", [3]), "PIN"),
    ("a slot in transfer is not evicted", STORING, None, Evict("cpu", [3]), "FREEZE"),
    # Label.
    ("a labelled slot is held", ALLOC, Label("gpu", [1], [11]), Label("gpu", [3], [11]), "CONSERVE"),
    (
        "a slot is labelled once",
        ALLOC,
        Label("gpu", [1, 2], [11, 12]),
        Label("gpu", [1, 1], [11, 12]),
        "UNIQUE",
    ),
    ("a label is not replaced", PROMISED, Label("cpu", [3], [11]), Label("cpu", [3], [12]), "UNIQUE"),
    ("a label waits for the transfer", STORED, Label("cpu", [3], [11], op=0), None, ""),
    ("a label comes after the transfer", STORING, None, Label("cpu", [3], [11], op=0), "USE-READY"),
    ("a label comes after any transfer", STORING, None, Label("cpu", [3], [11]), "USE-READY"),
    (
        "a failed transfer labels nothing",
        FAILED_STORE,
        Label("gpu", [1], [11]),
        Label("cpu", [3], [11], op=0),
        "FAIL-CLOSED",
    ),
    ("a slot it failed to fill has no label", FAILED_STORE, None, Label("cpu", [3], [11]), "FAIL-CLOSED"),
    (
        "a store from before a reset brings nothing back",
        [*STORED, Reset(ok=True, pools=["gpu", "cpu"])],
        Free("cpu", "op:0.0", [3]),
        Label("cpu", [3], [11], op=0),
        "RESET",
    ),
    (
        "an answered-no reset changes nothing",
        [*STORED, Reset(ok=False)],
        Label("cpu", [3], [11], op=0),
        None,
        "",
    ),
    (
        "a table from before a reset is not published",
        [*ALLOC, Reset(ok=True, pools=["gpu"]), Alloc("gpu", "req:2.0", [3])],
        Label("gpu", [3], [13]),
        Label("gpu", [1], [11]),
        "RESET",
    ),
    (
        "unlabelling is always allowed",
        ALLOC,
        Unlabel("gpu", [1, 2], "failed"),
        Unlabel("gpu", [8], "failed"),
        "CONSERVE",
    ),
    # Steps that may still read.
    ("a processed step reads no more", [*RUNNING, Process(0)], Free("gpu", "req:1.0", [2, 1]), None, ""),
    ("a dispatched step reads", RUNNING, None, Free("gpu", "req:1.0", [2]), "FREEZE"),
    (
        "a slot that joined after the dispatch is not read",
        [*RUNNING, Alloc("gpu", "req:1.0", [3], at=2)],
        Free("gpu", "req:1.0", [3]),
        Free("gpu", "req:1.0", [3, 2]),
        "FREEZE",
    ),
    ("a shared slot may be left", SHARED, Free("gpu", "req:1.0", [1]), Free("gpu", "req:1.0", [2]), "FREEZE"),
    (
        "a slot left too early is frozen for the others",
        [*SHARED, Free("gpu", "req:1.0", [1])],
        Dispatch(2, ["1"], [1]),
        Free("gpu", "req:2.0", [1]),
        "FREEZE",
    ),
    (
        "and no longer than until the step is over",
        [*SHARED, Free("gpu", "req:1.0", [1]), Process(1)],
        Free("gpu", "req:2.0", [1]),
        None,
        "",
    ),
    (
        "and the others hold it when the step is over",
        [*SHARED, Free("gpu", "req:1.0", [1]), Process(1)],
        None,
        Alloc("gpu", "req:3.0", [1]),
        "CONSERVE",
    ),
    (
        "what a lookup holds may be left whatever steps are under way",
        [
            *PINNED,
            Submit("2", 0, 8),
            Admit("2", 0, 0, 0, 8, 8),
            Alloc("gpu", "req:2.0", [3, 4]),
            Dispatch(0, ["2"], [8]),
        ],
        Free("cpu", "hit:2.0", [3]),
        Free("gpu", "req:2.0", [4]),
        "FREEZE",
    ),
    (
        "a window leaves blocks behind",
        SLIDING,
        Free("gpu", "req:1.0", [1]),
        Free("gpu", "req:1.0", [2]),
        "FREEZE",
    ),
    (
        "a window slides by processed steps only",
        [*SLIDING[:3], Dispatch(0, ["1"], [12]), Dispatch(1, ["1"], [1])],
        None,
        Free("gpu", "req:1.0", [1]),
        "FREEZE",
    ),
]


def judge(events: list[Event]) -> list[str]:
    """The invariants that ``events`` violate, in order; the same whether shortcuts are taken or not."""
    found, slowly = (
        [violation.invariant for event in events if (violation := ledger.apply(event)) is not None]
        for ledger in (Ledger(HEADER), Ledger(HEADER, shortcuts=False))
    )
    assert found == slowly
    return found


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


def test_a_refusal_is_judged_by_what_the_pool_told_is_free() -> None:
    miscounted = Alloc("gpu", "req:1.0", [1, 2], free=6)
    assert judge([miscounted, Deny("gpu", "req:2.0", 7, free=6)]) == ["CONSERVE"]
    assert judge([miscounted, Deny("gpu", "req:2.0", 6, free=6)]) == ["CONSERVE", "CONSERVE"]
