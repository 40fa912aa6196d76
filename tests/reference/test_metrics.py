"""Transfer metrics: totals per direction, and the same under vLLM's names for Prometheus."""

import numpy as np
import pytest

from kvfence.reference.blocks.workload import RequestSpec
from kvfence.reference.device.metrics import Moved, PoolLevel, Prometheus, TransferMetrics
from kvfence.reference.engine import Engine
from kvfence.reference.published import publish
from kvfence.reference.scheduler.options import Options


def test_totals_are_kept_per_direction():
    metrics = TransferMetrics()
    metrics.transfer("store", 4 * 10**9, 0.1)
    metrics.transfer("store", 10**9, 0.1)
    metrics.transfer("load", 7, 0.0)
    assert metrics.moved["store"] == Moved(2, 5 * 10**9, pytest.approx(0.2))
    assert metrics.moved["store"].rate == pytest.approx(25.0)
    assert metrics.moved["load"].rate == 0.0


def test_prometheus_sees_transfers_and_asks_for_levels_when_scraped():
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    level, waiting = PoolLevel(100, 30), {"store": 2, "load": 1}
    published = Prometheus(
        registry, model="m", pools={"cpu": lambda: level}, pending=lambda kind: waiting[kind]
    )
    metrics = TransferMetrics(sinks=[published.transfer])
    metrics.transfer("store", 6 * 10**6, 0.5)
    metrics.transfer("load", 100, 0.25)

    def value(name, **labels):
        return registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})

    stored = {"transfer_type": "GPU_to_CPU"}
    assert value("vllm:kv_offload_total_bytes_total", **stored) == 6 * 10**6
    assert value("vllm:kv_offload_total_time_total", transfer_type="CPU_to_GPU") == 0.25
    assert value("vllm:kv_offload_size_bucket", le="5e+06", **stored) == 0
    assert value("vllm:kv_offload_size_bucket", le="1e+07", **stored) == 1
    assert value("vllm:kv_offload_store_bytes_total") == 6 * 10**6
    assert value("vllm:kv_offload_load_time_total") == 0.25
    assert value("vllm:kv_offload_load_size_count") == 1
    assert value("vllm:kv_offload_cpu_cache_usage_perc") == 0.7
    assert value("vllm:kv_offload_pool_blocks", pool="cpu", state="used") == 70
    level.free, waiting["store"] = 0, 9
    assert value("vllm:kv_offload_pool_blocks", pool="cpu", state="used") == 100
    assert value("vllm:kv_offload_pending_transfers", **stored) == 9


def test_a_running_engine_publishes_its_transfers_and_pools():
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    requests = [RequestSpec(i, 64, 4, np.arange(4, dtype=np.int64), 64, span=16) for i in range(3)]
    options = Options(gpu_blocks=8, cpu_blocks=32, block_size=16, max_delay=3)
    engine = Engine(options, iter(requests))
    publish(engine, registry)
    waiting = 0.0
    for _ in engine.rounds():
        for way in ("GPU_to_CPU", "CPU_to_GPU"):
            labels = {"model_name": "", "engine": "0", "transfer_type": way}
            waiting += registry.get_sample_value("vllm:kv_offload_pending_transfers", labels)
    labels = {"model_name": "", "engine": "0"}
    moved = engine.device.metrics.moved
    assert registry.get_sample_value("vllm:kv_offload_store_bytes_total", labels) == moved["store"].nbytes > 0
    assert waiting > 0
    assert registry.get_sample_value("vllm:kv_offload_cpu_cache_usage_perc", labels) == 0
