"""What the scheduler side of SimpleCPUOffloadConnector decided: promises, loads, stores, blocks passed over.

Everything is read from the pool operations of a call, from its result, and from the state that every release
since 0.19 keeps under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfence.checker.adapters.vllm.numbers import packed, slots_of
from kvfence.checker.adapters.vllm.stream import ALLOC, EVICT, FREE, TOUCH, Item, RequestState
from kvfence.checker.adapters.vllm.tables import tables_of
from kvfence.checker.adapters.vllm.transfers import Tier, Transfer, pairs
from kvfence.spec.events import Cursor, Drop, DropReason, Lookup

# Promises.


def looked_up(tier: Tier, request: Any, local: int, result: Any, items: list[Item]) -> None:
    """A lookup was answered with ``result``: how many tokens, and whether they come later."""
    stream = tier.stream
    state = stream.request(request.request_id)
    if state.promised and (items or result[0]):
        stream.withdraw(state)
    for item in items:
        if item.tap is tier.tap and item.kind in {TOUCH, FREE}:
            stream.tell(item, state.hit)
            if item.kind == TOUCH:
                tier.pins[state.id] = item.slots
            else:
                tier.pins.pop(state.id, None)
        else:
            stream.nobody([item])
    external = result[0]
    if not external:
        stream.withdraw(state)
        return
    hits = tier.hits
    slots = tier.tap.slots(hits)[2] if hits is not None else packed(tier.pins.get(state.id, []))
    stream.emit(Lookup(state.id, state.gen, local, external, tier.tap.name, slots))
    state.promised = True


# Loads.


def load_decided(tier: Tier, request: Any, items: list[Item]) -> None:
    """The blocks of a request are allocated; a load into them was decided, or not."""
    stream, manager = tier.stream, tier.manager
    id_ = request.request_id
    state = stream.request(id_)
    known = manager._reqs_to_load.get(id_)
    loading = known is not None and id_ not in tier.loads
    holds = [item for item in items if item.kind == TOUCH]
    drops = [item for item in items if item.kind != TOUCH]
    if loading:
        meta = known.transfer_meta
        gpu, cpu = list(meta.gpu_block_ids), list(meta.cpu_block_ids)
        held = next((item for item in holds if item.tap is tier.tap), None)
        if held is None or held.blocks is None or held.slots != cpu:
            blocks = tier.tap.pool.blocks
            held_blocks = [blocks[slot] for slot in cpu]
        else:
            held_blocks = held.blocks
        transfers = tier.split("load", gpu, cpu, [block._block_hash for block in held_blocks])
        free = {id(item.tap): item.free for item in holds}
        dropped = [item for item in drops if item.tap is tier.tap]
        tier.hold(
            transfers,
            TOUCH,
            -1 if dropped else free.get(id(tier.tap), -1),
            free.get(id(stream.gpu), -1),
        )
        for transfer in transfers:
            at = places(tier, id_, transfer)
            tier.queue(transfer, state, packed(at))
            if at:
                _resident(tier, state, transfer.group, at)
        state.promised = False
        tier.loads[id_] = transfers
    else:
        stream.withdraw(state)
        stream.nobody(holds)
    for item in drops:
        if item.tap is tier.tap and item.kind == FREE:
            tier.pins.pop(id_, None)
            stream.tell(item, state.hit)
        else:
            stream.nobody([item])


def _resident(tier: Tier, state: RequestState, group: int, at: Sequence[int]) -> None:
    """Blocks that are being loaded are in the tier already."""
    for start, end in _runs(at):
        tier.stream.emit(Drop(state.id, state.gen, start, end - start, "resident", group))
        state.cover(group, start, end)


def places(tier: Tier, id_: str, transfer: Transfer) -> Sequence[int]:
    """The indexes of a transfer's GPU slots in the request's table; empty if they are not all there."""
    gpu, count = transfer.gpu, len(transfer.gpu)
    for group, table in tables_of(tier.stream, id_):
        if group != transfer.group:
            continue
        start = tier.stream.requests[id_].lengths.get(group, len(table)) - count
        for guess in (start, len(table) - count):
            if guess >= 0 and packed(slots_of(table[guess : guess + count])) == transfer.gpu_pack:
                return range(guess, guess + count)
        where = {block.block_id: at for at, block in enumerate(table) if not block.is_null}
        found = [where.get(slot, -1) for slot in gpu]
        if -1 in found:
            return []
        row = range(found[0], found[0] + count)
        return row if found == list(row) else found
    return []


# Stores.


def stores_decided(tier: Tier, meta: Any, items: list[Item]) -> None:
    """The metadata of a step was built; ``items``: what it took to prepare its stores."""
    stream, manager = tier.stream, tier.manager
    found = pairs(items, tier.tap, stream.gpu)
    for item in items:
        if item.kind == EVICT and item.tap is tier.tap and item.extra:
            tier.evicted.update(item.extra)
    used = {id(item) for item in items if item.kind in {ALLOC, TOUCH}} if found else set()
    for item in items:
        if id(item) not in used:
            stream.nobody([item]) if item.kind in {ALLOC, TOUCH, FREE} else stream.tell_label(item)
    index = meta.store_event
    ids = list(manager._store_event_to_reqs.get(index, ())) if index >= 0 else []
    transfers: list[Transfer] = []
    for number, (taken, read) in enumerate(found):
        id_ = ids[number] if len(ids) == len(found) else _owner(tier, ids, read.slots)
        transfers += decide_store(tier, id_, taken, read)
    transfers += tier.queued
    tier.queued = []
    if index >= 0:
        tier.issue(transfers)
        tier.stores[index] = transfers


def decide_store(tier: Tier, id_: str, taken: Item, read: Item) -> list[Transfer]:
    """Tell a store to the slots ``taken`` of the blocks ``read``, for request ``id_`` ("": of nobody)."""
    assert read.blocks is not None
    hashes = [block._block_hash for block in read.blocks]
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
    known = tier.manager._reqs_to_store.get(id_)
    if known is None or transfer.group >= len(stream.groups):
        return True
    need = (last + 1) * stream.groups[transfer.group].block_size
    return int(known.request.num_computed_tokens) - stream.in_flight(id_) >= need


def stored_places(tier: Tier, state: RequestState, transfer: Transfer) -> Sequence[int]:
    """The indexes of a store's GPU slots in the table that the connector itself keeps of the request."""
    known = tier.manager._reqs_to_store.get(state.id)
    group, gpu = transfer.group, transfer.gpu
    if known is not None and group < len(known.block_ids):
        table = known.block_ids[group]
        for end in (known.num_stored_blocks[group], known.num_stored_blocks[group] + len(gpu)):
            if end >= len(gpu) and table[end - len(gpu) : end] == gpu:
                return range(end - len(gpu), end)
    return places(tier, state.id, transfer)


