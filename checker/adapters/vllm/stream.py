"""The events of one engine: its pools, requests, transfers and steps, as the hooks see them.

An engine is a GPU block pool with whatever schedules on it and the connectors bound to it. Each has a stream
of events of its own, which begins with a header.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.checker.adapters.vllm.numbers import (
    FEW,
    indexes,
    keys_and_groups,
    packed,
    packed_keys,
    slots_of,
)
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
LIVELY: Final = 3
MOST_TROUBLE: Final = 20
"""Exceptions of the adapter itself after which it stops to observe an engine."""

log = logging.getLogger("kvfence.vllm")


class Item:
    """Something that happened to a pool inside a call whose end says on whose behalf."""

    __slots__ = ("blocks", "extra", "free", "kind", "pack", "slots", "tap")

    def __init__(
        self,
        kind: str,
        tap: PoolTap,
        slots: list[int],
        free: int = -1,
        extra: Any = None,
        pack: Any = None,
        blocks: list[Any] | None = None,
    ) -> None:
        self.kind = kind
        self.tap = tap
        self.slots = slots
        self.free = free
        self.extra = extra
        self.pack = packed(slots) if pack is None else pack
        """``slots`` as an event takes them."""
        self.blocks = blocks
        """vLLM's blocks of these slots, in the same order."""


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
        if end <= len(done) and not done.count(0, start, end):
            return []
        return [at for at in range(start, end) if at >= len(done) or not done[at]]


class PoolTap:
    """A block pool under observation."""

    __slots__ = ("anonymous", "hashes", "known", "labels", "name", "null", "pool", "queue", "stream")

    def __init__(self, name: str, pool: Any, stream: Stream) -> None:
        self.name = name
        self.pool = pool
        self.queue = pool.free_block_queue
        self.stream = stream
        null = getattr(pool, "null_block", None)
        self.null: int = -1 if null is None else null.block_id
        self.labels: npt.NDArray[np.bool_] = np.zeros(len(pool.blocks), dtype=np.bool_)
        """Which slots were seen to enter the prefix index."""
        self.hashes: npt.NDArray[np.object_] = np.zeros(0, dtype=np.object_)
        """Of a tier: the hash under which each slot entered its index."""
        self.anonymous: dict[int, int] = {}
        """Holders without a name of each slot."""
        self.known: list[tuple[list[Any], list[int], Any]] = []
        """The last long rows of blocks, with their slots: the same row comes several times in a step."""

    def free_count(self) -> int:
        """The pool's own count of free slots."""
        return int(self.queue.num_free_blocks)

    def slots(self, blocks: list[Any]) -> tuple[list[Any], list[int], Any]:
        """``blocks`` without the null block, their slots, and these packed."""
        count = len(blocks)
        if count <= FEW:
            slots, null = slots_of(blocks), self.null
            if null in slots:
                blocks = [block for block in blocks if block.block_id != null]
                slots = slots_of(blocks)
            return blocks, slots, slots
        for row in self.known:
            if len(row[0]) == count and row[0] == blocks:
                return row
        slots = slots_of(blocks)
        pack = array("I", slots)
        if self.null in pack:
            blocks = [block for block in blocks if block.block_id != self.null]
            slots = slots_of(blocks)
            pack = packed(slots)
        row = (blocks, slots, pack)
        self.known.append(row)
        if len(self.known) > 2:
            del self.known[0]
        return row

    # Called by the hooks, after the pool did it.

    def allocated(self, blocks: list[Any]) -> None:
        """The pool gave ``blocks`` away."""
        if not blocks:
            return
        blocks, slots, pack = self.slots(blocks)
        where = indexes(pack)
        had = self.labels[where]
        if had.any():
            gone = where[had]
            lost = [block._block_hash for block in blocks]
            if lost.count(None) != len(lost):
                blocks_of = self.pool.blocks
                gone = np.array(
                    [slot for slot in gone.tolist() if blocks_of[slot]._block_hash is None], dtype=np.uint32
                )
            self.labels[gone] = False
            if len(gone):
                extra = self.hashes[gone].tolist() if len(self.hashes) else None
                gone_slots = gone.tolist()
                pack_gone = gone_slots if len(gone_slots) <= FEW else gone
                self.stream.happened(Item(EVICT, self, gone_slots, extra=extra, pack=pack_gone))
        self.stream.happened(Item(ALLOC, self, slots, self.queue.num_free_blocks, pack=pack, blocks=blocks))

    def touched(self, blocks: list[Any]) -> None:
        """A holder was added to ``blocks``."""
        blocks, slots, pack = self.slots(blocks)
        if slots:
            item = Item(TOUCH, self, slots, self.queue.num_free_blocks, pack=pack, blocks=blocks)
            self.stream.happened(item)

    def freed(self, blocks: list[Any]) -> None:
        """A holder left ``blocks``."""
        blocks, slots, pack = self.slots(blocks)
        if slots:
            item = Item(FREE, self, slots, self.queue.num_free_blocks, pack=pack, blocks=blocks)
            self.stream.happened(item)

    def labelled(self, blocks: list[Any], hashes: list[bytes]) -> None:
        """``blocks`` are in the prefix index under ``hashes``."""
        slots = slots_of(blocks)
        pack = packed(slots)
        where = indexes(pack)
        again = self.labels[where]
        if again.any():
            self.unlabelled(where[again].tolist(), "another key")
        self.labels[where] = True
        self.stream.happened(Item(LABEL, self, slots, extra=hashes, pack=pack))

    def unlabelled(self, slots: list[int], why: str) -> None:
        """``slots`` left the prefix index."""
        gone = [slot for slot in slots if self.labels[slot]]
        self.labels[gone] = False
        if gone:
            self.stream.happened(Item(UNLABEL, self, gone, extra=why))

    def remember(self, where: npt.NDArray[np.uint32], hashes: list[Any]) -> None:
        """Slots of a tier entered its index under ``hashes``."""
        if not len(self.hashes):
            self.hashes = np.full(len(self.labels), None, dtype=np.object_)
        self.hashes[where] = hashes
        self.labels[where] = True


