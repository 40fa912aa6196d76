"""What transfers moved, in how much time: counted here, and published for Prometheus if wanted.

Names and labels are those of vLLM's ``vllm:kv_offload_*`` metrics (release 0.32.0: one name per direction,
and the older names with a ``transfer_type`` label beside them), so that dashboards made for vLLM read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kvfence.spec import events as ev

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

    _Published = tuple[Counter, Counter, Histogram]

SIZES: Final = (1e6, 5e6, 1e7, 2e7, 4e7, 6e7, 8e7, 1e8, 1.5e8, 2e8)
"""Upper bounds of the histogram of transfer sizes, in bytes."""
DIRECTION: Final[Mapping[ev.Kind, str]] = {"store": "GPU_to_CPU", "load": "CPU_to_GPU"}

Sink = Callable[[ev.Kind, int, float], None]
"""Told of each transfer: direction, bytes, and seconds on the device."""


@dataclass(slots=True)
class Moved:
    """One direction: transfers that are over, their bytes, and the seconds that their copies took."""

    transfers: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """GB/s while copying."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(slots=True)
class PoolLevel:
    """Blocks of a pool at one moment."""

    total: int
    free: int

    @property
    def used(self) -> int:
        """Blocks with a holder, or that cannot be had."""
        return self.total - self.free


@dataclass(slots=True)
class TransferMetrics:
    """Totals per direction. ``seconds`` bracket the copies alone, not their preparation or their waiting."""

    moved: dict[ev.Kind, Moved] = field(default_factory=lambda: {"store": Moved(), "load": Moved()})
    sinks: list[Sink] = field(default_factory=list)

    def transfer(self, kind: ev.Kind, nbytes: int, seconds: float) -> None:
        """A transfer is over."""
        total = self.moved[kind]
        total.transfers += 1
        total.nbytes += nbytes
        total.seconds += seconds
        for sink in self.sinks:
            sink(kind, nbytes, seconds)


class Prometheus:
    """Publishes transfers and gauges in ``registry`` (the default one if None). Needs prometheus-client.

    Use :meth:`transfer` as a sink of :class:`TransferMetrics`. Gauges ask when they are scraped, so keeping
    them costs nothing: ``pools`` are functions that return a pool's level, ``pending`` how many transfers of
    a direction are not over.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        model: str = "",
        engine: str = "0",
        pools: Mapping[str, Callable[[], PoolLevel]] | None = None,
        pending: Callable[[ev.Kind], int] | None = None,
    ) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        into = registry if registry is not None else REGISTRY
        common = {"model_name": model, "engine": engine}
        labels = [*common, "transfer_type"]
        labelled = (
            Counter("vllm:kv_offload_total_bytes", "Bytes moved by KV offloading.", labels, registry=into),
            Counter(
                "vllm:kv_offload_total_time", "Seconds that KV offloading copied.", labels, registry=into
            ),
            Histogram(
                "vllm:kv_offload_size", "Bytes of a KV transfer.", labels, buckets=SIZES, registry=into
            ),
        )
        self._counters: dict[ev.Kind, tuple[_Published, _Published]] = {}
        for kind, way in DIRECTION.items():
            flat = (
                Counter(f"vllm:kv_offload_{kind}_bytes", f"Bytes of {kind}s.", [*common], registry=into),
                Counter(f"vllm:kv_offload_{kind}_time", f"Seconds {kind}s copied.", [*common], registry=into),
                Histogram(
                    f"vllm:kv_offload_{kind}_size",
                    f"Bytes of a {kind}.",
                    [*common],
                    buckets=SIZES,
                    registry=into,
                ),
            )
            self._counters[kind] = (_with(flat, *common.values()), _with(labelled, *common.values(), way))
        usage = Gauge(
            "vllm:kv_offload_cpu_cache_usage_perc",
            "Share of the CPU tier's blocks that somebody holds.",
            [*common],
            registry=into,
        )
        if pools and "cpu" in pools:
            usage.labels(*common.values()).set_function(partial(_usage, pools["cpu"]))
        blocks = Gauge(
            "vllm:kv_offload_pool_blocks",
            "Blocks of a pool.",
            [*common, "pool", "state"],
            registry=into,
        )
        for name, level in (pools or {}).items():
            for state in ("total", "free", "used"):
                blocks.labels(*common.values(), name, state).set_function(partial(_state, level, state))
        waiting = Gauge(
            "vllm:kv_offload_pending_transfers", "Transfers that are not over.", labels, registry=into
        )
        if pending is not None:
            for kind, way in DIRECTION.items():
                waiting.labels(*common.values(), way).set_function(partial(pending, kind))

    def transfer(self, kind: ev.Kind, nbytes: int, seconds: float) -> None:
        """A transfer is over."""
        for moved, took, size in self._counters[kind]:
            moved.inc(nbytes)
            took.inc(seconds)
            size.observe(nbytes)


def _with(metrics: _Published, *values: str) -> _Published:
    moved, took, size = metrics
    return moved.labels(*values), took.labels(*values), size.labels(*values)


def _usage(level: Callable[[], PoolLevel]) -> float:
    now = level()
    return now.used / now.total if now.total else 0.0


def _state(level: Callable[[], PoolLevel], state: str) -> int:
    return int(getattr(level(), state))
