"""What a running engine publishes for Prometheus: its transfers and how full its pools are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.device.metrics import PoolLevel, Prometheus
from kvfence.reference.engine import Engine
from kvfence.spec import events as ev

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def publish(engine: Engine, registry: CollectorRegistry | None = None, model: str = "") -> Prometheus:
    """Publishes what the transfers of a running ``engine`` move and how full its pools are."""
    pools = {pool.name: partial(_level, pool) for pool in (engine.gpu, engine.cpu)}
    published = Prometheus(registry, model, pools=pools, pending=partial(_pending, engine))
    engine.device.metrics.sinks.append(published.transfer)
    return published


def _level(pool: BlockPool) -> PoolLevel:
    return PoolLevel(pool.usable, pool.num_free)


def _pending(engine: Engine, kind: ev.Kind) -> int:
    return sum(1 for one in engine.connector.transfers.open.values() if one.kind == kind)