def _owner(tier: Tier, ids: list[str], gpu: list[int]) -> str:
    """Whose table has the first of these slots."""
    for id_ in ids:
        known = tier.manager._reqs_to_store.get(id_)
        if known is not None and any(gpu[0] in table for table in known.block_ids):
            return id_
    return ""


def _runs(at: Sequence[int]) -> list[tuple[int, int]]:
    """``at`` as ranges."""
    if isinstance(at, range):
        return [(at.start, at.stop)]
    found: list[tuple[int, int]] = []
    for place in at:
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


def last_stores(tier: Tier, id_: str, items: list[Item]) -> None:
    """A finished request's last blocks were queued for the next step."""
    for item in items:
        if item.kind not in {ALLOC, TOUCH}:
            tier.stream.nobody([item])
    for taken, read in pairs(items, tier.tap, tier.stream.gpu):
        tier.queued += decide_store(tier, id_, taken, read)


def give_up(tier: Tier) -> tuple[list[Transfer], dict[int, RequestState]]:
    """A reset begins: promises are withdrawn, stores that no worker knows of are given up.

    Returns these stores, and the request that each pinned slot is pinned for.
    """
    stream = tier.stream
    pins: dict[int, RequestState] = {}
    for id_, slots in tier.pins.items():
        state = stream.requests.get(id_)
        if state is not None:
            stream.withdraw(state)
            pins.update(dict.fromkeys(slots, state))
    tier.pins.clear()
    given_up, tier.queued = tier.queued, []
    tier.cancel(given_up)
    return given_up, pins


# Blocks that are not stored.


