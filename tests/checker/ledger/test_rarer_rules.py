"""Each rule about the rarer events has a passing and a failing twin that names that invariant."""

from typing import Any

import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.rules.progress import STALLED
from kvfence.checker.ledger.state.attention_window import blocks_read, last_reader, most_blocks_read
from kvfence.spec.events import (
    Admit,
    Alloc,
    Answer,
    Ask,
    Cleared,
    Complete,
    Decide,
    Describe,
    Dispatch,
    Drop,
    Event,
    Evict,
    Failed,
    Free,
    Geometry,
    Group,
    GroupKind,
    Header,
    Hostmem,
    Issue,
    Label,
    Lookup,
    Pool,
    Preempt,
    Process,
    Published,
    Queue,
    Quiesce,
    Register,
    Removed,
    Report,
    Reserve,
    Reset,
    Rollback,
    Round,
    Stored,
    Submit,
    Touch,
    Unlabel,
    Unregister,
    Zero,
)

HEADER = Header(
    producer="test",
    pools=(Pool("gpu", 12, null=0), Pool("cpu", 6)),
    groups=(Group("gpu", 4), Group("gpu", 8, window=11), Group("gpu", 4, kind="recurrent")),
    ranks=2,
    depth=2,
)

# A tier with two blocks of group 0 and one of the others, and a request that asks for them.
CACHED: list[Event] = [
    Alloc("cpu", "op:9.0", [0, 1, 2, 3]),
    Label("cpu", [0, 1], [10, 11]),
    Label("cpu", [2], [11], group=1),
    Label("cpu", [3], [11], group=2),
    Free("cpu", "op:9.0", [0, 1, 2, 3]),
    Submit("1", 0, 16),
]
FULL: list[Event] = [
    *CACHED,
    *[Touch("cpu", f"mirror:{slot}.0", [slot]) for slot in range(4)],
    Alloc("cpu", "mirror:5.0", [5]),
    Alloc("cpu", "op:8.0", [4]),
]
PINNED: list[Event] = [*CACHED, Touch("cpu", "hit:1.0", [0, 1, 2, 3])]
LOADING: list[Event] = [
    *CACHED,
    Touch("cpu", "hit:1.0", [0, 1]),
    Lookup("1", 0, 0, 8, "cpu", [0, 1]),
    Alloc("gpu", "req:1.0", [1, 2, 3]),
    Admit("1", 0, 0, 8, 4, 12),
    Touch("cpu", "op:0.0", [0, 1]),
    Touch("gpu", "op:0.0", [1, 2]),
    Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 2], [10, 11], req="1", at=[0, 1]),
    Free("cpu", "hit:1.0", [0, 1]),
    Issue(0, 0),
]
HALF: list[Event] = [*LOADING, Failed(0, 0, 0, [2]), Report(0, 0, 0, ok=False), Report(0, 0, 1)]
HALF_OVER: list[Event] = [*HALF, Complete(0, 0, ok=False)]
RELEASED: list[Event] = [Free("cpu", "op:0.0", [0, 1]), Free("gpu", "op:0.0", [1, 2])]
LANDED: list[Event] = [*LOADING, Report(0, 0, 0), Report(0, 0, 1), Complete(0, 0), *RELEASED]
ASKED: list[Event] = [Submit("1", 0, 16), Submit("2", 0, 16), Ask(5, "1", 0, "cpu", [10, 11])]
TABLE: list[Event] = [Submit("1", 0, 40), Alloc("gpu", "req:1.0", [1, 2, 3], group=1, at=1)]
STEP: list[Event] = [Submit("1", 0, 8), Alloc("gpu", "req:1.0", [1]), Dispatch(0, ["1"], [4])]
CRAMPED: list[Event] = [
    *(Submit(name, 0, 8) for name in "123"),
    *(Alloc("gpu", f"req:{name}.0", [slot]) for slot, name in enumerate("123", 1)),
    Dispatch(0, ["1", "2", "3"], [4, 4, 4]),
    Preempt("3", 0, why="room"),
]
VOTED: list[Event] = [*LOADING, Reserve(0, 0, 0), Reserve(0, 0, 1), Decide(0, 0, 0, "commit")]
STALL: list[Event] = [*LANDED, *[Round(ready=1)] * (STALLED - 1)]
REGISTERED: list[Event] = [Register("cpu", 0, 0), Register("cpu", 0, 1)]

