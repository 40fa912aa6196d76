"""One rank of the rig: a virtual GPU, the worker side of the connector, and a model runner."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvfence.checker.audit.cases.case import Case
from kvfence.checker.audit.cases.judge import Judge
from kvfence.checker.audit.cuda_stub.streams import VirtualEvent, VirtualStream
from kvfence.checker.audit.cuda_stub.stub_device import Device
from kvfence.checker.audit.rig.engine import LAYER, page_bytes, vllm_module, worker_connector
from kvfence.checker.audit.rig.runner import Runner, Text


def sent(output: Any) -> Any:
    """A scheduler's output as another process gets it: a connector may change what it gets there."""
    mine = copy.copy(output)
    mine.kv_connector_metadata = pickle.loads(pickle.dumps(output.kv_connector_metadata))
    return mine


class Worker:
    """One rank: a virtual GPU, the connector's worker side, and a model runner."""

    def __init__(
        self, rank: int, case: Case, made: Any, caches: Any, texts: list[Text], judge: Judge
    ) -> None:
        import torch

        setup = case.setup
        self.judge = judge
        self.vllm_config = made
        order = judge.order_event if rank == 0 else None
        self.device = Device(setup.seed * 31 + rank, setup.delay, setup.launch_delay, order)
        self.device.fail_rate = setup.fail_rate
        memory = torch.zeros((setup.gpu_blocks, page_bytes(setup)), dtype=torch.int8)
        self.device.gpu = (memory.data_ptr(), memory.numel())
        cells = memory.numpy().view(np.int64)
        self.region = self.device.region(memory, "gpu")
        self.runner = Runner(setup, texts, self.device, cells, self.region, self._garbled)
        self.apart = setup.ranks * setup.stages > 1
        """Whether it is in a process of its own."""
        self.connector: Any = None
        self.ends: dict[int, VirtualEvent] = {}
        if made.kv_transfer_config is not None:
            with self.device.current():
                self.connector = worker_connector(made, caches)
                self.connector.register_kv_caches(
                    {LAYER.format(g): memory for g in range(len(setup.windows))}
                )

    def _garbled(self, cause: str, detail: str) -> None:
        self.judge.sight("USE-READY", cause, "content", detail)

    def execute(self, step: Any) -> Any:
        """Executes a step as the release's model runner does; its part of the connector's output.

        ``step``: a :class:`kvfence.checker.audit.rig.loop.Launched`.
        """
        # As the process around a worker does: hooks may learn of the step there.
        process = vllm_module("v1.worker.worker_base").WorkerWrapperBase
        runner = SimpleNamespace(execute_model=lambda output: self._execute(output, step))
        around = SimpleNamespace(worker=runner, _apply_mm_cache=lambda _: None)
        return process.execute_model(around, sent(step.output) if self.apart else step.output)

    def _execute(self, output: Any, step: Any) -> Any:
        with self.device.current(), self._agent():
            around: Any = nullcontext()
            if self.connector is not None:
                mixin = vllm_module("v1.worker.kv_connector_model_runner_mixin")
                self.connector.handle_preemptions(output.kv_connector_metadata)
                around = mixin.KVConnectorModelRunnerMixin._get_kv_connector_output(output)
            with around as reported:
                self.runner.launch(output, step.spans)
            event = self.ends[step.number] = VirtualEvent()
            event.record(VirtualStream.compute(self.device))
        return reported

    def finish(self, number: int) -> None:
        """Waits for the step's kernels, as whoever wants its sampled tokens does."""
        with self.device.current():
            self.ends.pop(number).synchronize()

    @contextmanager
    def _agent(self) -> Iterator[None]:
        state = vllm_module("distributed.kv_transfer.kv_transfer_state")
        state._KV_CONNECTOR_AGENT = self.connector
        try:
            yield
        finally:
            state._KV_CONNECTOR_AGENT = None

    def close(self) -> None:
        """Ends its threads."""
        self.device.held = 0
        for thread in self.device.threads:
            thread.alive = False
        if self.connector is not None and hasattr(self.connector, "shutdown"):
            with self.device.current():
                self.connector.shutdown()
