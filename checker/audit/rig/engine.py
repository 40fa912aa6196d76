"""A real vLLM scheduler and connector around a virtual GPU, built the same way for every release.

What differs between releases is found by looking at signatures. Only what runs on a GPU is replaced:
the model (``rig/runner.py``) and CUDA (``cuda_stub/stub_modules.py``).
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvfence.checker.audit.cases.case import Setup

LAYER: Final = "model.layers.{}.self_attn.attn"
SIMPLE: Final = "SimpleCPUOffloadConnector"
OFFLOADING: Final = "OffloadingConnector"
PAGE: Final = 4096
"""Bytes that a block of its tier takes at least."""
CUDA_USERS: Final = (
    "vllm.v1.simple_kv_offload.worker",
    "vllm.v1.simple_kv_offload.copy_backend",
    "vllm.v1.simple_kv_offload.disk_backend",
    "vllm.v1.simple_kv_offload.cuda_mem_ops",
)
"""Modules of connectors that use CUDA, where a release has them."""


class NotInThisRelease(Exception):  # noqa: N818 - what the release lacks
    """A setup asks for what this release does not have."""


def vllm_module(module: str) -> Any:
    """The module of vLLM with this name."""
    return importlib.import_module(f"vllm.{module}" if module else "vllm")


def call_with_known(function: Any, **arguments: Any) -> Any:
    """Calls ``function`` with those of ``arguments`` that it knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def construct(cls: Any, **arguments: Any) -> Any:
    """Makes a ``cls`` with those of ``arguments`` that it has; a dataclass may hide its signature."""
    known = set(inspect.signature(cls).parameters) | set(getattr(cls, "__dataclass_fields__", ()))
    return cls(**{name: value for name, value in arguments.items() if name in known})


def has_parameter(function: Any, name: str) -> bool:
    """Whether ``function`` can be called with ``name``."""
    return name in inspect.signature(function).parameters


@lru_cache(maxsize=1)
def model_config(longest: int = 4096) -> Any:
    """A tiny Llama that is never loaded."""
    folder = Path(os.environ["KVFENCE_SCRATCH"]) / "model"
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 1 << 20,
        "max_position_embeddings": longest,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return vllm_module("config").ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=longest,
        seed=0,
    )


@lru_cache(maxsize=64)
def _plain_config(budget: int, running: int, chunked: bool, priority: bool) -> Any:
    config = vllm_module("config")
    model = model_config()
    scheduler = construct(
        config.SchedulerConfig,
        max_model_len=model.max_model_len,
        is_encoder_decoder=False,
        max_num_batched_tokens=budget if chunked else max(budget, model.max_model_len),
        max_num_seqs=min(running, budget),
        enable_chunked_prefill=chunked,
        policy="priority" if priority else "fcfs",
        async_scheduling=False,
        watermark=0.0,
    )
    cache = construct(config.CacheConfig, block_size=16, enable_prefix_caching=True)
    return config.VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=construct(config.DeviceConfig, device="cpu"),
    )


def page_bytes(setup: Setup) -> int:
    """Bytes of a block in one layer: one number of 8 bytes for each token."""
    return setup.block_size * 8


