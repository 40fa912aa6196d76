"""Hooks on the worker side of SimpleCPUOffloadConnector: steps, launches of copies, streams and events."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kvfence.checker.adapters.vllm.hooks.patching import Method, Patches, observing
from kvfence.checker.adapters.vllm.hooks.scheduler import IN_FLIGHT
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage
from kvfence.checker.adapters.vllm.stream.known_parts import unseen_orders
from kvfence.checker.adapters.vllm.worker.observed_cuda import Observed, here, on_behalf_of
from kvfence.checker.adapters.vllm.worker.order_events import OrderEmitter
from kvfence.checker.adapters.vllm.worker.worker_order import WorkerOrder
from kvfence.checker.adapters.vllm.worker.worker_tables import group_kinds, widened_by
from kvfence.checker.order.races import Race
from kvfence.checker.order.slot_races import SlotChecker

ORDER: Final = "_kvfence_order"
"""Attribute of a worker side under observation."""
PACKAGE: Final = "vllm.v1.simple_kv_offload"
USED: Final[dict[str, tuple[str, ...]]] = {
    "worker": ("torch",),
    "copy_backend": ("torch", "queue", "threading", "build_params", "copy_blocks"),
    "disk_backend": ("torch", "queue", "threading", "build_params", "copy_blocks"),
}
"""By module: the names through which it uses CUDA and threads."""
NEWER: Final = frozenset({"disk_backend"})
"""Modules that not every release has."""


class _Step(threading.local):
    output: Any = None
    """The scheduler's output that the worker of this thread works on."""
    launched = False
    """Whether its kernels are known to be launched already."""

    def begin(self, output: Any) -> None:
        """The worker of this thread works on ``output`` from here on."""
        self.output, self.launched = output, False


STEP: Final = _Step()


