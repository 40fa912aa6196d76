"""What the scheduler side of SimpleCPUOffloadConnector decided: promises, loads, stores, blocks passed over.

Everything is emitted from what the hooks noted: the pool operations of a call, its result, and copies of the
state that every release since 0.19 keeps under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.checker.adapters.vllm.stream.pool_events import ALLOC, EVICT, FREE, TOUCH, Item, packed
from kvfence.checker.adapters.vllm.stream.transfers import Tier, Transfer, pairs
from kvfence.spec import events as ev


class Load(NamedTuple):
    """The load of a request as the connector keeps it."""

    gpu: list[int]
    cpu: list[int]
    hashes: list[bytes | None]
    """Of the blocks of the tier."""


class Cursors(NamedTuple):
    """A request as the connector tracks it for stores."""

    id: str
    stored: list[int]
    """By group: blocks that it will not look at again."""
    computed: int
    """Tokens that count as computed, of steps in flight too."""


class Step(NamedTuple):
    """What the metadata of a step says, and what it was made from."""

    store_event: int
    owners: list[str]
    """Requests whose blocks are stored, in the order of the stores."""
    loads: list[str] | tuple[()]
    """Requests whose loads are handed over."""
    tracked: list[Cursors]
    """Those of the owners, then those that are scheduled, if cursors may have moved."""
    scheduled: int
    """How many of the last are scheduled."""
    free: int
    """Free slots of the tier."""


# Promises.


def looked_up(tier: Tier, id_: str, local: int, external: int, hits: list[Any] | None) -> None:
    """A lookup was answered: ``external`` tokens, in the blocks ``hits`` if they were seen."""
    stream = tier.stream
    items = stream.gathered()
    state = stream.request(id_)
    mine = answers(tier, state)
    if mine and state.promised and (items or external):
        stream.withdraw(state)
    for item in items:
        if item.tap is tier.tap and item.kind in {TOUCH, FREE}:
            stream.emit_item(item, state.hit)
            if item.kind == TOUCH:
                tier.pins[state.id] = item.slots
            else:
                tier.pins.pop(state.id, None)
        else:
            stream.emit_unattributed([item])
    if not mine:
        return
    if not external:
        if state.promiser is tier:
            stream.withdraw(state)
        return
    slots = tier.tap.slots(hits)[2] if hits is not None else packed(tier.pins.get(state.id, []))
    stream.emit(ev.Lookup(state.id, state.gen, local, external, tier.tap.name, slots))
    state.promised = True
    state.promiser = tier


def answers(tier: Tier, state: RequestState) -> bool:
    """Whether a lookup in ``tier`` can count: of several connectors, the first one with a hit loads it.

    All are asked for hits, and all may pin some.
    """
    first = state.promiser
    if not state.promised or first is None or first is tier:
        return True
    taps = tier.stream.tiers
    return taps.index(tier.tap) < taps.index(first.tap)


# Loads.


def load_decided(tier: Tier, id_: str, load: Load | None) -> None:
    """The blocks of a request are allocated; a load into them was decided, or not."""
    stream = tier.stream
    items = stream.gathered()
    state = stream.request(id_)
    holds = [item for item in items if item.kind == TOUCH]
    drops = [item for item in items if item.kind != TOUCH]
    mine = load is not None and id_ not in tier.loads
    if state.admission is not None and (mine or state.promiser in {None, tier}):
        stream.load_settled(state, mine)
    if load is not None and mine:
        transfers = tier.split("load", load.gpu, load.cpu, load.hashes)
        free = {id(item.tap): item.free for item in holds}
        dropped = [item for item in drops if item.tap is tier.tap]
        free_cpu = -1 if dropped else free.get(id(tier.tap), -1)
        tier.hold(transfers, TOUCH, free_cpu, free.get(id(stream.gpu), -1))
        for transfer in transfers:
            at = places(state, transfer)
            tier.queue(transfer, state, packed(at))
            if at:
                _resident(tier, state, transfer.group, at)
        state.promised = False
        tier.loads[id_] = transfers
    else:
        if state.promiser is None or state.promiser is tier:
            stream.withdraw(state)
        stream.emit_unattributed(holds)
    for item in drops:
        if item.tap is tier.tap and item.kind == FREE:
            tier.pins.pop(id_, None)
            stream.emit_item(item, state.hit)
        else:
            stream.emit_unattributed([item])


def _resident(tier: Tier, state: RequestState, group: int, at: Sequence[int]) -> None:
    """Blocks that are being loaded are in the tier already."""
    for start, end in _runs(at):
        tier.stream.emit(ev.Drop(state.id, state.gen, start, end - start, "resident", group))
        state.cover(group, start, end)


def places(state: RequestState, transfer: Transfer) -> Sequence[int]:
    """The indexes of a transfer's GPU slots in the request's table; empty if they are not all there."""
    gpu, count = transfer.gpu, len(transfer.gpu)
    table = state.tables.get(transfer.group)
    if table is None or not state.freed.isdisjoint(gpu):
        return []
    for end in (state.lengths.get(transfer.group, 0), len(table)):
        if end >= count and table[end - count : end] == gpu:
            return range(end - count, end)
    where = {slot: at for at, slot in enumerate(table)}
    found = [where.get(slot, -1) for slot in gpu]
    if -1 in found:
        return []
    row = range(found[0], found[0] + count)
    return row if found == list(row) else found


# Stores.


def step_decided(tier: Tier, *fields: Any) -> None:
    """The metadata of a step was built; ``fields`` are those of :class:`Step`, cursors as tuples."""
    step = Step(*fields)
    step = step._replace(tracked=[Cursors(*each) for each in step.tracked])
    stream = tier.stream
    items = stream.gathered()
    tier.tracked = {each.id: each for each in step.tracked}
    if items or step.store_event >= 0:
        stores_decided(tier, step, items)
    for id_ in step.loads:
        tier.issue(tier.loads.get(id_, []))
    scheduled = step.tracked[len(step.tracked) - step.scheduled :]
    for each in scheduled:
        account_cursors(tier, each)
    if step.free <= 0:
        for each in scheduled:
            _note_full(tier, each)
    tier.evicted.clear()


def stores_decided(tier: Tier, step: Step, items: list[Item]) -> None:
    """Emit the stores of a step; ``items``: what it took to prepare them."""
    stream = tier.stream
    found = pairs(items, tier.tap, stream.gpu)
    _made_room(tier, items)
    used = {id(item) for item in items if item.kind in {ALLOC, TOUCH}} if found else set()
    for item in items:
        if id(item) not in used:
            stream.emit_unattributed([item]) if item.kind in {ALLOC, TOUCH, FREE} else stream.emit_label(item)
    ids = step.owners
    transfers: list[Transfer] = []
    for number, (taken, read) in enumerate(found):
        id_ = ids[number] if len(ids) == len(found) else _owner(tier, ids, read.slots)
        transfers += decide_store(tier, id_, taken, read)
    transfers += tier.queued
    tier.queued = []
    if step.store_event >= 0:
        tier.issue(transfers)
        tier.stores[step.store_event] = transfers


def decide_store(tier: Tier, id_: str, taken: Item, read: Item) -> list[Transfer]:
    """Emit a store to the slots ``taken`` of the blocks ``read``, for request ``id_`` ("": of no request)."""
    hashes = read.hashes
    if hashes is None:
        hashes = [tier.stream.gpu.hash_of(slot) for slot in read.slots]
    transfers = tier.split("store", read.slots, taken.slots, hashes)
    tier.hold(transfers, ALLOC, taken.free, read.free)
    state = tier.stream.requests.get(id_) if id_ else None
    for transfer in transfers:
        at: Sequence[int] = [] if state is None else stored_places(tier, state, transfer)
        if at and tier.ordered and not is_confirmed(tier, id_, transfer, max(at)):
            at = []  # Its copy follows the step that computes the blocks: the stream order decides.
        tier.queue(transfer, state, packed(at))
        if state is not None and at:
            for start, end in _runs(at):
                state.cover(transfer.group, start, end)
    return transfers


def is_confirmed(tier: Tier, id_: str, transfer: Transfer, last: int) -> bool:
    """Whether all tokens up to block ``last`` of a request are computed."""
    stream = tier.stream
    known = tier.tracked.get(id_)
    if known is None or transfer.group >= len(stream.groups):
        return True
    need = (last + 1) * stream.groups[transfer.group].block_size
    return int(known.computed) - stream.in_flight(id_) >= need


def stored_places(tier: Tier, state: RequestState, transfer: Transfer) -> Sequence[int]:
    """The indexes of a store's GPU slots in the request's table: where its cursor is, as a rule."""
    group, gpu = transfer.group, transfer.gpu
    table, known = state.tables.get(group), tier.tracked.get(state.id)
    if table is not None and known is not None and group < len(known.stored):
        for end in (known.stored[group], known.stored[group] + len(gpu)):
            if end >= len(gpu) and table[end - len(gpu) : end] == gpu:
                return range(end - len(gpu), end)
    return places(state, transfer)


def _owner(tier: Tier, ids: list[str], gpu: list[int]) -> str:
    """Whose table has the first of these slots."""
    for id_ in ids:
        state = tier.stream.requests.get(id_)
        if state is not None and any(gpu[0] in table for table in state.tables.values()):
            return id_
    return ""


def _runs(at: Sequence[int]) -> list[tuple[int, int]]:
    """``at`` as ranges."""
    if isinstance(at, range):
        return [(at.start, at.stop)]
    grouped = groupby(enumerate(at), lambda each: each[1] - each[0])
    runs = [[place for _, place in run] for _, run in grouped]
    return [(run[0], run[-1] + 1) for run in runs]


def _made_room(tier: Tier, items: list[Item]) -> None:
    """Remember what left the tier's index for the stores that are emitted."""
    for item in items:
        if item.kind == EVICT and item.tap is tier.tap and item.extra:
            tier.evicted.update(item.extra)


