"""The order events of a connector: who started what on which stream, and what waits for what. Version 1.

An order trace is JSON lines: one :class:`Header`, then one event a line, in the order of the calls (``get``
and ``join``: of their returns). A line is an object whose field ``e`` names the event. From these lines alone
it is decided whether two accesses to the same bytes have an order; contents never appear.

Names used in the fields:

* ``thread``: a host thread. The threads of the header exist from the start; others are spawned.
* ``stream``: a stream of a device, declared before it is used. Its operations run one after the other, in the
  order in which they were launched.
* ``event``: a device event. It needs no declaration, and may be recorded again and again: a wait is for the
  record that was the last one when the wait was *called*, and for nothing if there was none.
* ``queue``, ``item``: something handed from one thread to another. An item is put once and got once; after
  that its number may be used again.
* ``region``: a piece of memory, declared before it is used. Regions whose addresses overlap are views of the
  same bytes.
* ``reads``, ``writes``, ``src``, ``dst``: byte ranges, each ``[region, offset, bytes]``.
* ``name``: what the operation is called, for instance ``attention`` or ``store``.
* ``by``: on whose behalf it is done, for instance ``req:7.0`` or ``op:3.1``.
* ``stack``: number of a declared call stack; -1: not told.

What comes before what:

* the calls of a thread, in their order; a spawn before the child's calls, and these before the join;
* a put before the get of the item;
* a call before the operation that it launches; the operations of a stream, in their order;
* a legacy default stream: every operation of it comes after all earlier operations of the device's blocking
  streams and before all later ones; non-blocking streams are not concerned;
* a record before the operations that follow a wait for it, and before the return of a synchronise call;
* within a copy, each read before the write of its part; between the parts of one copy nothing;
* the reads of a copy by its ``order``: ``stream``: like any operation of the stream; ``call``: after the call
  began and before it returned; ``any``: after the call only, whatever the stream did or waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

FORMAT: Final = "kvfence-order"
VERSION: Final = 1

Range: TypeAlias = tuple[int, int, int]
"""Region, offset in it, bytes (at least 1)."""
SourceOrder: TypeAlias = Literal["stream", "call", "any"]
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, _DURING_API_CALL and _ANY."""
StreamKind: TypeAlias = Literal["nonblocking", "blocking", "legacy"]
RegionKind: TypeAlias = Literal["device", "pinned", "host"]


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stream of ``device``. ``legacy``: the default stream; it orders itself with all ``blocking`` ones."""

    id: int
    device: int = 0
    kind: StreamKind = "nonblocking"
    name: str = ""


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``bytes`` of memory from address ``at`` on.

    All devices and the host share one address space. ``pinned``: host memory that devices reach. ``slot``:
    bytes of a slot, if the region is a pool of equal slots; reports then name slots.
    """

    id: int
    at: int
    bytes: int
    kind: RegionKind = "device"
    device: int = 0
    name: str = ""
    slot: int = 0


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call stack: its frames, innermost first, each ``file:line function``."""

    id: int
    frames: Sequence[str]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of an order trace: the threads, streams, regions and stacks known from the start."""

    format: str = FORMAT
    version: int = VERSION
    producer: str
    threads: tuple[int, ...] = (0,)
    streams: tuple[Stream, ...] = ()
    regions: tuple[Region, ...] = ()
    stacks: tuple[Stack, ...] = ()
    meta: dict[str, str] = {}


class _Event(
    msgspec.Struct, tag_field="e", frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    pass


class _Call(_Event, frozen=True):
    thread: int


class _OnStream(_Call, frozen=True):
    stream: int


# What exists.


class Declare(_Event, tag="declare", frozen=True):
    """Streams, regions and stacks that exist from here on."""

    streams: Sequence[Stream] = ()
    regions: Sequence[Region] = ()
    stacks: Sequence[Stack] = ()


class Release(_Call, tag="release", frozen=True):
    """``thread`` gave ``region`` back: like a write of all its bytes. The region exists no more."""

    region: int
    by: str = ""
    stack: int = -1


class Own(_Event, tag="own", frozen=True):
    """The bytes belong to ``owner`` from here on ("" : to nobody). Orders nothing; reports name the owner."""

    owner: str
    ranges: Sequence[Range]


# Host threads.


class Spawn(_Call, tag="spawn", frozen=True):
    """``thread`` started the thread ``child``."""

    child: int


class Join(_Call, tag="join", frozen=True):
    """``thread`` waited for the end of the thread ``child``, which makes no further calls."""

    child: int


class Put(_Call, tag="put", frozen=True):
    """``thread`` put ``item`` into ``queue``."""

    queue: int
    item: int


class Get(_Call, tag="get", frozen=True):
    """``thread`` took ``item`` out of ``queue``."""

    queue: int
    item: int


class Host(_Call, tag="host", frozen=True):
    """``thread`` itself read and wrote memory."""

    reads: Sequence[Range] = ()
    writes: Sequence[Range] = ()
    name: str = ""
    by: str = ""
    stack: int = -1


# Streams.


class Kernel(_OnStream, tag="kernel", frozen=True):
    """``thread`` launched a kernel on ``stream``; it also stands for memset and the like."""

    reads: Sequence[Range] = ()
    writes: Sequence[Range] = ()
    name: str = ""
    by: str = ""
    stack: int = -1


class Copy(_OnStream, tag="copy", frozen=True):
    """``thread`` launched a copy on ``stream``: part ``i`` reads ``src[i]`` and writes ``dst[i]``."""

    src: Sequence[Range]
    dst: Sequence[Range]
    order: SourceOrder = "stream"
    name: str = ""
    by: str = ""
    stack: int = -1


class Record(_OnStream, tag="record", frozen=True):
    """``thread`` recorded ``event`` on ``stream``."""

    event: int


class Wait(_OnStream, tag="wait", frozen=True):
    """``thread`` made ``stream`` wait for ``event``."""

    event: int


# Synchronise calls: the thread goes on when the work is over.


class SyncEvent(_Call, tag="sync_event", frozen=True):
    """``thread`` waited for ``event``."""

    event: int


class Query(_Call, tag="query", frozen=True):
    """``thread`` asked whether ``event`` is over; if so (``done``), that orders like a synchronise call."""

    event: int
    done: bool


class SyncStream(_OnStream, tag="sync_stream", frozen=True):
    """``thread`` waited for everything launched on ``stream`` until the call."""


class SyncDevice(_Call, tag="sync_device", frozen=True):
    """``thread`` waited for everything launched on any stream of ``device`` until the call."""

    device: int


_Things: TypeAlias = Declare | Release | Own
_Threads: TypeAlias = Spawn | Join | Put | Get | Host
_Streams: TypeAlias = Kernel | Copy | Record | Wait
_Waiting: TypeAlias = SyncEvent | Query | SyncStream | SyncDevice
OrderEvent: TypeAlias = _Things | _Threads | _Streams | _Waiting