def kv_cache_config(setup: Setup) -> Any:
    """The KV cache: one layer a group, all over the same memory."""
    interface = vllm_module("v1.kv_cache_interface")
    import torch

    groups, names = [], []
    for number, window in enumerate(setup.windows):
        kind = interface.SlidingWindowSpec if window else interface.FullAttentionSpec
        size = {"block_size": setup.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        spec = construct(kind, **size, **({"sliding_window": window} if window else {}))
        if spec.page_size_bytes != page_bytes(setup):
            raise AssertionError(f"a page has {spec.page_size_bytes} bytes, not {page_bytes(setup)}")
        names.append(LAYER.format(number))
        groups.append(interface.KVCacheGroupSpec([names[-1]], spec))
    total = page_bytes(setup) * setup.gpu_blocks
    if has_parameter(interface.KVCacheTensor, "shared_by"):
        tensors = [construct(interface.KVCacheTensor, size=total, shared_by=names)]
    else:
        # Groups overlay each other: a block belongs to one group at a time.
        tensors = [
            construct(
                interface.KVCacheTensor,
                size=total,
                layers=[name],
                layer_stride=total,
                block_stride=page_bytes(setup),
                offset=0,
            )
            for name in names
        ]
    return construct(
        interface.KVCacheConfig,
        num_blocks=setup.gpu_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=groups,
        hash_block_size=setup.block_size,
        cache_hit_alignment_tokens=setup.block_size,
    )


def vllm_config(setup: Setup, connector: str | None) -> Any:
    """The configuration of an engine with ``setup`` and ``connector``, or without one."""
    plain = _plain_config(setup.token_budget, setup.max_running, setup.chunked, setup.priority)
    made = copy.copy(plain)
    made.scheduler_config = copy.copy(plain.scheduler_config)
    made.cache_config = copy.copy(plain.cache_config)
    made.parallel_config = copy.copy(plain.parallel_config)
    made.scheduler_config.async_scheduling = setup.depth > 1
    made.scheduler_config.disable_hybrid_kv_cache_manager = False
    made.cache_config.block_size = setup.block_size
    made.cache_config.num_gpu_blocks = setup.gpu_blocks
    made.parallel_config.tensor_parallel_size = setup.ranks
    made.parallel_config.pipeline_parallel_size = setup.stages
    made.parallel_config.world_size = setup.ranks * setup.stages
    if setup.drafts:
        made.speculative_config = _drafting(setup.drafts)
    made.kv_transfer_config = _transfer_config(setup, connector) if connector else None
    return made


@lru_cache(maxsize=8)
def _drafting(drafts: int) -> Any:
    """N-gram drafting, which needs no model of its own."""
    config = vllm_module("config")
    return construct(
        config.SpeculativeConfig,
        method="ngram",
        num_speculative_tokens=drafts,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_model_config=model_config(),
        target_parallel_config=config.ParallelConfig(),
    )


def _transfer_config(setup: Setup, connector: str) -> Any:
    """``connector``: a name, NAME@MODULE, or several with + between them, for a MultiConnector."""
    config = vllm_module("config").KVTransferConfig
    names = connector.split("+")
    if setup.second_connector and len(names) == 1:
        names *= 2
    several = [_one_connector(setup, name, number) for number, name in enumerate(names)]
    if len(several) == 1:
        return construct(config, **several[0])
    if not _both_can_be():
        raise NotInThisRelease("this release cannot have two connectors with hybrid groups")
    return construct(
        config,
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": several},
    )


def _one_connector(setup: Setup, connector: str, number: int) -> dict[str, Any]:
    """What configures a connector; all but the first of several have half of its memory."""
    name, _, module = connector.partition("@")
    page = max(page_bytes(setup), PAGE) if name == OFFLOADING else page_bytes(setup)
    each = page * setup.cpu_blocks // (2 if number else 1) or 1
    # Copies make the engine a consumer, too: it loads what it stored.
    made: dict[str, Any] = {"kv_connector": name, "kv_role": "kv_both"}
    if module:
        made["kv_connector_module_path"] = module
    if name == OFFLOADING:
        # It knows neither lazy stores nor our disk; what it has instead is loads that its steps wait for.
        at_once = {"sync_load_budget_bytes": each} if setup.lazy else {}
        return made | {"kv_connector_extra_config": {"cpu_bytes_to_use": each, **at_once}}
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": each * setup.ranks * setup.stages,
        "cpu_bytes_to_use_per_rank": each,
        "lazy_offload": setup.lazy,
    }
    if setup.tier == "disk":
        if not _has_disk():
            raise NotInThisRelease("this release has no disk backend")
        extra |= {
            "kv_offload_backend": "disk",
            "disk_path": str(Path(os.environ["KVFENCE_SCRATCH"]) / f"blocks-{number}"),
            "disk_capacity_bytes": page * setup.cpu_blocks,
            "use_page_cache": True,
        }
    return made | {"kv_connector_extra_config": extra}


