"""The observable events of a KV-cache offload connector: the trace format, version 2.

A trace is JSON lines: one :class:`Header`, then one event a line, in the order in which the
connector's scheduler side saw them. A line is an object whose field ``e`` names the event. Everything
that the invariants need is judged from these lines alone; tokens and text never appear, only content
keys (64-bit hashes of a token prefix).

Long lists of slots, keys and block indexes may be packed, as strings in a trace and as arrays within a
process: see :data:`kvfence.spec.packed.Numbers`.

Names used in the fields:

* ``pool``: name of a block pool of the header, for instance ``gpu`` or ``cpu``.
* ``slots``: slot numbers inside that pool, each 0 .. ``Pool.slots - 1``.
* ``keys``: content keys, one for each slot; equal keys mean an equal token prefix up to and including the
  block.
* ``holder``: who keeps slots from being freed, as ``kind:id.generation``: ``req:7.0`` (the block table of
  request 7), ``hit:7.0`` (the pin of a promised hit), ``op:3.1`` (a transfer), ``mirror:5.0`` (kept for its
  content as long as another pool has the same, whatever is under way). A slot's ref count is the number of
  its holders.
* ``req``, ``gen``: a request and its generation. The generation grows when the request is preempted or its id
  is used again.
* ``op``, ``gen``: a transfer operation and its generation. An id may be used again with a greater generation
  once it is complete.
* ``step``: number of a dispatched model step, growing by one.
* ``group``: a KV-cache group of the header (index), for instance full attention or sliding window.
* ``at``: index of a block in the request's block table of that group (block ``i`` has the tokens
  ``i * block_size`` up to, not including, ``(i + 1) * block_size``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from kvfence.spec.packed import NARROW, WIDE, Numbers, ints
from kvfence.spec.snapshot import Snapshot

FORMAT: Final = "kvfence-trace"
VERSION: Final = 2
OLDEST: Final = 1
"""The oldest version that readers accept: version 2 only added events and fields with defaults."""

Kind: TypeAlias = Literal["store", "load"]
GroupKind: TypeAlias = Literal["full", "sliding", "chunked", "recurrent"]
FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]
DropReason: TypeAlias = Literal[
    "resident",  # the tier has the key already
    "in_flight",  # another store is moving the key
    "tier_full",  # no slot of the tier could be had
    "window",  # the block slid out of the window before it could be stored
    "lazy",  # left in the prefix index; the lazy scan stores it before it is evicted
    "aborted",  # the request was aborted
    "failed",  # the block came from a load that failed
    "off",  # the connector does not store this block by configuration
]


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block pool. ``slots`` counts the null block too; ``null`` is its slot number, if the pool has one."""

    name: str
    slots: int
    null: int | None = None


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A KV-cache group over the pool ``pool``: what the token after ``t`` computed tokens reads of it.

    ``block_size`` in tokens. The kind ``full`` reads all ``t`` tokens. ``sliding`` reads the last
    ``window - 1`` of them, since ``window`` counts the reading token, too. ``chunked`` reads those since the
    last multiple of ``window``. ``recurrent`` reads the state behind token ``t - 1``, which is in the block
    of that token. Without a kind, a group with a window is ``sliding`` and one without is ``full``.
    """

    pool: str
    block_size: int
    window: int | None = None
    kind: GroupKind | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of a trace: what the numbers in the events refer to."""

    format: str = FORMAT
    version: int = VERSION
    producer: str
    pools: tuple[Pool, ...]
    groups: tuple[Group, ...] = ()
    ranks: int = 1
    depth: int = 1
    """Steps that may be dispatched before the first of them is processed."""
    tier: str = "cpu"
    """The pool that stores go to: what FLUSH counts as stored."""
    unique: Literal["key", "slot"] = "key"
    """What at most one open store may move: a content key, or (``slot``) a slot that it reads."""
    meta: dict[str, str] = {}
    snapshot: Snapshot | None = None
    """What was known before the first event, if the trace begins in the middle of a run."""