TWINS: list[tuple[str, list[Event], Event | None, Event | None, str]] = [
    # Geometry.
    (
        "a full group reads all",
        TABLE,
        Geometry("1", 0, 0, 9, needed=3),
        Geometry("1", 0, 0, 9, needed=2),
        "GEOMETRY",
    ),
    (
        "a window, unaligned",
        TABLE,
        Geometry("1", 0, 1, 21, needed=2),
        Geometry("1", 0, 1, 21, needed=3),
        "GEOMETRY",
    ),
    (
        "a recurrent group reads one",
        TABLE,
        Geometry("1", 0, 2, 9, needed=1),
        Geometry("1", 0, 2, 9, needed=3),
        "GEOMETRY",
    ),
    (
        "a bound allows for any start",
        TABLE,
        Geometry("1", 0, 1, 0, bound=3),
        Geometry("1", 0, 1, 0, bound=2),
        "GEOMETRY",
    ),
    (
        "null blocks do not count",
        TABLE,
        Geometry("1", 0, 1, 24, at=0, slots=[0, 1, 2, 3], held=3),
        Geometry("1", 0, 1, 24, at=0, slots=[0, 1, 2, 3], held=4),
        "GEOMETRY",
    ),
    (
        "what is kept is what is read",
        TABLE,
        Geometry("1", 0, 1, 27, at=2, slots=[2, 3]),
        Geometry("1", 0, 1, 25, at=2, slots=[2, 3]),
        "GEOMETRY",
    ),
    (
        "a table is the request's",
        [*TABLE, Alloc("gpu", "req:9.0", [4])],
        Geometry("1", 0, 1, 26, at=1, slots=[1, 2, 3]),
        Geometry("1", 0, 1, 26, at=1, slots=[4, 2, 3]),
        "GEOMETRY",
    ),
    (
        "a hit has every group's window",
        PINNED,
        Lookup("1", 0, 0, 8, "cpu", [0, 1, 2, 3], [2, 1, 1]),
        Lookup("1", 0, 0, 8, "cpu", [0, 1, 2, 3], [2, 2, 0]),
        "GEOMETRY",
    ),
    (
        "a hit ends with a block",
        [*PINNED, Unlabel("cpu", [1], "test"), Label("cpu", [1], [10], group=1)],
        None,
        Lookup("1", 0, 0, 4, "cpu", [0, 1, 2, 3], [1, 2, 1]),
        "GEOMETRY",
    ),
    # Host memory.
    ("a piece is registered once", REGISTERED, Register("cpu", 0, 2), Register("cpu", 0, 1), "HOSTMEM"),
    ("a rank exists", REGISTERED, Register("cpu", 1, 0), Register("cpu", 2, 0), "HOSTMEM"),
    (
        "what is registered is taken back",
        REGISTERED,
        Unregister("cpu", 0, 1),
        Unregister("cpu", 1, 1),
        "HOSTMEM",
    ),
    ("all of it is pinned", REGISTERED, Hostmem("cpu", 0, True), Hostmem("cpu", 0, False), "HOSTMEM"),
    (
        "or what was is taken back",
        [*REGISTERED, Register("cpu", 0, 2, ok=False), Unregister("cpu", 0, 0), Unregister("cpu", 0, 1)],
        Hostmem("cpu", 0, False),
        Hostmem("cpu", 0, True),
        "HOSTMEM",
    ),
    ("ranks agree", [Hostmem("cpu", 0, False)], Hostmem("cpu", 1, False), Hostmem("cpu", 1, True), "HOSTMEM"),
    ("each rank speaks", [Hostmem("cpu", 0, True)], Hostmem("cpu", 1, True), Quiesce(), "HOSTMEM"),
    (
        "nothing is registered later",
        [Hostmem("cpu", 0, False)],
        Register("cpu", 1, 0),
        Register("cpu", 0, 0),
        "HOSTMEM",
    ),
    (
        "descriptors stay until read",
        [
            *LOADING,
            Describe(0, 0, 4),
            Alloc("gpu", "op:1.0", [5]),
            Alloc("cpu", "op:1.0", [5]),
            Queue(1, 0, "load", "cpu", [5], "gpu", [5], [17]),
        ],
        Describe(1, 0, 3),
        Describe(1, 0, 4),
        "HOSTMEM",
    ),
    (
        "and are free when the rank is done",
        [
            *LOADING,
            Describe(0, 0, 4),
            Alloc("gpu", "op:1.0", [5]),
            Alloc("cpu", "op:1.0", [5]),
            Queue(1, 0, "load", "cpu", [5], "gpu", [5], [17]),
            Report(0, 0, 0),
        ],
        Describe(1, 0, 4),
        Describe(2, 0, 4),
        "ONCE",
    ),
    # Published keys.
    (
        "what can be looked up is published",
        CACHED,
        Stored("cpu", [10, 11]),
        Stored("cpu", [10, 12]),
        "EVENTS",
    ),
    ("by group", CACHED, Stored("cpu", [11], group=1), Stored("cpu", [10], group=1), "EVENTS"),
    ("once", [*CACHED, Stored("cpu", [10])], Stored("cpu", [11]), Stored("cpu", [10]), "EVENTS"),
    (
        "and taken back once it cannot",
        [*CACHED, Stored("cpu", [10, 11]), Evict("cpu", [0])],
        Removed("cpu", [10]),
        Removed("cpu", [11]),
        "EVENTS",
    ),
    ("if it was published", [*CACHED, Evict("cpu", [0])], None, Removed("cpu", [10]), "EVENTS"),
    (
        "all that can be looked up is published",
        [*CACHED, Stored("cpu", [10, 11]), Stored("cpu", [11], 1), Stored("cpu", [11], 2)],
        Published("cpu"),
        None,
        "",
    ),
    ("nothing is missing", [*CACHED, Stored("cpu", [10])], None, Published("cpu"), "EVENTS"),
    ("also in the end", [*CACHED, Stored("cpu", [10])], None, Quiesce(), "EVENTS"),
    ("who publishes nothing is not asked", CACHED, Quiesce(), None, ""),
    ("a pool is cleared when it is empty", [*CACHED, Reset(True, ["cpu"])], Cleared("cpu"), None, ""),
    ("not before", CACHED, None, Cleared("cpu"), "EVENTS"),
    # Progress.
    ("two idle rounds may be", STALL[:-1], Round(ready=1), None, ""),
    ("a third finds all as it was", STALL, Dispatch(0, ["1"], [4]), Round(ready=1), "PROGRESS"),
    ("a round that sees something else", STALL, Round(running=1), None, ""),
    ("nobody could run", STALL, Round(parked=1), None, ""),
    (
        "one that waits and fits",
        [Submit("1", 0, 16), *[Round(waiting=1, needed=11)] * 2],
        Round(waiting=1, needed=12),
        Round(waiting=1, needed=11),
        "PROGRESS",
    ),
    ("something is in flight", [*LOADING, *[Round(ready=1)] * 9], Round(ready=1), None, ""),
    (
        "a tier full of mirrors has no room for ever",
        [*FULL, Touch("cpu", "mirror:4.0", [4]), Free("cpu", "op:8.0", [4])],
        Drop("1", 0, 0, 1, "resident"),
        Drop("1", 0, 0, 1, "tier_full"),
        "PROGRESS",
    ),
    ("a transfer gives its slot back", FULL, Drop("1", 0, 0, 1, "tier_full"), None, ""),
    ("a victim's slots come back first", CRAMPED, Preempt("2", 0), Preempt("2", 0, why="room"), "PROGRESS"),
    (
        "they are back",
        [*CRAMPED, Process(0), Free("gpu", "req:3.0", [3])],
        Preempt("2", 0, why="room"),
        None,
        "",
    ),
    # Loads that fail in part.
    ("the rest is valid", HALF_OVER, Rollback("1", 0, 4), Rollback("1", 0, 8), "FAIL-CLOSED"),
    ("and is computed upon", [*HALF_OVER, Rollback("1", 0, 4)], Dispatch(0, ["1"], [8]), None, ""),
    ("a failure is not good", HALF, Complete(0, 0, ok=False), Complete(0, 0), "FAIL-CLOSED"),
    ("it is by group", LOADING, Failed(0, 0, 0, [2]), Failed(0, 0, 0, [2], group=1), "FAIL-CLOSED"),
    ("of the transfer", LOADING, Failed(0, 0, 1, [1]), Failed(0, 0, 1, [3]), "FAIL-CLOSED"),
    ("in time", LANDED, None, Failed(0, 0, 0, [2]), "FAIL-CLOSED"),
    ("of a rank that is", LOADING, Failed(0, 0, 1, [1]), Failed(0, 0, 2, [1]), "ONCE"),
    (
        "before the rank says otherwise",
        [*LOADING, Report(0, 0, 0)],
        Failed(0, 0, 1, [1]),
        Failed(0, 0, 0, [1]),
        "FAIL-CLOSED",
    ),
    ("of something that is open", LOADING, None, Failed(1, 0, 0, [1]), "ONCE"),
    (
        "what failed is a miss",
        [*HALF_OVER, *RELEASED, Rollback("1", 0, 4), Submit("2", 0, 16), Touch("cpu", "hit:2.0", [0, 1])],
        None,
        Lookup("2", 0, 0, 8, "cpu", [0, 1]),
        "FAIL-CLOSED",
    ),
    (
        "what landed is none",
        [*HALF_OVER, *RELEASED, Rollback("1", 0, 4), Submit("2", 0, 16), Touch("cpu", "hit:2.0", [0])],
        Lookup("2", 0, 0, 4, "cpu", [0]),
        None,
        "",
    ),
    (
        "rolled back, a request counts no step that is not under way",
        HALF_OVER,
        Rollback("1", 0, 4, ahead=0),
        Rollback("1", 0, 4, ahead=1),
        "COUNT",
    ),
    # Ranks.
    ("all ranks commit", VOTED, Decide(0, 0, 1, "commit"), Decide(0, 0, 1, "abort"), "RANKS"),
    ("what all reserved", VOTED[:-2], Decide(0, 0, 0, "abort"), Decide(0, 0, 0, "commit"), "RANKS"),
    ("a rank decides once", VOTED, None, Decide(0, 0, 0, "commit"), "ONCE"),
    ("is asked once", VOTED[:-2], Reserve(0, 0, 1), Reserve(0, 0, 0), "ONCE"),
    ("before anybody commits", [*LOADING, Decide(0, 0, 0, "commit")], None, Reserve(0, 0, 1), "RANKS"),
    (
        "a transfer that is aborted is not good",
        [*LOADING, *(Decide(0, 0, r, "abort") for r in (0, 1)), *(Report(0, 0, r) for r in (0, 1))],
        Complete(0, 0, ok=False),
        Complete(0, 0),
        "RANKS",
    ),
    ("a rank exists that decides", VOTED, None, Decide(0, 0, 2, "commit"), "ONCE"),
    ("what is decided is open", VOTED, None, Decide(1, 0, 0, "commit"), "ONCE"),
    # Questions.
    ("who asked gets the answer", ASKED, Answer(5, "1", 0, 2), Answer(5, "2", 0, 2), "ONCE"),
    ("once", [*ASKED, Answer(5, "1", 0, 0)], None, Answer(5, "1", 0, 2), "ONCE"),
    ("about what was asked", ASKED, Answer(5, "1", 0, 1), Answer(5, "1", 0, 3), "ONCE"),
    ("under an id of its own", ASKED, Ask(6, "2", 0, "cpu", [10]), Ask(5, "2", 0, "cpu", [10]), "ONCE"),
    (
        "not what failed",
        [*ASKED, *CACHED[:-1], *LOADING[6:-2], Issue(0, 0), *HALF_OVER[-4:], Unlabel("cpu", [1], "failed")],
        Answer(5, "1", 0, 1),
        Answer(5, "1", 0, 2),
        "FAIL-CLOSED",
    ),
    # Zeros.
    (
        "zeros are of a step under way",
        STEP,
        Zero(0, "gpu", [2]),
        Zero(1, "gpu", [2]),
        "ONCE",
    ),
    (
        "a load comes after them",
        [
            *CACHED,
            Dispatch(0, [], []),
            Zero(0, "gpu", [7]),
            Alloc("gpu", "op:1.0", [7, 8]),
            Touch("cpu", "op:1.0", [0]),
        ],
        Queue(1, 0, "load", "cpu", [0], "gpu", [8], [10]),
        Queue(1, 0, "load", "cpu", [0], "gpu", [7], [10]),
        "LOAD-ORDER",
    ),
    (
        "not under them",
        [*LOADING, Dispatch(0, [], [])],
        Zero(0, "gpu", [3]),
        Zero(0, "gpu", [2]),
        "LOAD-ORDER",
    ),
    (
        "when they are written, they are over",
        [
            *CACHED,
            Dispatch(0, [], []),
            Zero(0, "gpu", [7]),
            Alloc("gpu", "op:1.0", [7]),
            Touch("cpu", "op:1.0", [0]),
            Process(0),
        ],
        Queue(1, 0, "load", "cpu", [0], "gpu", [7], [10]),
        None,
        "",
    ),
]


