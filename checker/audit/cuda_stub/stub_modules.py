"""CUDA without a GPU, for connectors written against torch: stand-ins for what their modules import."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from kvfence.checker.audit.cuda_stub.streams import VirtualEvent, VirtualStream, current_stream
from kvfence.checker.audit.cuda_stub.threads import VirtualQueue, VirtualThread
from kvfence.spec import order as od

SOURCE_ORDERS: Final[dict[int, od.SourceOrder]] = {1: "stream", 2: "call", 3: "any"}
"""By the number that the driver knows them by."""


class Params:
    """What a connector's copies have in common: layers, stream and source access order."""

    def __init__(self, src: list[Any], dst: list[Any], stream: VirtualStream, order: od.SourceOrder) -> None:
        self.src, self.dst, self.stream, self.order = src, dst, stream, order


def build_params(
    src_caches: dict[str, Any], dst_caches: dict[str, Any], stream: VirtualStream, src_access_order: int = 3
) -> Params:
    """Stands for a connector's function of this name; releases before it took an order meant ANY."""
    order = SOURCE_ORDERS[src_access_order]
    return Params(list(src_caches.values()), list(dst_caches.values()), stream, order)


def copy_blocks(src_block_ids: list[int], dst_block_ids: list[int], params: Params) -> None:
    """Stands for a connector's function of this name."""
    params.stream.device.copy(src_block_ids, dst_block_ids, params)


class Proxy(ModuleType):
    """A module, or a platform of vLLM, with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(getattr(module, "__name__", type(module).__name__))
        self.__dict__["_module"] = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def virtual_torch(torch: Any) -> Any:
    """``torch`` with streams and events that are virtual."""
    cuda = Proxy(
        torch.cuda,
        Stream=VirtualStream,
        Event=VirtualEvent,
        current_stream=current_stream,
        default_stream=current_stream,
        stream=lambda stream: stream,
        is_available=lambda: True,
        current_device=lambda: 0,
        synchronize=lambda *_: current_stream().synchronize(),
    )
    return Proxy(torch, cuda=cuda, Event=VirtualEvent, Stream=VirtualStream)


def install(module: Any, torch: Any) -> None:
    """Replaces the CUDA primitives that ``module`` of a connector uses."""
    import queue
    import threading

    stand_ins: dict[str, Callable[[Any], Any]] = {
        "torch": lambda old: virtual_torch(old if isinstance(old, ModuleType) else torch),
        "queue": lambda _: Proxy(queue, SimpleQueue=VirtualQueue, Queue=VirtualQueue),
        "threading": lambda _: Proxy(threading, Thread=VirtualThread),
        "current_platform": lambda old: Proxy(old, set_device=lambda _: None, is_cuda_alike=lambda: True),
        "build_params": lambda _: build_params,
        "copy_blocks": lambda _: copy_blocks,
        "pin_tensor": lambda _: lambda _: None,  # memory needs no pinning here
    }
    for name, make in stand_ins.items():
        if hasattr(module, name):
            setattr(module, name, make(getattr(module, name)))
