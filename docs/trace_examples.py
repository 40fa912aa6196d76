"""One example per invariant for docs/trace-format.md: a trace that is right, and a line that breaks it.

The line stands in place of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvfence.spec.events import (
    Admit,
    Alloc,
    Complete,
    Cursor,
    Dispatch,
    Drop,
    Event,
    Evict,
    Finish,
    Free,
    Geometry,
    Group,
    Header,
    Hostmem,
    Issue,
    Label,
    Lookup,
    Pool,
    Process,
    Queue,
    Register,
    Removed,
    Report,
    Reset,
    Retire,
    Rollback,
    Round,
    Stale,
    Stored,
    Submit,
    Touch,
    Unregister,
    Zero,
)


class Example(NamedTuple):
    """A trace of ``events``; with ``wrong`` in place of the last one it violates ``invariant``."""

    invariant: str
    told: str
    header: Header
    events: Sequence[Event]
    wrong: Event


def begins(group: Group | None = None, **more: Any) -> Header:
    """A small connector: a GPU pool with a null block and a CPU tier."""
    pools = Pool("gpu", 8, null=0), Pool("cpu", 8)
    return Header(producer="example", pools=pools, groups=(group or Group("gpu", 16),), **more)


# A request computes one block of 16 tokens.
ADMITTED: list[Event] = [
    Submit("7", 0, 16),
    Admit("7", 0, local=0, external=0, compute=16, total=16),
    Alloc("gpu", "req:7.0", [1], free=6),
]
COMPUTED: list[Event] = [*ADMITTED, Dispatch(0, ["7"], [16]), Process(0)]
# The block goes to the tier.
STORING: list[Event] = [
    *COMPUTED,
    Touch("gpu", "op:0.0", [1]),
    Alloc("cpu", "op:0.0", [0], free=7),
    Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
    Issue(0, 0),
]
# The tier has a block under key 4242, and a request of 32 tokens comes that begins with it.
CACHED: list[Event] = [
    Alloc("cpu", "op:9.0", [0], free=7),
    Label("cpu", [0], [4242]),
    Free("cpu", "op:9.0", [0], free=8),
    Submit("7", 0, 32),
]
PROMISED: list[Event] = [
    *CACHED,
    Touch("cpu", "hit:7.0", [0]),
    Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
]
LOADING: list[Event] = [
    *PROMISED,
    Alloc("gpu", "req:7.0", [1, 2], free=5),
    Admit("7", 0, local=0, external=16, compute=16, total=32),
    Touch("cpu", "op:0.0", [0]),
    Touch("gpu", "op:0.0", [1]),
    Queue(0, 0, "load", "cpu", [0], "gpu", [1], [4242], req="7", at=[0]),
    Free("cpu", "hit:7.0", [0]),
    Issue(0, 0),
]
LOADED: list[Event] = [
    *LOADING,
    Report(0, 0, rank=0),
    Complete(0, 0),
    Free("cpu", "op:0.0", [0]),
    Free("gpu", "op:0.0", [1]),
]

EXAMPLES: list[Example] = [
    Example(
        "FREEZE",
        "A request frees its block while a store reads it: the store holds the block as well. Were the "
        "store's destination given back now, it would be written after it belongs to somebody else.",
        begins(),
        [*STORING, Free("gpu", "req:7.0", [1])],
        Free("cpu", "op:0.0", [0]),
    ),
    Example(
        "NO-LEAK",
        "A finished request gives its block back before it is gone.",
        begins(),
        [*COMPUTED, Finish("7", 0, "stop", 16), Drop("7", 0, 0, 1, "off"), Free("gpu", "req:7.0", [1])],
        Retire("7", 0),
    ),
    Example(
        "CONSERVE",
        "Seven slots can be held, and one is; the pool counts six free ones. Counting seven, it will give "
        "away one slot too many.",
        begins(),
        [Alloc("gpu", "req:7.0", [1], free=6)],
        Alloc("gpu", "req:7.0", [1], free=7),
    ),
    Example(
        "PROGRESS",
        "The load has landed, and nothing is in flight that the scheduler could wait for. Two rounds in "
        "which it schedules nothing may be; after a third that finds all as it was there will be no "
        "other.",
        begins(),
        [*LOADED, Round(ready=1), Round(ready=1), Dispatch(0, ["7"], [16])],
        Round(ready=1),
    ),
    Example(
        "PIN",
        "The block of a hit gets a holder before it is promised.",
        begins(),
        [*CACHED, Touch("cpu", "hit:7.0", [0])],
        Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
    ),
    Example(
        "FAIL-CLOSED",
        "A request whose load failed counts its tokens as not computed before it runs.",
        begins(),
        [*LOADING, Report(0, 0, rank=0, ok=False), Complete(0, 0, ok=False), Rollback("7", 0, 0)],
        Dispatch(0, ["7"], [16]),
    ),
    Example(
        "ONCE",
        "A second report of the same rank is recognised, and not taken for news.",
        begins(ranks=2),
        [*STORING, Report(0, 0, rank=0), Stale(0, 0, rank=0)],
        Report(0, 0, rank=0),
    ),
    Example(
        "RANKS",
        "A transfer is not over as long as a rank has not reported.",
        begins(ranks=2),
        [*STORING, Report(0, 0, rank=0), Report(0, 0, rank=1)],
        Complete(0, 0),
    ),
    Example(
        "GEOMETRY",
        "A window of 4096 tokens that begins in the middle of a block lies in 129 blocks of 32 tokens, "
        "not in 128.",
        begins(Group("gpu", 32, window=4096, kind="sliding")),
        [Submit("7", 0, 98_012), Geometry("7", 0, group=0, tokens=98_012, needed=129, bound=129)],
        Geometry("7", 0, group=0, tokens=98_012, needed=129, bound=128),
    ),
    Example(
        "CURSOR",
        "The store cursor passes the block that was dropped for a reason, and not the one behind it.",
        begins(),
        [*COMPUTED, Drop("7", 0, 0, 1, "tier_full"), Cursor("7", 0, to=1)],
        Cursor("7", 0, to=2),
    ),
    Example(
        "COUNT",
        "Of 32 tokens, 16 come from the tier, and the other 16 are computed.",
        begins(),
        [*PROMISED, Admit("7", 0, local=0, external=16, compute=16, total=32)],
        Admit("7", 0, local=0, external=16, compute=32, total=32),
    ),
    Example(
        "USE-READY",
        "A request runs after the load into its table has landed.",
        begins(),
        [*LOADED, Dispatch(0, ["7"], [16])][: len(LOADING) + 1],
        Dispatch(0, ["7"], [16]),
    ),
    Example(
        "STORE-READY",
        "A block is stored when the step that computes it has been processed.",
        begins(),
        [
            *ADMITTED,
            Dispatch(0, ["7"], [16]),
            Touch("gpu", "op:0.0", [1]),
            Alloc("cpu", "op:0.0", [0], free=7),
            Process(0),
        ],
        Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
    ),
    Example(
        "LOAD-ORDER",
        "A step that is under way zeroes a slot of a request that is gone by now. The next owner's load "
        "waits until the step is over: the zeros would land on what it loaded.",
        begins(),
        [
            *CACHED,
            Submit("6", 0, 16),
            Alloc("gpu", "req:6.0", [1]),
            Dispatch(0, [], []),
            Zero(0, "gpu", [1]),
            Finish("6", 0, "abort", 0),
            Free("gpu", "req:6.0", [1]),
            Touch("cpu", "op:0.0", [0]),
            Alloc("gpu", "op:0.0", [1]),
            Process(0),
        ],
        Queue(0, 0, "load", "cpu", [0], "gpu", [1], [4242]),
    ),
    Example(
        "PURE",
        "Asked again, the connector finds another block; its pins are those of the new promise.",
        begins(),
        [
            Alloc("cpu", "op:9.0", [0, 1], free=6),
            Label("cpu", [0, 1], [4242, 4343]),
            Free("cpu", "op:9.0", [0, 1], free=8),
            Submit("7", 0, 64),
            Touch("cpu", "hit:7.0", [0]),
            Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
            Touch("cpu", "hit:7.0", [1]),
            Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1]),
        ],
        Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
    ),
    Example(
        "FLUSH",
        "The full block of a finished request is stored, or dropped for a reason that is counted.",
        begins(),
        [*COMPUTED, Finish("7", 0, "stop", 16), Free("gpu", "req:7.0", [1]), Drop("7", 0, 0, 1, "off")],
        Retire("7", 0),
    ),
    Example(
        "UNIQUE",
        "While a store of key 4242 is open, another block is stored, and not the same once more.",
        begins(),
        [
            *STORING,
            Alloc("gpu", "req:8.0", [2]),
            Alloc("cpu", "op:1.0", [1]),
            Queue(1, 0, "store", "gpu", [2], "cpu", [1], [4343]),
        ],
        Queue(1, 0, "store", "gpu", [2], "cpu", [1], [4242]),
    ),
    Example(
        "RESET",
        "A reset clears both pools. Had it cleared one, the other would go on to serve the old key.",
        begins(),
        [*CACHED, Reset(ok=True, pools=["gpu", "cpu"])],
        Reset(ok=True, pools=["gpu"]),
    ),
    Example(
        "HOSTMEM",
        "Rank 1 cannot register all of its memory. It takes back the piece that it has registered before "
        "it says that its memory is not pinned.",
        begins(ranks=2),
        [
            Register("cpu", rank=0, piece=0),
            Register("cpu", rank=1, piece=0),
            Register("cpu", rank=1, piece=1, ok=False),
            Unregister("cpu", rank=0, piece=0),
            Hostmem("cpu", rank=0, pinned=False),
            Unregister("cpu", rank=1, piece=0),
        ],
        Hostmem("cpu", rank=1, pinned=False),
    ),
    Example(
        "EVENTS",
        "A key that is evicted is published as removed. Published as stored once more, it would be looked "
        "for in vain.",
        begins(),
        [*CACHED, Stored("cpu", [4242]), Evict("cpu", [0]), Removed("cpu", [4242])],
        Stored("cpu", [4242]),
    ),
]
"""In the order of the catalogue."""
