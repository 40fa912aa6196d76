"""For ``observed_worker.py``: the worker side of OffloadingConnector, the rest of vLLM made up around it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from pathlib import Path
from typing import Any, Final

from observed_worker import BLOCK_BYTES, TOKENS, Lab

CONNECTOR: Final = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
COPIES: Final = "vllm.v1.kv_offload"
REAL: Final = (f"{CONNECTOR}.worker", f"{CONNECTOR}.common", f"{COPIES}.base", f"{COPIES}.config")
REAL_OF_COPIES: Final = ("gpu_worker", "common", "swap_blocks_triton")


class Anything:
    """A class that is only named."""


class MadeUp(types.ModuleType):
    """A module of vLLM's that has whatever is asked of it, and nothing that works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "_custom_ops":
            return importlib.import_module(f"{self.__name__}.{name}")
        made = type(name, (Anything,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the files under observation in a folder, and makes up all other modules of vLLM."""

    def __init__(self, folder: Path, known: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.known = known
        self.real = {*REAL, *(f"{COPIES}.cpu.{name}" for name in REAL_OF_COPIES)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - as in Python
        """See ``importlib``."""
        if name.partition(".")[0] != "vllm":
            return None
        if name in self.real:
            file = self.folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> MadeUp:
        """See ``importlib``."""
        made = MadeUp(spec.name)
        made.__dict__.update(self.known.get(spec.name, {}))
        return made

    def exec_module(self, module: Any) -> None:
        """See ``importlib``."""


def made_up(folder: Path) -> None:
    """Lets the files of OffloadingConnector's worker be imported from ``folder``, a release's ``vllm``."""
    import torch

    class AttentionSpec:
        page_size_bytes = unpadded_page_size_bytes = BLOCK_BYTES
        block_size = TOKENS

    platform = types.SimpleNamespace(
        Stream=torch.cuda.Stream,
        stream=torch.cuda.stream,
        current_stream=torch.cuda.current_stream,
        is_cuda_alike=lambda: True,
        is_cuda=lambda: True,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
    )
    triton = types.SimpleNamespace(jit=lambda kernel: kernel, cdiv=lambda a, b: -(-a // b))
    known: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": folder.parent.name},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {
            "HAS_TRITON": False,
            "triton": triton,
            "tl": types.SimpleNamespace(constexpr=int),
        },
        "vllm.utils.math_utils": {
            "cdiv": lambda a, b: -(-a // b),
            "round_up": lambda a, b: -(-a // b) * b,
        },
        "vllm.utils.torch_utils": {"PIN_MEMORY": True},
        "vllm._custom_ops": {"swap_blocks_batch": _copies(torch)},
        "vllm.v1.kv_cache_interface": {
            "AttentionSpec": AttentionSpec,
            "group_kernel_blocks": lambda cache, count: cache.view(count, -1),
        },
        f"{CONNECTOR}.canonical_mapping": {"derive_canonical_mappings": lambda *_: {}},
        f"{CONNECTOR}.config": {
            "get_offloading_group_ids": lambda config: tuple(range(len(config.kv_cache_groups)))
        },
    }
    sys.meta_path.insert(0, Finder(folder, known))


def _copies(torch: Any) -> Any:
    """Stands for the operation of this name, which vLLM compiles: a copy of the driver's for each pair."""
    driver = ctypes.CDLL("libcuda.so.1")
    address, size = ctypes.c_uint64, ctypes.c_size_t
    driver.cuMemcpyAsync.argtypes = (address, address, size, ctypes.c_void_p)

    def swap_blocks_batch(
        src_ptrs: Any,
        dst_ptrs: Any,
        sizes: Any,
        is_src_access_order_any: bool = False,  # noqa: ARG001 - such copies read in the stream's order
    ) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for src, dst, count in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
            error = driver.cuMemcpyAsync(dst, src, count, stream)
            if error:
                raise RuntimeError(f"the driver refuses a copy: error {error}")

    return swap_blocks_batch


class OffloadingLab(Lab):
    """A worker side of OffloadingConnector, its caches, and the engine around it."""

    deferred = True

    def make(self, config: Any, engine: Any) -> None:
        """See :meth:`Lab.make`."""
        worker: Any = importlib.import_module(f"{CONNECTOR}.worker")
        common: Any = importlib.import_module(f"{CONNECTOR}.common")
        base: Any = importlib.import_module(f"{COPIES}.base")
        copies: Any = importlib.import_module(f"{COPIES}.cpu.gpu_worker")
        kinds: Any = importlib.import_module("vllm.v1.kv_cache_interface")
        self.job, self.meta = common.TransferJob, common.OffloadingConnectorMetadata
        self.on_gpu = base.GPULoadStoreSpec
        self.in_host = type("InHost", (base.BlockIDsLoadStoreSpec,), {"medium": staticmethod(lambda: "CPU")})
        config.hisparse_host_num_blocks = None
        for group in config.kv_cache_groups:
            group.kv_cache_spec = type("FullAttentionSpec", (kinds.AttentionSpec,), {})()
            group.host_resident = False
        slots = self.slots

        class CPUOffloadingSpec:
            replicated_layout = False

            def get_worker(self, caches: Any) -> Any:
                return copies.CPUOffloadingWorker(kv_caches=caches, blocks_per_chunk=1, num_cpu_chunks=slots)

        spec: Any = CPUOffloadingSpec()
        self.worker = worker.OffloadingConnectorWorker(spec, engine, config)
        self.jobs: dict[int, str] = {}
        self.now: Any = None

    def arrive(self, name: str, store: list[int] | None, load: tuple[list[int], list[int]] | None) -> None:
        """See :meth:`Lab.arrive`."""
        stores, loads = {}, {}
        if store:
            there = self.on_gpu(store, (len(store),), (0,))
            stores[2 * self.number] = self.job(name, there, self.in_host(store))
        if load:
            there = self.on_gpu(load[1], (len(load[1]),), (0,))
            loads[2 * self.number + 1] = self.job(name, self.in_host(load[0]), there)
        self.now = self.meta(load_jobs=loads, store_jobs=stores)
        self.worker.handle_preemptions(self.now)
        self.worker.start_kv_transfers(self.now)

    def leave(self) -> tuple[Any, Any]:
        """See :meth:`Lab.leave`."""
        self.worker.prepare_store_kv(self.now)
        _, received = self.worker.get_finished(set())
        meta = self.worker.build_connector_worker_meta()
        done = () if meta is None else [job // 2 for job in meta.completed_jobs if job % 2 == 0]
        return received, done

    def host(self, name: str) -> Any:
        """See :meth:`Lab.host`."""
        handler = getattr(self.worker.worker, "_store_handler")  # noqa: B009 - of another class's own
        return handler.dst_tensors[list(self.caches).index(name)]

    def stream(self) -> str:
        """See :meth:`Lab.stream`."""
        pool = getattr(self.worker.worker, "_store_handler")._stream_pool  # noqa: B009
        return type(pool[0]).__mro__[1].__name__ if pool else "none"


def without_waiting() -> bool:
    """Transfers do not wait for the stream of steps from here on."""
    handler = importlib.import_module(f"{COPIES}.cpu.gpu_worker").SingleDirectionOffloadingHandler
    original = handler.transfer_async

    @functools.wraps(original)
    def transfer_async(self: Any, job_id: int, src_spec: Any, dst_spec: Any) -> Any:
        stream = self._stream_pool.pop() if self._stream_pool else _new_stream()
        stream.wait_stream = lambda _: None
        self._stream_pool.append(stream)
        return original(self, job_id, src_spec, dst_spec)

    handler.transfer_async = transfer_async
    return True


def _new_stream() -> Any:
    return importlib.import_module(f"{COPIES}.cpu.gpu_worker").current_platform.Stream()
