"""Hooks on the worker side of OffloadingConnector: steps, transfers of blocks, streams and events.

Its copies are launched by the engine's own thread, each on a stream of its own. Which slots one copies is
taken from the block ids that it is asked for, when and on which stream from the call that launches it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kvfence.checker.adapters.vllm.hooks.patching import Method, Patches, observing
from kvfence.checker.adapters.vllm.hooks.worker import (
    ORDER,
    Workers,
    carefully,
    order_of,
    registers,
    step_arrived,
    steps_in_flight,
    within,
)
from kvfence.checker.adapters.vllm.notes.hook_coverage import CHECKED, Coverage
from kvfence.checker.adapters.vllm.stream.known_parts import GAPS
from kvfence.checker.adapters.vllm.worker.observed_cuda import active_worker, here
from kvfence.checker.adapters.vllm.worker.worker_order import WorkerOrder
from kvfence.checker.adapters.vllm.worker.worker_tables import NULL, Slots, group_kinds, widened_by
from kvfence.spec import order as od

WORKER: Final = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"
COPIES: Final = "vllm.v1.kv_offload.cpu.gpu_worker"
USED: Final = ("torch", "current_platform")
"""The names through which it uses CUDA."""
COPYING: Final = "_swap_blocks_batch"
"""Attribute of a handler of transfers: the function that launches a copy."""
ASKED: Final = "_kvfence_asked"
"""Attribute of a handler: the transfer whose copies it has not launched yet."""


def hook_offloading(workers: Workers) -> Patches:
    """Observe all worker sides of OffloadingConnector that get their KV caches from here on.

    All hooks are put in, or none: then :func:`kvfence.checker.adapters.vllm.stream.known_parts.unseen_orders`
    says what is missing, if the connector is used at all.
    """
    patches = Patches(Coverage())
    try:
        side = importlib.import_module(WORKER).OffloadingConnectorWorker
    except (ImportError, AttributeError):
        return patches  # This release has it not, or not under this name: seen when it is used.
    try:
        module = importlib.import_module(COPIES)
        handler = module.SingleDirectionOffloadingHandler
    except (ImportError, AttributeError) as error:
        patches.mark(side, GAPS, str(error))
        return patches
    _put_in(patches, workers, side, module, handler)
    gaps = [f"{hook}: {state}" for hook, state in patches.coverage.items() if state != CHECKED]
    gaps += [f"{COPIES} does not use {name}" for name in USED if name not in vars(module)]
    if gaps:
        patches.remove()
    patches.mark(side, GAPS, "; ".join(gaps))
    return patches


def _put_in(patches: Patches, workers: Workers, side: Any, module: Any, handler: Any) -> None:
    register = registers(workers, lambda self, order: _prepare(self, order, workers, module), _registered)
    patches.wrap(side, "register_kv_caches", register, parameters=("kv_caches",))
    # Up to 0.28.0 a model may have one tensor for all layers.
    patches.wrap(side, "register_cross_layers_kv_cache", register, absent_is_fine=True)
    patches.wrap(side, "handle_preemptions", _arriving(False), parameters=("kv_connector_metadata",))
    patches.wrap(side, "start_kv_transfers", _arriving(True), parameters=("metadata",))
    patches.wrap(side, "prepare_store_kv", within(True), parameters=("metadata",))
    after = workers.after_each_step
    patches.wrap(side, "get_finished", within(True, after), parameters=("finished_req_ids",))
    made = ("gpu_tensors", "cpu_tensors", "blocks_per_chunk", "layer_refs_per_group", "gpu_to_cpu")
    patches.wrap(handler, "__init__", _handler_made, parameters=made)
    patches.wrap(handler, "transfer_async", _transfer, parameters=("job_id", "src_spec", "dst_spec"))


def _prepare(side: Any, order: WorkerOrder, workers: Workers, module: Any) -> None:
    """Before the handlers of a worker side are made."""
    setattr(side, ORDER, order)
    missing = workers.observed.observe(module, USED)
    if missing:
        order.lose(f"{COPIES} does not use {', '.join(missing)}")
    order.current = module.current_platform.current_stream
    order.event_type = module.torch.Event
    others = order.stream_names
    order.stream_names = lambda stream: here.by.partition(" ")[0] or others(stream)
    order.depth = steps_in_flight(side.vllm_config)
    kinds, unknown = group_kinds(side.kv_cache_config, widened_by(side.vllm_config))
    for number, group in enumerate(side.kv_cache_config.kv_cache_groups):
        if getattr(group, "host_resident", False):
            unknown.append(f"group {number} lies in host memory, whose use by steps is not known")
    for why in unknown:
        workers.not_checked(why)
    order.gpu_caches = lambda tensors: order.use(tensors, kinds)
    spec = type(side.spec).__name__
    if spec != "CPUOffloadingSpec":
        workers.not_checked(f"OffloadingConnector: what {spec} does with host memory beside its copies")


def _registered(side: Any, order: WorkerOrder, before: int) -> None:
    """After they were made."""
    copies = type(side.worker).__name__
    if copies != "CPUOffloadingWorker":
        order.lose(f"copies are made by {copies}, which is not known")
    elif order.memories == before:
        order.lose("no handler of transfers was seen made")


def _arriving(known: bool) -> Callable[[Method], Method]:
    """Observe a call that begins a step. ``known``: the scheduler's output must be known by now."""

    @observing(order_of)
    def call(order: WorkerOrder, original: Method, self: Any, *args: Any, **named: Any) -> Any:
        step_arrived(order, known=known)
        return original(self, *args, **named)

    return lambda original: call(within(False)(original))


