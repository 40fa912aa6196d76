"""One example per invariant for docs/trace-format.md: a trace that is right, and a line that breaks it.

The line stands in place of the last one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvfence.spec import events as ev


def begins(group: ev.Group | None = None, **more: Any) -> ev.Header:
    """A small connector: a GPU pool with a null block and a CPU tier."""
    pools = ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 8)
    return ev.Header(producer="example", pools=pools, groups=(group or ev.Group("gpu", 16),), **more)


HEADER = begins()


class Example(NamedTuple):
    """A trace of ``events``; with ``wrong`` in place of the last one it violates ``invariant``."""

    invariant: str
    text: str
    events: Sequence[ev.Event]
    wrong: ev.Event
    header: ev.Header = HEADER


# A request computes one block of 16 tokens.
ADMITTED: list[ev.Event] = [
    ev.Submit("7", 0, 16),
    ev.Admit("7", 0, local=0, external=0, compute=16, total=16),
    ev.Alloc("gpu", "req:7.0", [1], free=6),
]
COMPUTED: list[ev.Event] = [*ADMITTED, ev.Dispatch(0, ["7"], [16]), ev.Process(0)]
# The block goes to the tier.
STORING: list[ev.Event] = [
    *COMPUTED,
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Alloc("cpu", "op:0.0", [0], free=7),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
    ev.Issue(0, 0),
]
# The tier has a block under key 4242, and a request of 32 tokens comes that begins with it.
CACHED: list[ev.Event] = [
    ev.Alloc("cpu", "op:9.0", [0], free=7),
    ev.Label("cpu", [0], [4242]),
    ev.Free("cpu", "op:9.0", [0], free=8),
    ev.Submit("7", 0, 32),
]
PROMISED: list[ev.Event] = [
    *CACHED,
    ev.Touch("cpu", "hit:7.0", [0]),
    ev.Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
]
LOADING: list[ev.Event] = [
    *PROMISED,
    ev.Alloc("gpu", "req:7.0", [1, 2], free=5),
    ev.Admit("7", 0, local=0, external=16, compute=16, total=32),
    ev.Touch("cpu", "op:0.0", [0]),
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Queue(0, 0, "load", "cpu", [0], "gpu", [1], [4242], req="7", at=[0]),
    ev.Free("cpu", "hit:7.0", [0]),
    ev.Issue(0, 0),
]
LOADED: list[ev.Event] = [
    *LOADING,
    ev.Report(0, 0, rank=0),
    ev.Complete(0, 0),
    ev.Free("cpu", "op:0.0", [0]),
    ev.Free("gpu", "op:0.0", [1]),
]

EXAMPLES: list[Example] = [
    Example(
        "FREEZE",
        "A request frees its block while a store reads it: the store holds the block as well. Were the "
        "store's destination given back now, it would be written after it belongs to somebody else.",
        [*STORING, ev.Free("gpu", "req:7.0", [1])],
        ev.Free("cpu", "op:0.0", [0]),
    ),
    Example(
        "NO-LEAK",
        "A finished request gives its block back before it is gone.",
        [
            *COMPUTED,
            ev.Finish("7", 0, "stop", 16),
            ev.Drop("7", 0, 0, 1, "off"),
            ev.Free("gpu", "req:7.0", [1]),
        ],
        ev.Retire("7", 0),
    ),
    Example(
        "CONSERVE",
        "Seven slots can be held, and one is; the pool counts six free ones. Counting seven, it will give "
        "away one slot too many.",
        [ev.Alloc("gpu", "req:7.0", [1], free=6)],
        ev.Alloc("gpu", "req:7.0", [1], free=7),
    ),
    Example(
        "PROGRESS",
        "The load has landed, and nothing is in flight that the scheduler could wait for. Two rounds in "
        "which it schedules nothing may be; after a third that finds all as it was there will be no "
        "other.",
        [*LOADED, ev.Round(ready=1), ev.Round(ready=1), ev.Dispatch(0, ["7"], [16])],
        ev.Round(ready=1),
    ),
    Example(
        "PIN",
        "The block of a hit gets a holder before it is promised.",
        [*CACHED, ev.Touch("cpu", "hit:7.0", [0])],
        ev.Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
    ),
    Example(
        "FAIL-CLOSED",
        "A request whose load failed counts its tokens as not computed before it runs.",
        [*LOADING, ev.Report(0, 0, rank=0, ok=False), ev.Complete(0, 0, ok=False), ev.Rollback("7", 0, 0)],
        ev.Dispatch(0, ["7"], [16]),
    ),
    Example(
        "ONCE",
        "A second report of the same rank is recognised, and not taken for news.",
        [*STORING, ev.Report(0, 0, rank=0), ev.Stale(0, 0, rank=0)],
        ev.Report(0, 0, rank=0),
        begins(ranks=2),
    ),
    Example(
        "RANKS",
        "A transfer is not over as long as a rank has not reported.",
        [*STORING, ev.Report(0, 0, rank=0), ev.Report(0, 0, rank=1)],
        ev.Complete(0, 0),
        begins(ranks=2),
    ),
    Example(
        "GEOMETRY",
        "A window of 4096 tokens that begins in the middle of a block lies in 129 blocks of 32 tokens, "
        "not in 128.",
        [ev.Submit("7", 0, 98_012), ev.Geometry("7", 0, group=0, tokens=98_012, needed=129, bound=129)],
        ev.Geometry("7", 0, group=0, tokens=98_012, needed=129, bound=128),
        begins(ev.Group("gpu", 32, window=4096, kind="sliding")),
    ),
    Example(
        "CURSOR",
        "The store cursor passes the block that was dropped for a reason, and not the one behind it.",
        [*COMPUTED, ev.Drop("7", 0, 0, 1, "tier_full"), ev.Cursor("7", 0, to=1)],
        ev.Cursor("7", 0, to=2),
    ),
    Example(
        "COUNT",
        "Of 32 tokens, 16 come from the tier, and the other 16 are computed.",
        [*PROMISED, ev.Admit("7", 0, local=0, external=16, compute=16, total=32)],
        ev.Admit("7", 0, local=0, external=16, compute=32, total=32),
    ),
    Example(
        "USE-READY",
        "A request runs after the load into its table has landed.",
        [*LOADED, ev.Dispatch(0, ["7"], [16])][: len(LOADING) + 1],
        ev.Dispatch(0, ["7"], [16]),
    ),
    Example(
        "STORE-READY",
        "A block is stored when the step that computes it has been processed.",
        [
            *ADMITTED,
            ev.Dispatch(0, ["7"], [16]),
            ev.Touch("gpu", "op:0.0", [1]),
            ev.Alloc("cpu", "op:0.0", [0], free=7),
            ev.Process(0),
        ],
        ev.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
    ),
    Example(
        "LOAD-ORDER",
        "A step that is under way zeroes a slot of a request that is gone by now. The next owner's load "
        "waits until the step is over: the zeros would land on what it loaded.",
        [
            *CACHED,
            ev.Submit("6", 0, 16),
            ev.Alloc("gpu", "req:6.0", [1]),
            ev.Dispatch(0, [], []),
            ev.Zero(0, "gpu", [1]),
            ev.Finish("6", 0, "abort", 0),
            ev.Free("gpu", "req:6.0", [1]),
            ev.Touch("cpu", "op:0.0", [0]),
            ev.Alloc("gpu", "op:0.0", [1]),
            ev.Process(0),
        ],
        ev.Queue(0, 0, "load", "cpu", [0], "gpu", [1], [4242]),
    ),
    Example(
        "PURE",
        "Asked again, the connector finds another block; its pins are those of the new promise.",
        [
            ev.Alloc("cpu", "op:9.0", [0, 1], free=6),
            ev.Label("cpu", [0, 1], [4242, 4343]),
            ev.Free("cpu", "op:9.0", [0, 1], free=8),
            ev.Submit("7", 0, 64),
            ev.Touch("cpu", "hit:7.0", [0]),
            ev.Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
            ev.Touch("cpu", "hit:7.0", [1]),
            ev.Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1]),
        ],
        ev.Lookup("7", 0, local=0, external=16, pool="cpu", slots=[0]),
    ),
    Example(
        "FLUSH",
        "The full block of a finished request is stored, or dropped for a reason that is counted.",
        [
            *COMPUTED,
            ev.Finish("7", 0, "stop", 16),
            ev.Free("gpu", "req:7.0", [1]),
            ev.Drop("7", 0, 0, 1, "off"),
        ],
        ev.Retire("7", 0),
    ),
    Example(
        "UNIQUE",
        "While a store of key 4242 is open, another block is stored, and not the same once more.",
        [
            *STORING,
            ev.Alloc("gpu", "req:8.0", [2]),
            ev.Alloc("cpu", "op:1.0", [1]),
            ev.Queue(1, 0, "store", "gpu", [2], "cpu", [1], [4343]),
        ],
        ev.Queue(1, 0, "store", "gpu", [2], "cpu", [1], [4242]),
    ),
    Example(
        "RESET",
        "A reset clears both pools. Had it cleared one, the other would go on to serve the old key.",
        [*CACHED, ev.Reset(ok=True, pools=["gpu", "cpu"])],
        ev.Reset(ok=True, pools=["gpu"]),
    ),
    Example(
        "HOSTMEM",
        "Rank 1 cannot register all of its memory. It takes back the piece that it has registered before "
        "it says that its memory is not pinned.",
        [
            ev.Register("cpu", rank=0, piece=0),
            ev.Register("cpu", rank=1, piece=0),
            ev.Register("cpu", rank=1, piece=1, ok=False),
            ev.Unregister("cpu", rank=0, piece=0),
            ev.Hostmem("cpu", rank=0, pinned=False),
            ev.Unregister("cpu", rank=1, piece=0),
        ],
        ev.Hostmem("cpu", rank=1, pinned=False),
        begins(ranks=2),
    ),
    Example(
        "EVENTS",
        "A key that is evicted is published as removed. Published as stored once more, it would be looked "
        "for in vain.",
        [*CACHED, ev.Stored("cpu", [4242]), ev.Evict("cpu", [0]), ev.Removed("cpu", [4242])],
        ev.Stored("cpu", [4242]),
    ),
]
"""In the order of the catalogue."""