def last_stores(tier: Tier, id_: str, items: list[Item]) -> None:
    """A finished request's last blocks were queued for the next step."""
    _made_room(tier, items)
    for item in items:
        if item.kind not in {ALLOC, TOUCH}:
            tier.stream.emit_unattributed([item])
    for taken, read in pairs(items, tier.tap, tier.stream.gpu):
        tier.queued += decide_store(tier, id_, taken, read)


def give_up(tier: Tier) -> tuple[list[Transfer], dict[str, list[int]]]:
    """A reset begins: stores that no worker knows of are given up.

    Returns these stores, and the slots that are pinned, by request. Whether a promise is withdrawn shows when
    its slots are freed: releases differ in that.
    """
    given_up, tier.queued = tier.queued, []
    tier.cancel(given_up)
    return given_up, dict(tier.pins)


# Blocks that are not stored.


def account_cursors(tier: Tier, each: Cursors) -> None:
    """Emit which blocks the connector passed over in this step, and why as far as it can be seen."""
    state = tier.stream.requests.get(each.id)
    if state is None or each.stored == state.cursor:
        return
    before, state.cursor = state.cursor, each.stored
    for group, to in enumerate(each.stored):
        was = 0 if before is None else before[group]
        if to > was:
            _pass(tier, state, group, was, to)


