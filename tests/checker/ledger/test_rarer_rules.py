"""Each rule about the rarer events has a passing and a failing twin that names that invariant."""

from typing import Any

import pytest
import twins as tw

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.rules.progress import STALLED
from kvfence.checker.ledger.state.attention_window import blocks_read, last_reader, most_blocks_read
from kvfence.spec import events as ev

HEADER = tw.header(
    ev.Group("gpu", 4),
    ev.Group("gpu", 8, window=11),
    ev.Group("gpu", 4, kind="recurrent"),
    gpu=12,
    ranks=2,
    depth=2,
)

# A tier with two blocks of group 0 and one of the others, and a request that asks for them.
CACHED: list[ev.Event] = [
    ev.Alloc("cpu", "op:9.0", [0, 1, 2, 3]),
    ev.Label("cpu", [0, 1], [10, 11]),
    ev.Label("cpu", [2], [11], group=1),
    ev.Label("cpu", [3], [11], group=2),
    ev.Free("cpu", "op:9.0", [0, 1, 2, 3]),
    ev.Submit("1", 0, 16),
]
FULL: list[ev.Event] = [
    *CACHED,
    *[ev.Touch("cpu", f"mirror:{slot}.0", [slot]) for slot in range(4)],
    ev.Alloc("cpu", "mirror:5.0", [5]),
    ev.Alloc("cpu", "op:8.0", [4]),
]
PINNED: list[ev.Event] = [*CACHED, ev.Touch("cpu", "hit:1.0", [0, 1, 2, 3])]
LOADING: list[ev.Event] = [
    *CACHED,
    ev.Touch("cpu", "hit:1.0", [0, 1]),
    tw.lookup(0, 8, "cpu", [0, 1]),
    ev.Alloc("gpu", "req:1.0", [1, 2, 3]),
    tw.admit(0, 8, 4, 12),
    ev.Touch("cpu", "op:0.0", [0, 1]),
    ev.Touch("gpu", "op:0.0", [1, 2]),
    tw.load(0, [0, 1], [1, 2], [10, 11], req="1", at=[0, 1]),
    ev.Free("cpu", "hit:1.0", [0, 1]),
    tw.issue(),
]
HALF: list[ev.Event] = [*LOADING, tw.failed(0, [2]), tw.report(0, ok=False), tw.report(1)]
HALF_OVER: list[ev.Event] = [*HALF, tw.complete(ok=False)]
RELEASED: list[ev.Event] = [ev.Free("cpu", "op:0.0", [0, 1]), ev.Free("gpu", "op:0.0", [1, 2])]
LANDED: list[ev.Event] = [*LOADING, tw.report(0), tw.report(1), tw.complete(), *RELEASED]
ASKED: list[ev.Event] = [ev.Submit("1", 0, 16), ev.Submit("2", 0, 16), ev.Ask(5, "1", 0, "cpu", [10, 11])]
TABLE: list[ev.Event] = [ev.Submit("1", 0, 40), ev.Alloc("gpu", "req:1.0", [1, 2, 3], group=1, at=1)]
STEP: list[ev.Event] = [ev.Submit("1", 0, 8), ev.Alloc("gpu", "req:1.0", [1]), tw.step(0, 4)]
CRAMPED: list[ev.Event] = [
    *(ev.Submit(name, 0, 8) for name in "123"),
    *(ev.Alloc("gpu", f"req:{name}.0", [slot]) for slot, name in enumerate("123", 1)),
    tw.step(0, 4, "1", "2", "3"),
    ev.Preempt("3", 0, why="room"),
]
VOTED: list[ev.Event] = [*LOADING, ev.Reserve(0, 0, 0), ev.Reserve(0, 0, 1), tw.decide(0, "commit")]
STALL: list[ev.Event] = [*LANDED, *[ev.Round(ready=1)] * (STALLED - 1)]
REGISTERED: list[ev.Event] = [ev.Register("cpu", 0, 0), ev.Register("cpu", 0, 1)]

