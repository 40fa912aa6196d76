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
from kvfence.checker.ledger.state.violation import fields
from kvfence.spec import events as ev
from kvfence.spec import snapshot as snap
from kvfence.spec.packed import WIDE, Numbers, ints

REMEMBERED: Final = 1024  # of what is over and done with: enough to recognise what comes late
LISTED: Final = 16  # numbers that stay a list

# What the ledger state and a snapshot call by the same names: written from here, and read by ``restore``.
OF_STATE: Final = ("dispatched", "processed", "saw_submit", "saw_lookup", "saw_retire")
OF_POOL: Final = ("drift", "epoch")
OF_REQUEST: Final = (
    *("explicit", "ready", "end", "prompt", "known", "admitted", "local", "external", "computed"),
    *("last_step", "final", "expects_rollback", "limit"),
)
OF_QUEUE: Final = ("op", "gen", "kind", "src_pool", "dst_pool", "rgen", "group")
OF_TRANSFER: Final = ("src_epoch", "dst_epoch", "issued")
OF_END: Final = ("gen", "ok", "src_pool", "src_epoch", "dst_pool", "dst_epoch")
OF_ROUND: Final = ("running", "ready", "parked", "waiting", "needed", "pool")
OF_VOTES: Final = ("asked", "reserved", "committed", "aborted")
OF_RARER: Final = ("asked", "victim")

T = TypeVar("T")


def snapshot_of(state: LedgerState) -> snap.Snapshot:
    """Everything in ``state`` by which later events may be judged."""
    requests = _mentioned(state)
    return snap.Snapshot(
        events=state.events,
        pools=[_pool(pool) for pool in state.pools.values()],
        requests=[_request(state, request) for request in requests.values()],
        transfers=[_transfer(op) for op in state.ops.values()],
        ends=[
            snap.KnownEnd(id_, **fields(end, *OF_END))
            for id_, end in _last(state.closed.items(), len(state.closed))
        ],
        steps=[
            snap.KnownStep(
                step.number,
                [(request.id, request.gen) for request in step.requests(state.current)],
                list(step.tokens),
                tuple(snap.Slots(pool.name, _numbers(slots)) for pool, slots in step.frozen),
            )
            for step in state.steps
        ],
        depth=state.depth,
        newest=list(_last(state.newest.items(), len(state.newest))),
        retired=[_id_and_gen(key) for key in _last(state.retired, len(state.retired))],
        rarer=_rarer(state),
        **fields(state, *OF_STATE),
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


def _slots(pool: str, numbers: Numbers) -> snap.Slots:
    return snap.Slots(pool, _numbers(np.asarray(ints(numbers), np.int64)))


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


def _pool(pool: PoolState) -> snap.KnownPool:
    labelled = np.array(pool.labelled_slots(), np.int64)
    frozen = pool.frozen
    return snap.KnownPool(
        name=pool.name,
        holders=[_holder(holder) for holder in pool.holders.values()],
        labelled=_numbers(labelled),
        tags=_numbers(pool.tags[labelled], WIDE),
        bad=_numbers(np.flatnonzero(pool.array & BAD)),
        frozen=_numbers(frozen),
        until=tuple(frozen.values()),
        stale=tuple(sorted(pool.stale)),
        **fields(pool, *OF_POOL),
    )


def _holder(holder: Holder) -> snap.KnownHolder:
    reach = holder.reaches()
    return snap.KnownHolder(
        holder.name, _numbers(sorted(holder.slots)), _numbers(reach), tuple(reach.values()), holder.leaked
    )


def _request(state: LedgerState, request: Request) -> snap.KnownRequest:
    promise, replaced = request.promise, request.replaced
    return snap.KnownRequest(
        req=request.id,
        gen=request.gen,
        gone=state.requests.get(request.key) is not request,
        current=state.current.get(request.id) is request,
        fresh=tuple(_slots(pool, slots) for pool, slots in request.fresh()),
        promise=None
        if promise is None
        else snap.KnownPromise(promise.pool, _numbers(sorted(promise.slots)), promise.external),
        replaced=None if replaced is None else snap.Slots(replaced[0], _numbers(sorted(replaced[1]))),
        waits=tuple(sorted(request.waits)),
        bad=tuple(_slots(pool, slots) for pool, slots in request.bad),
        suspects=tuple((pool, slot, first) for (pool, slot), first in request.suspects.items()),
        covers=tuple(
            snap.KnownCover(
                group, cover.edge, tuple(sorted(cover.holes)), tuple(sorted(cover.beyond)), cover.cursor
            )
            for group, cover in request.covers.items()
        ),
        **fields(request, *OF_REQUEST),
    )


def _transfer(op: Op) -> snap.KnownTransfer:
    event = op.event
    return snap.KnownTransfer(
        src=_numbers(np.asarray(ints(event.src), np.int64)),
        dst=_numbers(np.asarray(ints(event.dst), np.int64)),
        keys=_numbers(np.array(ints(event.keys, WIDE), np.uint64), WIDE),
        req="" if op.request is None else event.req,
        at=_numbers(np.asarray(ints(event.at), np.int64)),
        reported=_bits(op.reported),
        failed=_bits(op.failed),
        waiters=tuple((request.id, request.gen) for request in op.waiters),
        forgiven=tuple(sorted(op.forgiven)),
        **fields(event, *OF_QUEUE),
        **fields(op, *OF_TRANSFER),
    )


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _tags(known: dict[str, set[Tag]]) -> tuple[snap.Tags, ...]:
    return tuple(
        snap.Tags(pool, _numbers(np.array(sorted(tags), np.uint64), WIDE)) for pool, tags in known.items()
    )


def _rarer(state: LedgerState) -> snap.Rarer:
    extra = state.extra
    last = extra.round[2] if isinstance(extra.round, tuple) else None
    idle = None
    if isinstance(last, ev.Round) and extra.round == round_seen(state, last):
        idle = tuple(fields(last, *OF_ROUND).values())
    return snap.Rarer(
        idle=idle,
        rounds=extra.rounds if idle is not None else 0,
        zeroing=tuple((pool, slot, step) for (pool, slot), step in extra.zeroing.items()),
        failed=tuple((op, gen, sorted(slots)) for (op, gen), slots in extra.failed.items()),
        suspects=tuple(_slots(pool, sorted(slots)) for pool, slots in extra.suspects.items()),
        promised=tuple((key, *promised) for key, promised in extra.promised.items()),
        misses=_tags(extra.misses),
        votes=tuple(
            snap.KnownVotes(op, gen, *map(_bits, fields(votes, *OF_VOTES).values()))
            for (op, gen), votes in extra.votes.items()
        ),
        buffers=tuple((*place, *op) for place, op in extra.buffers.items()),
        questions=tuple(
            snap.KnownQuestion(ask, q.req, q.gen, q.pool, q.tags) for ask, q in extra.questions.items()
        ),
        published=_tags(extra.published),
        host=tuple(
            snap.KnownHostMemory(
                pool,
                tuple((rank, piece) for rank, pieces in memory.pieces.items() for piece in sorted(pieces)),
                tuple(sorted(memory.refused)),
                tuple(memory.pinned.items()),
            )
            for pool, memory in extra.host.items()
        ),
        **fields(extra, *OF_RARER),
    )
