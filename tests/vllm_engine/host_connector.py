"""SimpleCPUOffloadConnector where there is no CUDA: all of its own code, with streams and copies replaced.

Loaded by vLLM through ``kv_connector_module_path``. ``KVFENCE_ENGINE_FAULT`` switches a fault on:
``unpinned`` (promised hits are not pinned), ``scrambled`` (loads bring the contents of other blocks) or
``unordered`` (stores do not wait for the step that they are handed over with).
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import (
    SimpleCPUOffloadConnector,
)
from vllm.v1.simple_kv_offload import copy_backend, worker
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

MOVED = {"store": 0, "load": 0}
"""Blocks copied so far in this process."""


def _nothing(*_: Any) -> None:
    """Does nothing, whatever it is given."""


class HostStream:
    """Work is done when it is launched."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0

    def wait_event(self, event: HostEvent) -> None:
        event.synchronize()


class HostEvent:
    """Over as soon as it is recorded."""

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostTorch(types.ModuleType):
    """torch, with these streams and events."""

    Event = HostEvent
    cuda = types.SimpleNamespace(Stream=HostStream, current_stream=HostStream)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _build_params(src_caches: Any, dst_caches: Any, *_: Any, **__: Any) -> Any:
    return list(src_caches.values()), list(dst_caches.values())


def _copy_blocks(src_blocks: list[int], dst_blocks: list[int], params: Any) -> None:
    sources, destinations = params
    load = destinations and _is_device(destinations)
    MOVED["load" if load else "store"] += len(src_blocks)
    if load and os.environ.get("KVFENCE_ENGINE_FAULT") == "scrambled":
        src_blocks = [(block + 7) % len(sources[0]) for block in src_blocks]
    src, dst = torch.tensor(src_blocks), torch.tensor(dst_blocks)
    for source, destination in zip(sources, destinations, strict=True):
        destination[dst] = source[src]


_DEVICE: list[int] = []


def _is_device(caches: list[Any]) -> bool:
    return bool(_DEVICE) and caches[0].data_ptr() == _DEVICE[0]


worker.torch = copy_backend.torch = HostTorch("torch")
copy_backend.build_params, copy_backend.copy_blocks = _build_params, _copy_blocks
copy_backend.current_platform = types.SimpleNamespace(set_device=_nothing)


class HostConnector(SimpleCPUOffloadConnector):
    """The connector, with the fault that was asked for."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        assert self.worker_handler is not None
        _DEVICE[:] = [next(iter(self.worker_handler.gpu_kv_caches.values())).data_ptr()]


if os.environ.get("KVFENCE_ENGINE_FAULT") == "unordered":
    _launch = copy_backend.DmaCopyBackend.launch_copy

    def _unordered(
        self: Any,
        src_blocks: Any,
        dst_blocks: Any,
        is_store: bool,
        event_idx: int,
        events_list: Any,
        wait_event: Any = None,
    ) -> Any:
        del wait_event
        return _launch(self, src_blocks, dst_blocks, is_store, event_idx, events_list)

    copy_backend.DmaCopyBackend.launch_copy = _unordered

if os.environ.get("KVFENCE_ENGINE_FAULT") == "unpinned":
    _lookup = SimpleCPUOffloadScheduler.get_num_new_matched_tokens

    def _unpinned(self: Any, request: Any, num_computed_tokens: int) -> Any:
        pool = self.cpu_block_pool
        pool.touch = _nothing
        try:
            return _lookup(self, request, num_computed_tokens)
        finally:
            del pool.touch

    SimpleCPUOffloadScheduler.get_num_new_matched_tokens = _unpinned
    SimpleCPUOffloadScheduler._free_pending_cpu_hit = _nothing
