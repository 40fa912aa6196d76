"""Beginnings of traces: a connector with a GPU pool and a CPU tier, and a request on its way through it."""

from __future__ import annotations

from typing import Any

from kvfence.spec.events import (
    Admit,
    Alloc,
    Complete,
    Dispatch,
    Event,
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
    Submit,
    Touch,
)


def connector(*groups: Group, **more: Any) -> Header:
    """A GPU pool of 8 slots with a null block, a CPU tier of 8, blocks of 16 tokens."""
    pools = Pool("gpu", 8, null=0), Pool("cpu", 8)
    return Header(producer="test", pools=pools, groups=groups or (Group("gpu", 16),), **more)


# Request 7 has a prompt of two blocks; GPU slots 1 and 2 are for it.
ADMITTED: list[Event] = [
    Submit("7", 0, 32),
    Admit("7", 0, local=0, external=0, compute=32, total=32),
    Alloc("gpu", "req:7.0", [1, 2], free=5),
]
COMPUTED: list[Event] = [*ADMITTED, Dispatch(0, ["7"], [32]), Process(0)]
# Its first block is on its way to CPU slot 0.
QUEUED: list[Event] = [
    *COMPUTED,
    Touch("gpu", "op:0.0", [1]),
    Alloc("cpu", "op:0.0", [0], free=7),
    Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
]
STORING: list[Event] = [*QUEUED, Issue(0, 0)]
STORED: list[Event] = [
    *STORING,
    Report(0, 0, rank=0),
    Complete(0, 0),
    Label("cpu", [0], [4242]),
    Free("cpu", "op:0.0", [0]),
    Free("gpu", "op:0.0", [1]),
]
# CPU slots 0 and 1 have the two blocks of request 7's prompt.
CACHED: list[Event] = [
    Alloc("cpu", "op:9.0", [0, 1], free=6),
    Label("cpu", [0, 1], [4242, 4343]),
    Free("cpu", "op:9.0", [0, 1], free=8),
    Submit("7", 0, 48),
]
PROMISED: list[Event] = [
    *CACHED,
    Touch("cpu", "hit:7.0", [0, 1]),
    Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1]),
]
# Both are loaded into GPU slots 1 and 2; slot 3 is for what the request computes itself.
LOAD_QUEUED: list[Event] = [
    *PROMISED,
    Alloc("gpu", "req:7.0", [1, 2, 3], free=4),
    Admit("7", 0, local=0, external=32, compute=16, total=48),
    Touch("cpu", "op:0.0", [0, 1]),
    Touch("gpu", "op:0.0", [1, 2]),
    Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 2], [4242, 4343], req="7", at=[0, 1]),
    Free("cpu", "hit:7.0", [0, 1]),
]
LOADING: list[Event] = [*LOAD_QUEUED, Issue(0, 0)]
LANDED: list[Event] = [
    *LOADING,
    Report(0, 0, rank=0),
    Complete(0, 0),
    Free("cpu", "op:0.0", [0, 1]),
    Free("gpu", "op:0.0", [1, 2]),
]
