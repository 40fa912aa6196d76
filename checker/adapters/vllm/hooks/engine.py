"""Which scheduler, table manager, pools and connectors belong together: one stream for each engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from kvfence.checker.adapters.vllm.hooks.pool import TAP
from kvfence.checker.adapters.vllm.notes.note_queue import ImmediateNoteQueue
from kvfence.checker.adapters.vllm.stream.known_parts import unseen_tiers
from kvfence.checker.adapters.vllm.stream.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.stream.pool_events import OpenSink, PoolTap
from kvfence.checker.adapters.vllm.stream.stream import MakeNoteQueue, log
from kvfence.checker.adapters.vllm.stream.tables import TableReader
from kvfence.spec import events as ev

STREAM = "_kvfence_stream"
"""Attribute of a scheduler, table manager or connector under observation."""
UNKNOWN = False
"""What it is of a scheduler that was not looked at yet."""
NOTE_QUEUE = "_kvfence_note_queue"
"""Attribute of a scheduler or table manager under observation."""
TABLES = "_kvfence_tables"
"""Attribute of a table manager under observation."""


class Engines:
    """Makes a stream for each engine, and knows those that are alive."""

    def __init__(
        self, open_sink: OpenSink, producer: str, make_note_queue: MakeNoteQueue = ImmediateNoteQueue
    ) -> None:
        self.open_sink = open_sink
        self.make_note_queue = make_note_queue
        self.producer = producer
        self.on = True
        self.not_seen: Callable[[str], None] = lambda _: None
        """Called with what of an engine is not judged, in words."""
        self._streams: list[weakref.ReferenceType[EngineStream]] = []

    @property
    def streams(self) -> list[EngineStream]:
        """The streams of engines that are alive."""
        alive = [(ref, stream) for ref in self._streams if (stream := ref()) is not None]
        self._streams = [ref for ref, _ in alive]
        return [stream for _, stream in alive]

    def stream_for(self, gpu_pool: Any) -> EngineStream:
        """The stream of the engine whose GPU pool this is."""
        tap: PoolTap | None = getattr(gpu_pool, TAP, None)
        if tap is not None and isinstance(tap.stream, EngineStream):
            return tap.stream
        stream = EngineStream(self.open_sink, gpu_pool, self.producer, self.make_note_queue)
        setattr(gpu_pool, TAP, stream.gpu)
        self._streams.append(weakref.ref(stream))
        return stream

    def scheduler_made(self, scheduler: Any) -> None:
        """A scheduler, with its pools and connectors, is ready."""
        if not self.on:
            return
        try:
            manager = scheduler.kv_cache_manager
            stream = self.stream_for(manager.block_pool)
            stream.groups = tables_groups(manager)
            setattr(manager, TABLES, TableReader(manager))
            for thing in (scheduler, manager):
                setattr(thing, STREAM, stream)
                setattr(thing, NOTE_QUEUE, stream.note_queue)
            connector = getattr(scheduler, "connector", None)
            if connector is not None:
                unseen = unseen_tiers(connector, _bound)
                stream.unseen = bool(unseen)
                for message in unseen:
                    self.not_seen(message)
        except Exception as error:
            log.warning("kvfence does not observe this engine: %s: %s", type(error).__name__, error)

    def scheduler_found(self, scheduler: Any) -> None:
        """A scheduler without a stream is used; its connector may have put the hooks in place meanwhile.

        Then its pool was not used yet, and can be followed from the beginning.
        """
        setattr(scheduler, STREAM, None)
        setattr(scheduler, NOTE_QUEUE, None)
        manager = getattr(scheduler, "kv_cache_manager", None)
        pool = getattr(manager, "block_pool", None)
        if pool is None or not self.on:
            return
        if getattr(pool, TAP, None) is not None or _unused(pool):
            self.scheduler_made(scheduler)
        else:
            self.not_seen("Scheduler: it was in use before it was observed, so it is not judged")

    def connector_bound(self, connector: Any, gpu_pool: Any) -> None:
        """The scheduler side of a connector with a tier of its own was bound to the GPU pool."""
        if not self.on:
            return
        try:
            stream = self.stream_for(gpu_pool)
            if any(known() is connector for known in stream.connectors):
                return
            name = "cpu" if not stream.tiers else f"cpu{len(stream.tiers) + 1}"
            tap = PoolTap(name, connector.cpu_block_pool, stream)
            stream.tiers.append(tap)
            stream.taps[id(connector.cpu_block_pool)] = tap
            setattr(connector.cpu_block_pool, TAP, tap)
            setattr(connector, STREAM, stream)
            stream.connectors.append(weakref.ref(connector))
            stream.ranks = max(int(getattr(connector, "_expected_worker_count", 1)), 1)
            if not stream.groups:
                stream.groups = tables_groups(connector, connector.cpu_kv_cache_config)
            if stream.sink is not None:
                log.warning("kvfence: a connector was bound after its engine had begun")
        except Exception as error:
            log.warning("kvfence does not observe this connector: %s: %s", type(error).__name__, error)

    def quiesce(self) -> None:
        """Emit of each engine that is at rest that it is."""
        for stream in self.streams:
            if not stream.off:
                stream.note_queue.append((stream.at_rest, busy(stream)))


def _unused(pool: Any) -> bool:
    """Whether no block of ``pool`` is held, and none has contents that are known."""
    try:
        return not any(
            (block.ref_cnt or block._block_hash is not None) and not block.is_null for block in pool.blocks
        )
    except AttributeError:
        return False


def _bound(manager: Any) -> bool:
    """Whether the scheduler side of a connector was bound to a GPU pool under observation."""
    return getattr(manager, STREAM, None) is not None


def busy(stream: EngineStream) -> bool:
    """Whether transfers are under way."""
    alive = [connector for ref in stream.connectors if (connector := ref()) is not None]
    return any(connector.has_pending_stores() or connector._reqs_to_load for connector in alive)


def tables_groups(manager: Any, config: Any = None) -> tuple[ev.Group, ...]:
    """The KV-cache groups of a table manager (or of a connector that has none)."""
    if config is None:
        config = manager.kv_cache_config
    coordinator = getattr(manager, "coordinator", None) or getattr(manager, "cpu_coordinator", None)
    singles = getattr(coordinator, "single_type_managers", ())
    groups = []
    for index, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        size = singles[index].block_size if index < len(singles) else spec.block_size
        window = getattr(spec, "sliding_window", None)
        groups.append(ev.Group("gpu", int(size), int(window) if window else None))
    return tuple(groups)
