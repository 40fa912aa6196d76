"""A whole vLLM on the CPU with a tiny random model: the same requests without and with offloading.

    python run_engine.py none|fenced [--requests N] [--processes]

Prints one JSON object: the tokens of each request, and what happened meanwhile. ``--processes``: scheduler
and worker are in processes of their own, and only what vLLM's metrics report of them is known.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = 32
VOCABULARY = 512


def model() -> str:
    """A folder with a Llama of two layers and random weights, large enough for its attention to matter."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    where = tempfile.mkdtemp(prefix="kvfence-engine-")
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        initializer_range=0.25,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(where)
    return where


def prompts(count: int) -> list[list[int]]:
    """Prompts that share prefixes, which come back after others have displaced them."""
    rng = random.Random(3)
    heads = [[rng.randrange(1, VOCABULARY) for _ in range(6 * BLOCK)] for _ in range(12)]
    found = []
    for _ in range(count):
        head = rng.choice(heads)[: rng.randrange(2, 7) * BLOCK]
        found.append(head + [rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(8, 40))])
    return found


def figures(metric: Any) -> list[tuple[str, float]]:
    """The figures of kvfence in a metric of vLLM."""
    if not metric.name.startswith("vllm:kvfence"):
        return []
    name = metric.name.removeprefix("vllm:kvfence_")
    invariant = metric.labels.get("invariant")
    return [(f"{name} {invariant}" if invariant else name, float(metric.value))]


def main() -> None:
    """Runs the requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("none", "fenced"))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--offloading", action="store_true", help="OffloadingConnector instead")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(asked.processes))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(HERE)))
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted = 0
    preempt = Scheduler._preempt_request

    @functools.wraps(preempt)
    def counted(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal preempted
        preempted += 1
        return preempt(self, *args, **named)

    Scheduler._preempt_request = counted
    more: dict[str, Any] = {}
    if asked.side == "fenced":
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="FencedConnector",
            kv_connector_module_path="kvfence.checker.adapters.fence",
            kv_role="kv_both",
            kv_connector_extra_config={
                "kvfence_connector": {
                    "kv_connector": "HostOffloadingConnector" if asked.offloading else "HostConnector",
                    "kv_connector_module_path": "host_offloading" if asked.offloading else "host_connector",
                },
                "kvfence_mode": "count",
                "cpu_bytes_to_use": 64 << 20,
            },
        )
    if asked.processes:
        more |= {"distributed_executor_backend": "mp", "disable_log_stats": False}
    llm = LLM(
        model=model(),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        num_gpu_blocks_override=40,
        block_size=BLOCK,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        gpu_memory_utilization=0.2,
        seed=0,
        dtype="float32",
        enable_prefix_caching=True,
        **more,
    )
    params = SamplingParams(max_tokens=48, temperature=0, detokenize=False, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in prompts(asked.requests)]
    outputs = llm.generate(requests, params, use_tqdm=False)
    outcome: dict[str, Any] = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "preempted": preempted,
    }
    if asked.side == "fenced" and asked.processes:
        # Figures are reported once a second, with the output of a step.
        for _ in range(3):
            time.sleep(1.1)
            llm.generate(requests[:1], params, use_tqdm=False)
        outcome["metrics"] = {
            name: value for metric in llm.get_metrics() for name, value in figures(metric) if value
        }
    elif asked.side == "fenced":
        from host_connector import MOVED

        from kvfence.checker.adapters.vllm.runtime import active, facts

        runtime = active()
        assert runtime is not None
        workers = runtime.instrumentation.workers
        order = {"events": workers.events, "slots": workers.accesses, "not_checked": workers.unchecked}
        outcome |= {
            "moved": MOVED,
            "fence": facts(runtime),
            "not_checked": runtime.not_checked(),
            "order": order,
        }
    print("RESULT " + json.dumps(outcome))


if __name__ == "__main__":
    main()