def judge(events: list[Event], **options: Any) -> list[str]:
    """The invariants that ``events`` violate, in order; a copy goes on in the middle."""
    ledger = Ledger(HEADER, **options)
    found = []
    for number, event in enumerate(events):
        if number == len(events) - 1:
            ledger = ledger.copy()
        violation = ledger.apply(event)
        if violation is not None:
            found.append(violation.invariant)
    return found


PASSING = [pytest.param(before, sound, id=name) for name, before, sound, _, _ in TWINS if sound is not None]
FAILING = [
    pytest.param(before, faulty, invariant, id=name)
    for name, before, _, faulty, invariant in TWINS
    if faulty is not None
]


@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize(("before", "sound"), PASSING)
def test_accepted(before: list[Event], sound: Event, shortcuts: bool) -> None:
    assert judge([*before, sound], shortcuts=shortcuts) == []


@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize(("before", "faulty", "invariant"), FAILING)
def test_rejected(before: list[Event], faulty: Event, invariant: str, shortcuts: bool) -> None:
    assert judge([*before, faulty], shortcuts=shortcuts) == [invariant]


def test_a_difference_between_what_is_published_and_what_is_there_is_told_once() -> None:
    assert judge([*CACHED, Published("cpu"), Published("cpu"), Quiesce()]) == ["EVENTS"]


