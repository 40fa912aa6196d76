"""What is known where a trace begins in the middle of a run: the ``snapshot`` of its header.

A recorder that keeps only the last events of a run has forgotten how the slots came to be held. Its traces
tell what was known before their first event, and whoever judges them goes on from there.

``tags``: a label is known by the 64 bits of its content key, xor ``0x9E3779B97F4A7C15`` times the number of
its group, modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kvfence.spec.packed import Numbers


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class Slots(_Part, frozen=True):
    """``slots`` of ``pool``."""

    pool: str
    slots: Numbers


class KnownHolder(_Part, frozen=True):
    """A holder and all of its slots in one pool.

    Of slots in a group with a window, ``windowed``: ``reach`` is the number of computed tokens up to which
    steps that begin there read the slot.
    """

    name: str
    slots: Numbers
    windowed: Numbers = ()
    reach: Numbers = ()
    leaked: bool = False
    """It was told already that these slots were not given back."""


class KnownPool(_Part, frozen=True):
    """The slots of a pool. ``labelled`` are in the prefix index, each with its tag."""

    name: str
    holders: Sequence[KnownHolder] = ()
    labelled: Numbers = ()
    tags: Numbers = ()
    """One for each of ``labelled``, of 8 bytes when packed."""
    bad: Numbers = ()
    """Destinations of failed transfers, not written since."""
    frozen: Numbers = ()
    """Slots whose table is gone while a dispatched step may still read them."""
    until: Numbers = ()
    """For each of ``frozen``, that step."""
    drift: int = 0
    """The pool's own count of free slots minus the number of free slots: a difference that was told."""
    epoch: int = 0
    """Resets so far."""
    stale: Sequence[str] = ()
    """Tables that were begun before the last reset."""


class KnownPromise(_Part, frozen=True):
    """The open promise of a request."""

    pool: str
    slots: Numbers
    external: int


class KnownCover(_Part, frozen=True):
    """What is accounted for of a request's table in ``group``.

    The blocks below ``edge``, without ``holes``, and ``beyond`` are stored, queued or dropped. ``cursor`` is
    the store cursor.
    """

    group: int
    edge: int = 0
    holes: Sequence[int] = ()
    beyond: Sequence[int] = ()
    cursor: int = 0


class KnownRequest(_Part, frozen=True, kw_only=True):
    """A request generation.

    ``local``, ``external`` and ``computed`` count tokens as the events do; ``external`` only those whose load
    has not landed.
    """

    req: str
    gen: int
    gone: bool = False
    """It was retired, and something still refers to it."""
    current: bool = True
    """Steps that name the request mean this generation."""
    explicit: bool = True
    """An event named the generation, not only a holder."""
    ready: bool = True
    """A step of it may be dispatched."""
    end: str = ""
    """``preempted``, or the reason of its ``finish``."""
    prompt: int | None = None
    known: bool = False
    """Its numbers of tokens are known: it was seen to be admitted."""
    admitted: bool = False
    local: int = 0
    external: int = 0
    computed: int = 0
    last_step: int = -1
    final: int | None = None
    """Confirmed tokens when it finished."""
    fresh: Sequence[Slots] = ()
    """Slots that joined its table after its last step was dispatched."""
    promise: KnownPromise | None = None
    replaced: Slots | None = None
    """Pins of the promise before the present one, which may still be there."""
    waits: Sequence[int] = ()
    """Open loads into its table."""
    expects_rollback: bool = False
    limit: int | None = None
    """After a failed load: tokens that are valid all the same."""
    bad: Sequence[Slots] = ()
    """Slots of its table that a failed load should have filled."""
    suspects: Sequence[tuple[str, int, int]] = ()
    """Pool, slot and first token of blocks that it joined while a transfer was writing them."""
    covers: Sequence[KnownCover] = ()


class KnownTransfer(_Part, frozen=True, kw_only=True):
    """An open transfer: the fields of its ``queue`` event, and what happened since."""

    op: int
    gen: int
    kind: Literal["store", "load"]
    src_pool: str
    src: Numbers
    dst_pool: str
    dst: Numbers
    keys: Numbers
    """Of 8 bytes each when packed."""
    req: str = ""
    rgen: int = 0
    at: Numbers = ()
    group: int = 0
    src_epoch: int = 0
    dst_epoch: int = 0
    issued: bool = False
    reported: Sequence[int] = ()
    """Ranks."""
    failed: Sequence[int] = ()
    waiters: Sequence[tuple[str, int]] = ()
    """Request generations that have a destination in their table."""
    forgiven: Sequence[tuple[str, int]] = ()
    """Pools and slots that do not count as in use by it: a violation took them away."""