class _Event(
    msgspec.Struct, tag_field="e", frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    pass


class _OfRequest(_Event, frozen=True):
    req: str
    gen: int


class _OfTransfer(_Event, frozen=True):
    op: int
    gen: int


class _Taken(_Event, frozen=True):
    pool: str
    holder: str
    slots: Numbers
    free: int = -1
    group: int = 0
    at: int = 0


# Pools: who holds which slot, and what a slot is known to contain.


class Alloc(_Taken, tag="alloc", frozen=True):
    """``holder`` took ``slots`` from the free list. They carry no key: a cached slot is evicted before.

    ``free`` is the pool's own count of free slots afterwards (-1: not told). For a request's table, ``group``
    and ``at`` say which blocks of the table the slots become: ``at``, ``at + 1``, ...
    """


class Deny(_Event, tag="deny", frozen=True):
    """``holder`` asked for ``asked`` slots and was refused; nothing changed. ``free``: see :class:`Alloc`."""

    pool: str
    holder: str
    asked: int
    free: int = -1


class Touch(_Taken, tag="touch", frozen=True):
    """``holder`` joined the holders of ``slots`` (a prefix hit, a pin, a transfer's source).

    Fields as in :class:`Alloc`.
    """


class Free(_Event, tag="free", frozen=True):
    """``holder`` left ``slots``; a slot that nobody holds any more enters the free list and keeps its key."""

    pool: str
    holder: str
    slots: Numbers
    free: int = -1


class Evict(_Event, tag="evict", frozen=True):
    """``slots``, held by nobody, lost their keys so that they can be given away."""

    pool: str
    slots: Numbers


class Label(_Event, tag="label", frozen=True):
    """``slots`` entered the prefix index under ``keys`` of ``group``.

    ``op``, ``gen``: the transfer that filled them (-1: computed).
    """

    pool: str
    slots: Numbers
    keys: Numbers
    group: int = 0
    op: int = -1
    gen: int = 0


class Unlabel(_Event, tag="unlabel", frozen=True):
    """``slots``, held or not, left the prefix index because their content is not to be trusted (``why``)."""

    pool: str
    slots: Numbers
    why: str


# Requests.


class Submit(_OfRequest, tag="submit", frozen=True):
    """A request of ``prompt`` tokens entered the waiting queue."""

    prompt: int


class Lookup(_OfRequest, tag="lookup", frozen=True):
    """The connector promised ``external`` tokens beyond the ``local`` ones.

    ``slots`` of ``pool`` are the promised blocks. A later lookup of the same request replaces the promise.
    ``external == 0`` promises nothing. ``counts``: how many of the slots belong to each group, in order.
    """

    local: int
    external: int
    pool: str = "cpu"
    slots: Numbers = ()
    counts: Sequence[int] = ()


class Withdraw(_OfRequest, tag="withdraw", frozen=True):
    """The promise was given up (abort, preemption, a hit no longer wanted); its pins may go now."""


class Admit(_OfRequest, tag="admit", frozen=True):
    """Blocks were allocated; ``local`` + ``external`` + ``compute`` tokens are all of its ``total``.

    ``external`` is what is accepted of the promise. ``local`` and ``external`` tokens count as computed from
    here on, the latter once their load has landed.
    """

    local: int
    external: int
    compute: int
    total: int


class Preempt(_OfRequest, tag="preempt", frozen=True):
    """The request lost its blocks and waits again, with generation ``gen + 1``.

    ``why``: ``room`` if another request needed its blocks.
    """

    why: Literal["", "room", "reset"] = ""


class Rollback(_OfRequest, tag="rollback", frozen=True):
    """After a failed load, the request counts only ``computed`` tokens as computed.

    ``ahead``: tokens that it counts besides as dispatched and not processed (-1: not told).
    """

    computed: int
    ahead: int = -1


class Finish(_OfRequest, tag="finish", frozen=True):
    """No more steps of the request will be dispatched.

    ``computed`` tokens are confirmed: their KV is written.
    """

    why: FinishReason
    computed: int


class Drop(_OfRequest, tag="drop", frozen=True):
    """Blocks ``at`` .. ``at + n - 1`` of the table will not be stored for this request.

    ``why`` is the reason under which they are counted.
    """

    at: int
    n: int
    why: DropReason
    group: int = 0


class Cursor(_OfRequest, tag="cursor", frozen=True):
    """The store cursor of the request's table in ``group`` moved.

    Blocks below ``to`` will not be looked at again.
    """

    to: int
    group: int = 0


class Retire(_OfRequest, tag="retire", frozen=True):
    """The request is gone: this generation holds nothing any more; all of its blocks are accounted for."""


# Transfers.


class Queue(_OfTransfer, tag="queue", frozen=True):
    """A transfer of ``src`` in ``src_pool`` to ``dst`` in ``dst_pool`` was decided.

    Every slot has a holder from here to its end. ``keys``: content keys of the blocks. ``req``, ``rgen``:
    whose blocks ("" when lazy). ``at``: for a store, which blocks of the request's table in ``group``; for a
    load, the same of the destination.
    """

    kind: Kind
    src_pool: str
    src: Numbers
    dst_pool: str
    dst: Numbers
    keys: Numbers
    req: str = ""
    rgen: int = 0
    at: Numbers = ()
    group: int = 0


class Issue(_OfTransfer, tag="issue", frozen=True):
    """The transfer was handed to the workers of all ranks."""


class Report(_OfTransfer, tag="report", frozen=True):
    """The scheduler side took ``rank``'s report of the transfer's end into account."""

    rank: int
    ok: bool = True


class Stale(_OfTransfer, tag="stale", frozen=True):
    """A late or repeated report was recognised as such and ignored."""

    rank: int


class Complete(_OfTransfer, tag="complete", frozen=True):
    """The transfer's one terminal event: all ranks reported; ``ok`` when all of them succeeded."""

    ok: bool = True


class Failed(_OfTransfer, tag="failed", frozen=True):
    """``rank`` could not fill the destinations ``dst`` of the transfer, which belong to ``group``.

    It comes before the transfer's ``Complete``. If a failed transfer has any, its other destinations are
    whole.
    """

    rank: int
    dst: Numbers
    group: int = 0


class Reserve(_OfTransfer, tag="reserve", frozen=True):
    """``rank`` was asked to set aside what the transfer needs there; ``ok`` if it could."""

    rank: int
    ok: bool = True


class Decide(_OfTransfer, tag="decide", frozen=True):
    """``rank`` decided the transfer: it will carry it out, or gives back what it reserved."""

    rank: int
    what: Literal["commit", "abort"]


class Describe(_OfTransfer, tag="describe", frozen=True):
    """``rank`` wrote the transfer's copy descriptors into its buffer ``buffer``."""

    buffer: int
    rank: int = 0


# Questions to a tier that answers later.


class Ask(_Event, tag="ask", frozen=True):
    """The request asked ``pool``, in question ``ask``, whether it has ``keys`` of ``group``."""

    ask: int
    req: str
    gen: int
    pool: str
    keys: Numbers
    group: int = 0


class Answer(_Event, tag="answer", frozen=True):
    """The answer to question ``ask`` was applied to the request: the first ``hits`` of the keys are there."""

    ask: int
    req: str
    gen: int
    hits: int


# What is told to others about the prefix indexes.


class Stored(_Event, tag="stored", frozen=True):
    """It was published that ``keys`` of ``group`` can be looked up in ``pool``."""

    pool: str
    keys: Numbers
    group: int = 0


class Removed(_Event, tag="removed", frozen=True):
    """It was published that ``keys`` of ``group`` cannot be looked up in ``pool`` any more."""

    pool: str
    keys: Numbers
    group: int = 0


class Cleared(_Event, tag="cleared", frozen=True):
    """It was published that nothing can be looked up in ``pool`` any more."""

    pool: str


class Published(_Event, tag="published", frozen=True):
    """Everything about ``pool`` has been published up to here."""

    pool: str


# Host memory.


class Register(_Event, tag="register", frozen=True):
    """``rank`` registered piece ``piece`` of the host memory of ``pool`` with its device, if ``ok``."""

    pool: str
    rank: int
    piece: int = 0
    ok: bool = True


class Unregister(_Event, tag="unregister", frozen=True):
    """``rank`` took back the registration of a piece."""

    pool: str
    rank: int
    piece: int = 0


class Hostmem(_Event, tag="hostmem", frozen=True):
    """``rank`` uses the host memory of ``pool`` from here on: ``pinned``, all of it registered, or not."""

    pool: str
    rank: int
    pinned: bool


# Block tables.


class Geometry(_Event, tag="geometry", frozen=True):
    """How the connector counts the blocks of a request's table in ``group`` after ``tokens`` computed tokens.

    Of ``slots``, the blocks of the table from ``at`` on, ``held`` are blocks and not the null block.
    ``needed`` of the table are read by the next token. ``bound``: the most that it takes to be read,
    whatever ``tokens`` is. -1, and no slots: not told.
    """

    req: str
    gen: int
    group: int
    tokens: int
    at: int = 0
    slots: Numbers = ()
    held: int = -1
    needed: int = -1
    bound: int = -1


# Model steps.


class Round(_Event, tag="round", frozen=True):
    """The scheduler was asked for a step and scheduled ``scheduled`` requests; told when it was none.

    Of the others, ``running`` are in the running batch; ``ready`` hold blocks and wait for nothing but to
    join it; ``parked`` hold blocks and wait for a load; ``waiting`` hold nothing. The easiest of the waiting
    ones could be admitted if ``needed`` slots of ``pool`` were free (-1: not told).
    """

    scheduled: int = 0
    running: int = 0
    ready: int = 0
    parked: int = 0
    waiting: int = 0
    needed: int = -1
    pool: str = "gpu"


class Dispatch(_Event, tag="dispatch", frozen=True):
    """Step ``step`` was handed to the device.

    For each of ``reqs`` (current generation) the next ``tokens`` tokens are computed.
    """

    step: int
    reqs: Sequence[str]
    tokens: Sequence[int]


class Zero(_Event, tag="zero", frozen=True):
    """Step ``step``, the last one dispatched, writes zeros over ``slots`` of ``pool``."""

    step: int
    pool: str
    slots: Numbers


class Process(_Event, tag="process", frozen=True):
    """The output of step ``step`` arrived: its kernels are over and its tokens confirmed."""

    step: int


# The whole connector.


class Reset(_Event, tag="reset", frozen=True):
    """A reset of the prefix caches was answered; if ``ok``, ``pools`` were cleared and a new epoch began."""

    ok: bool
    pools: Sequence[str] = ()


class Quiesce(_Event, tag="quiesce", frozen=True):
    """No request is left and no transfer is in flight: nothing may be held."""


Event: TypeAlias = (
    Alloc
    | Deny
    | Touch
    | Free
    | Evict
    | Label
    | Unlabel
    | Submit
    | Lookup
    | Withdraw
    | Admit
    | Preempt
    | Rollback
    | Finish
    | Drop
    | Cursor
    | Retire
    | Queue
    | Issue
    | Report
    | Stale
    | Complete
    | Failed
    | Reserve
    | Decide
    | Describe
    | Ask
    | Answer
    | Stored
    | Removed
    | Cleared
    | Published
    | Register
    | Unregister
    | Hostmem
    | Geometry
    | Round
    | Dispatch
    | Zero
    | Process
    | Reset
    | Quiesce
)


UNNUMBERED: Final = -1
"""Step number of an event from a machine, which does not count steps; see :class:`StepNumbers`."""


class StepNumbers:
    """Numbers the steps of a path from 0; the oldest one in flight is processed first."""

    def __init__(self, dispatched: int = 0, processed: int = 0) -> None:
        self.dispatched, self.processed = dispatched, processed

    def copy(self) -> StepNumbers:
        """The same count, to go on from independently."""
        return StepNumbers(self.dispatched, self.processed)

    def __call__(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events, with the numbers filled in where they are missing."""
        for event in events:
            match event:
                case Dispatch(step=step) if step == UNNUMBERED:
                    yield Dispatch(self.dispatched, event.reqs, event.tokens)
                    self.dispatched += 1
                case Process(step=step) if step == UNNUMBERED:
                    yield Process(self.processed)
                    self.processed += 1
                case _:
                    yield event


PACKED_FIELDS: Final[dict[type, tuple[tuple[str, int], ...]]] = {
    kind: tuple(
        (name, WIDE if name == "keys" else NARROW)
        for base in kind.__mro__[:-1]
        for name, annotation in inspect.get_annotations(base).items()
        if annotation == "Numbers"
    )
    for kind in get_args(Event)
}
"""The fields of each kind of event that may be packed, each with the bytes of one number."""


def listed(event: Event) -> Event:
    """``event`` with lists in place of packed numbers: for people, JSON and comparisons.

    Raises ``ValueError`` for packed numbers that make no sense.
    """
    changes = {
        name: ints(value, width)
        for name, width in PACKED_FIELDS[type(event)]
        if not isinstance(value := getattr(event, name), list | tuple)
    }
    return msgspec.structs.replace(event, **changes) if changes else event