class Stream:
    """Observes one engine and tells its events to a sink."""

    def __init__(self, open_sink: OpenSink, gpu_pool: Any, producer: str) -> None:
        self.open_sink = open_sink
        self.producer = producer
        self.sink: Sink | None = None
        self.step_over: Callable[[], None] | None = None
        """Tells the sink that no more events of this step come."""
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
        self.lively = 0
        """Steps during which cursors may still move on behalf of what last happened to a pool."""
        self.still: dict[str, int] | None = None
        """Tokens of the step that was processed last, if nothing was told since it was dispatched."""
        self.repeats = 0
        """Further steps like it that were dispatched and processed, and not told yet."""
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
        if self.still is not None:
            self.tell_repeats()
        if self.sink is None:
            self.sink = self.open_sink(self.header())
            self.step_over = getattr(self.sink, "step_over", None)
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
        self.lively = LIVELY
        if self.pending is not None:
            self.pending.append(item)
        else:
            self.nobody([item])

    def tell(self, item: Item, holder: str, group: int = 0, at: int = 0) -> None:
        """Tell one item, which ``holder`` did."""
        kind = item.kind
        if kind == ALLOC:
            self.emit(Alloc(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == TOUCH:
            self.emit(Touch(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == FREE:
            self.emit(Free(item.tap.name, holder, item.pack, item.free))
        else:
            self.tell_label(item)

    def tell_label(self, item: Item, op: int = -1) -> None:
        """Tell an item that has no holder: evict, label, unlabel."""
        tap, slots = item.tap, item.slots
        if item.kind == EVICT:
            self.emit(Evict(tap.name, item.pack))
        elif item.kind == UNLABEL:
            self.emit(Unlabel(tap.name, item.pack, item.extra))
        else:
            keys, groups = keys_and_groups(item.extra, slots)
            first = int(groups[0])
            if (groups == first).all():
                self.emit(Label(tap.name, item.pack, packed_keys(keys), first, op))
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
        """A step was handed to the workers.

        Steps that follow each other with the same tokens and nothing told between them are told as one: the
        decode steps of a batch, most of them. It has all of their tokens.
        """
        tokens = output.num_scheduled_tokens
        if not tokens or not self.tiers:
            return  # Without a tier only steps use the GPU's slots, and they do so one after the other.
        if self.still is not None:
            if tokens == self.still and not output.scheduled_spec_decode_tokens:
                self.steps.append((-1, id(output), tokens))
                return
            self.tell_repeats()
        number = self.next_step
        self.next_step = number + 1
        self.emit(Dispatch(number, list(tokens), list(tokens.values())))
        self.steps.append((number, id(output), tokens))
        if self.step_over is not None:
            self.step_over()
        if output.scheduled_spec_decode_tokens:
            for id_ in output.scheduled_spec_decode_tokens:
                self.request(id_).uneven = True

    def processed(self, output: Any) -> None:
        """The output of a step arrived."""
        steps = self.steps
        if not steps or not output.num_scheduled_tokens:
            return
        wanted = id(output)
        if steps[0][1] != wanted and any(known == wanted for _, known, _ in steps):
            while steps[0][1] != wanted:
                self.over()
        self.over()  # Of this output, or of one of which this is a copy, as from another process.

    def over(self) -> None:
        """The oldest step in flight is over."""
        number, _, tokens = self.steps.popleft()
        if number < 0:
            self.repeats += 1
            return
        self.emit(Process(number))
        if not self.steps:
            self.still = tokens

    def tell_repeats(self) -> None:
        """Tell the steps that were put off."""
        tokens, repeats = self.still, self.repeats
        self.still, self.repeats = None, 0
        if tokens is not None and repeats:
            number = self.next_step
            self.next_step = number + 1
            self.emit(Dispatch(number, list(tokens), [repeats * count for count in tokens.values()]))
            self.emit(Process(number))
        if self.steps and self.steps[0][0] < 0:
            _, output, running = self.steps.popleft()
            number = self.next_step
            self.next_step = number + 1
            self.steps.append((number, output, running))
            self.emit(Dispatch(number, list(running), list(running.values())))

    def in_flight(self, id_: str) -> int:
        """Tokens of a request in steps that are dispatched and not processed."""
        return sum(tokens.get(id_, 0) for _, _, tokens in self.steps)