@lru_cache(maxsize=1)
def _has_disk() -> bool:
    simple = vllm_module("distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector")
    return "disk_path" in inspect.getsource(simple)


@lru_cache(maxsize=1)
def _both_can_be() -> bool:
    base = vllm_module("distributed.kv_transfer.kv_connector.v1")
    multi = vllm_module("distributed.kv_transfer.kv_connector.v1.multi_connector").MultiConnector
    return issubclass(multi, base.SupportsHMA)


def batches_in_flight(setup: Setup, made: Any) -> int:
    """Steps that the engine keeps in flight, as its own code says."""
    if hasattr(type(made), "max_concurrent_batches"):
        return int(made.max_concurrent_batches)
    return 2 if setup.depth > 1 and setup.stages == 1 else setup.stages


def scheduler_of(setup: Setup, made: Any, caches: Any) -> Any:
    """The release's scheduler."""
    import torch  # noqa: F401 - vLLM needs it to be there first

    if setup.depth > 1:
        kind = vllm_module("v1.core.sched.async_scheduler").AsyncScheduler
    else:
        kind = vllm_module("v1.core.sched.scheduler").Scheduler
    manager = vllm_module("v1.structured_output").StructuredOutputManager
    arguments = {
        "vllm_config": made,
        "kv_cache_config": caches,
        "structured_output_manager": manager.__new__(manager),
        "block_size": setup.block_size,
        "hash_block_size": setup.block_size,
        "log_stats": False,
    }
    known = inspect.signature(vllm_module("v1.core.sched.scheduler").Scheduler.__init__).parameters
    return kind(**{name: value for name, value in arguments.items() if name in known})


def worker_connector(made: Any, caches: Any) -> Any:
    """The worker side of the connector."""
    factory = vllm_module("distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    role = vllm_module("distributed.kv_transfer.kv_connector.v1.base").KVConnectorRole.WORKER
    return call_with_known(factory.create_connector, config=made, role=role, kv_cache_config=caches)


def free_list_of(pool: Any) -> list[int]:
    """The blocks in the free list of ``pool``, one more than there are blocks at most: it may be a ring."""
    queue = pool.free_block_queue
    found: list[int] = []
    block = queue.fake_free_list_head.next_free_block
    while block is not None and block is not queue.fake_free_list_tail and len(found) <= len(pool.blocks):
        found.append(block.block_id)
        block = block.next_free_block
    return found


@lru_cache(maxsize=8)
def hasher(block_size: int) -> Any:
    """What hashes the blocks of a request."""
    utils = vllm_module("v1.core.kv_cache_utils")
    sha256 = vllm_module("utils.hashing").sha256
    utils.init_none_hash(sha256)
    return utils.get_request_block_hasher(block_size, sha256)


def request_of(setup: Setup, name: str, prompt: list[int], most: int, stop: int | None, priority: int) -> Any:
    """A request; ``stop``: the token that ends it, if one does."""
    params = vllm_module("").SamplingParams
    sampling = params(
        max_tokens=most, min_tokens=0, ignore_eos=True, stop_token_ids=[stop] if stop is not None else None
    )
    # What the tokenizer-bound front end of vLLM would have filled in.
    if stop is not None and hasattr(sampling, "_all_stop_token_ids"):
        sampling._all_stop_token_ids = {stop}
    return call_with_known(
        vllm_module("v1.request").Request,
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        eos_token_id=None,
        arrival_time=float(name),
        priority=priority,
        block_hasher=hasher(setup.block_size),
    )
