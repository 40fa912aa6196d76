"""A real vLLM scheduler with SimpleCPUOffloadConnector and no model: what the adapter's tests drive.

Runs in an environment with vLLM's libraries and an unpacked vLLM on the path, not in kvfence's own.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

BLOCK = 16
PAGE = 2 * BLOCK * 4 * 16 * 4
"""Bytes of a block of one layer."""


def _model_dir() -> str:
    where = Path(tempfile.mkdtemp(prefix="kvfence-model-"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 1 << 18,
        "torch_dtype": "float32",
    }
    (where / "config.json").write_text(json.dumps(config))
    return str(where)


def _accepted(function: Any, **named: Any) -> dict[str, Any]:
    """Those of the arguments ``named`` that ``function`` takes in this release."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in named.items() if name in known}


def _made(kind: Any, **named: Any) -> Any:
    """A ``kind`` with those of its arguments that it takes in this release."""
    return kind(**_accepted(kind, **named))


def drafting(count: int, model: Any) -> Any:
    """``count`` tokens drafted from n-grams, which needs no model of its own."""
    from vllm.config import ParallelConfig, SpeculativeConfig

    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=count,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


def vllm_config(
    max_len: int, budget: int, seqs: int, asynchronous: bool, transfer: dict[str, Any] | None
) -> Any:
    """The configuration of an engine; ``transfer``: of its connector, if it has one."""
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    model = ModelConfig(
        model=_model_dir(), skip_tokenizer_init=True, dtype="float32", max_model_len=max_len, seed=0
    )
    scheduling = _made(
        SchedulerConfig,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=max_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=asynchronous,
        watermark=0.0,
    )
    cache = _made(CacheConfig, block_size=BLOCK, gpu_memory_utilization=0.5, enable_prefix_caching=True)
    device = DeviceConfig(device="cpu")
    config = VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=cache, device_config=device
    )
    # As they are on a GPU: of a CPU vLLM thinks that it cannot have them.
    if transfer is not None:
        config.kv_transfer_config = KVTransferConfig(kv_role="kv_both", **transfer)
    scheduling.async_scheduling = asynchronous
    cache.block_size, cache.enable_prefix_caching = BLOCK, True
    return config


