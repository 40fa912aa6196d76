"""Prometheus metrics of guards: right, few, and without any effect on the guard."""

import pytest

from kvfence.checker.ledger.guard.gauges import MOST_POOLS, GuardCollector
from kvfence.checker.ledger.guard.guard import Guard
from kvfence.spec import events as ev

prometheus_client = pytest.importorskip("prometheus_client")
HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 8)))


def test_a_scrape_tells_what_the_guard_knows() -> None:
    registry = prometheus_client.CollectorRegistry()
    guard = Guard("count", HEADER)
    GuardCollector(registry).add(guard, "3")
    guard.batch([ev.Alloc("gpu", "op:0.0", [1, 2]), ev.Alloc("cpu", "op:0.0", [1]), ev.Evict("gpu", [3])])
    guard.batch(
        [ev.Queue(0, 0, "store", "gpu", [1], "cpu", [1], [7]), ev.Evict("gpu", [3]), ev.Alloc("x", "", [])]
    )

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(f"kvfence_{name}", {"engine": "3"} | labels)
        return found

    assert value("events_total") == 6
    assert value("violations_total", invariant="CONSERVE") == 2
    assert value("faults_total", invariant="CONSERVE") == 1
    assert value("violations_total", invariant="PIN") == 0
    assert value("internal_errors_total") == 1
    assert value("held_slots", pool="gpu") == 2
    assert value("open_transfers", kind="store") == 1
    assert value("verdict", verdict="violated") == 1
    assert value("verdict", verdict="holds") == 0
    assert value("guard_on") == 1


def test_a_guard_that_is_gone_is_not_published() -> None:
    registry = prometheus_client.CollectorRegistry()
    GuardCollector(registry).add(Guard("count", HEADER))
    assert registry.get_sample_value("kvfence_guard_on", {"engine": "0"}) is None


def test_the_number_of_labels_is_bounded() -> None:
    registry = prometheus_client.CollectorRegistry()
    guard = Guard(
        "count", ev.Header(producer="test", pools=tuple(ev.Pool(f"pool{n}", 4) for n in range(100)))
    )
    GuardCollector(registry).add(guard)
    pools = [sample for family in registry.collect() for sample in family.samples if "pool" in sample.labels]
    assert len(pools) == MOST_POOLS