def _handler_made(original: Method) -> Method:
    def __init__(self: Any, gpu_tensors: Any, cpu_tensors: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        original(self, gpu_tensors, cpu_tensors, *args, **named)
        order = active_worker()
        if order is not None:
            carefully(order, _observe_handler, self, order, gpu_tensors, cpu_tensors)

    return __init__


def _observe_handler(handler: Any, order: WorkerOrder, gpu_tensors: Any, cpu_tensors: Any) -> None:
    order.gpu_caches(list(gpu_tensors))
    pool = order.memory(list(cpu_tensors), "cpu", "pinned", _chunk(handler))
    launch = getattr(handler, COPYING, None)
    if launch is None:
        order.lose(f"copies are not launched by {COPYING}")
        return
    setattr(handler, ORDER, order)
    setattr(handler, ASKED, None)
    setattr(handler, COPYING, _launching(handler, order, pool, launch))


def _launching(handler: Any, order: WorkerOrder, pool: int, original: Callable[..., Any]) -> Any:
    """The function that launches copies of ``handler`` and reports them; ``pool`` is its host memory."""
    # A kernel reads in the order of its stream; the driver may read early if it is allowed to.
    kernel = isinstance(original, functools.partial)

    @functools.wraps(original)
    def launch(
        src: Any, dst: Any, sizes: Any, *args: Any, is_src_access_order_any: bool = False, **named: Any
    ) -> Any:
        any_order = is_src_access_order_any
        result = original(src, dst, sizes, *args, is_src_access_order_any=any_order, **named)
        asked = getattr(handler, ASKED)
        setattr(handler, ASKED, None)
        if active_worker() is order:
            reads: od.SourceOrder = "any" if any_order and not kernel else "stream"
            order.transferred(here.thread, lambda: _rows(handler, order.gpu, pool, asked), reads, here.by)
        return result

    return launch


@observing(order_of)
def _transfer(
    order: WorkerOrder,
    original: Method,
    self: Any,
    job_id: Any,
    src_spec: Any,
    dst_spec: Any,
    *args: Any,
    **named: Any,
) -> Any:
    if active_worker() is not order:
        order.lose("a transfer is launched outside of the calls that are known")
    before, here.by = here.by, f"{'store' if self.gpu_to_cpu else 'load'} {job_id}"
    setattr(self, ASKED, (src_spec, dst_spec))
    try:
        result = original(self, job_id, src_spec, dst_spec, *args, **named)
    finally:
        here.by = before
    # Of a page that several ranks share each block is written by one of them: there may be nothing to do.
    shared = getattr(self, "_canonical_copy_plans", None)
    if getattr(self, ASKED) is not None and len(src_spec.block_ids) and not shared:
        order.lose(f"a transfer did not launch its copies by {COPYING}")
    return result


def _chunk(handler: Any) -> int:
    """Blocks of the GPU in a slot of host memory."""
    return max(int(handler.src_blocks_per_chunk), int(handler.dst_blocks_per_chunk))


def _rows(
    handler: Any, gpu: int, pool: int, asked: tuple[Any, Any] | None
) -> tuple[tuple[int, Slots], tuple[int, Slots]]:
    """Source and target of what ``handler`` was ``asked`` for: their pools, and slots of the GPU's size."""
    if asked is None:
        raise ValueError("a copy is launched that no call asked for")
    source, target = asked
    blocks, chunks = (source, target) if handler.gpu_to_cpu else (target, source)
    ids = np.asarray(blocks.block_ids, np.int64)
    slots = within_chunks(chunks.block_ids, blocks.group_sizes, blocks.block_indices, _chunk(handler))
    if len(ids) != len(slots):
        raise ValueError(f"a transfer is of {len(ids)} blocks of the GPU, but of {len(slots)} of the tier")
    real = ids != NULL
    rows = (gpu, ids[real]), (pool, slots[real])
    return rows if handler.gpu_to_cpu else (rows[1], rows[0])


def within_chunks(chunks: Any, sizes: Any, firsts: Any, per: int) -> Slots:
    """The parts of ``chunks`` that the blocks of a transfer are, counted through all chunks.

    A chunk has ``per`` parts. Of each group ``sizes`` says how many blocks it has in the transfer, ``firsts``
    the number of the first of them within its request: its chunk may begin before it.
    """
    all_of: Slots = np.asarray(chunks, np.int64)
    if per == 1:
        return all_of
    found: list[Slots] = []
    used = 0
    for size, first in zip(sizes, firsts, strict=True):
        if size:
            skipped = int(first) % per
            mine = all_of[used : used - (-(int(size) + skipped) // per)]
            used += len(mine)
            parts = (mine[:, None] * per + np.arange(per)).ravel()
            found.append(parts[skipped : skipped + int(size)])
    return np.concatenate(found) if found else np.zeros(0, np.int64)