def kv_caches(gpu_blocks: int, windows: tuple[int | None, ...]) -> Any:
    """The configuration of KV caches with a group for each of ``windows``; None: of full attention."""
    import torch
    from vllm.v1 import kv_cache_interface as kv

    shape = {"block_size": BLOCK, "num_kv_heads": 4, "head_size": 16, "dtype": torch.float32}
    shared = "shared_by" in inspect.signature(kv.KVCacheTensor).parameters
    each, groups, tensors = PAGE * gpu_blocks, [], []
    for number, window in enumerate(windows):
        layers = [f"layer{number}"]
        full = window is None
        spec = kv.FullAttentionSpec(**shape) if full else kv.SlidingWindowSpec(**shape, sliding_window=window)
        groups.append(kv.KVCacheGroupSpec(layers, spec))
        tensors.append(
            _made(
                kv.KVCacheTensor,
                size=each if shared else each * len(windows),
                shared_by=layers,
                layers=layers,
                layer_stride=each,
                block_stride=PAGE,
                offset=number * each,
            )
        )
    return kv.KVCacheConfig(num_blocks=gpu_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


class MiniEngine:
    """``schedule`` and ``update_from_output`` as EngineCore calls them; transfers end in ``process``.

    ``connector``: None for the control without one, or the name of a connector.
    """

    def __init__(
        self,
        *,
        gpu_blocks: int = 32,
        cpu_blocks: int = 64,
        budget: int = 256,
        max_len: int = 2048,
        windows: tuple[int | None, ...] = (None,),
        lazy: bool = False,
        connector: str | None = "SimpleCPUOffloadConnector",
        extra: dict[str, Any] | None = None,
        module: str | None = None,
        asynchronous: bool = False,
        seqs: int = 16,
        hybrid: bool = True,
        drafts: int = 0,
        recompute: bool = False,
    ) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.structured_output import StructuredOutputManager

        transfer = None
        if connector is not None:
            transfer = {
                "kv_connector": connector,
                "kv_load_failure_policy": "recompute" if recompute else "fail",
                "kv_connector_module_path": module,
                "kv_connector_extra_config": {
                    "cpu_bytes_to_use": cpu_blocks * PAGE * len(windows),
                    "lazy_offload": lazy,
                    **(extra or {}),
                },
            }
        self.config = config = vllm_config(max_len, budget, seqs, asynchronous, transfer)
        config.scheduler_config.disable_hybrid_kv_cache_manager = not hybrid
        config.cache_config.num_gpu_blocks = gpu_blocks
        if drafts:
            config.speculative_config = drafting(drafts, config.model_config)
        self.drafts = drafts
        self.ahead = 1 if asynchronous else 0
        """Steps that are dispatched before the output of the one before is processed."""
        self.caches = kinds = kv_caches(gpu_blocks, windows)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        kind: Any = AsyncScheduler if asynchronous else Scheduler
        self.scheduler = kind(
            **_accepted(
                Scheduler.__init__,
                vllm_config=config,
                kv_cache_config=kinds,
                structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK,
                hash_block_size=BLOCK,
                log_stats=False,
            )
        )
        self.connector = self.scheduler.connector
        self.params = SamplingParams
        self.stores: deque[tuple[int, int]] = deque()
        """Of each store under way: which connector's it is, and its number."""
        self.failing: set[int] = set()
        self.failed: set[int] = set()
        """GPU blocks that the workers report as not loaded with the next output."""
        self.loads: deque[tuple[int, list[str]]] = deque()
        self.outputs: deque[Any] = deque()
        self.sampling: deque[set[str]] = deque()
        """Of each step in flight: the requests that get a token from it."""
        self.next_token = 1

    def add(self, id_: str, prompt: list[int], new: int = 4, **named: Any) -> Any:
        """A request of ``prompt`` that ends after ``new`` tokens."""
        from vllm.v1.request import Request

        params = self.params(max_tokens=new, ignore_eos=True)
        request = _made(
            Request,
            request_id=id_,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            eos_token_id=999,
            block_hasher=self.hasher,
            **named,
        )
        self.scheduler.add_request(request)
        return request

    def dispatch(self) -> Any:
        """Schedule a step."""
        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        self.several = hasattr(meta, "metadata")
        for number, part in enumerate(meta.metadata if self.several else [meta]):
            if not hasattr(part, "store_event"):
                continue
            if part.store_event >= 0:
                self.stores.append((number, part.store_event))
            if part.load_event >= 0:
                self.loads.append((part.load_event, list(part.load_event_to_reqs[part.load_event])))
        self.outputs.append(output)
        self.sampling.append({id_ for id_ in output.num_scheduled_tokens if self.samples(id_)})
        return output

    def samples(self, id_: str) -> bool:
        """Whether the step that was just scheduled computes the last token of a request."""
        request = self.scheduler.requests[id_]
        if hasattr(request, "is_prefill_chunk"):
            return not request.is_prefill_chunk
        return bool(request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders)

    def process(self, stores: int = 1 << 30, loads: int = 1 << 30) -> Any:
        """The oldest step's output, with so many transfers that are over."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.outputs.popleft()
        sampling = self.sampling.popleft()
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for id_ in ids:
            done = id_ in sampling
            tried = output.scheduled_spec_decode_tokens.get(id_, ())
            count = 1 + self.next_token % (len(tried) + 1) if done else 0
            sampled.append([(self.next_token + more) % 900 + 1 for more in range(count)])
            self.next_token += 1
        received: set[str] = set()
        for _ in range(min(loads, len(self.loads))):
            received.update(self.loads.popleft()[1])
        over = [self.stores.popleft() for _ in range(min(stores, len(self.stores)))]
        meta = self.worker_meta(over) if over else None
        failed, self.failed = self.failed, set()
        runner = _made(
            ModelRunnerOutput,
            req_ids=ids,
            req_id_to_index={id_: at for at, id_ in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(
                finished_recving=received or None, kv_connector_worker_meta=meta, invalid_block_ids=failed
            ),
        )
        result = self.scheduler.update_from_output(output, runner)
        if self.drafts and not self.ahead:
            from vllm.v1.outputs import DraftTokenIds

            going = [id_ for id_ in ids if id_ in self.scheduler.requests]
            drafted = [[5 + more for more in range(self.drafts)] for _ in going]
            self.scheduler.update_draft_token_ids(DraftTokenIds(going, drafted))
        return result

    def worker_meta(self, over: list[tuple[int, int]]) -> Any:
        """What the workers report of stores that are over."""
        from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

        by: dict[int, dict[int, int]] = {}
        for number, event in over:
            by.setdefault(number, {})[event] = 1
        parts = {
            number: SimpleCPUOffloadWorkerMetadata(completed_store_events=done) for number, done in by.items()
        }
        if not self.several:
            return parts[0]
        from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
            MultiKVConnectorWorkerMetadata,
        )

        return MultiKVConnectorWorkerMetadata(metadata=(parts.get(0), parts.get(1)))

    def step(self, **named: int) -> Any:
        """One step from beginning to end."""
        self.dispatch()
        return self.process(**named)

    def run(self, most: int = 200, **named: int) -> int:
        """Steps until no request is left; how many it took."""
        for number in range(most):
            if not self.scheduler.requests and not self.stores and not self.loads:
                return number
            self.step(**named)
        return most
