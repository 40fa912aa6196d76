"""PROGRESS: no step, end or copy for 77 steps: 3 WAITING, 4 WAITING_FOR_REMOTE_KVS; with blocks: 3, 4;
3 GPU blocks are free.

Seen in vLLM 0.33.0 with OffloadingConnector, by kvfence audit; needs no GPU.
The calls below are the shortest that show it; copies end when they are reported here.
"""

from __future__ import annotations

import contextlib
import tempfile
from types import SimpleNamespace
from typing import Any, Final

import copy
import importlib
import inspect
import json
import os
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("KVFENCE_SCRATCH", tempfile.mkdtemp())
Setup = Any

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


def the(module: str) -> Any:
    """A module of vLLM."""
    return importlib.import_module(f"vllm.{module}" if module else "vllm")


def fitting(function: Any, **arguments: Any) -> Any:
    """Calls ``function`` with those of ``arguments`` that it knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def only(cls: Any, **arguments: Any) -> Any:
    """Makes a ``cls``, a dataclass perhaps without a plain signature, with the fields that it has."""
    known = set(inspect.signature(cls).parameters) | set(getattr(cls, "__dataclass_fields__", ()))
    return cls(**{name: value for name, value in arguments.items() if name in known})


def has_parameter(function: Any, name: str) -> bool:
    """Whether ``function`` can be called with ``name``."""
    return name in inspect.signature(function).parameters


@lru_cache(maxsize=1)
def model_config(longest: int = 4096) -> Any:
    """A tiny Llama that nobody loads."""
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
    return the("config").ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=longest,
        seed=0,
    )


@lru_cache(maxsize=64)
def _plain_config(budget: int, running: int, chunked: bool, priority: bool) -> Any:
    config = the("config")
    model = model_config()
    scheduler = only(
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
    cache = only(config.CacheConfig, block_size=16, enable_prefix_caching=True)
    return config.VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=only(config.DeviceConfig, device="cpu"),
    )


def page_bytes(setup: Setup) -> int:
    """Bytes of a block in one layer: one number of 8 bytes for each token."""
    return setup.block_size * 8


def kv_cache_config(setup: Setup) -> Any:
    """The KV cache: one layer a group, all over the same memory."""
    interface = the("v1.kv_cache_interface")
    import torch

    groups, names = [], []
    for number, window in enumerate(setup.windows):
        kind = interface.SlidingWindowSpec if window else interface.FullAttentionSpec
        size = {"block_size": setup.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        spec = only(kind, **size, **({"sliding_window": window} if window else {}))
        assert spec.page_size_bytes == page_bytes(setup)
        names.append(LAYER.format(number))
        groups.append(interface.KVCacheGroupSpec([names[-1]], spec))
    total = page_bytes(setup) * setup.gpu_blocks
    if has_parameter(interface.KVCacheTensor, "shared_by"):
        tensors = [only(interface.KVCacheTensor, size=total, shared_by=names)]
    else:
        # Groups overlay each other: a block belongs to one group at a time.
        tensors = [
            only(
                interface.KVCacheTensor,
                size=total,
                layers=[name],
                layer_stride=total,
                block_stride=page_bytes(setup),
                offset=0,
            )
            for name in names
        ]
    return only(
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
    config = the("config")
    return only(
        config.SpeculativeConfig,
        method="ngram",
        num_speculative_tokens=drafts,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_model_config=model_config(),
        target_parallel_config=config.ParallelConfig(),
    )


def _transfer_config(setup: Setup, connector: str) -> Any:
    config = the("config").KVTransferConfig
    each = page_bytes(setup) * setup.cpu_blocks
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
            "disk_path": str(Path(os.environ["KVFENCE_SCRATCH"]) / "blocks"),
            "disk_capacity_bytes": each,
            "use_page_cache": True,
        }
    # Copies make the engine a consumer, too: it loads what it stored.
    name, _, module = connector.partition("@")
    if name == OFFLOADING:
        # A block of its tier takes a page of memory at least, and it knows neither laziness nor our disk.
        extra = {"cpu_bytes_to_use": max(page_bytes(setup), PAGE) * setup.cpu_blocks}
    named = {"kv_connector": name, "kv_role": "kv_both"}
    if module:
        named["kv_connector_module_path"] = module
    if not setup.second_connector:
        return only(config, **named, kv_connector_extra_config=extra)
    if not _both_can_be():
        raise NotInThisRelease("this release cannot have two connectors with hybrid groups")
    smaller = {**extra, "cpu_bytes_to_use": extra["cpu_bytes_to_use"] // 2 or 1}
    smaller["cpu_bytes_to_use_per_rank"] = each // 2 or 1
    both = [{**named, "kv_connector_extra_config": one} for one in (extra, smaller)]
    return only(
        config,
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": both},
    )


@lru_cache(maxsize=1)
def _has_disk() -> bool:
    simple = the("distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector")
    return "disk_path" in inspect.getsource(simple)


@lru_cache(maxsize=1)
def _both_can_be() -> bool:
    base = the("distributed.kv_transfer.kv_connector.v1")
    multi = the("distributed.kv_transfer.kv_connector.v1.multi_connector").MultiConnector
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
        kind = the("v1.core.sched.async_scheduler").AsyncScheduler
    else:
        kind = the("v1.core.sched.scheduler").Scheduler
    manager = the("v1.structured_output").StructuredOutputManager
    arguments = {
        "vllm_config": made,
        "kv_cache_config": caches,
        "structured_output_manager": manager.__new__(manager),
        "block_size": setup.block_size,
        "hash_block_size": setup.block_size,
        "log_stats": False,
    }
    known = inspect.signature(the("v1.core.sched.scheduler").Scheduler.__init__).parameters
    return kind(**{name: value for name, value in arguments.items() if name in known})


def worker_connector(made: Any, caches: Any) -> Any:
    """The worker side of the connector."""
    factory = the("distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    role = the("distributed.kv_transfer.kv_connector.v1.base").KVConnectorRole.WORKER
    return fitting(factory.create_connector, config=made, role=role, kv_cache_config=caches)


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
    utils = the("v1.core.kv_cache_utils")
    sha256 = the("utils.hashing").sha256
    utils.init_none_hash(sha256)
    return utils.get_request_block_hasher(block_size, sha256)


def request_of(setup: Setup, name: str, prompt: list[int], most: int, stop: int | None, priority: int) -> Any:
    """A request; ``stop``: the token that ends it, if one does."""
    params = the("").SamplingParams
    sampling = params(
        max_tokens=most, min_tokens=0, ignore_eos=True, stop_token_ids=[stop] if stop is not None else None
    )
    # What the tokenizer-bound front end of vLLM would have filled in.
    if stop is not None and hasattr(sampling, "_all_stop_token_ids"):
        sampling._all_stop_token_ids = {stop}
    return fitting(
        the("v1.request").Request,
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        eos_token_id=None,
        arrival_time=float(name),
        priority=priority,
        block_hasher=hasher(setup.block_size),
    )


SETUP = SimpleNamespace(**{'block_size': 2, 'gpu_blocks': 26, 'cpu_blocks': 109, 'windows': (0, 8), 'lazy': False, 'depth': 1, 'ranks': 1, 'stages': 1, 'token_budget': 4, 'max_running': 4, 'chunked': True, 'priority': True, 'drafts': 0, 'tier': 'cpu', 'delay': 4, 'launch_delay': 0, 'fail_rate': 0.0, 'repeat_rate': 0.0, 'second_connector': False, 'seed': 0})
CONNECTOR = 'OffloadingConnector'
REQUEST, GROUP = '0', 0
CALLS = [
    ('add', '0', [32868, 32869], 1, None, 1),
    ('add', '1', [36964, 36965, 36966, 36967, 36968, 36969, 36970, 36971, 36972, 36973, 36974, 36975, 36976], 9, 3, 0),
    ('add', '2', [4196, 4197, 4198, 4199, 4200, 4201, 4202, 4203, 4204, 4205, 4206, 4207, 4208, 4209, 4210, 4211, 41060, 41061], 1, None, 0),
    ('add', '3', [36964, 36965, 36966, 36967, 36968, 36969, 36970, 36971, 36972, 36973, 36974, 36975, 36976, 3, 45156], 7, 3, 2),
    ('add', '4', [4196, 4197, 4198, 4199, 4200, 4201, 4202, 4203, 4204, 4205, 4206, 4207, 4208, 4209, 4210, 4211, 4212, 4213], 1, None, 2),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], [[0, 1]]),
    ('schedule',),
    ('update', {'1': [3]}, [], [[1, 1]]),
    ('schedule',),
    ('update', {}, [], [[2, 1]]),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], [[3, 1]]),
    ('schedule',),
    ('update', {}, [], [[4, 1]]),
    ('schedule',),
    ('update', {'2': [43108], '0': [34916]}, [], [[5, 1]]),
    ('schedule',),
    ('update', {}, [], [[6, 1]]),
    ('schedule',),
    ('update', {}, ['3'], [[7, 1], [8, 1], [9, 1]]),
    ('schedule',),
    ('update', {}, ['4'], [[10, 1]]),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
    ('schedule',),
    ('update', {}, [], []),
]


class Hooks:
    def looked_up(self, request, promised): ...
    def scheduled(self, output): ...
    def called(self): ...
    def ended(self): ...


class Checked(Hooks):
    """The scheduler and its connector, called as an engine calls them; hooks check what must hold."""

    def __init__(self):
        self.config = vllm_config(SETUP, CONNECTOR)
        self.scheduler = scheduler_of(SETUP, self.config, kv_cache_config(SETUP))
        self.requests, self.in_flight, self.stores, self.hit, self.idle = {}, [], {}, [], 0
        for connector in self.connectors():
            self.watch(connector)

    def connectors(self):
        top = self.scheduler.connector
        return list(getattr(top, "_connectors", None) or [top])

    def connector_pools(self):
        return []  # Its tier has ledger state of its own.

    def pools(self):
        gpu = self.scheduler.kv_cache_manager.block_pool
        return [("GPU", gpu)] + [("CPU", pool) for pool in self.connector_pools()]

    def watch(self, connector): ...

    def ended(self):
        """All requests must come to an end."""
        left = {name: request.status.name for name, request in self.scheduler.requests.items()}
        assert not left, f"no step and no copy for many steps, and these still wait: {left}"

    def add(self, name, prompt, most, stop, priority):
        self.requests[name] = request_of(SETUP, name, list(prompt), most, stop, priority)
        self.scheduler.add_request(self.requests[name])

    def abort(self, name):
        self.scheduler.finish_requests(name, the("v1.request").RequestStatus.FINISHED_ABORTED)

    def reset(self, running, tier):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            fitting(self.scheduler.reset_prefix_cache, reset_running_requests=running, reset_connector=tier)

    def schedule(self):
        output = self.scheduler.schedule()
        self.in_flight.append(output)
        self.scheduled(output)
        meta = output.kv_connector_metadata
        if getattr(meta, "store_event", -1) >= 0:
            self.stores[meta.store_event] = list(meta.store_gpu_blocks)

    def draft(self, names, count):
        guesses = [[5] * count for _ in names]
        self.scheduler.update_draft_token_ids(the("v1.outputs").DraftTokenIds(names, guesses))

    def update(self, sampled, loaded, stored):
        output = self.in_flight.pop(0)
        outputs = the("v1.outputs")
        meta = the("distributed.kv_transfer.kv_connector.v1.offloading.common").OffloadingWorkerMetadata(dict(stored))
        for event, _ in stored:
            self.stores.pop(event, None)
        connector = outputs.KVConnectorOutput(
            finished_recving=set(loaded) or None, kv_connector_worker_meta=meta if stored else None
        )
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            outputs.ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[sampled.get(name, []) for name in names],
                kv_connector_output=connector,
            ),
        )

    def play(self):
        for name, *arguments in CALLS:
            getattr(self, name)(*arguments)
            self.called()
        self.ended()


def test_requests_wait_one_of_them_for_a_load():
    Checked().play()


if __name__ == "__main__":
    test_requests_wait_one_of_them_for_a_load()