class KnownEnd(_Part, frozen=True):
    """How a transfer ended."""

    op: int
    gen: int
    ok: bool
    src_pool: str
    src_epoch: int
    dst_pool: str
    dst_epoch: int


class KnownStep(_Part, frozen=True):
    """A step that is dispatched and not processed, with the generations that it runs."""

    step: int
    reqs: Sequence[tuple[str, int]]
    tokens: Sequence[int]
    frozen: Sequence[Slots] = ()
    """Slots that may be freed once it is over."""


class Tags(_Part, frozen=True):
    """Tags of content keys in ``pool``, of 8 bytes each when packed."""

    pool: str
    tags: Numbers


class KnownVotes(_Part, frozen=True):
    """What the ranks said about carrying out an open transfer."""

    op: int
    gen: int
    asked: Sequence[int] = ()
    reserved: Sequence[int] = ()
    committed: Sequence[int] = ()
    aborted: Sequence[int] = ()


class KnownQuestion(_Part, frozen=True):
    """A question that has no answer yet."""

    ask: int
    req: str
    gen: int
    pool: str
    tags: Sequence[int]


class KnownHostMemory(_Part, frozen=True):
    """The host memory of ``pool``."""

    pool: str
    registered: Sequence[tuple[int, int]] = ()
    """Rank and piece."""
    refused: Sequence[int] = ()
    """Ranks that could not register a piece."""
    pinned: Sequence[tuple[int, bool]] = ()
    """Ranks, and whether they use it pinned."""


class Rarer(_Part, frozen=True, kw_only=True):
    """What is known from events that many traces do not have."""

    zeroing: Sequence[tuple[str, int, int]] = ()
    """Pools and slots over which a step writes zeros, with that step."""
    failed: Sequence[tuple[int, int, Sequence[int]]] = ()
    """Open transfers, by id and generation, and the destinations that a rank could not fill."""
    promised: Sequence[tuple[str, int, int, Sequence[int]]] = ()
    """Requests (``7.0``) whose promise told counts by group: local and external tokens, and the counts."""
    suspects: Sequence[Slots] = ()
    """Slots from which a load failed, and which nothing filled since."""
    misses: Sequence[Tags] = ()
    """Keys of which a load failed."""
    asked: bool = False
    """Questions are told."""
    votes: Sequence[KnownVotes] = ()
    buffers: Sequence[tuple[int, int, int, int]] = ()
    """Rank, descriptor buffer, and id and generation of the last transfer that it described."""
    questions: Sequence[KnownQuestion] = ()
    published: Sequence[Tags] = ()
    """Keys that were published as stored and not as removed."""
    host: Sequence[KnownHostMemory] = ()
    idle: tuple[int, int, int, int, int, str] | None = None
    """The last ``round`` if nothing changed since: running, ready, parked, waiting, needed, pool."""
    rounds: int = 0
    """How many such rounds there were in a row."""
    victim: tuple[str, int] | None = None
    """The last request preempted for room (``7.0``), and the last step that was processed by then."""


class Snapshot(_Part, frozen=True, kw_only=True):
    """Everything that is known before the first event of the trace."""

    events: int = 0
    """How many events came before: they were judged when they came, or are not judged at all."""
    pools: Sequence[KnownPool] = ()
    requests: Sequence[KnownRequest] = ()
    transfers: Sequence[KnownTransfer] = ()
    ends: Sequence[KnownEnd] = ()
    """The last transfers that ended."""
    steps: Sequence[KnownStep] = ()
    """The oldest first."""
    dispatched: int | None = None
    """Number of the last dispatched step."""
    processed: int = -1
    depth: int = 1
    """The most steps that were dispatched and not processed at a time; at least the header's."""
    newest: Sequence[tuple[str, int]] = ()
    """The greatest generation that was submitted, of the last requests."""
    retired: Sequence[tuple[str, int]] = ()
    """The last generations that are gone."""
    rarer: Rarer = Rarer()
    saw_submit: bool = False
    """Submissions are told: a generation that was not submitted does nothing."""
    saw_lookup: bool = False
    """Promises are told: an external hit that was not promised is none."""
    saw_retire: bool = False
    """Retirements are told: who ended without one is not gone."""
