"""Whether a header and an event make sense by themselves, whatever happened before.

An event that names a pool or a slot that does not exist says nothing about a connector; it says that the
trace, or whoever writes it, is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, ints

MOST_SLOTS: Final = 1 << 28  # 268 million: a slot's word takes 8 bytes
MOST_BLOCKS: Final = 1 << 24  # of a request's table
MOST_TOKENS: Final = 1 << 40
MOST_RANKS: Final = 1 << 14


def problem_of_header(header: ev.Header) -> str | None:
    """What is wrong with the sizes and names of ``header``."""
    if not header.pools:
        return "the header names no pools"
    names = Counter(pool.name for pool in header.pools)
    if twice := [name for name, times in names.items() if times > 1]:
        return f"pool {twice[0]!r} is named twice"
    for pool in header.pools:
        if not 1 <= pool.slots <= MOST_SLOTS:
            return f"pool {pool.name!r} has {pool.slots} slots (1 to {MOST_SLOTS} are possible)"
        if pool.null is not None and not 0 <= pool.null < pool.slots:
            return f"null block {pool.null} of pool {pool.name!r} is not one of its {pool.slots} slots"
    for index, group in enumerate(header.groups):
        if group.pool not in names:
            return f"group {index} is in pool {group.pool!r}, which the header does not name"
        if group.block_size < 1:
            return f"group {index} has block size {group.block_size} (at least 1 token is possible)"
        if group.window is not None and group.window < 1:
            return f"group {index} has a window of {group.window} tokens (at least 1 is possible)"
        if group.kind is not None and (group.window is None) == (group.kind in ("sliding", "chunked")):
            return f"group {index} is {group.kind}, and its window is {group.window}"
    if not 1 <= header.ranks <= MOST_RANKS:
        return f"{header.ranks} ranks (1 to {MOST_RANKS} are possible)"
    if header.depth < 1:
        return f"depth {header.depth} (at least 1 step is dispatched before one is processed)"
    return None


def problem_of_event(header: ev.Header, event: ev.Event) -> str | None:
    """What is wrong with ``event`` in a trace that begins with ``header``."""
    try:
        event = ev.listed(event)
    except ValueError as error:
        return str(error)
    sizes = {pool.name: pool.slots for pool in header.pools}
    match event:
        case ev.Label():
            slots, keys = ints(event.slots), ints(event.keys, WIDE)
            fewer = f"{len(keys)} keys for {len(slots)} slots" if len(keys) != len(slots) else None
            return _slots_problem(sizes, event.pool, slots) or fewer or _keys_problem(keys)
        case ev.Alloc() | ev.Touch():
            negative = f"at is {event.at} (a block index is not negative)" if event.at < 0 else None
            return _slots_problem(sizes, event.pool, ints(event.slots)) or negative
        case ev.Free() | ev.Evict() | ev.Unlabel() | ev.Zero():
            return _slots_problem(sizes, event.pool, ints(event.slots))
        case ev.Deny():
            problem = _slots_problem(sizes, event.pool, ())
            if problem is None and event.asked < 0:
                problem = f"asked is {event.asked} (a number of slots is not negative)"
            return problem
        case ev.Lookup():
            slots = ints(event.slots)
            problem = _slots_problem(sizes, event.pool, slots) if slots else None
            return problem or _counts_problem(len(header.groups), event.counts, len(slots))
        case ev.Queue():
            return _queue_problem(sizes, header.tier, event)
        case ev.Dispatch():
            if len(event.reqs) != len(event.tokens):
                return f"{len(event.tokens)} token counts for {len(event.reqs)} requests"
            if event.tokens and min(event.tokens) < 0:
                return f"{min(event.tokens)} tokens (a number of tokens is not negative)"
            return _count_problem(event.step, *event.tokens)
        case ev.Admit():
            return _count_problem(event.local, event.external)
        case ev.Rollback():
            return _count_problem(event.computed)
        case ev.Answer():
            return _count_problem(event.hits)
        case ev.Drop() if event.at < 0 or not 0 <= event.n <= MOST_BLOCKS - event.at:
            return f"blocks from {event.at}, {event.n} of them (a table has 0 to {MOST_BLOCKS})"
        case ev.Cursor() if not 0 <= event.to <= MOST_BLOCKS:
            return f"to is {event.to} (a table has 0 to {MOST_BLOCKS} blocks)"
        case ev.Reset():
            return next((_slots_problem(sizes, name, ()) for name in event.pools if name not in sizes), None)
        case ev.Ask() | ev.Stored() | ev.Removed():
            return _slots_problem(sizes, event.pool, ()) or _keys_problem(ints(event.keys, WIDE))
        case ev.Cleared() | ev.Published() | ev.Register() | ev.Unregister() | ev.Hostmem() | ev.Round():
            return _slots_problem(sizes, event.pool, ())
        case ev.Geometry():
            return _geometry_problem(header, event)
    return None


def _counts_problem(groups: int, counts: Sequence[int], slots: int) -> str | None:
    if not counts:
        return None
    if len(counts) > groups:
        return f"counts of {len(counts)} groups (the header names {groups})"
    if min(counts) < 0 or sum(counts) != slots:
        return f"counts that add up to {sum(counts)} for {slots} slots"
    return None


def _geometry_problem(header: ev.Header, event: ev.Geometry) -> str | None:
    if not 0 <= event.group < len(header.groups):
        return f"group {event.group} (the header names {len(header.groups)})"
    if event.tokens < 0 or event.at < 0:
        return f"block {event.at} behind {event.tokens} tokens (neither is negative)"
    sizes = {pool.name: pool.slots for pool in header.pools}
    return _count_problem(event.tokens) or _slots_problem(
        sizes, header.groups[event.group].pool, ints(event.slots)
    )


def _slots_problem(sizes: dict[str, int], pool: str, slots: Sequence[int]) -> str | None:
    if pool not in sizes:
        return f"pool {pool!r} (the header names {', '.join(sizes)})"
    if slots and not 0 <= min(slots) <= max(slots) < sizes[pool]:
        wrong = next(slot for slot in slots if not 0 <= slot < sizes[pool])
        return f"slot {wrong} (pool {pool!r} has {sizes[pool]} slots, from 0)"
    return None


def _count_problem(*counts: int) -> str | None:
    for count in counts:
        if not -MOST_TOKENS <= count <= MOST_TOKENS:
            return f"{count} (tokens and steps are counted up to {MOST_TOKENS})"
    return None


def _keys_problem(keys: Sequence[int]) -> str | None:
    if keys and not 0 <= min(keys) <= max(keys) < 1 << 64:
        wrong = next(key for key in keys if not 0 <= key < 1 << 64)
        return f"key {wrong} (a key has 64 bits: 0 to 2**64 - 1)"
    return None


def _queue_problem(sizes: dict[str, int], tier: str, event: ev.Queue) -> str | None:
    src, dst, at, keys = ints(event.src), ints(event.dst), ints(event.at), ints(event.keys, WIDE)
    problem = _slots_problem(sizes, event.src_pool, src) or _slots_problem(sizes, event.dst_pool, dst)
    if problem is not None:
        return problem
    if not len(src) == len(dst) == len(keys):
        return f"{len(src)} sources, {len(dst)} destinations, {len(keys)} keys"
    if at and len(at) != len(src):
        return f"at names {len(at)} blocks for {len(src)} sources"
    if at and min(at) < 0:
        return f"at names block {min(at)} (a block index is not negative)"
    if event.src_pool == event.dst_pool:
        return f"src_pool and dst_pool are {event.src_pool!r} (a transfer moves blocks to another pool)"
    if len(sizes) == 2 and tier in sizes and (event.kind == "store") != (event.dst_pool == tier):
        return f"a {event.kind} to {event.dst_pool!r} (the header says that stores go to {tier!r})"
    return _keys_problem(keys)
