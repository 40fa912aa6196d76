"""Makes snapshots: the ledger state as the header of a trace states it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvfence.checker.ledger.kernels.slot_bits import BAD
from kvfence.checker.ledger.rules.progress import round_seen
from kvfence.checker.ledger.state.ledger_state import LedgerState, Op
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.tags import Tag
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, Numbers, ints
from kvfence.spec.snapshot import (
    KnownCover,
    KnownEnd,
    KnownHolder,
    KnownHostMemory,
    KnownPool,
    KnownPromise,
    KnownQuestion,
    KnownRequest,
    KnownStep,
    KnownTransfer,
    KnownVotes,
    Rarer,
    Slots,
    Snapshot,
    Tags,
)

REMEMBERED: Final = 1024  # of what is over and done with: enough to recognise what comes late
LISTED: Final = 16  # numbers that stay a list

T = TypeVar("T")


def snapshot_of(state: LedgerState) -> Snapshot:
    """Everything in ``state`` by which later events may be judged."""
    requests = _mentioned(state)
    return Snapshot(
        events=state.events,
        pools=[_pool(pool) for pool in state.pools.values()],
        requests=[_request(state, request) for request in requests.values()],
        transfers=[_transfer(op) for op in state.ops.values()],
        ends=[
            KnownEnd(id_, end.gen, end.ok, end.src_pool, end.src_epoch, end.dst_pool, end.dst_epoch)
            for id_, end in _last(state.closed.items(), len(state.closed))
        ],
        steps=[
            KnownStep(
                step.number,
                [(request.id, request.gen) for request in step.requests(state.current)],
                list(step.tokens),
                tuple(Slots(pool.name, _numbers(slots)) for pool, slots in step.frozen),
            )
            for step in state.steps
        ],
        dispatched=state.dispatched,
        processed=state.processed,
        depth=state.depth,
        newest=list(_last(state.newest.items(), len(state.newest))),
        retired=[_id_and_gen(key) for key in _last(state.retired, len(state.retired))],
        rarer=_rarer(state),
        saw_submit=state.saw_submit,
        saw_lookup=state.saw_lookup,
        saw_retire=state.saw_retire,
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


def _mentioned(state: LedgerState) -> dict[str, Request]:
    """Every generation that something refers to: those that are gone come before one that began anew."""
    found: dict[int, Request] = {}
    for pool in state.pools.values():
        for holder in pool.holders.values():
            if holder.request is not None:
                found[id(holder.request)] = holder.request
    for op in state.ops.values():
        for request in (*op.waiters, *([] if op.request is None else [op.request])):
            found[id(request)] = request
    for step in state.steps:
        for request in step.requests(state.current):
            found[id(request)] = request
    for request in (*state.current.values(), *state.requests.values()):
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
        holder.name, _numbers(sorted(holder.slots)), _numbers(reach), tuple(reach.values()), holder.leaked
    )


def _request(state: LedgerState, request: Request) -> KnownRequest:
    promise, replaced = request.promise, request.replaced
    return KnownRequest(
        req=request.id,
        gen=request.gen,
        gone=state.requests.get(request.key) is not request,
        current=state.current.get(request.id) is request,
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


def _tags(known: dict[str, set[Tag]]) -> tuple[Tags, ...]:
    return tuple(
        Tags(pool, _numbers(np.array(sorted(tags), np.uint64), WIDE)) for pool, tags in known.items()
    )


def _rarer(state: LedgerState) -> Rarer:
    extra = state.extra
    last = extra.round[2] if isinstance(extra.round, tuple) else None
    idle = None
    if isinstance(last, ev.Round) and extra.round == round_seen(state, last):
        idle = (last.running, last.ready, last.parked, last.waiting, last.needed, last.pool)
    return Rarer(
        idle=idle,
        rounds=extra.rounds if idle is not None else 0,
        zeroing=tuple((pool, slot, step) for (pool, slot), step in extra.zeroing.items()),
        failed=tuple((op, gen, sorted(slots)) for (op, gen), slots in extra.failed.items()),
        suspects=tuple(_slots(pool, sorted(slots)) for pool, slots in extra.suspects.items()),
        promised=tuple((key, *promised) for key, promised in extra.promised.items()),
        misses=_tags(extra.misses),
        asked=extra.asked,
        votes=tuple(
            KnownVotes(op, gen, *map(_bits, (v.asked, v.reserved, v.committed, v.aborted)))
            for (op, gen), v in extra.votes.items()
        ),
        buffers=tuple((*place, *op) for place, op in extra.buffers.items()),
        questions=tuple(
            KnownQuestion(ask, q.req, q.gen, q.pool, q.tags) for ask, q in extra.questions.items()
        ),
        published=_tags(extra.published),
        host=tuple(
            KnownHostMemory(
                pool,
                tuple((rank, piece) for rank, pieces in memory.pieces.items() for piece in sorted(pieces)),
                tuple(sorted(memory.refused)),
                tuple(memory.pinned.items()),
            )
            for pool, memory in extra.host.items()
        ),
        victim=extra.victim,
    )
