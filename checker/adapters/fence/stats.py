"""kvfence's figures on vLLM's own path for connector statistics: ``vllm:kvfence_*`` in Prometheus.

The payload says by itself which connector is wrapped: vLLM rebuilds it in another process, from the class of
the configured connector alone.
"""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (  # type: ignore[import-not-found]
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvfence.spec import catalog

INNER: Final = "inner"
INNER_CLASS: Final = "inner_class"
FENCE: Final = "kvfence"
SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
"""The sides of a connector, which may be in different processes: each reports its own figures."""
INVARIANTS: Final = tuple(each.id for each in catalog.INVARIANTS)
"""The values that the label ``invariant`` can have."""


def class_path(kind: type) -> str:
    """Where a class can be imported from."""
    return f"{kind.__module__}:{kind.__qualname__}"


def class_at(path: str) -> Any:
    """The class that :func:`class_path` named."""
    module, _, name = path.partition(":")
    return attrgetter(name)(importlib.import_module(module))


@dataclass
class FencedStats(KVConnectorStats):  # type: ignore[misc]
    """Figures of the fence since they were last asked for, beside those of the wrapped connector."""

    def inner(self) -> Any:
        """The wrapped connector's figures, None if there are none."""
        data, path = self.data.get(INNER), self.data.get(INNER_CLASS)
        return class_at(path).build_kv_connector_stats(data) if data and path else None

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> FencedStats:
        """Add what ``other`` has: violations and events add up.

        The state of a side, its internal errors and whether something is undetermined, is the worst one:
        there may be several workers.
        """
        if not isinstance(other, FencedStats):
            return self
        mine, theirs = self.inner(), other.inner()
        together = theirs if mine is None else mine if theirs is None else mine.aggregate(theirs)
        data: dict[str, Any] = {}
        path = self.data.get(INNER_CLASS) or other.data.get(INNER_CLASS)
        if together is not None:
            data[INNER] = together.to_dict() if hasattr(together, "to_dict") else together.data
            data[INNER_CLASS] = path
        fences = [stats.data[FENCE] for stats in (self, other) if stats.data.get(FENCE)]
        if fences:
            violations: Counter[str] = Counter()
            state: dict[str, list[int]] = {}
            for fence in fences:
                violations.update(fence["violations"])
                for side, figures in fence["state"].items():
                    known = state.get(side, figures)
                    state[side] = [max(pair) for pair in zip(known, figures, strict=True)]
            events = sum(fence["events"] for fence in fences)
            data[FENCE] = {"violations": dict(violations), "state": state, "events": events}
        self.data = data
        return self

    def reduce(self) -> dict[str, Any]:
        """A line for the log."""
        inner = self.inner()
        shown: dict[str, Any] = {} if inner is None else dict(inner.reduce())
        fence = self.data.get(FENCE)
        if fence:
            shown["kvfence violations"] = sum(fence["violations"].values())
            if any(undetermined for _, undetermined in fence["state"].values()):
                shown["kvfence undetermined"] = 1
        return shown

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not self.data.get(FENCE) and not self.data.get(INNER)


class FencedPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Prometheus metrics of the fence, and those of the wrapped connector."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        inner: Any,
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._inner = inner
        self._engines = {
            engine: [str(value) for value in values] for engine, values in per_engine_labelvalues.items()
        }

        def metric(kind: Any, name: str, documentation: str, *more_labels: str) -> Any:
            labels = [*labelnames, *more_labels]
            return kind(name=f"vllm:kvfence_{name}", documentation=documentation, labelnames=labels)

        counter, gauge = self._counter_cls, self._gauge_cls
        broken = "Times that an invariant of KV-cache offloading was broken."
        self._violations = metric(counter, "violations", broken, "invariant")
        judged = "Events of the KV-cache offload connector that were judged."
        self._events = metric(counter, "events", judged)
        errors = "Exceptions inside kvfence; it stops to judge after a few."
        self._errors = metric(gauge, "internal_errors", errors)
        unknown = "1 when something could not be checked, so that no violation means nothing."
        self._undetermined = metric(gauge, "undetermined", unknown)
        self._state: dict[int, dict[str, list[int]]] = {}
        """Of each engine's sides: what was reported last."""
        for values in self._engines.values():
            for invariant in INVARIANTS:
                self._violations.labels(*values, invariant)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one payload of :class:`FencedStats`."""
        values = self._engines[engine_idx]
        fence = transfer_stats_data.get(FENCE)
        if fence:
            for invariant, count in fence["violations"].items():
                if count > 0 and invariant in INVARIANTS:
                    self._violations.labels(*values, invariant).inc(count)
            if fence["events"] > 0:
                self._events.labels(*values).inc(fence["events"])
            state = self._state.setdefault(engine_idx, {})
            state.update(fence["state"])
            self._errors.labels(*values).set(max(errors for errors, _ in state.values()))
            self._undetermined.labels(*values).set(max(unknown for _, unknown in state.values()))
        inner = transfer_stats_data.get(INNER)
        if inner and self._inner is not None:
            self._inner.observe(inner, engine_idx)
