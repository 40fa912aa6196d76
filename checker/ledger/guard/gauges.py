"""What guards know, published for Prometheus: asked when it is scraped, so that keeping it costs nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kvfence.checker.ledger.guard.guard import Guard
from kvfence.spec.catalog import BY_ID

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

MOST_POOLS: Final = 16
"""Pools with a label of their own; there are never more in practice, and labels must stay few."""


class GuardCollector:
    """Publishes guards in ``registry`` (the default one if None) as ``kvfence_*``. Needs prometheus-client.

    A guard is added under the label ``engine``. Other labels are the invariants, the names of its pools (16
    at most), the two kinds of transfers, the three verdicts, and how recordings went. A guard that is gone is
    not published any more.

    >>> from prometheus_client import CollectorRegistry
    >>> registry, guard = CollectorRegistry(), Guard("count")
    >>> GuardCollector(registry).add(guard)
    >>> registry.get_sample_value("kvfence_guard_on", {"engine": "0"})
    1.0
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        self._guards: weakref.WeakValueDictionary[str, Guard] = weakref.WeakValueDictionary()
        (registry if registry is not None else REGISTRY).register(self)

    def add(self, guard: Guard, engine: str = "0") -> None:
        """Publish ``guard`` as that of ``engine``, instead of the one before."""
        self._guards[engine] = guard

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The present values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"kvfence_{name}", text, labels=("engine", *labels))

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"kvfence_{name}", text, labels=("engine", *labels))

        events = counter("events", "Events judged.")
        checks = counter("checks", "Events that were judged by an invariant.", "invariant")
        violations = counter("violations", "Events that broke an invariant, repetitions too.", "invariant")
        faults = counter("faults", "Different faults.", "invariant")
        errors = counter("internal_errors", "Errors of kvfence itself; each makes the verdict undetermined.")
        recordings = counter("recordings", "Recordings of the last events.", "outcome")
        on = gauge("guard_on", "1 if events are judged, 0 if the guard is off.")
        verdict = gauge("verdict", "1 for the present verdict.", "verdict")
        gaps = gauge("not_checked", "Things that were not checked.")
        held = gauge("held_slots", "Slots that somebody holds.", "pool")
        transfers = gauge("open_transfers", "Transfers that are not complete.", "kind")
        requests = gauge("requests", "Request generations that are not gone.")
        for engine, guard in sorted(self._guards.items()):
            facts = guard.facts()
            events.add_metric((engine,), facts.events)
            counts = (checks, facts.checks), (violations, facts.violations), (faults, facts.faults)
            for family, known in counts:
                for invariant in BY_ID:  # zeros too: a series that is there can be watched
                    family.add_metric((engine, invariant), known.get(invariant, 0))
            errors.add_metric((engine,), facts.internal_errors)
            recordings.add_metric((engine, "written"), facts.recordings)
            recordings.add_metric((engine, "failed"), facts.recording_failures)
            on.add_metric((engine,), float(facts.on))
            for one in ("holds", "violated", "undetermined"):
                verdict.add_metric((engine, one), float(facts.verdict == one))
            gaps.add_metric((engine,), len(facts.gaps))
            for pool, count in sorted(facts.held.items())[:MOST_POOLS]:
                held.add_metric((engine, pool), count)
            for kind, count in facts.open_transfers.items():
                transfers.add_metric((engine, kind), count)
            requests.add_metric((engine,), facts.requests)
        yield from (events, checks, violations, faults, errors, recordings)
        yield from (on, verdict, gaps, held, transfers, requests)
