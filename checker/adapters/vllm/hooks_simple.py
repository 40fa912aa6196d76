"""Hooks on the scheduler side of SimpleCPUOffloadConnector: lookups, transfers and their completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvfence.checker.adapters.vllm.decisions import (
    account_cursors,
    account_finished,
    give_up,
    last_stores,
    load_decided,
    looked_up,
    stores_decided,
)
from kvfence.checker.adapters.vllm.engine import STREAM, Engines
from kvfence.checker.adapters.vllm.patching import Method, Patches
from kvfence.checker.adapters.vllm.stream import ALLOC, FREE, Item, RequestState
from kvfence.checker.adapters.vllm.transfers import Tier, Transfer

TIER: Final = "_kvfence_tier"


def tier_of(manager: Any) -> Tier | None:
    """What observes a scheduler side, if anything does."""
    tier: Tier | None = manager.__dict__.get(TIER)
    if tier is None:
        stream = manager.__dict__.get(STREAM)
        if stream is None:
            return None
        tap = stream.taps[id(manager.cpu_block_pool)]
        tier = manager.__dict__[TIER] = Tier(stream, manager, tap)
    return tier if not tier.stream.off else None


def hook_simple(patches: Patches, module: Any, coordinator: Any, engines: Engines) -> None:
    """Observe all scheduler sides that are bound to a GPU pool from here on."""
    owner = module.SimpleCPUOffloadScheduler

    def bind(original: Method) -> Method:
        def bind_gpu_block_pool(self: Any, gpu_block_pool: Any) -> Any:
            result = original(self, gpu_block_pool)
            engines.connector_bound(self, gpu_block_pool)
            return result

        return bind_gpu_block_pool

    patches.wrap(owner, "bind_gpu_block_pool", bind, parameters=("gpu_block_pool",))
    patches.wrap(owner, "get_num_new_matched_tokens", _lookup, parameters=("request", "num_computed_tokens"))
    patches.wrap(
        owner,
        "update_state_after_alloc",
        _after_alloc,
        parameters=("request", "blocks", "num_external_tokens"),
    )
    patches.wrap(owner, "build_connector_meta", _build_meta, parameters=("scheduler_output",))
    patches.wrap(owner, "update_connector_output", _update_output, parameters=("connector_output",))
    patches.wrap(owner, "_process_store_event", _process_store_event, parameters=("event_idx",))
    patches.wrap(owner, "request_finished", _finished, parameters=("request", "block_ids"))
    patches.wrap(owner, "request_finished_all_groups", _finished_all, parameters=("request", "block_ids"))
    patches.wrap(owner, "_cleanup_load_request", _cleanup_load, parameters=("req_id",))
    patches.wrap(owner, "reset", _reset, absent_is_fine=True)
    for name in ("UnitaryKVCacheCoordinator", "HybridKVCacheCoordinator", "KVCacheCoordinatorNoPrefixCache"):
        kind = getattr(coordinator, name, None)
        if kind is None:
            patches.coverage.missing(f"{name}.find_longest_cache_hit", "this release has no such class")
        else:
            patches.wrap(kind, "find_longest_cache_hit", _find_hit)


_listening: list[Tier] = []
"""The tier whose lookup is under way."""


def _find_hit(original: Method) -> Method:
    def find_longest_cache_hit(self: Any, *args: Any, **named: Any) -> Any:
        found = original(self, *args, **named)
        if _listening and self is _listening[-1].manager.cpu_coordinator:
            try:
                groups = found[0]
                _listening[-1].hits = (
                    list(groups[0])
                    if len(groups) == 1
                    else [block for group in groups for block in group if not block.is_null]
                )
            except Exception as error:
                _listening[-1].stream.trouble(error)
        return found

    return find_longest_cache_hit


def _call(tier: Tier, original: Method, *args: Any) -> tuple[Any, list[Item]]:
    """Call ``original`` and gather what happens to the pools meanwhile."""
    stream = tier.stream
    items: list[Item] = []
    outer = stream.enter(items.extend)
    try:
        result = original(tier.manager, *args)
    except BaseException:
        stream.leave(outer)
        stream.nobody(items)
        raise
    stream.leave(outer)
    return result, items


def _lookup(original: Method) -> Method:
    def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, request, num_computed_tokens)
        tier.hits = None
        _listening.append(tier)
        try:
            result, items = _call(tier, original, request, num_computed_tokens)
        finally:
            _listening.pop()
        try:
            looked_up(tier, request, num_computed_tokens, result, items)
        except Exception as error:
            tier.stream.trouble(error)
        return result

    return get_num_new_matched_tokens


def _after_alloc(original: Method) -> Method:
    def update_state_after_alloc(self: Any, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, request, blocks, num_external_tokens)
        result, items = _call(tier, original, request, blocks, num_external_tokens)
        try:
            load_decided(tier, request, items)
        except Exception as error:
            tier.stream.trouble(error)
        return result

    return update_state_after_alloc


def _build_meta(original: Method) -> Method:
    def build_connector_meta(self: Any, scheduler_output: Any) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, scheduler_output)
        stream = tier.stream
        outer = stream.pending, stream.handler
        stream.pending = items = list[Item]()
        try:
            meta = original(self, scheduler_output)
        except BaseException:
            stream.pending, stream.handler = outer
            stream.nobody(items)
            raise
        stream.pending, stream.handler = outer
        if items or stream.lively or meta.store_event >= 0 or meta.load_event >= 0:
            try:
                if items or meta.store_event >= 0:
                    stores_decided(tier, meta, items)
                if meta.load_event >= 0:
                    for id_ in self._load_event_to_reqs.get(meta.load_event, ()):
                        tier.issue(tier.loads.get(id_, []))
                account_cursors(tier, scheduler_output)
                tier.evicted.clear()
            except Exception as error:
                stream.trouble(error)
        return meta

    return build_connector_meta


def _update_output(original: Method) -> Method:
    def update_connector_output(self: Any, connector_output: Any) -> Any:
        if not connector_output.finished_recving and connector_output.kv_connector_worker_meta is None:
            return original(self, connector_output)
        tier = tier_of(self)
        if tier is None:
            return original(self, connector_output)
        try:
            for id_ in connector_output.finished_recving or ():
                tier.report(tier.loads.get(id_, []), tier.stream.ranks)
            completed = getattr(connector_output.kv_connector_worker_meta, "completed_store_events", None)
            for index, count in (completed or {}).items():
                tier.report(tier.stores.get(index, []), count)
        except Exception as error:
            tier.stream.trouble(error)
        return original(self, connector_output)

    return update_connector_output


def _process_store_event(original: Method) -> Method:
    def _process_store_event(self: Any, event_idx: int) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, event_idx)
        wanted = event_idx in self._store_event_to_blocks
        result, items = _call(tier, original, event_idx)
        try:
            transfers = tier.stores.pop(event_idx, [])
            tier.complete(transfers)
            if wanted:
                tier.label(transfers)
            tier.release(transfers, items)
        except Exception as error:
            tier.stream.trouble(error)
        return result

    return _process_store_event


def _cleanup_load(original: Method) -> Method:
    def _cleanup_load_request(self: Any, req_id: str) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, req_id)
        result, items = _call(tier, original, req_id)
        try:
            transfers = tier.loads.pop(req_id, [])
            if transfers and not transfers[0].issued:
                tier.cancel(transfers)
            else:
                tier.complete(transfers)
            tier.release(transfers, items)
        except Exception as error:
            tier.stream.trouble(error)
        return result

    return _cleanup_load_request


def _ending(tier: Tier, id_: str) -> Callable[[list[Item]], None]:
    """Tells what a call that ends a request does to the pools: pins go, last stores are decided."""
    stream = tier.stream

    def handle(items: list[Item]) -> None:
        if any(item.kind == ALLOC for item in items):
            last_stores(tier, id_, items)
            return
        state = stream.requests.get(id_)
        for item in items:
            if item.tap is tier.tap and item.kind == FREE and state is not None and id_ in tier.pins:
                tier.pins.pop(id_)
                stream.tell(item, state.hit)
            else:
                stream.nobody([item])

    return handle


def _finished(original: Method) -> Method:
    def request_finished(self: Any, request: Any, block_ids: Any) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, request, block_ids)
        id_ = request.request_id
        try:
            state = tier.stream.requests.get(id_)
            if state is not None:
                tier.stream.withdraw(state)
        except Exception as error:
            tier.stream.trouble(error)
        outer = tier.stream.enter(_ending(tier, id_))
        try:
            return original(self, request, block_ids)
        finally:
            tier.stream.leave(outer)

    return request_finished


def _finished_all(original: Method) -> Method:
    def request_finished_all_groups(self: Any, request: Any, block_ids: Any) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self, request, block_ids)
        outer = tier.stream.enter(_ending(tier, request.request_id))
        try:
            result = original(self, request, block_ids)
        finally:
            tier.stream.leave(outer)
        try:
            account_finished(tier, request, block_ids)
        except Exception as error:
            tier.stream.trouble(error)
        return result

    return request_finished_all_groups


def _reset(original: Method) -> Method:
    def reset(self: Any) -> Any:
        tier = tier_of(self)
        if tier is None:
            return original(self)
        given_up: list[Transfer] = []
        pins: dict[int, RequestState] = {}
        try:
            given_up, pins = give_up(tier)
        except Exception as error:
            tier.stream.trouble(error)

        def handle(items: list[Item]) -> None:
            for item in items:
                state = pins.get(item.slots[0]) if item.tap is tier.tap and item.kind == FREE else None
                if state is not None:
                    tier.stream.tell(item, state.hit)
                else:
                    tier.release(given_up, [item])

        outer = tier.stream.enter(handle)
        try:
            return original(self)
        finally:
            tier.stream.leave(outer)

    return reset
