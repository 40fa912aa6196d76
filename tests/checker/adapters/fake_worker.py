"""A package with the names of vLLM's simple_kv_offload and a worker side like its own, without vLLM or CUDA.

Threads are real ones; streams and events only count. ``waits``: whether a store waits for the step that it is
handed over with.
"""

from __future__ import annotations

import queue
import threading
import types
from typing import Any

from worker_lab import Stream, Tensor, modules, torch, vllm_config

WORKER = "vllm.v1.simple_kv_offload.worker"
BACKEND = "vllm.v1.simple_kv_offload.copy_backend"


class Backend:
    """Like DmaCopyBackend."""

    def init(self, module: Any, gpu: Any, cpu: Any, load: Any, store: Any) -> None:
        self.store = module.build_params(gpu, cpu, store, src_access_order=1)
        self.load = module.build_params(cpu, gpu, load, src_access_order=3)
        self.queue = module.queue.SimpleQueue()
        self.thread = module.threading.Thread(
            target=self._copy_loop, args=(module, self.queue, load, store), daemon=True
        )
        self.thread.start()

    def launch_copy(
        self,
        src_blocks: Any,
        dst_blocks: Any,
        is_store: bool,
        event_idx: int,
        events_list: Any,
        wait_event: Any = None,
    ) -> None:
        params = self.store if is_store else self.load
        self.queue.put((src_blocks, dst_blocks, params, is_store, event_idx, events_list, wait_event))

    @staticmethod
    def _copy_loop(module: Any, items: Any, load: Any, store: Any) -> None:
        while True:
            item = items.get()
            if item is None:
                return
            src, dst, params, is_store, index, events, wait_event = item
            stream = store if is_store else load
            if wait_event is not None:
                stream.wait_event(wait_event)
            module.copy_blocks(src, dst, params)
            event = module.torch.Event()
            event.record(stream)
            events.append((index, event))


class Worker:
    """Like SimpleCPUOffloadWorker."""

    waits = True

    def __init__(self, module: Any, backends: Any, config: Any) -> None:
        self.module, self.backends = module, backends
        self.vllm_config, self.kv_cache_config = vllm_config(), config
        self.gpu_kv_caches: Any = None
        self.events: list[Any] = []
        self.metadata: Any = None

    def register_kv_caches(self, kv_caches: Any) -> None:
        self.gpu_kv_caches = kv_caches
        torch = self.module.torch
        self.load_stream, self.store_stream = torch.cuda.Stream(), torch.cuda.Stream()
        self._backend = self.backends.DmaCopyBackend()
        cpu = {name: Tensor(1 << 30) for name in kv_caches}
        self._backend.init(self.backends, kv_caches, cpu, self.load_stream, self.store_stream)

    def bind_connector_metadata(self, metadata: Any) -> None:
        self.metadata = metadata

    def start_load_kv(self) -> None:
        if self.metadata.load:
            src, dst = self.metadata.load
            self._backend.launch_copy(src, dst, False, self.metadata.number, self.events)

    def wait_for_save(self) -> None:
        if self.metadata.store:
            event = self.module.torch.Event()
            event.record(self.module.torch.cuda.current_stream())
            src, dst = self.metadata.store
            wait = {"wait_event": event} if self.waits else {}
            self._backend.launch_copy(src, dst, True, self.metadata.number, self.events, **wait)

    def get_finished(self, finished_req_ids: Any) -> list[int]:
        del finished_req_ids
        done = [index for index, event in self.events if event.query()]
        self.events.clear()
        return done

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        del kv_connector_metadata

    def close(self) -> None:
        self._backend.queue.put(None)
        self._backend.thread.join()

    def settle(self) -> None:
        """Wait until everything handed over is launched."""
        while self._backend.queue.qsize():
            pass


def package() -> dict[str, Any]:
    """Modules by name, for ``sys.modules``."""
    found = modules(WORKER, BACKEND)
    worker, backend = found[WORKER], found[BACKEND]
    worker.torch = backend.torch = torch(current_stream=lambda: Stream(0))
    worker.SimpleCPUOffloadWorker = type("SimpleCPUOffloadWorker", (Worker,), dict(vars(Worker)))
    backend.DmaCopyBackend = type("DmaCopyBackend", (Backend,), dict(vars(Backend)))
    backend.queue = types.SimpleNamespace(SimpleQueue=queue.SimpleQueue)
    backend.threading = types.SimpleNamespace(Thread=threading.Thread)
    backend.build_params = lambda src, dst, stream, src_access_order: [src, dst, stream, src_access_order]
    backend.copy_blocks = lambda src, dst, params: None  # noqa: ARG005
    return found
