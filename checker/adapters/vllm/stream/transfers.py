"""Transfers of a connector whose tier is a BlockPool, from the preparing pool operations to their end.

vLLM moves the blocks of many requests and groups under one event index. A trace has a transfer for each
request and group, so that it is known whose blocks they are.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvfence.checker.adapters.vllm.notes.compiled_hooks import compiled_hooks
from kvfence.checker.adapters.vllm.stream import pool_events as pool
from kvfence.checker.adapters.vllm.stream.content_keys import keys_and_groups, packed_keys
from kvfence.checker.adapters.vllm.stream.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.spec import events as ev


@dataclass(eq=False, slots=True)
class Transfer:
    """Blocks of one request and group on their way."""

    op: int
    kind: ev.Kind
    gpu: list[int]
    cpu: list[int]
    keys: Any
    group: int
    hashes: list[Any]
    gpu_pack: Any = field(init=False)
    cpu_pack: Any = field(init=False)
    holder: str = field(init=False)
    again: list[int] = field(init=False)
    """GPU slots that appear more than once: they are held once more for each time."""
    state: RequestState | None = None
    issued: bool = False
    reported: int = 0
    ok: bool = True

    def __post_init__(self) -> None:
        self.gpu_pack, self.cpu_pack = pool.packed(self.gpu), pool.packed(self.cpu)
        self.holder = f"op:{self.op}.0"
        self.again = repeated(self.gpu)


def stores_are_ordered() -> bool:
    """Whether the copy backend of this vLLM takes an event that a copy has to wait for."""
    try:
        backend = importlib.import_module("vllm.v1.simple_kv_offload.copy_backend").DmaCopyBackend
        return "wait_event" in inspect.signature(backend.launch_copy).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return False


def repeated(slots: Sequence[int]) -> list[int]:
    """The second and further appearances in ``slots``."""
    if len(set(slots)) == len(slots):
        return []
    again = list(slots)
    for slot in dict.fromkeys(slots):
        again.remove(slot)
    return again


def moved(
    tracked: dict[str, Any], tokens: dict[str, int], seen: dict[str, int]
) -> list[tuple[str, list[int], int]]:
    """Of the requests in ``tokens``, those tracked for stores whose cursors moved since they were ``seen``.

    Cursors of a request only grow: ``seen`` has their sum, after that of now. Each request with a copy of its
    cursors and its computed tokens.
    """
    found = []
    for id_ in tokens:
        known = tracked.get(id_)
        if known is not None:
            total = sum(known.num_stored_blocks)
            if total != seen.get(id_):
                seen[id_] = total
                stored = list(known.num_stored_blocks)
                found.append((id_, stored, int(known.request.num_computed_tokens)))
    return found


class Tier:
    """The scheduler side of one connector, and its transfers."""

    __slots__ = (
        "__weakref__",
        "evicted",
        "hits",
        "lazy",
        "loads",
        "manager",
        "moved",
        "note_queue",
        "ordered",
        "pins",
        "queued",
        "seen",
        "stores",
        "storing",
        "stream",
        "tap",
        "tracked",
    )

    def __init__(self, stream: EngineStream, manager: Any, tap: pool.PoolTap) -> None:
        self.stream = stream
        self.manager = manager
        """vLLM's: looked at in the engine's thread only."""
        self.tap = tap
        self.note_queue = stream.note_queue
        self.loads: dict[str, list[Transfer]] = {}
        """By request."""
        stream.loads.append(self.loads)
        self.stores: dict[int, list[Transfer]] = {}
        """By vLLM's event index."""
        self.queued: list[Transfer] = []
        """Stores that wait for the next step, decided when their request finished."""
        self.storing: npt.NDArray[np.int32] = np.zeros(len(stream.gpu.pool.blocks), dtype=np.int32)
        """Of each GPU slot: the open stores that read it."""
        self.pins: dict[str, list[int]] = {}
        """By request: slots of the tier that are pinned for its promise."""
        self.lazy = bool(getattr(manager, "_lazy_mode", False))
        self.ordered = stores_are_ordered()
        """Whether the workers' stores wait for the step that they are handed over with."""
        self.evicted: set[bytes] = set()
        """What left the tier's index to make room for stores, those of the last step or queued since."""
        self.tracked: dict[str, Any] = {}
        """Requests whose stores are under decision, each with its cursors: see :class:`decisions.Cursors`."""
        made = compiled_hooks()
        self.moved = moved if made is None else made.moved
        self.seen: dict[str, int] = {}
        """See ``noted_cursors`` of the stream. A request that is preempted begins anew."""
        stream.noted_cursors.append(self.seen)
        self.hits: list[Any] | None = None
        """Blocks of the hit that was found last in this tier's index: used in the engine's thread only."""

    # Beginning.

    def split(self, kind: ev.Kind, gpu: list[int], cpu: list[int], hashes: list[Any]) -> list[Transfer]:
        """Transfers of these blocks, one for each group."""
        keys, groups = keys_and_groups(hashes, cpu)
        first = int(groups[0])
        if (groups == first).all():
            return [self.new(kind, gpu, cpu, keys, first, hashes)]
        listed = groups.tolist()
        found = []
        for group in sorted(set(listed)):
            here = [at for at, of in enumerate(listed) if of == group]
            part_gpu, part_cpu, part_hashes = ([each[at] for at in here] for each in (gpu, cpu, hashes))
            found.append(self.new(kind, part_gpu, part_cpu, keys[here], group, part_hashes))
        return found

    def new(
        self, kind: ev.Kind, gpu: list[int], cpu: list[int], keys: Any, group: int, hashes: list[Any]
    ) -> Transfer:
        """Make a transfer with the next number."""
        op = self.stream.next_op
        self.stream.next_op = op + 1
        return Transfer(op, kind, gpu, cpu, keys, group, hashes)

    def hold(self, transfers: list[Transfer], cpu_kind: str, free_cpu: int, free_gpu: int) -> None:
        """Emit that the transfers hold their slots: the tier's by ``cpu_kind``, the GPU's by a touch."""
        stream, last = self.stream, transfers[-1]
        taken = ev.Alloc if cpu_kind == pool.ALLOC else ev.Touch
        for transfer in transfers:
            free = free_cpu if transfer is last else -1
            stream.emit(taken(self.tap.name, transfer.holder, transfer.cpu_pack, free))
        for transfer in transfers:
            self.touch_gpu(transfer, free_gpu if transfer is last else -1)

    def touch_gpu(self, transfer: Transfer, free: int) -> None:
        """Emit that a transfer holds its GPU slots, those that it names twice by two holders."""
        stream = self.stream
        if not transfer.again:
            stream.emit(ev.Touch("gpu", transfer.holder, transfer.gpu_pack, free))
            return
        stream.emit(ev.Touch("gpu", transfer.holder, list(dict.fromkeys(transfer.gpu)), -1))
        for place, holder in enumerate(self.more_holders(transfer)):
            stream.emit(ev.Touch("gpu", holder[0], holder[1], free if place == 0 else -1))

    def more_holders(self, transfer: Transfer) -> list[tuple[str, list[int]]]:
        """Names for the second and further holds of the same slots, and these slots."""
        rounds: list[list[int]] = []
        for slot in transfer.again:
            for held in rounds:
                if slot not in held:
                    held.append(slot)
                    break
            else:
                rounds.append([slot])
        return [(f"op:{transfer.op}.0#{number}", held) for number, held in enumerate(rounds, 2)]

    def queue(self, transfer: Transfer, state: RequestState | None, at: Sequence[int] | Any = ()) -> None:
        """Emit that a transfer was decided, of blocks ``at`` of the table of ``state``."""
        transfer.state = state
        load = transfer.kind == "load"
        gpu, cpu = ("gpu", transfer.gpu_pack), (self.tap.name, transfer.cpu_pack)
        source, target = (cpu, gpu) if load else (gpu, cpu)
        whose = ("", 0) if state is None else (state.id, state.gen)
        what = transfer.op, 0, transfer.kind
        keys = packed_keys(transfer.keys)
        self.stream.emit(ev.Queue(*what, *source, *target, keys, *whose, at, transfer.group))
        if not load:
            self.storing[pool.indexes(transfer.gpu_pack)] += 1
        elif state is not None:
            state.open_loads += 1

    def issue(self, transfers: list[Transfer]) -> None:
        """Emit that transfers were handed to the workers."""
        for transfer in transfers:
            transfer.issued = True
            self.stream.emit(ev.Issue(transfer.op, 0))

    # End.

    def report(self, transfers: list[Transfer], ranks: int) -> None:
        """Emit that ``ranks`` more ranks finished the transfers."""
        for transfer in transfers:
            for _ in range(ranks):
                self.stream.emit(ev.Report(transfer.op, 0, transfer.reported, transfer.ok))
                transfer.reported += 1

    def complete(self, transfers: list[Transfer], computed: int | None = None) -> None:
        """Emit that transfers are over; ``computed``: tokens of the request of a load that count now."""
        for transfer in transfers:
            self.stream.emit(ev.Complete(transfer.op, 0, transfer.ok))
            if transfer.kind == "load":
                if transfer.state is not None:
                    transfer.state.open_loads -= 1
                    if transfer.issued and not transfer.ok:
                        self.stream.load_failed(transfer.state, computed)
                continue
            self.storing[pool.indexes(transfer.gpu_pack)] -= 1

    def cancel(self, transfers: list[Transfer]) -> None:
        """Emit that transfers that were never handed to the workers were given up."""
        for transfer in transfers:
            transfer.ok = False
        self.issue(transfers)
        self.report(transfers, self.stream.ranks)
        self.complete(transfers)

    def release(self, transfers: list[Transfer], items: list[pool.Item]) -> None:
        """Emit the frees among ``items`` as those of ``transfers``, and all others as they are.

        What was freed and belongs to none of them is emitted as freed by the first, which does not hold it.
        """
        cpu_items = [item for item in items if item.kind == pool.FREE and item.tap is self.tap]
        gpu_items = [item for item in items if item.kind == pool.FREE and item.tap is self.stream.gpu]
        for item in items:
            if item.kind in {pool.EVICT, pool.LABEL, pool.UNLABEL}:
                self.stream.emit_label(item)
        if not transfers:
            self.stream.emit_unattributed(cpu_items + gpu_items)
            return
        self.release_pool(transfers, cpu_items, self.tap)
        self.release_pool(transfers, gpu_items, self.stream.gpu)

    def release_pool(self, transfers: list[Transfer], items: list[pool.Item], tap: pool.PoolTap) -> None:
        """See :meth:`release`, for one pool."""
        if not items:
            return
        tier = tap is self.tap
        if len(transfers) == len(items) == 1 and (tier or not transfers[0].again):
            transfer, item = transfers[0], items[0]
            if item.pack == (transfer.cpu_pack if tier else transfer.gpu_pack):
                self.stream.emit(ev.Free(tap.name, transfer.holder, item.pack, item.free))
                return
        freed = [slot for item in items for slot in item.slots]
        left: dict[int, int] = {}
        whole = _same(freed, [slot for transfer in transfers for slot in _slots(transfer, tier)])
        if not whole:
            for slot in freed:
                left[slot] = left.get(slot, 0) + 1
        parts: list[tuple[str, list[int]]] = []
        for transfer in transfers:
            slots = _slots(transfer, tier)
            holders = [(transfer.holder, slots)]
            if transfer.again and not tier:
                holders = [(transfer.holder, list(dict.fromkeys(slots))), *self.more_holders(transfer)]
            for holder, held in holders:
                if whole:
                    parts.append((holder, held))
                    continue
                given = []
                for slot in held:
                    if left.get(slot):
                        left[slot] -= 1
                        given.append(slot)
                parts.append((holder, given))
        extra = [slot for slot, count in left.items() for _ in range(count)]
        if extra:
            parts.append((transfers[0].holder, extra))
        parts = [part for part in parts if part[1]]
        for place, (holder, slots) in enumerate(parts):
            free = items[-1].free if place == len(parts) - 1 else -1
            self.stream.emit(ev.Free(tap.name, holder, pool.packed(slots), free))

    def label(self, transfers: list[Transfer], slots: list[int], found: list[bytes | None]) -> None:
        """Emit which destinations of completed stores are in the tier's index now: ``slots`` under ``found``.

        What has no hash there is not in the index.
        """
        by_slot = dict(zip(slots, found, strict=True)) if len(transfers) > 1 else {}
        for transfer in transfers:
            hashes = found if transfer.cpu == slots else [by_slot.get(slot) for slot in transfer.cpu]
            if None not in hashes and hashes == transfer.hashes:
                self.tap.remember(pool.indexes(transfer.cpu_pack), hashes)
                keys = packed_keys(transfer.keys)
                self.stream.emit(
                    ev.Label(self.tap.name, transfer.cpu_pack, keys, transfer.group, transfer.op)
                )
                continue
            there = [at for at, each in enumerate(hashes) if each is not None]
            if not there:
                continue
            some, kept = [transfer.cpu[at] for at in there], [hashes[at] for at in there]
            self.tap.remember(np.array(some, dtype=np.uint32), kept)
            self.stream.emit_label(
                pool.Item(pool.LABEL, self.tap, some, pool.packed(some), extra=kept), transfer.op
            )


def _slots(transfer: Transfer, tier: bool) -> list[int]:
    return transfer.cpu if tier else transfer.gpu


def _same(left: list[int], right: list[int]) -> bool:
    return len(left) == len(right) and (left == right or sorted(left) == sorted(right))


def pairs(items: list[pool.Item], tap: pool.PoolTap, gpu: pool.PoolTap) -> list[tuple[pool.Item, pool.Item]]:
    """Allocations in the tier, each with the touch of as many GPU blocks that follows it."""
    found = []
    waiting: list[pool.Item] = []
    for item in items:
        if item.kind == pool.ALLOC and item.tap is tap:
            waiting.append(item)
        elif item.kind == pool.TOUCH and item.tap is gpu and waiting:
            taken = waiting.pop(0)
            if len(taken.slots) == len(item.slots):
                found.append((taken, item))
    return found
