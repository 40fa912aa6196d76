"""Restores the ledger state from the snapshot in the header of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvfence.checker.ledger import snapshots
from kvfence.checker.ledger.kernels import slot_bits as bits
from kvfence.checker.ledger.rules.progress import round_seen
from kvfence.checker.ledger.state.extra_state import Extra, HostMemory, Question, Votes
from kvfence.checker.ledger.state.ledger_state import Closed, LedgerState, Op, Step
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import Cover, Promise, Request
from kvfence.checker.ledger.state.tags import tags_of
from kvfence.checker.ledger.state.violation import fields
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, Numbers, ints
from kvfence.spec.snapshot import KnownPool, KnownRequest, KnownTransfer, Rarer, Snapshot


def restore(state: LedgerState, snapshot: Snapshot) -> None:
    """Bring ``state``, which is empty, to where ``snapshot`` was taken.

    Raises ``ValueError`` for a snapshot that makes no sense.
    """
    try:
        _restore(state, snapshot)
    except (KeyError, IndexError, OverflowError, TypeError) as error:
        raise ValueError(f"the snapshot does not fit the header ({type(error).__name__}: {error})") from error


def _restore(state: LedgerState, snapshot: Snapshot) -> None:
    requests = {f"{known.req}.{known.gen}": _new_request(known) for known in snapshot.requests}
    for known in snapshot.requests:
        request = requests[f"{known.req}.{known.gen}"]
        if not known.gone:
            state.requests[request.key] = request
        if known.current:
            state.current[request.id] = request
            state.progress[request.id] = request.address
    for known_pool in snapshot.pools:
        _fill(state.pools[known_pool.name], known_pool, requests)
    for known in snapshot.requests:
        if known.promise is not None:
            pool = state.pools[known.promise.pool]
            slots = _existing(pool, known.promise.slots)
            requests[f"{known.req}.{known.gen}"].promise = Promise(pool.name, slots, known.promise.external)
            for slot in slots:
                pool.words[slot] += bits.PROMISE
    for known_transfer in snapshot.transfers:
        _reopen(state, known_transfer, requests)
    for end in snapshot.ends:
        closed = state.closed[end.op] = Closed.__new__(Closed)
        _copy(end, closed, snapshots.OF_END)
        closed.missing = 0
    for known_step in snapshot.steps:
        if len(known_step.reqs) != len(known_step.tokens):
            raise ValueError(f"step {known_step.step} has not as many token counts as requests")
        ids = [id_ for id_, _ in known_step.reqs]
        run = [requests[f"{id_}.{gen}"] for id_, gen in known_step.reqs]
        step = Step(known_step.step, ids, known_step.tokens, run)
        step.frozen = [(state.pools[part.pool], list(ints(part.slots))) for part in known_step.frozen]
        state.steps.append(step)
    _know(state.extra, snapshot.rarer)
    _copy(snapshot, state, snapshots.OF_STATE)
    state.depth = max(state.depth, snapshot.depth)
    state.newest.update(snapshot.newest)
    state.retired.update((f"{id_}.{gen}", None) for id_, gen in snapshot.retired)
    if snapshot.rarer.idle is not None:
        last = ev.Round(**dict(zip(snapshots.OF_ROUND, snapshot.rarer.idle, strict=True)))  # type: ignore[arg-type]
        state.extra.round, state.extra.rounds = round_seen(state, last), snapshot.rarer.rounds


def _copy(part: object, target: object, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(target, name, getattr(part, name))


def _existing(pool: PoolState, numbers: Numbers) -> Sequence[int]:
    slots = ints(numbers)
    if slots and not 0 <= min(slots) <= max(slots) < pool.total:
        raise ValueError(f"the snapshot names slots that pool {pool.name!r} does not have")
    if len(set(slots)) != len(slots):
        raise ValueError(f"the snapshot names a slot of pool {pool.name!r} twice in one place")
    return slots


def _new_request(known: KnownRequest) -> Request:
    request = Request(known.req, known.gen, f"{known.req}.{known.gen}", known.explicit)
    _copy(known, request, snapshots.OF_REQUEST)
    for part in known.fresh:
        request.add_fresh(part.pool, ints(part.slots))
    if known.replaced is not None:
        request.replaced = (known.replaced.pool, frozenset(ints(known.replaced.slots)))
    request.waits = set(known.waits)
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
            pool.words[slot] += bits.REF
    pool.free = int(np.count_nonzero((pool.array & (bits.REFS | bits.NULL_BLOCK)) == 0))
    labelled, tags = _existing(pool, known.labelled), ints(known.tags, WIDE)
    if len(labelled) != len(tags):
        raise ValueError(f"the snapshot has {len(tags)} tags for {len(labelled)} labelled slots")
    for slot, tag in zip(labelled, tags, strict=True):
        pool.set_label(slot, tag)
    for slot in _existing(pool, known.bad):
        pool.words[slot] |= bits.BAD
    for slot, step in zip(_existing(pool, known.frozen), ints(known.until), strict=True):
        pool.words[slot] |= bits.FROZEN
        pool.frozen[slot] = step
    _copy(known, pool, snapshots.OF_POOL)
    pool.stale = set(known.stale)
    if not pool.stale <= pool.holders.keys():
        raise ValueError("the snapshot names tables that were begun before a reset and hold nothing")


def _reopen(state: LedgerState, known: KnownTransfer, requests: dict[str, Request]) -> None:
    src, dst = state.pools[known.src_pool], state.pools[known.dst_pool]
    event = ev.Queue(**fields(known, *snapshots.OF_QUEUE, "src", "dst", "keys", "req", "at"))
    sources, destinations, keys = ints(event.src), ints(event.dst), ints(event.keys, WIDE)
    if not len(sources) == len(destinations) == len(keys) or len(ints(event.at)) not in (0, len(keys)):
        raise ValueError(f"transfer {known.op} has not one source, destination and key for each block")
    request = requests[f"{known.req}.{known.rgen}"] if known.req else None
    op = state.ops[known.op] = Op(event, src, dst, request)
    _copy(known, op, snapshots.OF_TRANSFER)
    op.reported, op.failed = _mask(known.reported), _mask(known.failed)
    op.waiters = [requests[f"{id_}.{gen}"] for id_, gen in known.waiters]
    op.forgiven = frozenset((pool, slot) for pool, slot in known.forgiven)
    for pool, slots, flags in ((src, sources, 0), (dst, destinations, bits.FILLING)):
        for slot in slots:
            if (pool.name, slot) in op.forgiven:
                continue
            if not 0 <= slot < pool.total:
                raise ValueError(f"transfer {known.op} moves slot {slot}, which pool {pool.name!r} has not")
            pool.words[slot] = pool.words[slot] + bits.BUSY | flags
    if not op.load:
        dst.index().store(tags_of(keys, event.group))
    if request is not None:
        request.loads += op.load
        request.stores += not op.load


def _mask(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks)


def _know(extra: Extra, rarer: Rarer) -> None:
    extra.zeroing.update(((pool, slot), step) for pool, slot, step in rarer.zeroing)
    extra.failed.update(((op, gen), set(slots)) for op, gen, slots in rarer.failed)
    extra.suspects.update((part.pool, set(ints(part.slots))) for part in rarer.suspects)
    extra.misses.update((part.pool, set(ints(part.tags, WIDE))) for part in rarer.misses)
    for key, local, external, counts in rarer.promised:
        extra.promised[key] = local, external, tuple(counts)
    _copy(rarer, extra, snapshots.OF_RARER)
    for known in rarer.votes:
        masks = map(_mask, fields(known, *snapshots.OF_VOTES).values())
        extra.votes[known.op, known.gen] = Votes(*masks)
    extra.buffers.update(((rank, buffer), (op, gen)) for rank, buffer, op, gen in rarer.buffers)
    for question in rarer.questions:
        extra.questions[question.ask] = Question(
            question.req, question.gen, question.pool, tuple(question.tags)
        )
    extra.published.update((part.pool, set(ints(part.tags, WIDE))) for part in rarer.published)
    for memory in rarer.host:
        host = extra.host[memory.pool] = HostMemory(refused=set(memory.refused), pinned=dict(memory.pinned))
        for rank, piece in memory.registered:
            host.pieces.setdefault(rank, set()).add(piece)
