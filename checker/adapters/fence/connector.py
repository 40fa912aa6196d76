"""A connector that puts kvfence around another one, by configuration alone.

``kv_connector="FencedConnector"``, ``kv_connector_module_path="kvfence.checker.adapters.fence"``, and in
``kv_connector_extra_config`` beside what the wrapped connector wants:

* ``kvfence_connector``: its name, or a mapping with ``kv_connector`` and ``kv_connector_module_path``;
* ``kvfence_mode``: ``log`` (as if absent), ``count``, ``raise``, or ``off``;
* ``kvfence_record``: a folder for the traces of what led to a violation.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.factory import (  # type: ignore[import-not-found]
    KVConnectorFactory,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found]
    KVConnectorBase_V1,
    SupportsHMA,
)

from kvfence.checker.adapters.fence.stats import (
    FENCE,
    INNER,
    INNER_CLASS,
    FencedPromMetrics,
    FencedStats,
    class_path,
)
from kvfence.checker.adapters.vllm.runtime import MODES, Runtime, facts, install

NAME_KEY: Final = "kvfence_connector"
MODE_KEY: Final = "kvfence_mode"
RECORD_KEY: Final = "kvfence_record"
OURS: Final = (NAME_KEY, MODE_KEY, RECORD_KEY)
STATS_EVERY: Final = 1.0
"""Seconds between two reports of figures in which nothing is wrong."""

log = logging.getLogger("kvfence.vllm")


class FenceConfigError(ValueError):
    """The configuration of a FencedConnector cannot work."""


def inner_config(transfer: Any) -> Any:
    """The transfer configuration of the wrapped connector.

    Raises FenceConfigError if ``transfer`` does not say which.
    """
    extra = dict(transfer.kv_connector_extra_config or {})
    wanted = extra.get(NAME_KEY)
    if isinstance(wanted, str) and wanted:
        name, module = wanted, None
    elif isinstance(wanted, dict) and wanted.get("kv_connector"):
        name, module = wanted["kv_connector"], wanted.get("kv_connector_module_path")
    else:
        raise FenceConfigError(
            f"FencedConnector wraps the connector that kv_connector_extra_config names as {NAME_KEY!r}, for "
            f"instance {{{NAME_KEY!r}: 'SimpleCPUOffloadConnector'}}; it names {wanted!r}"
        )
    if name == "FencedConnector":
        raise FenceConfigError(
            f"{NAME_KEY!r} names FencedConnector itself: name the connector to be observed"
        )
    mode = extra.get(MODE_KEY, "log")
    if mode not in MODES:
        raise FenceConfigError(f"{MODE_KEY!r} is {mode!r}: use one of {', '.join(MODES)}")
    inner = copy.copy(transfer)
    inner.kv_connector = name
    inner.kv_connector_module_path = module
    inner.kv_connector_extra_config = {key: value for key, value in extra.items() if key not in OURS}
    return inner


def inner_class(transfer: Any) -> Any:
    """The class of the wrapped connector. Raises FenceConfigError if there is no such class."""
    inner = inner_config(transfer)
    try:
        return KVConnectorFactory.get_connector_class(inner)
    except (ValueError, AttributeError, ImportError) as error:
        where = inner.kv_connector_module_path
        raise FenceConfigError(
            f"FencedConnector cannot find the connector {inner.kv_connector!r}"
            f"{f' in {where!r}' if where else ''}: {error}"
        ) from error


class FencedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Wraps a connector: does what it does, and has it observed.

    Everything that the base class of the installed vLLM offers is passed on; anything else is found on the
    wrapped connector as well.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        transfer = vllm_config.kv_transfer_config
        inner = inner_config(transfer)
        kind = inner_class(transfer)
        mixed = not getattr(vllm_config.scheduler_config, "disable_hybrid_kv_cache_manager", True)
        if not issubclass(kind, SupportsHMA) and mixed:
            raise FenceConfigError(
                f"{kind.__name__} does not support the hybrid KV cache manager: set "
                "--disable-hybrid-kv-cache-manager, as without kvfence"
            )
        super().__init__(vllm_config, role, kv_cache_config)
        extra = transfer.kv_connector_extra_config
        self._fence: Runtime | None = None
        self._told: Counter[str] = Counter()
        self._told_events = 0
        self._next_stats = 0.0
        mode = extra.get(MODE_KEY, "log")
        if mode != "off" and role.name == "SCHEDULER":
            try:
                self._fence = install(mode, extra.get(RECORD_KEY))
            except Exception as error:
                if mode == "raise":
                    raise
                log.error("kvfence does not observe %s: %s", kind.__name__, error)
        inside = copy.copy(vllm_config)
        inside.kv_transfer_config = inner
        self._inner_connector = kind(inside, role, kv_cache_config)
        if self._fence is not None and not observed(self._inner_connector):
            log.warning(
                "kvfence: of %s only the GPU pool is observed: lookups, transfers and FLUSH are not checked",
                kind.__name__,
            )

    @property
    def role(self) -> Any:
        """Scheduler or worker side."""
        return self._inner_connector.role

    def __getattr__(self, name: str) -> Any:
        if name == "_inner_connector":
            raise AttributeError(name)
        return getattr(self._inner_connector, name)

    # What every connector must have; everything else of the base class is passed on below.

    def start_load_kv(self, forward_context: Any, **named: Any) -> Any:
        """Passed on."""
        return self._inner_connector.start_load_kv(forward_context, **named)

    def wait_for_layer_load(self, layer_name: str) -> Any:
        """Passed on."""
        return self._inner_connector.wait_for_layer_load(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **named: Any) -> Any:
        """Passed on."""
        return self._inner_connector.save_kv_layer(layer_name, kv_layer, attn_metadata, **named)

    def wait_for_save(self) -> Any:
        """Passed on."""
        return self._inner_connector.wait_for_save()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """Passed on."""
        return self._inner_connector.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        """Passed on."""
        return self._inner_connector.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Passed on."""
        return self._inner_connector.build_connector_meta(scheduler_output)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Passed on; a connector that knows one group only gets that one's blocks."""
        inner = self._inner_connector
        if isinstance(inner, SupportsHMA):
            return inner.request_finished_all_groups(request, block_ids)
        return inner.request_finished(request, block_ids[0])

    # Figures.

    def get_kv_connector_stats(self) -> Any:
        """The wrapped connector's figures since the last time, and those of the fence."""
        stats = self._inner_connector.get_kv_connector_stats()
        data: dict[str, Any] = {}
        if stats is not None and not stats.is_empty():
            data[INNER] = stats.to_dict() if hasattr(stats, "to_dict") else stats.data
            data[INNER_CLASS] = class_path(type(self._inner_connector))
        fence = self._fence_stats()
        if fence is not None:
            data[FENCE] = fence
        return FencedStats(data=data) if data else None

    def _fence_stats(self) -> dict[str, Any] | None:
        now = time.monotonic()
        if self._fence is None or now < self._next_stats:
            return None
        self._next_stats = now + STATS_EVERY
        try:
            known = facts(self._fence, wait=False)
        except Exception as error:
            log.debug("kvfence has no figures: %s", error)
            return None
        violations = Counter(known["violations"])
        new, self._told = violations - self._told, violations
        events, self._told_events = known["events"] - self._told_events, known["events"]
        return {
            "violations": dict(new),
            "events": max(events, 0),
            "internal_errors": known["internal_errors"],
            "undetermined": known["undetermined"],
        }

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Figures from what came through the process boundary."""
        return FencedStats(data=data) if data is not None else FencedStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """Metrics of the fence, and of the wrapped connector."""
        inside = copy.copy(vllm_config)
        inside.kv_transfer_config = inner_config(vllm_config.kv_transfer_config)
        inner = inner_class(vllm_config.kv_transfer_config).build_prom_metrics(
            inside, metric_types, labelnames, per_engine_labelvalues
        )
        return FencedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues, inner)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Any:
        """What the wrapped connector requires."""
        inside = copy.copy(vllm_config)
        inside.kv_transfer_config = inner_config(vllm_config.kv_transfer_config)
        return inner_class(vllm_config.kv_transfer_config).get_required_kvcache_layout(inside)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """What the wrapped connector requires; it is found by what the configuration says of it."""
        from vllm.config import KVTransferConfig  # type: ignore[import-not-found]

        transfer = KVTransferConfig(
            kv_connector="FencedConnector", kv_role="kv_both", kv_connector_extra_config=extra_config
        )
        inside = {key: value for key, value in extra_config.items() if key not in OURS}
        return bool(inner_class(transfer).requires_piecewise_for_cudagraph(inside))


def observed(connector: Any) -> bool:
    """Whether the hooks know the scheduler side of a connector, or of the connectors inside it."""
    inside = getattr(connector, "_connectors", None)
    if inside:
        return all(observed(each) for each in inside)
    manager = getattr(connector, "scheduler_manager", None)
    return type(manager).__name__ == "SimpleCPUOffloadScheduler"


def _pass_on() -> None:
    """Give FencedConnector every method and property of the base class that it does not have itself."""
    for name, member in vars(KVConnectorBase_V1).items():
        if name.startswith("__") or name in vars(FencedConnector) or isinstance(member, classmethod):
            continue
        if isinstance(member, property):
            setattr(FencedConnector, name, property(_getter(name)))
        elif callable(member):
            setattr(FencedConnector, name, _passed_on(name, member))
    if "request_finished" not in vars(FencedConnector):
        FencedConnector.request_finished = _passed_on("request_finished", None)
    FencedConnector.__abstractmethods__ = frozenset()


def _getter(name: str) -> Any:
    def get(self: Any) -> Any:
        return getattr(self._inner_connector, name)

    return get


def _passed_on(name: str, member: Any) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return getattr(self._inner_connector, name)(*args, **named)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = getattr(member, "__doc__", None)
    return method


_pass_on()