TWINS: list[tw.Twin] = [
    # Geometry.
    ("a full group reads all", TABLE, tw.geometry(0, 9, needed=3), tw.geometry(0, 9, needed=2), "GEOMETRY"),
    ("a window, unaligned", TABLE, tw.geometry(1, 21, needed=2), tw.geometry(1, 21, needed=3), "GEOMETRY"),
    (
        "a recurrent group reads one",
        TABLE,
        tw.geometry(2, 9, needed=1),
        tw.geometry(2, 9, needed=3),
        "GEOMETRY",
    ),
    (
        "a bound allows for any start",
        TABLE,
        tw.geometry(1, 0, bound=3),
        tw.geometry(1, 0, bound=2),
        "GEOMETRY",
    ),
    (
        "null blocks do not count",
        TABLE,
        tw.geometry(1, 24, at=0, slots=[0, 1, 2, 3], held=3),
        tw.geometry(1, 24, at=0, slots=[0, 1, 2, 3], held=4),
        "GEOMETRY",
    ),
    (
        "what is kept is what is read",
        TABLE,
        tw.geometry(1, 27, at=2, slots=[2, 3]),
        tw.geometry(1, 25, at=2, slots=[2, 3]),
        "GEOMETRY",
    ),
    (
        "a table is the request's",
        [*TABLE, ev.Alloc("gpu", "req:9.0", [4])],
        tw.geometry(1, 26, at=1, slots=[1, 2, 3]),
        tw.geometry(1, 26, at=1, slots=[4, 2, 3]),
        "GEOMETRY",
    ),
    (
        "a hit has every group's window",
        PINNED,
        tw.lookup(0, 8, "cpu", [0, 1, 2, 3], [2, 1, 1]),
        tw.lookup(0, 8, "cpu", [0, 1, 2, 3], [2, 2, 0]),
        "GEOMETRY",
    ),
    (
        "a hit ends with a block",
        [*PINNED, ev.Unlabel("cpu", [1], "test"), ev.Label("cpu", [1], [10], group=1)],
        None,
        tw.lookup(0, 4, "cpu", [0, 1, 2, 3], [1, 2, 1]),
        "GEOMETRY",
    ),
    # Host memory.
    ("a piece is registered once", REGISTERED, ev.Register("cpu", 0, 2), ev.Register("cpu", 0, 1), "HOSTMEM"),
    ("a rank exists", REGISTERED, ev.Register("cpu", 1, 0), ev.Register("cpu", 2, 0), "HOSTMEM"),
    (
        "what is registered is taken back",
        REGISTERED,
        ev.Unregister("cpu", 0, 1),
        ev.Unregister("cpu", 1, 1),
        "HOSTMEM",
    ),
    ("all of it is pinned", REGISTERED, ev.Hostmem("cpu", 0, True), ev.Hostmem("cpu", 0, False), "HOSTMEM"),
    (
        "or what was is taken back",
        [
            *REGISTERED,
            ev.Register("cpu", 0, 2, ok=False),
            ev.Unregister("cpu", 0, 0),
            ev.Unregister("cpu", 0, 1),
        ],
        ev.Hostmem("cpu", 0, False),
        ev.Hostmem("cpu", 0, True),
        "HOSTMEM",
    ),
    (
        "ranks agree",
        [ev.Hostmem("cpu", 0, False)],
        ev.Hostmem("cpu", 1, False),
        ev.Hostmem("cpu", 1, True),
        "HOSTMEM",
    ),
    ("each rank speaks", [ev.Hostmem("cpu", 0, True)], ev.Hostmem("cpu", 1, True), ev.Quiesce(), "HOSTMEM"),
    (
        "nothing is registered later",
        [ev.Hostmem("cpu", 0, False)],
        ev.Register("cpu", 1, 0),
        ev.Register("cpu", 0, 0),
        "HOSTMEM",
    ),
    (
        "descriptors stay until read",
        [
            *LOADING,
            ev.Describe(0, 0, 4),
            ev.Alloc("gpu", "op:1.0", [5]),
            ev.Alloc("cpu", "op:1.0", [5]),
            tw.load(1, [5], [5], [17]),
        ],
        ev.Describe(1, 0, 3),
        ev.Describe(1, 0, 4),
        "HOSTMEM",
    ),
    (
        "and are free when the rank is done",
        [
            *LOADING,
            ev.Describe(0, 0, 4),
            ev.Alloc("gpu", "op:1.0", [5]),
            ev.Alloc("cpu", "op:1.0", [5]),
            tw.load(1, [5], [5], [17]),
            tw.report(0),
        ],
        ev.Describe(1, 0, 4),
        ev.Describe(2, 0, 4),
        "ONCE",
    ),
    # Published keys.
    (
        "what can be looked up is published",
        CACHED,
        ev.Stored("cpu", [10, 11]),
        ev.Stored("cpu", [10, 12]),
        "EVENTS",
    ),
    ("by group", CACHED, ev.Stored("cpu", [11], group=1), ev.Stored("cpu", [10], group=1), "EVENTS"),
    ("once", [*CACHED, ev.Stored("cpu", [10])], ev.Stored("cpu", [11]), ev.Stored("cpu", [10]), "EVENTS"),
    (
        "and taken back once it cannot",
        [*CACHED, ev.Stored("cpu", [10, 11]), ev.Evict("cpu", [0])],
        ev.Removed("cpu", [10]),
        ev.Removed("cpu", [11]),
        "EVENTS",
    ),
    ("if it was published", [*CACHED, ev.Evict("cpu", [0])], None, ev.Removed("cpu", [10]), "EVENTS"),
    (
        "all that can be looked up is published",
        [*CACHED, ev.Stored("cpu", [10, 11]), ev.Stored("cpu", [11], 1), ev.Stored("cpu", [11], 2)],
        ev.Published("cpu"),
        None,
        "",
    ),
    ("nothing is missing", [*CACHED, ev.Stored("cpu", [10])], None, ev.Published("cpu"), "EVENTS"),
    ("also in the end", [*CACHED, ev.Stored("cpu", [10])], None, ev.Quiesce(), "EVENTS"),
    ("who publishes nothing is not asked", CACHED, ev.Quiesce(), None, ""),
    ("a pool is cleared when it is empty", [*CACHED, ev.Reset(True, ["cpu"])], ev.Cleared("cpu"), None, ""),
    ("not before", CACHED, None, ev.Cleared("cpu"), "EVENTS"),
    # Progress.
    ("two idle rounds may be", STALL[:-1], ev.Round(ready=1), None, ""),
    ("a third finds all as it was", STALL, tw.step(0, 4), ev.Round(ready=1), "PROGRESS"),
    ("a round that sees something else", STALL, ev.Round(running=1), None, ""),
    ("nobody could run", STALL, ev.Round(parked=1), None, ""),
    (
        "one that waits and fits",
        [ev.Submit("1", 0, 16), *[ev.Round(waiting=1, needed=11)] * 2],
        ev.Round(waiting=1, needed=12),
        ev.Round(waiting=1, needed=11),
        "PROGRESS",
    ),
    ("something is in flight", [*LOADING, *[ev.Round(ready=1)] * 9], ev.Round(ready=1), None, ""),
    (
        "a tier full of mirrors has no room for ever",
        [*FULL, ev.Touch("cpu", "mirror:4.0", [4]), ev.Free("cpu", "op:8.0", [4])],
        tw.drop(0, 1, "resident"),
        tw.drop(0, 1, "tier_full"),
        "PROGRESS",
    ),
    ("a transfer gives its slot back", FULL, tw.drop(0, 1, "tier_full"), None, ""),
    (
        "a victim's slots come back first",
        CRAMPED,
        ev.Preempt("2", 0),
        ev.Preempt("2", 0, why="room"),
        "PROGRESS",
    ),
    (
        "they are back",
        [*CRAMPED, ev.Process(0), ev.Free("gpu", "req:3.0", [3])],
        ev.Preempt("2", 0, why="room"),
        None,
        "",
    ),
    # Loads that fail in part.
    ("the rest is valid", HALF_OVER, tw.rollback(4), tw.rollback(8), "FAIL-CLOSED"),
    ("and is computed upon", [*HALF_OVER, tw.rollback(4)], tw.step(0, 8), None, ""),
    ("a failure is not good", HALF, tw.complete(ok=False), tw.complete(), "FAIL-CLOSED"),
    ("it is by group", LOADING, tw.failed(0, [2]), tw.failed(0, [2], group=1), "FAIL-CLOSED"),
    ("of the transfer", LOADING, tw.failed(1, [1]), tw.failed(1, [3]), "FAIL-CLOSED"),
    ("in time", LANDED, None, tw.failed(0, [2]), "FAIL-CLOSED"),
    ("of a rank that is", LOADING, tw.failed(1, [1]), tw.failed(2, [1]), "ONCE"),
    (
        "before the rank says otherwise",
        [*LOADING, tw.report(0)],
        tw.failed(1, [1]),
        tw.failed(0, [1]),
        "FAIL-CLOSED",
    ),
    ("of something that is open", LOADING, None, ev.Failed(1, 0, 0, [1]), "ONCE"),
    (
        "what failed is a miss",
        [*HALF_OVER, *RELEASED, tw.rollback(4), ev.Submit("2", 0, 16), ev.Touch("cpu", "hit:2.0", [0, 1])],
        None,
        ev.Lookup("2", 0, 0, 8, "cpu", [0, 1]),
        "FAIL-CLOSED",
    ),
    (
        "what landed is none",
        [*HALF_OVER, *RELEASED, tw.rollback(4), ev.Submit("2", 0, 16), ev.Touch("cpu", "hit:2.0", [0])],
        ev.Lookup("2", 0, 0, 4, "cpu", [0]),
        None,
        "",
    ),
    (
        "rolled back, a request counts no step that is not under way",
        HALF_OVER,
        tw.rollback(4, ahead=0),
        tw.rollback(4, ahead=1),
        "COUNT",
    ),
    # Ranks.
    ("all ranks commit", VOTED, tw.decide(1, "commit"), tw.decide(1, "abort"), "RANKS"),
    ("what all reserved", VOTED[:-2], tw.decide(0, "abort"), tw.decide(0, "commit"), "RANKS"),
    ("a rank decides once", VOTED, None, tw.decide(0, "commit"), "ONCE"),
    ("is asked once", VOTED[:-2], ev.Reserve(0, 0, 1), ev.Reserve(0, 0, 0), "ONCE"),
    ("before anybody commits", [*LOADING, tw.decide(0, "commit")], None, ev.Reserve(0, 0, 1), "RANKS"),
    (
        "a transfer that is aborted is not good",
        [*LOADING, *(tw.decide(r, "abort") for r in (0, 1)), *(tw.report(r) for r in (0, 1))],
        tw.complete(ok=False),
        tw.complete(),
        "RANKS",
    ),
    ("a rank exists that decides", VOTED, None, tw.decide(2, "commit"), "ONCE"),
    ("what is decided is open", VOTED, None, ev.Decide(1, 0, 0, "commit"), "ONCE"),
    # Questions.
    ("who asked gets the answer", ASKED, ev.Answer(5, "1", 0, 2), ev.Answer(5, "2", 0, 2), "ONCE"),
    ("once", [*ASKED, ev.Answer(5, "1", 0, 0)], None, ev.Answer(5, "1", 0, 2), "ONCE"),
    ("about what was asked", ASKED, ev.Answer(5, "1", 0, 1), ev.Answer(5, "1", 0, 3), "ONCE"),
    ("under an id of its own", ASKED, ev.Ask(6, "2", 0, "cpu", [10]), ev.Ask(5, "2", 0, "cpu", [10]), "ONCE"),
    (
        "not what failed",
        [*ASKED, *CACHED[:-1], *LOADING[6:-2], tw.issue(), *HALF_OVER[-4:], ev.Unlabel("cpu", [1], "failed")],
        ev.Answer(5, "1", 0, 1),
        ev.Answer(5, "1", 0, 2),
        "FAIL-CLOSED",
    ),
    # Zeros.
    ("zeros are of a step under way", STEP, ev.Zero(0, "gpu", [2]), ev.Zero(1, "gpu", [2]), "ONCE"),
    (
        "a load comes after them",
        [
            *CACHED,
            tw.empty(0),
            ev.Zero(0, "gpu", [7]),
            ev.Alloc("gpu", "op:1.0", [7, 8]),
            ev.Touch("cpu", "op:1.0", [0]),
        ],
        tw.load(1, [0], [8], [10]),
        tw.load(1, [0], [7], [10]),
        "LOAD-ORDER",
    ),
    ("not under them", [*LOADING, tw.empty(0)], ev.Zero(0, "gpu", [3]), ev.Zero(0, "gpu", [2]), "LOAD-ORDER"),
    (
        "when they are written, they are over",
        [
            *CACHED,
            tw.empty(0),
            ev.Zero(0, "gpu", [7]),
            ev.Alloc("gpu", "op:1.0", [7]),
            ev.Touch("cpu", "op:1.0", [0]),
            ev.Process(0),
        ],
        tw.load(1, [0], [7], [10]),
        None,
        "",
    ),
]