def _note_full(tier: Tier, each: Cursors) -> None:
    """The tier is full: blocks that are ready now, and not stored, have a reason."""
    state = tier.stream.requests.get(each.id)
    if state is None:
        return
    confirmed = each.computed - tier.stream.in_flight(each.id)
    for group, kind in enumerate(tier.stream.groups):
        state.blocked[group] = confirmed // kind.block_size


def _pass(tier: Tier, state: RequestState, group: int, start: int, end: int) -> None:
    """The store cursor of a table moved from ``start`` to ``end``."""
    table = state.tables.get(group)
    if table is None:
        return  # Made by something else than vLLM's table manager: whose blocks these are is not known.
    gaps = state.gaps(group, start, end)
    if gaps:
        reasons = [(at, _reason(tier, table[at])) for at in gaps if at < len(table)]
        _drop(tier, state, group, reasons)
    tier.stream.emit(ev.Cursor(state.id, state.gen, end, group))


def _reason(tier: Tier, slot: int) -> ev.DropReason | None:
    """Why a block of the GPU need not be stored, if there is a reason that can be seen."""
    gpu = tier.stream.gpu
    if slot < 0 or slot == gpu.null:
        return "window"
    block_hash = gpu.hash_of(slot)
    if block_hash is None:
        return "off"
    if tier.tap.has(block_hash):
        return "resident"
    if block_hash in tier.evicted:
        return "resident"  # It was when the connector looked.
    if tier.storing[slot] > 0:
        return "in_flight"
    return None


def _drop(
    tier: Tier, state: RequestState, group: int, reasons: list[tuple[int, ev.DropReason | None]]
) -> None:
    """Emit the blocks that will not be stored, in runs of the same reason."""
    for why, run in groupby(reasons, lambda each: each[1]):
        for start, end in _runs([at for at, _ in run]) if why is not None else ():
            tier.stream.emit(ev.Drop(state.id, state.gen, start, end - start, why, group))
            state.cover(group, start, end)


def account_finished(
    tier: Tier, id_: str, status: str, computed: int, free: int, tables: list[list[int]]
) -> None:
    """A request is finished: emit why its full blocks that are not stored are not, if that can be seen.

    ``tables``: by group, the slots of the blocks that it has now.
    """
    stream = tier.stream
    state = stream.requests.get(id_)
    if state is None or tier.tap is not stream.tiers[0]:
        return  # Only the first connector's tier counts for FLUSH.
    confirmed = stream.confirmed(state, computed)
    for group, kind in enumerate(stream.groups):
        gaps = state.gaps(group, 0, confirmed // kind.block_size)
        if not gaps:
            continue
        if tier.lazy or status == "FINISHED_ABORTED":
            why: ev.DropReason = "lazy" if tier.lazy else "aborted"
            _drop(tier, state, group, [(at, why) for at in gaps])
            continue
        table = tables[group] if group < len(tables) else []
        blocked = state.blocked.get(group, 0)
        reasons: list[tuple[int, ev.DropReason | None]] = []
        for at in gaps:
            reason = _reason(tier, table[at]) if at < len(table) else None
            if reason is None and (free <= 0 or at < blocked):
                reason = "tier_full"
            reasons.append((at, reason))
        _drop(tier, state, group, reasons)
