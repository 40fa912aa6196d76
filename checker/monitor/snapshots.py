"""Snapshots: what the books know, as the header of a trace tells it, and books that go on from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvfence.checker.monitor.books import Books, Closed, Op, Step
from kvfence.checker.monitor.pool_state import Holder, PoolState
from kvfence.checker.monitor.request_state import Cover, Promise, Request
from kvfence.checker.monitor.tags import tags_of
from kvfence.checker.monitor.words import BAD, BUSY, FILLING, FROZEN, NULL_BLOCK, PROMISE, REF, REFS
from kvfence.spec.events import Queue
from kvfence.spec.packed import WIDE, Numbers, ints
from kvfence.spec.snapshot import (
    KnownCover,
    KnownEnd,
    KnownHolder,
    KnownPool,
    KnownPromise,
    KnownRequest,
    KnownStep,
    KnownTransfer,
    Slots,
    Snapshot,
)

REMEMBERED: Final = 1024  # of what is over and done with: enough to recognise what comes late
LISTED: Final = 16  # numbers that stay a list

T = TypeVar("T")

# Taking.


def snapshot_of(books: Books) -> Snapshot:
    """Everything that ``books`` know and later events may be judged by."""
    requests = _mentioned(books)
    return Snapshot(
        events=books.events,
        pools=[_pool(pool) for pool in books.pools.values()],
        requests=[_request(books, request) for request in requests.values()],
        transfers=[_transfer(op) for op in books.ops.values()],
        ends=[
            KnownEnd(id_, end.gen, end.ok, end.src_pool, end.src_epoch, end.dst_pool, end.dst_epoch)
            for id_, end in _last(books.closed.items(), len(books.closed))
        ],
        steps=[
            KnownStep(
                step.number,
                [(request.id, request.gen) for request in step.requests(books.current)],
                list(step.tokens),
                tuple(Slots(pool.name, _numbers(slots)) for pool, slots in step.frozen),
            )
            for step in books.steps
        ],
        dispatched=books.dispatched,
        processed=books.processed,
        depth=books.depth,
        newest=list(_last(books.newest.items(), len(books.newest))),
        retired=[_id_and_gen(key) for key in _last(books.retired, len(books.retired))],
        saw_submit=books.saw_submit,
        saw_lookup=books.saw_lookup,
        saw_retire=books.saw_retire,
    )


def _last(items: Iterable[T], count: int) -> Iterable[T]:
    return islice(items, max(0, count - REMEMBERED), None)


def _id_and_gen(key: str) -> tuple[str, int]:
    id_, _, gen = key.rpartition(".")
    return id_, int(gen)


def _numbers(numbers: Iterable[int] | npt.NDArray[np.integer[npt.NBitBase]], width: int = 4) -> Numbers:
    """Packed, unless there are few."""
    array = np.fromiter(numbers, np.int64) if not isinstance(numbers, np.ndarray) else numbers
    if len(array) <= LISTED:
        return tuple(array.tolist())
    return array.astype("<u8" if width == WIDE else "<u4").tobytes()


def _slots(pool: str, numbers: Numbers) -> Slots:
    return Slots(pool, _numbers(np.asarray(ints(numbers), np.int64)))


def _mentioned(books: Books) -> dict[str, Request]:
    """Every generation that something refers to: those that are gone come before one that began anew."""
    found: dict[int, Request] = {}
    for pool in books.pools.values():
        for holder in pool.holders.values():
            if holder.request is not None:
                found[id(holder.request)] = holder.request
    for op in books.ops.values():
        for request in (*op.waiters, *([] if op.request is None else [op.request])):
            found[id(request)] = request
    for step in books.steps:
        for request in step.requests(books.current):
            found[id(request)] = request
    for request in (*books.current.values(), *books.requests.values()):
        found[id(request)] = request
    return {request.key: request for request in found.values()}


def _pool(pool: PoolState) -> KnownPool:
    labelled = np.array(pool.labelled_slots(), np.int64)
    frozen = pool.frozen
    return KnownPool(
        name=pool.name,
        holders=[_holder(holder) for holder in pool.holders.values()],
        labelled=_numbers(labelled),
        tags=_numbers(pool.tags[labelled], WIDE),
        bad=_numbers(np.flatnonzero(pool.array & BAD)),
        frozen=_numbers(frozen),
        until=tuple(frozen.values()),
        drift=pool.drift,
        epoch=pool.epoch,
        stale=tuple(sorted(pool.stale)),
    )


def _holder(holder: Holder) -> KnownHolder:
    reach = holder.reaches()
    return KnownHolder(
        holder.name,
        _numbers(sorted(holder.slots)),
        _numbers(reach),
        tuple(reach.values()),
        holder.leaked,
    )


def _request(books: Books, request: Request) -> KnownRequest:
    promise, replaced = request.promise, request.replaced
    return KnownRequest(
        req=request.id,
        gen=request.gen,
        gone=books.requests.get(request.key) is not request,
        current=books.current.get(request.id) is request,
        explicit=request.explicit,
        ready=request.ready,
        end=request.end,
        prompt=request.prompt,
        known=request.known,
        admitted=request.admitted,
        local=request.local,
        external=request.external,
        computed=request.computed,
        last_step=request.last_step,
        final=request.final,
        fresh=tuple(_slots(pool, slots) for pool, slots in request.fresh()),
        promise=None
        if promise is None
        else KnownPromise(promise.pool, _numbers(sorted(promise.slots)), promise.external),
        replaced=None if replaced is None else Slots(replaced[0], _numbers(sorted(replaced[1]))),
        waits=tuple(sorted(request.waits)),
        expects_rollback=request.expects_rollback,
        limit=request.limit,
        bad=tuple(_slots(pool, slots) for pool, slots in request.bad),
        suspects=tuple((pool, slot, first) for (pool, slot), first in request.suspects.items()),
        covers=tuple(
            KnownCover(
                group, cover.edge, tuple(sorted(cover.holes)), tuple(sorted(cover.beyond)), cover.cursor
            )
            for group, cover in request.covers.items()
        ),
    )


def _transfer(op: Op) -> KnownTransfer:
    event = op.event
    return KnownTransfer(
        op=event.op,
        gen=event.gen,
        kind=event.kind,
        src_pool=event.src_pool,
        src=_numbers(np.asarray(ints(event.src), np.int64)),
        dst_pool=event.dst_pool,
        dst=_numbers(np.asarray(ints(event.dst), np.int64)),
        keys=_numbers(np.array(ints(event.keys, WIDE), np.uint64), WIDE),
        req="" if op.request is None else event.req,
        rgen=event.rgen,
        at=_numbers(np.asarray(ints(event.at), np.int64)),
        group=event.group,
        src_epoch=op.src_epoch,
        dst_epoch=op.dst_epoch,
        issued=op.issued,
        reported=_bits(op.reported),
        failed=_bits(op.failed),
        waiters=tuple((request.id, request.gen) for request in op.waiters),
        forgiven=tuple(sorted(op.forgiven)),
    )


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


# Going on from there.


def restore(books: Books, snapshot: Snapshot) -> None:
    """Bring ``books``, which know nothing yet, to where ``snapshot`` was taken.

    Raises ``ValueError`` for a snapshot that makes no sense.
    """
    try:
        _restore(books, snapshot)
    except (KeyError, IndexError, OverflowError, TypeError) as error:
        raise ValueError(f"the snapshot does not fit the header ({type(error).__name__}: {error})") from error


def _restore(books: Books, snapshot: Snapshot) -> None:
    requests = {f"{known.req}.{known.gen}": _new_request(known) for known in snapshot.requests}
    for known in snapshot.requests:
        request = requests[f"{known.req}.{known.gen}"]
        if not known.gone:
            books.requests[request.key] = request
        if known.current:
            books.current[request.id] = request
            books.progress[request.id] = request.address
    for known_pool in snapshot.pools:
        _fill(books.pools[known_pool.name], known_pool, requests)
    for known in snapshot.requests:
        if known.promise is not None:
            pool = books.pools[known.promise.pool]
            slots = _existing(pool, known.promise.slots)
            requests[f"{known.req}.{known.gen}"].promise = Promise(pool.name, slots, known.promise.external)
            for slot in slots:
                pool.words[slot] += PROMISE
    for known_transfer in snapshot.transfers:
        _reopen(books, known_transfer, requests)
    for end in snapshot.ends:
        books.closed[end.op] = _closed(end)
    for known_step in snapshot.steps:
        if len(known_step.reqs) != len(known_step.tokens):
            raise ValueError(f"step {known_step.step} has not as many token counts as requests")
        ids = [id_ for id_, _ in known_step.reqs]
        run = [requests[f"{id_}.{gen}"] for id_, gen in known_step.reqs]
        step = Step(known_step.step, ids, known_step.tokens, run)
        step.frozen = [(books.pools[part.pool], list(ints(part.slots))) for part in known_step.frozen]
        books.steps.append(step)
    books.dispatched, books.processed = snapshot.dispatched, snapshot.processed
    books.depth = max(books.depth, snapshot.depth)
    books.newest.update(snapshot.newest)
    books.retired.update((f"{id_}.{gen}", None) for id_, gen in snapshot.retired)
    books.saw_submit, books.saw_lookup = snapshot.saw_submit, snapshot.saw_lookup
    books.saw_retire = snapshot.saw_retire


def _existing(pool: PoolState, numbers: Numbers) -> Sequence[int]:
    slots = ints(numbers)
    if slots and not 0 <= min(slots) <= max(slots) < pool.total:
        raise ValueError(f"the snapshot names slots that pool {pool.name!r} does not have")
    if len(set(slots)) != len(slots):
        raise ValueError(f"the snapshot names a slot of pool {pool.name!r} twice in one place")
    return slots


def _new_request(known: KnownRequest) -> Request:
    request = Request(known.req, known.gen, explicit=known.explicit)
    request.ready = known.ready
    request.end, request.prompt, request.known = known.end, known.prompt, known.known
    request.admitted, request.local, request.external = known.admitted, known.local, known.external
    request.computed, request.last_step, request.final = known.computed, known.last_step, known.final
    for part in known.fresh:
        request.add_fresh(part.pool, ints(part.slots))
    if known.replaced is not None:
        request.replaced = (known.replaced.pool, frozenset(ints(known.replaced.slots)))
    request.waits = set(known.waits)
    request.expects_rollback, request.limit = known.expects_rollback, known.limit
    request.bad = [(part.pool, ints(part.slots)) for part in known.bad]
    request.suspects = {(pool, slot): first for pool, slot, first in known.suspects}
    for known_cover in known.covers:
        cover = request.covers[known_cover.group] = Cover()
        cover.edge, cover.cursor = known_cover.edge, known_cover.cursor
        cover.holes, cover.beyond = set(known_cover.holes), set(known_cover.beyond)
    return request


def _fill(pool: PoolState, known: KnownPool, requests: dict[str, Request]) -> None:
    for known_holder in known.holders:
        kind, _, key = known_holder.name.partition(":")
        request = requests.get(key) if kind in ("req", "hit") else None
        holder = pool.holders[known_holder.name] = Holder(known_holder.name, kind, request)
        slots = _existing(pool, known_holder.slots)
        holder.own.update(slots)
        holder.leaked = known_holder.leaked
        holder.reach = dict(zip(ints(known_holder.windowed), ints(known_holder.reach), strict=True))
        for slot in slots:
            pool.words[slot] += REF
    pool.free = int(np.count_nonzero((pool.array & (REFS | NULL_BLOCK)) == 0))
    labelled, tags = _existing(pool, known.labelled), ints(known.tags, WIDE)
    if len(labelled) != len(tags):
        raise ValueError(f"the snapshot has {len(tags)} tags for {len(labelled)} labelled slots")
    for slot, tag in zip(labelled, tags, strict=True):
        pool.set_label(slot, tag)
    for slot in _existing(pool, known.bad):
        pool.words[slot] |= BAD
    for slot, step in zip(_existing(pool, known.frozen), ints(known.until), strict=True):
        pool.words[slot] |= FROZEN
        pool.frozen[slot] = step
    pool.drift, pool.epoch, pool.stale = known.drift, known.epoch, set(known.stale)
    if not pool.stale <= pool.holders.keys():
        raise ValueError("the snapshot names tables that were begun before a reset and hold nothing")


def _reopen(books: Books, known: KnownTransfer, requests: dict[str, Request]) -> None:
    src, dst = books.pools[known.src_pool], books.pools[known.dst_pool]
    event = Queue(
        known.op,
        known.gen,
        known.kind,
        known.src_pool,
        known.src,
        known.dst_pool,
        known.dst,
        known.keys,
        known.req,
        known.rgen,
        known.at,
        known.group,
    )
    sources, destinations, keys = ints(event.src), ints(event.dst), ints(event.keys, WIDE)
    if not len(sources) == len(destinations) == len(keys) or len(ints(event.at)) not in (0, len(keys)):
        raise ValueError(f"transfer {known.op} has not one source, destination and key for each block")
    request = requests[f"{known.req}.{known.rgen}"] if known.req else None
    op = books.ops[known.op] = Op(event, src, dst, request)
    op.src_epoch, op.dst_epoch, op.issued = known.src_epoch, known.dst_epoch, known.issued
    op.reported = sum(1 << rank for rank in known.reported)
    op.failed = sum(1 << rank for rank in known.failed)
    op.waiters = [requests[f"{id_}.{gen}"] for id_, gen in known.waiters]
    op.forgiven = frozenset((pool, slot) for pool, slot in known.forgiven)
    for pool, slots, flags in ((src, sources, 0), (dst, destinations, FILLING)):
        for slot in slots:
            if (pool.name, slot) in op.forgiven:
                continue
            if not pool.has(slot):
                raise ValueError(f"transfer {known.op} moves slot {slot}, which pool {pool.name!r} has not")
            pool.words[slot] = pool.words[slot] + BUSY | flags
    if not op.load:
        dst.index().store(tags_of(keys, event.group))
    if request is not None:
        request.loads += op.load
        request.stores += not op.load


def _closed(end: KnownEnd) -> Closed:
    closed = Closed.__new__(Closed)
    closed.gen, closed.ok, closed.missing = end.gen, end.ok, 0
    closed.src_pool, closed.src_epoch = end.src_pool, end.src_epoch
    closed.dst_pool, closed.dst_epoch = end.dst_pool, end.dst_epoch
    return closed
