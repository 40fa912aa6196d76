"""Put the hooks into the vLLM that can be imported now."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kvfence.checker.adapters.vllm.hooks.engine import Engines
from kvfence.checker.adapters.vllm.hooks.offloading import hook_offloading
from kvfence.checker.adapters.vllm.hooks.patching import Patches
from kvfence.checker.adapters.vllm.hooks.pool import hook_pool
from kvfence.checker.adapters.vllm.hooks.scheduler import hook_scheduler
from kvfence.checker.adapters.vllm.hooks.simple import hook_simple
from kvfence.checker.adapters.vllm.hooks.worker import Workers, hook_steps, hook_worker
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage
from kvfence.checker.adapters.vllm.notes.note_queue import ImmediateNoteQueue
from kvfence.checker.adapters.vllm.stream.pool_events import OpenSink, Sink
from kvfence.checker.adapters.vllm.stream.stream import MakeNoteQueue
from kvfence.checker.order.races import Race
from kvfence.spec import events as ev


class Instrumentation:
    """Hooks in place. ``coverage`` says of each whether it is checked."""

    def __init__(self, patches: Patches, engines: Engines, workers: Workers) -> None:
        self._patches = patches
        self.engines = engines
        """The engines under observation."""
        self.workers = workers
        self.coverage = patches.coverage
        """By name of the hook: ``checked``, or ``not checked: `` and why."""

    @property
    def undetermined(self) -> bool:
        """Whether something that a verdict needs was not observed, or could not be followed."""
        if self.coverage.undetermined or self.workers.unchecked:
            return True
        return any(stream.trouble_count for stream in self.engines.streams)

    def close(self) -> None:
        """Emit of each engine that is at rest that it is: nothing may be held."""
        self.engines.quiesce()

    def remove(self) -> None:
        """Take all hooks out again."""
        self.engines.on = False
        self.workers.remove()
        for stream in self.engines.streams:
            stream.note_queue.append((stream.emit_repeats,))
            stream.note_queue.finish()
            stream.off = True
        self._patches.remove()


def instrument(
    sink: Callable[[Any], None] | None = None,
    *,
    open_sink: OpenSink | None = None,
    make_note_queue: MakeNoteQueue | None = None,
    order_sink: Callable[[Any], None] | None = None,
    on_race: Callable[[Race], None] | None = None,
    not_checked: Callable[[str], None] = lambda _: None,
) -> Instrumentation:
    """Observe every engine that the vLLM of this process makes from here on.

    ``sink`` gets the events of all engines, each engine's header before its first event. ``open_sink`` is
    called with each engine's header instead, and returns what gets its events. An InvariantViolation that the
    sink raises goes through to vLLM; no other exception of ours does. Events are emitted when they
    happen, unless ``make_note_queue`` makes note queues that are judged later.

    Worker sides are observed if a caller asks for it: ``order_sink`` gets the order events of the first
    worker side, their header first; ``on_race`` gets the races of every one, judged as it goes, and
    ``not_checked`` what could not be judged.

    Raises ImportError when there is no vLLM.
    """
    if (sink is None) == (open_sink is None):
        raise TypeError("either a sink or open_sink is needed")
    if open_sink is None:

        def open_sink(header: ev.Header) -> Sink:
            assert sink is not None
            sink(header)
            return sink

    vllm = importlib.import_module("vllm")
    release = str(getattr(vllm, "__version__", "unknown"))
    coverage = Coverage()
    patches = Patches(coverage, compiled=make_note_queue is not None)
    engines = Engines(open_sink, f"vllm {release}", make_note_queue or ImmediateNoteQueue)
    engines.not_seen = coverage.unseen
    workers = Workers(f"vllm {release}", on_race=on_race, order_sink=order_sink, not_checked=not_checked)
    try:
        pool = coverage.module_with("vllm.v1.core.block_pool", "BlockPool")
        if pool is not None:
            hook_pool(patches, pool)
        scheduler = coverage.module_with("vllm.v1.core.sched.scheduler", "Scheduler")
        tables = coverage.module_with("vllm.v1.core.kv_cache_manager", "KVCacheManager")
        if scheduler is not None and tables is not None:
            hook_scheduler(patches, scheduler, tables, engines)
        simple = coverage.module_with("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler")
        coordinator = coverage.module_with("vllm.v1.core.kv_cache_coordinator", "KVCacheCoordinator")
        if simple is not None and coordinator is not None:
            hook_simple(patches, simple, coordinator, engines)
        if on_race is not None or order_sink is not None:
            hook_steps(patches, workers)
            hook_worker(patches, workers)
            workers.patches.append(hook_offloading(workers))
    except BaseException:
        patches.remove()
        raise
    return Instrumentation(patches, engines, workers)