def account_cursors(tier: Tier, output: Any) -> None:
    """Tell which blocks the connector passed over in this step, and why as far as it can be seen."""
    tracked = tier.manager._reqs_to_store
    if not tracked or not tier.stream.lively:
        return
    tier.stream.lively -= 1
    requests = tier.stream.requests
    for id_ in output.num_scheduled_tokens:
        known = tracked.get(id_)
        if known is None:
            continue
        state = requests.get(id_)
        if state is None:
            continue
        cursor = known.num_stored_blocks
        if cursor != state.cursor:
            before, state.cursor = state.cursor, list(cursor)
            for group, to in enumerate(cursor):
                was = 0 if before is None else before[group]
                if to > was:
                    _pass(tier, state, known, group, was, to)
    if tier.tap.free_count() <= 0:
        _note_full(tier, output)


def _note_full(tier: Tier, output: Any) -> None:
    """The tier is full: blocks that are ready now, and not stored, have a reason."""
    for id_ in output.num_scheduled_tokens:
        known, state = tier.manager._reqs_to_store.get(id_), tier.stream.requests.get(id_)
        if known is None or state is None:
            continue
        confirmed = known.request.num_computed_tokens - tier.stream.in_flight(id_)
        for group, kind in enumerate(tier.stream.groups):
            state.blocked[group] = confirmed // kind.block_size


def _pass(tier: Tier, state: RequestState, known: Any, group: int, start: int, end: int) -> None:
    """The store cursor of a table moved from ``start`` to ``end``."""
    gaps = state.gaps(group, start, end)
    if gaps:
        table = known.block_ids[group]
        blocks = tier.stream.gpu.pool.blocks
        at_hand = [(at, blocks[table[at]]) for at in gaps if at < len(table)]
        _drop(tier, state, group, [(at, _reason(tier, block)) for at, block in at_hand])
    tier.stream.emit(Cursor(state.id, state.gen, end, group))


def _reason(tier: Tier, block: Any) -> DropReason | None:
    """Why a block need not be stored, if there is a reason that can be seen."""
    if block.is_null:
        return "window"
    block_hash = block._block_hash
    if block_hash is None:
        return "off"
    if tier.manager.cpu_block_pool.cached_block_hash_to_block.get_one_block(block_hash) is not None:
        return "resident"
    if block_hash in tier.evicted:
        return "resident"  # It was when the connector looked.
    if tier.storing[block.block_id] > 0:
        return "in_flight"
    return None


def _drop(tier: Tier, state: RequestState, group: int, reasons: list[tuple[int, DropReason | None]]) -> None:
    """Tell blocks that will not be stored, in runs of the same reason."""
    run: tuple[int, int, DropReason] | None = None
    for at, why in [*reasons, (-1, None)]:
        if run is not None and why == run[2] and at == run[1]:
            run = (run[0], at + 1, why)
            continue
        if run is not None:
            tier.stream.emit(Drop(state.id, state.gen, run[0], run[1] - run[0], run[2], group))
            state.cover(group, run[0], run[1])
        run = None if why is None else (at, at + 1, why)


def account_finished(tier: Tier, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
    """A request is finished: tell of its full blocks that are not stored why not, if that can be seen."""
    stream = tier.stream
    state = stream.requests.get(request.request_id)
    if state is None or tier is not first_tier(tier):
        return
    confirmed = stream.confirmed(state, request)
    full_tier = tier.tap.free_count() <= 0
    for group, kind in enumerate(stream.groups):
        gaps = state.gaps(group, 0, confirmed // kind.block_size)
        if not gaps:
            continue
        if tier.manager._lazy_mode or request.status.name == "FINISHED_ABORTED":
            why: DropReason = "lazy" if tier.manager._lazy_mode else "aborted"
            _drop(tier, state, group, [(at, why) for at in gaps])
            continue
        table = block_ids[group] if group < len(block_ids) else ()
        blocks = stream.gpu.pool.blocks
        blocked = state.blocked.get(group, 0)
        reasons: list[tuple[int, DropReason | None]] = []
        for at in gaps:
            reason = _reason(tier, blocks[table[at]]) if at < len(table) else None
            if reason is None and (full_tier or at < blocked):
                reason = "tier_full"
            reasons.append((at, reason))
        _drop(tier, state, group, reasons)


def first_tier(tier: Tier) -> Tier:
    """The connector whose tier counts for FLUSH."""
    first = tier.stream.tiers[0] if tier.stream.tiers else None
    return tier if first is tier.tap or first is None else Tier(tier.stream, tier.manager, first)
