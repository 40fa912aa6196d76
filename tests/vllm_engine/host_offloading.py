"""OffloadingConnector where there is no CUDA: all of its own code, with streams and copies replaced.

Loaded by vLLM through ``kv_connector_module_path``. ``KVFENCE_ENGINE_FAULT`` switches a fault on:
``unordered`` (stores begin within the step that writes their blocks, and do not wait for its stream).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import os
import types
from typing import Any

import torch
from host_connector import MOVED, HostEvent, HostStream, HostTorch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.cpu import gpu_worker, spec


class TimedEvent(HostEvent):
    """An event that could be asked how long ago it was."""

    def __init__(self, enable_timing: bool = False) -> None:
        del enable_timing

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class WaitingStream(HostStream):
    """Nothing has to wait where work is done when it is launched."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = next(_HANDLES)

    def wait_stream(self, stream: Any) -> None:
        pass


_HANDLES = itertools.count()
COMPUTE = WaitingStream()
ASTRAY: set[int] = set()
"""Stores that are given another stream for the current one."""


class _Torch(HostTorch):
    """torch, with these streams and events."""

    Event = TimedEvent
    cuda = types.SimpleNamespace(Stream=WaitingStream, current_stream=lambda: COMPUTE)


class _Platform:
    """A platform with these streams, which takes itself for CUDA."""

    Stream = WaitingStream
    _current: Any = COMPUTE

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def current_stream(self) -> Any:
        return WaitingStream() if ASTRAY and self._current is COMPUTE else self._current

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Any:
        self._current = stream
        yield
        self._current = COMPUTE

    def is_cuda_alike(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def swap_blocks_batch(src: Any, dst: Any, sizes: Any, is_src_access_order_any: bool = False) -> None:
    """Copies at once."""
    MOVED["load" if is_src_access_order_any else "store"] += len(sizes)
    for source, target, size in zip(src.tolist(), dst.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


class _OnDevice(torch.Tensor):
    is_cuda = True


def _taking_tensors_for_those_of_a_gpu(original: Any) -> Any:
    def __init__(self: Any, gpu_tensors: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        original(self, [each.as_subclass(_OnDevice) for each in gpu_tensors], *args, **named)

    __init__.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return __init__


gpu_worker.torch = _Torch("torch")
gpu_worker.current_platform = spec.current_platform = _Platform(gpu_worker.current_platform)
gpu_worker.ops = types.SimpleNamespace(swap_blocks_batch=swap_blocks_batch)
gpu_worker.HAS_TRITON = gpu_worker.PIN_MEMORY = False
spec.CPUOffloadingSpec._uses_shared_region = lambda _: False
_handler = gpu_worker.SingleDirectionOffloadingHandler
_handler.__init__ = _taking_tensors_for_those_of_a_gpu(_handler.__init__)


if os.environ.get("KVFENCE_ENGINE_FAULT") == "unordered":
    _transfer = _handler.transfer_async

    @functools.wraps(_transfer)
    def _unordered(self: Any, job_id: Any, src_spec: Any, dst_spec: Any) -> Any:
        ASTRAY.update({job_id} if self.gpu_to_cpu else ())
        try:
            return _transfer(self, job_id, src_spec, dst_spec)
        finally:
            ASTRAY.clear()

    _handler.transfer_async = _unordered


class HostOffloadingConnector(OffloadingConnector):
    """The connector, with the fault that was asked for."""

    def wait_for_save(self) -> None:
        super().wait_for_save()
        if os.environ.get("KVFENCE_ENGINE_FAULT") == "unordered":
            assert self.connector_worker is not None
            self.connector_worker.start_kv_transfers(types.SimpleNamespace(load_jobs={}))