class Workers:
    """The worker sides of this process.

    ``on_race`` gets each worker's races. ``order_sink`` gets the order events of the first worker, their
    header first. ``not_checked`` gets what is not judged, in words.
    """

    def __init__(
        self,
        producer: str,
        *,
        on_race: Callable[[Race], None] | None = None,
        order_sink: Callable[[Any], None] | None = None,
        not_checked: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.producer = producer
        self.on_race = on_race
        self.order_sink = order_sink
        self.on_not_checked = not_checked
        self.on = True
        self.seen = 0
        self.unchecked: list[str] = []
        self.observed = Observed()
        self.patches: list[Patches] = []
        """Of worker sides whose hooks are only missed where they are used."""
        self.after_step: Callable[[], None] = lambda: None
        """Called at the end of each step, on the thread that launches: may raise what is to be raised."""
        self._looked = False
        self._checkers: list[SlotChecker] = []
        self._orders: list[WorkerOrder] = []

    def not_checked(self, why: str) -> None:
        """Record that something is not judged."""
        if why not in self.unchecked:
            self.unchecked.append(why)
            self.on_not_checked(why)

    @property
    def events(self) -> int:
        """Events judged so far."""
        return sum(checker.events for checker in self._checkers)

    @property
    def accesses(self) -> int:
        """Slots judged so far, each time they were."""
        return sum(checker.accesses for checker in self._checkers)

    def new(self, caches: Any = None) -> WorkerOrder:
        """What observes one more worker side, which is given ``caches``: together with others given the same.

        Connectors of one worker copy from and to the same blocks.
        """
        newest = self._orders[-1] if self._orders else None
        if newest is not None and caches is not None and newest.caches is caches and not newest.off:
            return newest
        self.seen += 1
        emitter = None
        if self.order_sink is not None and self.seen == 1:
            emitter = OrderEmitter(self.order_sink, self.producer)
        order = WorkerOrder(on_race=self.on_race, emitter=emitter, not_checked=self.not_checked)
        order.caches = caches
        self._orders.append(order)
        if order.checker is not None:
            self._checkers.append(order.checker)
        if len(self._orders) > 64:
            self._orders.pop(0).off = True
            del self._checkers[:1]
        return order

    def look(self) -> None:
        """A worker of this process takes its first step: is its connector one that is known?"""
        if self._looked:
            return
        self._looked = True
        with contextlib.suppress(Exception):
            state = importlib.import_module("vllm.distributed.kv_transfer.kv_transfer_state")
            for message in unseen_orders(state.get_kv_transfer_group()):
                self.not_checked(message)

    def after_each_step(self) -> None:
        """Call :attr:`after_step` at the end of a step."""
        self.after_step()

    def remove(self) -> None:
        """Stop observing, and put back what was replaced."""
        self.on = False
        for order in self._orders:
            order.off = True
        for patches in self.patches:
            patches.remove()
        self.observed.remove()


def order_of(handler: Any) -> WorkerOrder | None:
    """What observes a worker side, if anything does."""
    order: WorkerOrder | None = getattr(handler, ORDER, None)
    return order if order is not None and not order.off else None


def hook_steps(patches: Patches, workers: Workers) -> None:
    """Know which output of the scheduler a worker works on, whichever model runner it has.

    Model runners report preemptions to a connector before they do what is hooked; the process around them
    knows the output before that.
    """
    process = found_in("vllm.v1.worker.worker_base", "WorkerWrapperBase")
    other = found_in("vllm.v1.worker.gpu.kv_connector", "ActiveKVConnector")

    def begins(at: int, look: Callable[[], None] = lambda: None) -> Callable[[Method], Method]:
        """Observe a call that begins a step: argument ``at`` is the scheduler's output."""

        def wrapper(original: Method) -> Method:
            def call(*args: Any, **named: Any) -> Any:
                STEP.begin(args[at] if len(args) > at else named["scheduler_output"])
                look()
                return original(*args, **named)

            return call

        return wrapper

    if process is not None:
        patches.wrap(process, "execute_model", begins(1), parameters=("scheduler_output",), needed=False)
    runner = _class(
        patches.coverage, "vllm.v1.worker.kv_connector_model_runner_mixin", "KVConnectorModelRunnerMixin"
    )
    if runner is not None:
        patches.wrap(
            runner, "_get_kv_connector_output", begins(0, workers.look), parameters=("scheduler_output",)
        )
    if other is None:
        return  # A release with one model runner only.

    patches.wrap(other, "pre_forward", begins(1, workers.look), parameters=("scheduler_output",))

    def after_kernels(original: Method) -> Method:
        def post_forward(self: Any, *args: Any, **named: Any) -> Any:
            STEP.launched = True  # Loads may come after the kernels of their step.
            return original(self, *args, **named)

        return post_forward

    patches.wrap(other, "post_forward", after_kernels, needed=False, absent_is_fine=True)


def hook_worker(patches: Patches, workers: Workers) -> None:
    """Observe all worker sides that get their KV caches from here on."""
    coverage = patches.coverage
    handler = _class(coverage, f"{PACKAGE}.worker", "SimpleCPUOffloadWorker")
    backend = _class(coverage, f"{PACKAGE}.copy_backend", "DmaCopyBackend")
    if handler is None or backend is None:
        return
    modules = _modules(coverage)

    register = registers(workers, lambda side, order: _prepare(side, order, workers, modules), _registered)
    patches.wrap(handler, "register_kv_caches", register, parameters=("kv_caches",))
    patches.wrap(handler, "bind_connector_metadata", _bind, parameters=("metadata",))
    patches.wrap(handler, "start_load_kv", within(False))
    patches.wrap(handler, "wait_for_save", within(True))
    after = workers.after_each_step
    patches.wrap(handler, "get_finished", within(True, after), parameters=("finished_req_ids",))
    patches.wrap(handler, "handle_preemptions", within(False), parameters=("kv_connector_metadata",))
    launch = ("src_blocks", "dst_blocks", "is_store", "event_idx", "events_list")
    patches.wrap(backend, "launch_copy", _launch_copy, parameters=launch)
    disk = getattr(modules.get("disk_backend"), "DiskBackend", None)
    if disk is not None:
        patches.wrap(disk, "launch_copy", _launch_copy, parameters=launch)
        patches.wrap(disk, "_writev_slot", _touches_buffer(True), parameters=("buf_slot",))
        patches.wrap(disk, "_readv_slot", _touches_buffer(False), parameters=("buf_slot",))


def _class(coverage: Coverage, module: str, name: str) -> Any:
    """The class ``name`` of ``module``; None, and reported as missing, where there is none."""
    return getattr(coverage.module_with(module, name), name, None)


def found_in(module: str, name: str) -> Any:
    """What ``module`` has under ``name``; None in a release that does not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def carefully(order: WorkerOrder, function: Callable[..., None], *args: Any) -> None:
    """Call ``function``; an exception ends the judging of the worker."""
    try:
        function(*args)
    except Exception as error:
        order.lose(f"{type(error).__name__}: {error}")


def registers(
    workers: Workers,
    prepare: Callable[[Any, WorkerOrder], None],
    registered: Callable[[Any, WorkerOrder, int], None],
) -> Callable[[Method], Method]:
    """Observe the call that gives a worker side its KV caches; ``prepare`` is called before it.

    After it, ``registered`` is called, with how many pools were known before.
    """

    def register(original: Method) -> Method:
        def register_kv_caches(self: Any, kv_caches: Any, *args: Any, **named: Any) -> Any:
            if not workers.on:
                return original(self, kv_caches, *args, **named)
            order = workers.new(kv_caches)
            before = order.memories
            carefully(order, prepare, self, order)
            with on_behalf_of(order):
                result = original(self, kv_caches, *args, **named)
            carefully(order, registered, self, order, before)
            return result

        return register_kv_caches

    return register


def _modules(coverage: Coverage) -> dict[str, Any]:
    """The modules of the worker side, each judged by whether it has the names that are observed."""
    found = {}
    for name, used in USED.items():
        try:
            module = importlib.import_module(f"{PACKAGE}.{name}")
        except ImportError as error:
            if name not in NEWER:
                coverage.missing(f"{name}.py", f"it cannot be imported: {error}")
            continue
        found[name] = module
        missing = [each for each in used if each not in vars(module)]
        if missing:
            coverage.missing(f"{name}.py", f"it does not use {', '.join(missing)} any more")
        else:
            coverage.checked(f"{name}.py")
    return found


def _prepare(handler: Any, order: WorkerOrder, workers: Workers, modules: dict[str, Any]) -> None:
    """Before the streams of a worker side are made."""
    setattr(handler, ORDER, order)
    for name, module in modules.items():
        missing = workers.observed.observe(module, USED[name])
        if missing:
            order.lose(f"{name}.py does not use {', '.join(missing)}")
    torch = modules["worker"].torch
    order.current = torch.cuda.current_stream
    order.event_type = torch.Event

    def name_of(stream: Any) -> str:
        for name in ("load", "store"):
            if getattr(handler, f"{name}_stream", None) is stream:
                return name
        return ""

    others = order.stream_names
    order.stream_names = lambda stream: name_of(stream) or others(stream)
    order.depth = steps_in_flight(handler.vllm_config)
    kinds, unknown = group_kinds(handler.kv_cache_config, widened_by(handler.vllm_config))
    for why in unknown:
        workers.not_checked(why)
    # The pools are known once the connector has looked at its caches: before its first copies are prepared.
    order.on_pools = lambda: order.use(handler.gpu_kv_caches, kinds)


def steps_in_flight(config: Any) -> int:
    """Steps that an engine of this configuration keeps in flight at most."""
    most = getattr(config, "max_concurrent_batches", None)
    if isinstance(most, int):
        return most
    ahead = 2 if getattr(config.scheduler_config, "async_scheduling", False) else 1
    return max(ahead, int(getattr(config.parallel_config, "pipeline_parallel_size", 1)))


def _registered(handler: Any, order: WorkerOrder, before: int) -> None:
    """After they were made."""
    if handler.gpu_kv_caches is None:
        return  # There are no caches, so there is nothing to offload.
    backend = type(handler._backend).__name__
    if backend not in {"DmaCopyBackend", "DiskBackend"}:
        order.lose(f"copies are made by {backend}, which is not known")
    if order.memories == before:
        order.lose("no copies were prepared")


@observing(order_of)
def _bind(order: WorkerOrder, original: Method, self: Any, metadata: Any) -> Any:
    step_arrived(order, known=True)
    return original(self, metadata)


def step_arrived(order: WorkerOrder, *, known: bool) -> None:
    """A call begins a step, unless one before it did. ``known``: its output must be known by now."""
    output = STEP.output
    if output is None:
        if known:
            order.lose("the scheduler's output did not come through the model runner that is known")
        return
    # A model runner may work on a copy of the output, with the same metadata.
    arrived = getattr(output, "kv_connector_metadata", None)
    arrived = output if arrived is None else arrived
    if arrived is not order.arrived:
        order.arrived = arrived
        order.step(output, getattr(output, IN_FLIGHT, None))


def within(launched: bool, after: Callable[[], None] | None = None) -> Callable[[Method], Method]:
    """Observe a call. ``launched``: the step's kernels are launched by now."""

    @observing(order_of)
    def call(order: WorkerOrder, original: Method, self: Any, *args: Any, **named: Any) -> Any:
        if launched or STEP.launched:
            order.launched()
        with on_behalf_of(order):
            result = original(self, *args, **named)
        if after is not None:
            after()
        return result

    return call


def _launch_copy(original: Method) -> Method:
    def launch_copy(
        self: Any, src_blocks: Any, dst_blocks: Any, is_store: bool, event_idx: int, *args: Any, **named: Any
    ) -> Any:
        here.by = f"{'store' if is_store else 'load'} {event_idx}"
        try:
            return original(self, src_blocks, dst_blocks, is_store, event_idx, *args, **named)
        finally:
            here.by = ""

    return launch_copy


def _touches_buffer(reads: bool) -> Callable[[Method], Method]:
    """Observe how a slot of a staging buffer is written to the disk, or filled from it."""

    def wrapper(original: Method) -> Method:
        def call(self: Any, buf_slot: int, *args: Any, **named: Any) -> Any:
            result = original(self, buf_slot, *args, **named)
            worker = here.worker
            if worker is not None and not worker.off:
                caches = self._store_buffer_caches if reads else self._load_buffer_caches
                worker.touched(here.thread, caches, np.array([buf_slot]), reads)
            return result

        return call

    return wrapper
