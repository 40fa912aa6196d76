"""A connector that puts kvfence around another one, by configuration alone.

``kv_connector="FencedConnector"``, ``kv_connector_module_path="kvfence.checker.adapters.fence"``, and in
``kv_connector_extra_config`` beside what the wrapped connector wants:

* ``kvfence_connector``: its name, or a mapping with ``kv_connector`` and ``kv_connector_module_path``;
* ``kvfence_mode``: ``log`` (as if absent), ``count``, ``raise``, or ``off``;
* ``kvfence_record``: a folder for the traces of what led to a violation.

A connector that does not support hybrid groups is wrapped by ``FencedConnectorWithoutHMA``, which does not
either: vLLM asks the class.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import time
from collections import Counter
from operator import attrgetter
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.factory import (  # type: ignore[import-not-found]
    KVConnectorFactory,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # type: ignore[import-not-found]
    KVConnectorBase_V1,
    SupportsHMA,
)

from kvfence.checker.adapters.fence import stats as fence_stats
from kvfence.checker.adapters.fence.stats import FencedPromMetrics, FencedStats
from kvfence.checker.adapters.vllm.runtime import MODES, Runtime, facts, install, worker_facts
from kvfence.checker.adapters.vllm.stream.known_parts import unseen_orders, unseen_tiers

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
    if name in {"FencedConnector", "FencedConnectorWithoutHMA"}:
        raise FenceConfigError(f"{NAME_KEY!r} names {name} itself: name the connector to be observed")
    mode = extra.get(MODE_KEY, "log")
    if mode not in MODES:
        raise FenceConfigError(f"{MODE_KEY!r} is {mode!r}: use one of {', '.join(MODES)}")
    inner = copy.copy(transfer)
    inner.kv_connector = name
    inner.kv_connector_module_path = module
    inner.kv_connector_extra_config = {key: value for key, value in extra.items() if key not in OURS}
    return inner


def inside(config: Any) -> Any:
    """``config`` of an engine as the wrapped connector is given it."""
    found = copy.copy(config)
    found.kv_transfer_config = inner_config(config.kv_transfer_config)
    return found


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


def wraps_hma(transfer: Any) -> bool:
    """Whether the wrapped connector supports hybrid groups; of MultiConnector: whether all of its do."""
    kind = inner_class(transfer)
    asked = getattr(KVConnectorFactory, "supports_hma_config", None)
    return bool(asked(inner_config(transfer))) if asked is not None else issubclass(kind, SupportsHMA)


class _Fenced(KVConnectorBase_V1):  # type: ignore[misc]
    """Wraps a connector: does what it does, and has it observed.

    Everything that the base class of the installed vLLM offers is passed on; anything else is found on the
    wrapped connector as well.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        transfer = vllm_config.kv_transfer_config
        kind = inner_class(transfer)
        super().__init__(vllm_config, role, kv_cache_config)
        extra = transfer.kv_connector_extra_config
        self._fence: Runtime | None = None
        self._reported: Counter[str] = Counter()
        self._reported_events = 0
        self._next_stats = 0.0
        mode = extra.get(MODE_KEY, "log")
        self._scheduling = role.name == "SCHEDULER"
        if mode != "off":
            try:
                self._fence = install(mode, extra.get(RECORD_KEY))
            except Exception as error:
                if mode == "raise":
                    raise
                log.error("kvfence does not observe %s: %s", kind.__name__, error)
        self._inner_connector = made(kind, inside(vllm_config), role, kv_cache_config)
        if self._fence is not None:
            what = unseen_tiers if self._scheduling else unseen_orders
            for message in what(self._inner_connector):
                log.warning("kvfence: not checked: %s", message)

    @property
    def _connectors(self) -> list[Any]:
        """The connectors within: where vLLM looks for one of a kind."""
        several = getattr(self._inner_connector, "_connectors", None)
        return list(several) if several else [self._inner_connector]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner_connector":
            raise AttributeError(name)
        return getattr(self._inner_connector, name)

    # Figures.

    def get_kv_connector_stats(self) -> Any:
        """The wrapped connector's figures since the last time, and those of the fence."""
        stats = self._inner_connector.get_kv_connector_stats()
        data: dict[str, Any] = {}
        if stats is not None and not stats.is_empty():
            data[fence_stats.INNER] = stats.to_dict() if hasattr(stats, "to_dict") else stats.data
            data[fence_stats.INNER_CLASS] = fence_stats.class_path(type(self._inner_connector))
        fence = self._fence_stats()
        if fence is not None:
            data[fence_stats.FENCE] = fence
        return FencedStats(data=data) if data else None

    def _fence_stats(self) -> dict[str, Any] | None:
        now = time.monotonic()
        if self._fence is None or now < self._next_stats:
            return None
        self._next_stats = now + STATS_EVERY
        try:
            if self._scheduling:
                known = facts(self._fence, wait=False)
                known["violations"] = self._fence.engine_violations()
            else:
                known = worker_facts(self._fence)
        except Exception as error:
            log.debug("kvfence has no figures: %s", error)
            return None
        violations = Counter(known["violations"])
        new, self._reported = violations - self._reported, violations
        events, self._reported_events = known["events"] - self._reported_events, known["events"]
        side = fence_stats.SCHEDULER if self._scheduling else fence_stats.WORKER
        state = {side: [known["internal_errors"], known["undetermined"]]}
        return {"violations": dict(new), "events": max(events, 0), "state": state}

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
        labels = metric_types, labelnames, per_engine_labelvalues
        kind = inner_class(vllm_config.kv_transfer_config)
        return FencedPromMetrics(vllm_config, *labels, kind.build_prom_metrics(inside(vllm_config), *labels))

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Any:
        """What the wrapped connector requires."""
        kind = inner_class(vllm_config.kv_transfer_config)
        return kind.get_required_kvcache_layout(inside(vllm_config))

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """What the wrapped connector requires; it is found by what the configuration says of it."""
        from vllm.config import KVTransferConfig  # type: ignore[import-not-found]

        transfer = KVTransferConfig(
            kv_connector="FencedConnector", kv_role="kv_both", kv_connector_extra_config=extra_config
        )
        theirs = {key: value for key, value in extra_config.items() if key not in OURS}
        return bool(inner_class(transfer).requires_piecewise_for_cudagraph(theirs))