def judge(events: list[ev.Event], **options: Any) -> list[str]:
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


@pytest.mark.parametrize("fast_paths", [True, False])
@tw.accepted(TWINS)
def test_accepted(before: list[ev.Event], sound: ev.Event, fast_paths: bool) -> None:
    assert judge([*before, sound], fast_paths=fast_paths) == []


@pytest.mark.parametrize("fast_paths", [True, False])
@tw.rejected(TWINS)
def test_rejected(before: list[ev.Event], faulty: ev.Event, invariant: str, fast_paths: bool) -> None:
    assert judge([*before, faulty], fast_paths=fast_paths) == [invariant]


def test_a_difference_between_what_is_published_and_what_is_there_is_told_once() -> None:
    assert judge([*CACHED, ev.Published("cpu"), ev.Published("cpu"), ev.Quiesce()]) == ["EVENTS"]


# What a token reads, counted token by token.

WINDOWS: list[tuple[ev.GroupKind, int | None]] = [
    ("full", None),
    ("recurrent", None),
    *(("sliding", window) for window in range(1, 15)),
    *(("chunked", window) for window in range(1, 15)),
]
GROUPS = [ev.Group("gpu", size, window, kind) for size in range(1, 7) for kind, window in WINDOWS]


def tokens_read(group: ev.Group, tokens: int) -> list[int]:
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
def test_blocks_are_counted_as_tokens_are(group: ev.Group) -> None:
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
