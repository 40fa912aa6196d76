"""The events of one engine: its pools, requests, transfers and steps, as the hooks see them.

An engine is a GPU block pool with whatever schedules on it and the connectors bound to it. Each has a stream
of events of its own, which begins with a header.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.notes.note_queue import ImmediateNoteQueue, NoteQueue
from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.checker.adapters.vllm.stream.numbers import keys_and_groups, packed, packed_keys
from kvfence.checker.adapters.vllm.stream.pool_tap import (
    ALLOC,
    EVICT,
    FREE,
    LABEL,
    TOUCH,
    UNLABEL,
    Item,
    PoolTap,
)
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.spec import events as ev

Sink: TypeAlias = Callable[[ev.Event], None]
OpenSink: TypeAlias = Callable[[ev.Header], Sink]
MakeNoteQueue: TypeAlias = Callable[[Any], NoteQueue]
Handler: TypeAlias = Callable[[list[Item]], None]

MOST_STEPS_AHEAD: Final = 64
"""vLLM bounds the steps in flight by the executor, which the scheduler side does not see."""
REMEMBERED_IDS: Final = 1 << 16
MOST_TROUBLE: Final = 20
"""Exceptions of the adapter itself after which it stops to observe an engine."""

log = logging.getLogger("kvfence.vllm")


class Stream:
    """Tells the events of one engine to a sink, from what the hooks put on its note queue."""

    def __init__(
        self,
        open_sink: OpenSink,
        gpu_pool: Any,
        producer: str,
        make_note_queue: MakeNoteQueue = ImmediateNoteQueue,
    ) -> None:
        self.open_sink = open_sink
        self.producer = producer
        self.sink: Sink | None = None
        self.note_queue = make_note_queue(self)
        self.gpu = PoolTap("gpu", gpu_pool, self)
        self.taps = {id(gpu_pool): self.gpu}
        self.tiers: list[PoolTap] = []
        self.connectors: list[Any] = []
        """The observed scheduler sides of connectors."""
        self.groups: tuple[ev.Group, ...] = ()
        self.ranks = 1
        self.requests: dict[str, RequestState] = {}
        self.last_gens: dict[str, int] = {}
        self.next_op = 0
        self.trouble_count = 0
        self.troubles: list[str] = []
        """The first exceptions of the adapter itself, in words."""
        self.pending: list[Item] | None = None
        self.handler: Handler | None = None
        self.outer: list[tuple[list[Item] | None, Handler | None]] = []
        """Of the calls around the one under way: their pending items and handlers."""
        self.leaving: dict[str, tuple[str, int, set[int]]] = {}
        """By holder: request, generation and slots of tables that are given back later."""
        self.loads: list[dict[str, list[Any]]] = []
        """Of each tier: its open loads by request."""
        self.noted_cursors: list[dict[str, int]] = []
        """Of each tier: the sum of a request's store cursors, as last noted. For the engine's thread."""
        self.off = False

    # Telling.

    def emit(self, event: ev.Event) -> None:
        """Tell ``event``; the header goes first."""
        if self.sink is None:
            self.sink = self.open_sink(self.header())
        self.sink(event)

    def header(self) -> ev.Header:
        """What the numbers in the events refer to."""
        pools = list(self.taps.values())
        return ev.Header(
            producer=self.producer,
            pools=tuple(
                ev.Pool(tap.name, len(tap.pool.blocks), None if tap.null < 0 else tap.null) for tap in pools
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
            self.note_queue.stop()
            log.error("kvfence stops to observe this engine: it could not follow vLLM %d times", MOST_TROUBLE)

    # Whose doing it is.

    def enter(self, handler: Handler) -> None:
        """From here on ``handler`` gets what happens to the pools, up to :meth:`leave`."""
        if self.pending and self.handler is not None:
            self.flush()
        self.outer.append((self.pending, self.handler))
        self.pending, self.handler = [], handler

    def gather(self) -> None:
        """What happens to the pools from here on is kept, up to :meth:`gathered`."""
        if self.pending and self.handler is not None:
            self.flush()
        self.outer.append((self.pending, self.handler))
        self.pending, self.handler = [], None

    def flush(self) -> None:
        """Let the handler tell what has happened up to now."""
        items, handler = self.pending, self.handler
        if items and handler is not None:
            self.pending = []
            handler(items)

    def gathered(self) -> list[Item]:
        """The end of what :meth:`gather` began: what happened meanwhile."""
        items = self.pending or []
        self.pending, self.handler = self.outer.pop()
        return items

    def leave(self) -> None:
        """The end of what :meth:`enter` began."""
        try:
            self.flush()
        finally:
            self.pending, self.handler = self.outer.pop()

    def broken_off(self) -> None:
        """The end of what :meth:`gather` began, by an exception of vLLM's."""
        self.nobody(self.gathered())

    def happened(self, item: Item) -> None:
        """Something happened to a pool."""
        if self.pending is not None:
            self.pending.append(item)
        else:
            self.nobody([item])

    def emit_item(self, item: Item, holder: str, group: int = 0, at: int = 0) -> None:
        """Tell one item, which ``holder`` did."""
        kind = item.kind
        if kind == ALLOC:
            self.emit(ev.Alloc(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == TOUCH:
            self.emit(ev.Touch(item.tap.name, holder, item.pack, item.free, group, at))
        elif kind == FREE:
            self.emit(ev.Free(item.tap.name, holder, item.pack, item.free))
        else:
            self.emit_label(item)

    def emit_label(self, item: Item, op: int = -1) -> None:
        """Tell an item that has no holder: evict, label, unlabel."""
        tap, slots = item.tap, item.slots
        if item.kind == EVICT:
            self.emit(ev.Evict(tap.name, item.pack))
        elif item.kind == UNLABEL:
            self.emit(ev.Unlabel(tap.name, item.pack, item.extra))
        else:
            keys, groups = keys_and_groups(item.extra, slots)
            first = int(groups[0])
            if (groups == first).all():
                self.emit(ev.Label(tap.name, item.pack, packed_keys(keys), first, op))
                return
            for group in sorted(set(groups.tolist())):
                here = [at for at, of in enumerate(groups.tolist()) if of == group]
                self.emit(
                    ev.Label(
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
        for item in items:
            if item.kind in {EVICT, LABEL, UNLABEL}:
                self.emit_label(item)
            elif item.kind == FREE and self.leaving and self.free_later(item):
                pass
            else:
                self.anonymous(item)

    def free_later(self, item: Item) -> bool:
        """Tell the free of a table that its request left before."""
        for holder, (id_, gen, slots) in self.leaving.items():
            if slots.issuperset(item.slots):
                self.emit_item(item, holder)
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
            self.emit_item(Item(item.kind, item.tap, slots, free), f"ref:{level}.0")

    # Requests.

    def request(self, id_: str) -> RequestState:
        """The request ``id_``; one that was not seen to be added is taken as it is."""
        found = self.requests.get(id_)
        if found is None:
            found = self.requests[id_] = RequestState(id_, self.last_gens.pop(id_, -1) + 1)
        return found

    def submit(self, id_: str, tokens: int) -> None:
        """A request was added to the engine."""
        known = self.requests.get(id_)
        if known is not None and not known.ended:
            return
        self.requests.pop(id_, None)
        state = self.request(id_)
        self.emit(ev.Submit(state.id, state.gen, tokens))

    def forget(self, request: RequestState) -> None:
        """The request is gone; its id may come again."""
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self.last_gens.pop(request.id, None)
        self.last_gens[request.id] = request.gen
        if len(self.last_gens) > REMEMBERED_IDS:
            del self.last_gens[next(iter(self.last_gens))]
