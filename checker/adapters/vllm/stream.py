"""The events of one engine: its pools, requests, transfers and steps, as the hooks see them.

An engine is a GPU block pool with whatever schedules on it and the connectors bound to it. Each has a stream
of events of its own, which begins with a header.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.numbers import packed, packed_keys, slots_of
from kvfence.checker.monitor.violation import InvariantViolation
from kvfence.spec.events import (
    Alloc,
    Dispatch,
    Event,
    Evict,
    Free,
    Group,
    Header,
    Label,
    Pool,
    Process,
    Submit,
    Touch,
    Unlabel,
)

Sink: TypeAlias = Callable[[Event], None]
OpenSink: TypeAlias = Callable[[Header], Sink]

ALLOC: Final = "alloc"
TOUCH: Final = "touch"
FREE: Final = "free"
EVICT: Final = "evict"
LABEL: Final = "label"
UNLABEL: Final = "unlabel"

MOST_STEPS_AHEAD: Final = 64
"""vLLM bounds the steps in flight by the executor, which the scheduler side does not see."""
REMEMBERED_IDS: Final = 1 << 16
MOST_TROUBLE: Final = 20
"""Exceptions of the adapter itself after which it stops to observe an engine."""

log = logging.getLogger("kvfence.vllm")


class Item:
    """Something that happened to a pool inside a call whose end says on whose behalf."""

    __slots__ = ("extra", "free", "kind", "slots", "tap")

    def __init__(self, kind: str, tap: PoolTap, slots: list[int], free: int = -1, extra: Any = None) -> None:
        self.kind = kind
        self.tap = tap
        self.slots = slots
        self.free = free
        self.extra = extra


class RequestState:
    """What the adapter remembers of a live request."""

    __slots__ = (
        "admitted",
        "blocked",
        "covered",
        "cursor",
        "ended",
        "gen",
        "hit",
        "id",
        "lengths",
        "local",
        "open_loads",
        "promised",
        "table",
        "uneven",
    )

    def __init__(self, id_: str, gen: int) -> None:
        self.id = id_
        self.begin(gen)

    def begin(self, gen: int) -> None:
        """A new generation: nothing is held, promised or stored."""
        self.gen = gen
        self.table = f"req:{self.id}.{gen}"
        self.hit = f"hit:{self.id}.{gen}"
        self.admitted = False
        self.promised = False
        self.ended = False
        self.local = 0
        self.open_loads = 0
        self.lengths: dict[int, int] = {}
        """By group: blocks of the table that were seen to enter it."""
        self.covered: dict[int, bytearray] = {}
        """By group: 1 for each block of the table that was queued or dropped."""
        self.cursor: list[int] | None = None
        self.blocked: dict[int, int] = {}
        """By group: blocks that were ready when the tier was last seen to be full."""
        self.uneven = False
        """A step computes tokens of it that may be rejected."""

    def cover(self, group: int, start: int, end: int) -> None:
        """Blocks ``start`` .. ``end - 1`` are accounted for."""
        done = self.covered.setdefault(group, bytearray())
        if len(done) < end:
            done.extend(bytes(end - len(done)))
        done[start:end] = b"\1" * (end - start)

    def gaps(self, group: int, start: int, end: int) -> list[int]:
        """Blocks from ``start`` to before ``end`` that are not accounted for."""
        done = self.covered.get(group, b"")
        return [at for at in range(start, end) if at >= len(done) or not done[at]]


class PoolTap:
    """A block pool under observation."""

    __slots__ = ("anonymous", "hashes", "labels", "name", "null", "pool", "stream")

    def __init__(self, name: str, pool: Any, stream: Stream) -> None:
        self.name = name
        self.pool = pool
        self.stream = stream
        null = getattr(pool, "null_block", None)
        self.null: int = -1 if null is None else null.block_id
        self.labels = bytearray(len(pool.blocks))
        """1 for each slot that was seen to enter the prefix index."""
        self.hashes: dict[int, bytes] = {}
        """Of a tier: the hash of each slot in its index."""
        self.anonymous: dict[int, int] = {}
        """Holders without a name of each slot."""

    def free_count(self) -> int:
        """The pool's own count of free slots."""
        return int(self.pool.free_block_queue.num_free_blocks)

    # Called by the hooks, after the pool did it.

    def allocated(self, blocks: list[Any]) -> None:
        """The pool gave ``blocks`` away."""
        slots = slots_of(blocks)
        labels = self.labels
        gone = [slot for slot in slots if labels[slot]]
        if gone:
            all_blocks = self.pool.blocks
            gone = [slot for slot in gone if all_blocks[slot]._block_hash is None]
            for slot in gone:
                labels[slot] = 0
            if gone:
                hashes = self.hashes
                lost = [hashes.pop(slot, None) for slot in gone] if hashes else None
                self.stream.happened(Item(EVICT, self, gone, extra=lost))
        if slots:
            self.stream.happened(Item(ALLOC, self, slots, self.free_count()))

    def touched(self, blocks: Any) -> None:
        """A holder was added to ``blocks``."""
        slots = self.real(slots_of(blocks))
        if slots:
            self.stream.happened(Item(TOUCH, self, slots, self.free_count()))

    def freed(self, blocks: list[Any]) -> None:
        """A holder left ``blocks``."""
        slots = self.real(slots_of(blocks))
        if slots:
            self.stream.happened(Item(FREE, self, slots, self.free_count()))

    def real(self, slots: list[int]) -> list[int]:
        """``slots`` without the null block."""
        null = self.null
        return [slot for slot in slots if slot != null] if null in slots else slots

    def labelled(self, blocks: list[Any], hashes: list[bytes]) -> None:
        """``blocks`` are in the prefix index under ``hashes``."""
        slots = slots_of(blocks)
        labels = self.labels
        again = [slot for slot in slots if labels[slot]]
        if again:
            self.unlabelled(again, "another key")
        for slot in slots:
            labels[slot] = 1
        self.stream.happened(Item(LABEL, self, slots, extra=hashes))

    def unlabelled(self, slots: list[int], why: str) -> None:
        """``slots`` left the prefix index."""
        gone = [slot for slot in slots if self.labels[slot]]
        for slot in gone:
            self.labels[slot] = 0
        if gone:
            self.stream.happened(Item(UNLABEL, self, gone, extra=why))