# What a token reads, counted token by token.

WINDOWS: list[tuple[GroupKind, int | None]] = [
    ("full", None),
    ("recurrent", None),
    *(("sliding", window) for window in range(1, 15)),
    *(("chunked", window) for window in range(1, 15)),
]
GROUPS = [Group("gpu", size, window, kind) for size in range(1, 7) for kind, window in WINDOWS]


def tokens_read(group: Group, tokens: int) -> list[int]:
    """The tokens that the one after ``tokens`` computed ones reads, by the words of the format."""
    window = group.window or 0
    wanted = {
        "full": lambda t: True,  # noqa: ARG005
        "sliding": lambda t: t > tokens - window,
        "chunked": lambda t: t >= tokens - tokens % window,
        "recurrent": lambda t: t == tokens - 1,
    }
    return [t for t in range(tokens) if wanted[group.kind or "full"](t)]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_blocks_are_counted_as_tokens_are(group: Group) -> None:
    read: dict[int, int] = {}
    most = 0
    for tokens in range(60):
        blocks = {token // group.block_size for token in tokens_read(group, tokens)}
        assert set(blocks_read(group, tokens)) == blocks
        most = max(most, len(blocks))
        read.update(dict.fromkeys(blocks, tokens))
    assert most_blocks_read(group) == (None if group.kind == "full" else most)
    for at in range(3):
        last = last_reader(group, at)
        if last is not None:
            assert read.get(at, last) == last  # a block at the end of a chunk may have no reader
