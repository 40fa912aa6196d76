"""Modules with the names of vLLM's OffloadingConnector and a worker side like its own, without vLLM or CUDA.

Streams and events only count. ``Handler.waits``: whether transfers wait for the stream of the steps.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from worker_lab import SLOTS, Stream, Tensor, modules, torch

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"
COPIES = "vllm.v1.kv_offload.cpu.gpu_worker"


class Platform:
    """Like ``current_platform``."""

    Stream = Stream

    def __init__(self) -> None:
        self.current = Stream(0)

    def current_stream(self) -> Any:
        return Stream(self.current.cuda_stream)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Handler:
    """Like SingleDirectionOffloadingHandler."""

    waits = True
    module: Any

    def __init__(
        self,
        gpu_tensors: Any,
        cpu_tensors: Any,
        blocks_per_chunk: int,
        layer_refs_per_group: Any,
        gpu_to_cpu: bool,
    ) -> None:
        del gpu_tensors, cpu_tensors, layer_refs_per_group
        self.gpu_to_cpu = gpu_to_cpu
        self.src_blocks_per_chunk = 1 if gpu_to_cpu else blocks_per_chunk
        self.dst_blocks_per_chunk = blocks_per_chunk if gpu_to_cpu else 1
        self._swap_blocks_batch = self.module.swap_blocks_batch
        self.transfers: list[tuple[int, Any]] = []
        self.began: dict[int, Any] = {}
        self.took = 0.0
        self.pool: list[Any] = []

    def transfer_async(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        del src_spec, dst_spec
        platform, torch = self.module.current_platform, self.module.torch
        stream = self.pool.pop() if self.pool else platform.Stream()
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        if self.waits:
            stream.wait_stream(platform.current_stream())
        if self.transfers:
            stream.wait_event(self.transfers[-1][1])
        with platform.stream(stream):
            start.record(stream)
            self._swap_blocks_batch([], [], [], is_src_access_order_any=not self.gpu_to_cpu)
            end.record(stream)
        self.transfers.append((job_id, end))
        self.began[job_id] = start
        return True

    def get_finished(self) -> list[int]:
        done = [job for job, event in self.transfers if event.query()]
        self.took += sum(
            self.began.pop(job).elapsed_time(event) for job, event in self.transfers if job in done
        )
        self.transfers = [each for each in self.transfers if each[0] not in done]
        return done

    def wait(self, jobs: Any) -> None:
        for job, event in self.transfers:
            if job in jobs:
                event.synchronize()


class Copies:
    """Like CPUOffloadingWorker."""

    made = 0

    def __init__(self, module: Any, gpu: Any, chunk: int) -> None:
        Copies.made += 1
        cpu = [Tensor(Copies.made << 30, SLOTS, 64 * chunk)]
        make = module.SingleDirectionOffloadingHandler
        self.store, self.load = (make(gpu, cpu, chunk, None, gpu_to_cpu=way) for way in (True, False))

    def wait(self, jobs: Any) -> None:
        self.store.wait(jobs)
        self.load.wait(jobs)


class Side:
    """Like OffloadingConnectorWorker."""

    copies: Any
    chunk = 1

    def __init__(self, spec: Any, vllm_config: Any, kv_cache_config: Any) -> None:
        self.spec, self.vllm_config, self.kv_cache_config = spec, vllm_config, kv_cache_config
        self.worker: Any = None
        self.waiting: list[Any] = []

    def register_kv_caches(self, kv_caches: Any) -> None:
        kind = type(self.spec.copies, (Copies,), {})
        self.worker = kind(self.copies, list(kv_caches.values()), self.chunk)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        for job, src, dst in self.waiting:
            self.worker.store.transfer_async(job, src, dst)
        self.waiting.clear()
        self.worker.wait(kv_connector_metadata.flush)

    def start_kv_transfers(self, metadata: Any) -> None:
        for job, src, dst in metadata.loads:
            self.worker.load.transfer_async(job, src, dst)

    def prepare_store_kv(self, metadata: Any) -> None:
        self.waiting += metadata.stores

    def get_finished(self, finished_req_ids: Any) -> list[int]:
        del finished_req_ids
        done: list[int] = self.worker.store.get_finished() + self.worker.load.get_finished()
        return done


class Connector:
    """Like OffloadingConnector: has one of its two sides."""

    def __init__(self, side: Any) -> None:
        self.connector_scheduler, self.connector_worker = None, side


def blocks(ids: list[int], sizes: list[int] | None = None, firsts: list[int] | None = None) -> Any:
    """Blocks of the GPU, of one group unless ``sizes`` are given."""
    return types.SimpleNamespace(
        block_ids=np.array(ids), group_sizes=sizes or [len(ids)], block_indices=firsts or [0]
    )


def chunks(ids: list[int]) -> Any:
    """Slots of the tier."""
    return types.SimpleNamespace(block_ids=np.array(ids))


def swap_blocks_batch(src: Any, dst: Any, sizes: Any, is_src_access_order_any: bool = False) -> None:
    """Copies nothing."""


def package() -> dict[str, Any]:
    """Modules by name, for ``sys.modules``."""
    found = modules(CONNECTOR, COPIES)
    copies, side = found[COPIES], found[CONNECTOR]
    copies.torch = torch()
    copies.current_platform = Platform()
    copies.swap_blocks_batch = swap_blocks_batch
    made = {**vars(Handler), "module": copies}
    copies.SingleDirectionOffloadingHandler = type("SingleDirectionOffloadingHandler", (), made)
    side.OffloadingConnectorWorker = type("OffloadingConnectorWorker", (), {**vars(Side), "copies": copies})
    return found