class FencedConnectorWithoutHMA(_Fenced):
    """Wraps a connector that does not support hybrid groups, and does not support them either."""


class FencedConnector(_Fenced, SupportsHMA):  # type: ignore[misc]
    """Wraps a connector that supports hybrid groups.

    Around one that does not, where there are none, a :class:`FencedConnectorWithoutHMA` is made instead.
    """

    def __new__(cls, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> Any:
        transfer = vllm_config.kv_transfer_config
        if wraps_hma(transfer):
            return super().__new__(cls)
        if not getattr(vllm_config.scheduler_config, "disable_hybrid_kv_cache_manager", True):
            raise FenceConfigError(
                f"{inner_class(transfer).__name__} does not support the hybrid KV cache manager: name "
                "FencedConnectorWithoutHMA as kv_connector, which vLLM then knows of, or set "
                "--disable-hybrid-kv-cache-manager"
            )
        return FencedConnectorWithoutHMA(vllm_config, role, kv_cache_config)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Passed on."""
        return self._inner_connector.request_finished_all_groups(request, block_ids)


def made(kind: Any, config: Any, role: Any, kv_cache_config: Any) -> Any:
    """A connector of class ``kind``; old ones do not take the configuration of the KV cache."""
    parameters = inspect.signature(kind).parameters
    several = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if "kv_cache_config" in parameters or len(parameters) > 2 or several:
        return kind(config, role, kv_cache_config)
    return kind(config, role)


def _pass_on() -> None:
    """Give the fenced connectors every member of the base class that they do not have themselves."""
    for name, member in vars(KVConnectorBase_V1).items():
        if name.startswith("__") or name in vars(_Fenced):
            continue
        if isinstance(member, classmethod):
            asked = _asked_of_class(name, member)
            if asked is not None:
                setattr(_Fenced, name, classmethod(asked))
        elif isinstance(member, property):
            setattr(_Fenced, name, property(attrgetter(f"_inner_connector.{name}")))
        elif callable(member):
            setattr(_Fenced, name, _passed_on(name, member))
    if "request_finished" not in vars(_Fenced):
        _Fenced.request_finished = _passed_on("request_finished", None)
    for kind in (_Fenced, FencedConnector, FencedConnectorWithoutHMA):
        kind.__abstractmethods__ = frozenset()


def _asked_of_class(name: str, member: Any) -> Any:
    """A class method that asks the class of the wrapped connector, if its argument says which that is."""
    first = next(iter(list(inspect.signature(member.__func__).parameters)[1:]), "")
    if first not in {"kv_transfer_config", "vllm_config"}:
        return None

    def asked(cls: Any, config: Any, *args: Any, **named: Any) -> Any:
        del cls
        transfer = config if first == "kv_transfer_config" else config.kv_transfer_config
        given = inner_config(transfer) if first == "kv_transfer_config" else inside(config)
        return getattr(inner_class(transfer), name)(given, *args, **named)

    return asked


def _see_through() -> None:
    """vLLM decides some things by the name of the connector: let it see the name of the wrapped one."""
    from vllm.config import KVTransferConfig

    original = getattr(KVTransferConfig, "has_connector", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def has_connector(self: Any, connector_name: str) -> bool:
        if original(self, connector_name):
            return True
        if self.kv_connector not in {"FencedConnector", "FencedConnectorWithoutHMA"}:
            return False
        try:
            return bool(original(inner_config(self), connector_name))
        except FenceConfigError:
            return False

    KVTransferConfig.has_connector = has_connector


def _passed_on(name: str, member: Any) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return getattr(self._inner_connector, name)(*args, **named)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = getattr(member, "__doc__", None)
    return method


_pass_on()
_see_through()