class Stream:
    """Observes one engine and tells its events to a sink."""

    def __init__(self, open_sink: OpenSink, gpu_pool: Any, producer: str) -> None:
        self.open_sink = open_sink
        self.producer = producer
        self.sink: Sink | None = None
        self.gpu = PoolTap("gpu", gpu_pool, self)
        self.taps = {id(gpu_pool): self.gpu}
        self.tiers: list[PoolTap] = []
        self.scheduler: Any = None
        self.table_manager: Any = None
        """vLLM's KVCacheManager: the block tables."""
        self.connectors: list[Any] = []
        """The observed scheduler sides of connectors."""
        self.groups: tuple[Group, ...] = ()
        self.ranks = 1
        self.requests: dict[str, RequestState] = {}
        self.last_gens: dict[str, int] = {}
        self.steps: deque[tuple[int, int, dict[str, int]]] = deque()
        """Of each step in flight: its number, the id of its output, its tokens by request."""
        self.next_step = 0
        self.next_op = 0
        self.trouble_count = 0
        self.troubles: list[str] = []
        """The first exceptions of the adapter itself, in words."""
        self.pending: list[Item] | None = None
        self.handler: Callable[[list[Item]], None] = self.nobody
        self.leaving: dict[str, tuple[str, int, set[int]]] = {}
        """By holder: request, generation and slots of tables that are given back later."""
        self.loads: list[dict[str, list[Any]]] = []
        """Of each tier: its open loads by request."""
        self.off = False

    # Telling.

    def emit(self, event: Event) -> None:
        """Tell ``event``; the header goes first."""
        if self.sink is None:
            self.sink = self.open_sink(self.header())
        self.sink(event)

    def header(self) -> Header:
        """What the numbers in the events refer to."""
        pools = list(self.taps.values())
        return Header(
            producer=self.producer,
            pools=tuple(
                Pool(tap.name, len(tap.pool.blocks), None if tap.null < 0 else tap.null) for tap in pools
            ),
            groups=self.groups,
            ranks=self.ranks,
            depth=MOST_STEPS_AHEAD,
            tier=self.tiers[0].name if self.tiers else "gpu",
            unique="slot",
        )

    def trouble(self, error: Exception) -> None:
        """An exception in the adapter: raise the violations, swallow and count all others."""
        if isinstance(error, InvariantViolation):
            raise error
        self.trouble_count += 1
        if len(self.troubles) < MOST_TROUBLE:
            told = f"could not follow vLLM: {type(error).__name__}: {error}"
            self.troubles.append(told)
            not_checked = getattr(self.sink, "not_checked", None)
            if not_checked is not None:
                not_checked(told)
        if self.trouble_count == 1:
            log.warning("kvfence could not follow vLLM: %s: %s", type(error).__name__, error, exc_info=error)
        if self.trouble_count >= MOST_TROUBLE and not self.off:
            self.off = True
            log.error("kvfence stops to observe this engine: it could not follow vLLM %d times", MOST_TROUBLE)

    # Whose doing it is.

    def enter(self, handler: Callable[[list[Item]], None]) -> tuple[Any, Any]:
        """From here on ``handler`` gets what happens to the pools; returns what :meth:`leave` needs."""
        if self.pending:
            self.flush()
        outer = (self.pending, self.handler)
        self.pending, self.handler = [], handler
        return outer

    def flush(self) -> None:
        """Let the handler tell what has happened up to now."""
        items = self.pending
        if items:
            self.pending = []
            self.handler(items)

    def leave(self, outer: tuple[Any, Any]) -> None:
        """The end of what :meth:`enter` began."""
        try:
            if self.pending:
                self.flush()
        except Exception as error:
            self.pending, self.handler = outer
            self.trouble(error)
        self.pending, self.handler = outer

    def happened(self, item: Item) -> None:
        """Something happened to a pool."""
        if self.pending is not None:
            self.pending.append(item)
        else:
            self.nobody([item])

    def tell(self, item: Item, holder: str, group: int = 0, at: int = 0) -> None:
        """Tell one item, which ``holder`` did."""
        tap, slots = item.tap, item.slots
        match item.kind:
            case "alloc":
                self.emit(Alloc(tap.name, holder, packed(slots), item.free, group, at))
            case "touch":
                self.emit(Touch(tap.name, holder, packed(slots), item.free, group, at))
            case "free":
                self.emit(Free(tap.name, holder, packed(slots), item.free))
            case _:
                self.tell_label(item)

    def tell_label(self, item: Item, op: int = -1) -> None:
        """Tell an item that has no holder: evict, label, unlabel."""
        tap, slots = item.tap, item.slots
        if item.kind == EVICT:
            self.emit(Evict(tap.name, packed(slots)))
        elif item.kind == UNLABEL:
            self.emit(Unlabel(tap.name, packed(slots), item.extra))
        else:
            from kvfence.checker.adapters.vllm.numbers import keys_and_groups

            keys, groups = keys_and_groups(item.extra, slots)
            first = int(groups[0])
            if (groups == first).all():
                self.emit(Label(tap.name, packed(slots), packed_keys(keys), first, op))
                return
            for group in sorted(set(groups.tolist())):
                here = [at for at, of in enumerate(groups.tolist()) if of == group]
                self.emit(
                    Label(
                        tap.name,
                        packed([slots[at] for at in here]),
                        packed_keys([int(keys[at]) for at in here]),
                        group,
                        op,
                    )
                )

    def nobody(self, items: list[Item]) -> None:
        """Tell items that happened outside of any call that says whose doing it is.

        Deferred frees are recognised by their slots; other holders count, but have no name: the first of a
        slot is ``ref:0.0``, the second ``ref:1.0`` and so on.
        """
        if self.off:
            return
        try:
            for item in items:
                if item.kind in {EVICT, LABEL, UNLABEL}:
                    self.tell_label(item)
                elif item.kind == FREE and self.leaving and self.free_later(item):
                    pass
                else:
                    self.anonymous(item)
        except Exception as error:
            self.trouble(error)

    def free_later(self, item: Item) -> bool:
        """Tell the free of a table that its request left before."""
        for holder, (id_, gen, slots) in self.leaving.items():
            if slots.issuperset(item.slots):
                self.tell(item, holder)
                slots.difference_update(item.slots)
                if not slots:
                    del self.leaving[holder]
                    self.left(id_, gen)
                return True
        return False

    def left(self, id_: str, gen: int) -> None:
        """A table that was given back later is empty now."""

    def pool_reset(self, tap: PoolTap) -> None:
        """The prefix index of a pool was emptied."""

    def anonymous(self, item: Item) -> None:
        """Tell an item of holders without a name."""
        counts, levels = item.tap.anonymous, dict[int, list[int]]()
        for slot in item.slots:
            level = counts.get(slot, 0)
            if item.kind == FREE:
                level = max(level - 1, 0)
                counts[slot] = level
                if not level:
                    del counts[slot]
            else:
                counts[slot] = level + 1
            levels.setdefault(level, []).append(slot)
        last = len(levels) - 1
        for place, (level, slots) in enumerate(levels.items()):
            free = item.free if place == last else -1
            self.tell(Item(item.kind, item.tap, slots, free), f"ref:{level}.0")

    # Requests.

    def request(self, id_: str) -> RequestState:
        """The request ``id_``; one that was not seen to be added is taken as it is."""
        found = self.requests.get(id_)
        if found is None:
            found = self.requests[id_] = RequestState(id_, self.last_gens.pop(id_, -1) + 1)
        return found

    def submit(self, request: Any) -> None:
        """A request was added to the engine."""
        known = self.requests.get(request.request_id)
        if known is not None and not known.ended:
            return
        self.requests.pop(request.request_id, None)
        state = self.request(request.request_id)
        self.emit(Submit(state.id, state.gen, request.num_tokens))

    def forget(self, request: RequestState) -> None:
        """The request is gone; its id may come again."""
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self.last_gens.pop(request.id, None)
        self.last_gens[request.id] = request.gen
        if len(self.last_gens) > REMEMBERED_IDS:
            del self.last_gens[next(iter(self.last_gens))]

    # Steps.

    def dispatched(self, output: Any) -> None:
        """A step was handed to the workers."""
        tokens = output.num_scheduled_tokens
        if not tokens:
            return
        number = self.next_step
        self.next_step = number + 1
        self.steps.append((number, id(output), tokens))
        self.emit(Dispatch(number, list(tokens), list(tokens.values())))
        speculative = output.scheduled_spec_decode_tokens
        if speculative:
            for id_ in speculative:
                self.request(id_).uneven = True

    def processed(self, output: Any) -> None:
        """The output of a step arrived."""
        steps = self.steps
        if not steps or not output.num_scheduled_tokens:
            return
        wanted = id(output)
        if steps[0][1] == wanted:
            self.emit(Process(steps.popleft()[0]))
            return
        if any(known == wanted for _, known, _ in steps):
            while steps[0][1] != wanted:
                self.emit(Process(steps.popleft()[0]))
            self.emit(Process(steps.popleft()[0]))
            return
        # A copy of the output came back, as from another process.
        self.emit(Process(steps.popleft()[0]))

    def in_flight(self, id_: str) -> int:
        """Tokens of a request in steps that are dispatched and not processed."""
        return sum(tokens.get(id_, 0) for _, _, tokens in self.steps)
