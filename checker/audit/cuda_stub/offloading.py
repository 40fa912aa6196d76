"""OffloadingConnector without a GPU: what its worker uses of CUDA beside streams and events.

Its copies are driver calls on raw addresses; its host memory is mapped into several processes. Here addresses
are looked up among the memories that its handlers were made with, and host memory is a tensor.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from kvfence.checker.audit.cuda_stub.streams import VirtualStream, current_stream
from kvfence.checker.audit.cuda_stub.stub_device import REFUSED, CopyFailed, Device, device
from kvfence.checker.audit.cuda_stub.stub_modules import Proxy, virtual_torch
from kvfence.spec import order as od

WORKER: Final = "vllm.v1.kv_offload.cpu.gpu_worker"
SPEC: Final = "vllm.v1.kv_offload.cpu.spec"

_memories: Final[WeakKeyDictionary[Device, list[tuple[int, int, Any]]]] = WeakKeyDictionary()
"""Of each device: first address, the one after the last, and tensor of each memory that copies may touch."""


def _platform(platform: Any) -> Proxy:
    """Stands for ``current_platform``: CUDA with virtual streams."""
    return Proxy(
        platform,
        Stream=VirtualStream,
        current_stream=current_stream,
        stream=lambda stream: stream,
        **dict.fromkeys(("is_rocm", "is_xpu"), lambda: False),
        is_cuda_alike=lambda: True,
    )


def _place(memories: Sequence[tuple[int, int, Any]], address: int, nbytes: int) -> od.Range:
    """Where ``address`` lies."""
    for start, end, tensor in memories:
        if start <= address and address + nbytes <= end:
            return device().region(tensor), address - start, nbytes
    raise ValueError(
        f"a copy touches {nbytes} bytes at {address:#x}, which are in no memory of the connector"
    )


def swap_blocks_batch(
    src_ptrs: Any, dst_ptrs: Any, sizes: Any, is_src_access_order_any: bool = False
) -> None:
    """Stands for the operation of this name: copies bytes on the current stream.

    CopyFailed if it is to fail, and the connector can report that. Else the copy is made after all: the
    engine's own thread launches it, so that a driver which refuses it ends the engine, and nothing is left
    to be judged.
    """
    here, stream = device(), current_stream()
    if here.fails():
        if reports_failures():
            raise CopyFailed(REFUSED)
        here.spared += 1
    order: od.SourceOrder = "any" if is_src_access_order_any else "stream"
    parts = list(zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True))
    memories = _memories.get(here, [])
    sources = [_place(memories, src, nbytes) for src, _, nbytes in parts]
    targets = [_place(memories, dst, nbytes) for _, dst, nbytes in parts]
    early = here.begin_copy(parts[0][1], stream.id, sources, targets, order)
    read = [ctypes.string_at(src, nbytes) for src, _, nbytes in parts] if early else None

    def run() -> None:
        for number, (src, dst, nbytes) in enumerate(parts):
            ctypes.memmove(dst, src if read is None else read[number], nbytes)

    here.launch(stream.id, run, here.delay)


@functools.cache
def reports_failures() -> bool:
    """Whether the connector of this release has a way to report a transfer that failed."""
    package = "vllm.distributed.kv_transfer.kv_connector.v1"
    connector = importlib.import_module(f"{package}.offloading_connector").OffloadingConnector
    base = importlib.import_module(f"{package}.base").KVConnectorBase_V1
    ways = ("get_block_ids_with_load_errors", "get_transfer_results")
    return any(getattr(connector, way, None) is not getattr(base, way, None) for way in ways)


def _known(torch: Any, original: Any) -> Any:
    """The constructor of a handler of copies, which takes tensors for those of a GPU and remembers them."""

    class OnDevice(torch.Tensor):  # type: ignore[misc]
        is_cuda = True

    @functools.wraps(original)
    def init(self: Any, gpu_tensors: list[Any], cpu_tensors: list[Any], *args: Any, **named: Any) -> None:
        memories = _memories.setdefault(device(), [])
        for tensor in (*gpu_tensors, *cpu_tensors):
            start = int(tensor.data_ptr())
            if all(start != known for known, _, _ in memories):
                memories.append((start, start + int(tensor.numel() * tensor.element_size()), tensor))
        original(self, [each.as_subclass(OnDevice) for each in gpu_tensors], cpu_tensors, *args, **named)

    return init


def install_offloading(torch: Any) -> bool:
    """Replaces what the worker of OffloadingConnector uses of CUDA; whether that is known of this release."""
    try:
        worker: Any = importlib.import_module(WORKER)
        spec: Any = importlib.import_module(SPEC)
        handler, tier = worker.SingleDirectionOffloadingHandler, spec.CPUOffloadingSpec
    except (ImportError, AttributeError):
        return False
    if not hasattr(tier, "_uses_shared_region") or not hasattr(worker, "current_platform"):
        return False
    worker.torch = virtual_torch(worker.torch)
    worker.ops = Proxy(worker.ops, swap_blocks_batch=swap_blocks_batch)
    worker.HAS_TRITON = worker.PIN_MEMORY = False
    worker.current_platform = spec.current_platform = _platform(worker.current_platform)
    tier._uses_shared_region = lambda _: False
    handler.__init__ = _known(torch, handler.__init__)
    return True
