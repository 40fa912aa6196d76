"""Beginnings of traces: a connector with a GPU pool and a CPU tier, and a request on its way through it."""

from typing import Any

from kvfence.spec import events as ev


def connector(*groups: ev.Group, **more: Any) -> ev.Header:
    """A GPU pool of 8 slots with a null block, a CPU tier of 8, blocks of 16 tokens."""
    pools = ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 8)
    return ev.Header(producer="test", pools=pools, groups=groups or (ev.Group("gpu", 16),), **more)


# Request 7 has a prompt of two blocks; GPU slots 1 and 2 are for it.
ADMITTED: list[ev.Event] = [
    ev.Submit("7", 0, 32),
    ev.Admit("7", 0, local=0, external=0, compute=32, total=32),
    ev.Alloc("gpu", "req:7.0", [1, 2], free=5),
]
COMPUTED: list[ev.Event] = [*ADMITTED, ev.Dispatch(0, ["7"], [32]), ev.Process(0)]
# Its first block is on its way to CPU slot 0.
QUEUED: list[ev.Event] = [
    *COMPUTED,
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Alloc("cpu", "op:0.0", [0], free=7),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
]
STORING: list[ev.Event] = [*QUEUED, ev.Issue(0, 0)]
STORED: list[ev.Event] = [
    *STORING,
    ev.Report(0, 0, rank=0),
    ev.Complete(0, 0),
    ev.Label("cpu", [0], [4242]),
    ev.Free("cpu", "op:0.0", [0]),
    ev.Free("gpu", "op:0.0", [1]),
]
# CPU slots 0 and 1 have the two blocks of request 7's prompt.
CACHED: list[ev.Event] = [
    ev.Alloc("cpu", "op:9.0", [0, 1], free=6),
    ev.Label("cpu", [0, 1], [4242, 4343]),
    ev.Free("cpu", "op:9.0", [0, 1], free=8),
    ev.Submit("7", 0, 48),
]
PROMISED: list[ev.Event] = [
    *CACHED,
    ev.Touch("cpu", "hit:7.0", [0, 1]),
    ev.Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1]),
]
# Both are loaded into GPU slots 1 and 2; slot 3 is for what the request computes itself.
LOAD_QUEUED: list[ev.Event] = [
    *PROMISED,
    ev.Alloc("gpu", "req:7.0", [1, 2, 3], free=4),
    ev.Admit("7", 0, local=0, external=32, compute=16, total=48),
    ev.Touch("cpu", "op:0.0", [0, 1]),
    ev.Touch("gpu", "op:0.0", [1, 2]),
    ev.Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 2], [4242, 4343], req="7", at=[0, 1]),
    ev.Free("cpu", "hit:7.0", [0, 1]),
]
LOADING: list[ev.Event] = [*LOAD_QUEUED, ev.Issue(0, 0)]
LANDED: list[ev.Event] = [
    *LOADING,
    ev.Report(0, 0, rank=0),
    ev.Complete(0, 0),
    ev.Free("cpu", "op:0.0", [0, 1]),
    ev.Free("gpu", "op:0.0", [1, 2]),
]
