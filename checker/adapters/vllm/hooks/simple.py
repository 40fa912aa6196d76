"""Hooks on the scheduler side of SimpleCPUOffloadConnector: lookups, transfers and their completion."""

from __future__ import annotations

from typing import Any, Final

from kvfence.checker.adapters.vllm.hooks.engine import STREAM, Engines
from kvfence.checker.adapters.vllm.hooks.patching import Method, Patches, observing
from kvfence.checker.adapters.vllm.notes.compiled_hooks import Compiled
from kvfence.checker.adapters.vllm.stream import decisions, tier_ends
from kvfence.checker.adapters.vllm.stream.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.stream.transfers import Tier

TIER: Final = "_kvfence_tier"


def tier_of(manager: Any) -> Tier | None:
    """What observes a scheduler side, if anything does."""
    tier: Tier | None = manager._kvfence_tier
    if tier is None:
        stream = manager._kvfence_stream
        if stream is None:
            return None
        tap = stream.taps[id(manager.cpu_block_pool)]
        tier = manager._kvfence_tier = Tier(stream, manager, tap)
    return tier


def hook_simple(patches: Patches, module: Any, coordinator: Any, engines: Engines) -> None:
    """Observe all scheduler sides that are bound to a GPU pool from here on."""
    owner = module.SimpleCPUOffloadScheduler

    def bind(original: Method) -> Method:
        def bind_gpu_block_pool(self: Any, gpu_block_pool: Any) -> Any:
            result = original(self, gpu_block_pool)
            engines.connector_bound(self, gpu_block_pool)
            return result

        return bind_gpu_block_pool

    patches.mark(owner, STREAM)
    patches.mark(owner, TIER)
    patches.wrap(owner, "bind_gpu_block_pool", bind, parameters=("gpu_block_pool",))
    patches.wrap(owner, "get_num_new_matched_tokens", _lookup, parameters=("request", "num_computed_tokens"))
    patches.wrap(
        owner,
        "update_state_after_alloc",
        _after_alloc,
        parameters=("request", "blocks", "num_external_tokens"),
    )
    patches.wrap(
        owner,
        "build_connector_meta",
        _build_meta,
        parameters=("scheduler_output",),
        compiled=Compiled(
            "build_connector_meta",
            (EngineStream.gather, decisions.step_decided, _meta_built),
            ("scheduler_output",),
        ),
    )
    patches.wrap(
        owner,
        "update_connector_output",
        _update_output,
        parameters=("connector_output",),
        compiled=Compiled(
            "update_connector_output",
            (tier_ends.loads_reported, tier_ends.stores_reported),
            ("connector_output",),
        ),
    )
    patches.wrap(
        owner,
        "_process_store_event",
        _process_store_event,
        parameters=("event_idx",),
        compiled=Compiled(
            "process_store_event", (EngineStream.gather, tier_ends.store_over, _only_found), ("event_idx",)
        ),
    )
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


_observed = observing(tier_of)
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
                _listening[-1].note_queue.trouble(error)
        return found

    return find_longest_cache_hit


def _call_marked(tier: Tier, original: Method, *args: Any) -> tuple[Any, int]:
    """Call ``original``: its result, and the mark at which its notes begin. The caller ends the call."""
    mark = tier.note_queue.begin()
    try:
        return original(*args), mark
    except BaseException:
        tier.note_queue.end(mark, (tier.stream.broken_off,))
        raise


@_observed
def _lookup(tier: Tier, original: Method, self: Any, request: Any, num_computed_tokens: int) -> Any:
    tier.hits = None
    _listening.append(tier)
    try:
        result, mark = _call_marked(tier, original, self, request, num_computed_tokens)
    finally:
        _listening.pop()
    external = int(result[0] or 0)
    note = (decisions.looked_up, tier, request.request_id, num_computed_tokens, external, tier.hits)
    tier.note_queue.end(mark, note)
    return result


@_observed
def _after_alloc(
    tier: Tier, original: Method, self: Any, request: Any, blocks: Any, num_external_tokens: int
) -> Any:
    result, mark = _call_marked(tier, original, self, request, blocks, num_external_tokens)
    id_ = request.request_id
    load = None
    try:
        known = self._reqs_to_load.get(id_)
        if known is not None:
            meta, pool = known.transfer_meta, self.cpu_block_pool.blocks
            cpu = list(meta.cpu_block_ids)
            load = decisions.Load(list(meta.gpu_block_ids), cpu, [pool[slot]._block_hash for slot in cpu])
    except Exception as error:
        tier.note_queue.trouble(error)
    tier.note_queue.end(mark, (decisions.load_decided, tier, id_, load))
    return result


def _build_meta(original: Method) -> Method:
    def build_connector_meta(self: Any, scheduler_output: Any) -> Any:
        tier = self._kvfence_tier or tier_of(self)
        if tier is None:
            return original(self, scheduler_output)
        note_queue = tier.note_queue
        mark = note_queue.begin()
        note_queue.storing = True
        try:
            meta = original(self, scheduler_output)
        except BaseException:
            note_queue.storing = False
            note_queue.end(mark, (tier.stream.broken_off,))
            raise
        note_queue.storing = False
        if note_queue.lively or note_queue.size() != mark or meta.store_event >= 0 or meta.load_event >= 0:
            _meta_built(tier, self, meta, scheduler_output, mark)
        return meta

    return build_connector_meta


def _meta_built(tier: Tier, manager: Any, meta: Any, output: Any, mark: int) -> None:
    """Note that the call is over in which a step's metadata was made; None: it was not."""
    if meta is None:
        tier.note_queue.end(mark, (tier.stream.broken_off,))
        return
    step: tuple[Any, ...] = (-1, [], (), [], 0, 1)
    try:
        step = _step(tier, manager, meta, output)
    except Exception as error:
        tier.note_queue.trouble(error)
    tier.note_queue.end(mark, (decisions.step_decided, tier, *step))


def _step(tier: Tier, manager: Any, meta: Any, output: Any) -> tuple[Any, ...]:
    """Copies what a step's metadata was made from: the fields of a :class:`Step`."""
    tracked, note_queue = manager._reqs_to_store, tier.note_queue
    free = tier.tap.queue.num_free_blocks
    owners: list[str] = []
    if meta.store_event >= 0:
        owners = list(manager._store_event_to_reqs.get(meta.store_event, ()))
    cursors: list[tuple[str, list[int], int]] = []
    if note_queue.lively and tracked:
        note_queue.lively -= 1
        tokens = output.num_scheduled_tokens
        cursors = tier.moved(tracked, tokens, tier.seen)
        if free <= 0:  # What every request could have stored by now counts as well.
            cursors = [known for id_ in tokens if (known := _cursors(manager, id_)) is not None]
    scheduled = len(cursors)
    if owners:
        here = {known[0] for known in cursors}
        more = [id_ for id_ in owners if id_ not in here]
        cursors = [known for id_ in more if (known := _cursors(manager, id_)) is not None] + cursors
    loads = () if meta.load_event < 0 else list(manager._load_event_to_reqs.get(meta.load_event, ()))
    return meta.store_event, owners, loads, cursors, scheduled, free


def _update_output(original: Method) -> Method:
    def update_connector_output(self: Any, connector_output: Any) -> Any:
        received, meta = connector_output.finished_recving, connector_output.kv_connector_worker_meta
        if received or meta is not None:
            tier = tier_of(self)
            if tier is not None:
                if received:
                    tier.note_queue.append((tier_ends.loads_reported, tier, list(received)))
                completed = getattr(meta, "completed_store_events", None)
                if completed:
                    tier.note_queue.append((tier_ends.stores_reported, tier, dict(completed)))
        return original(self, connector_output)

    return update_connector_output


@_observed
def _process_store_event(tier: Tier, original: Method, self: Any, event_idx: int) -> Any:
    wanted = self._store_event_to_blocks.get(event_idx)
    result, mark = _call_marked(tier, original, self, event_idx)
    slots: list[int] = []
    hashes: list[bytes | None] = []
    try:
        if wanted is not None:
            slots = list(wanted.cpu_block_ids)
            pool = self.cpu_block_pool
            blocks = pool.blocks
            hashes = [blocks[slot]._block_hash for slot in slots]
            _only_found(pool.cached_block_hash_to_block, hashes)
    except Exception as error:
        tier.note_queue.trouble(error)
    tier.note_queue.end(mark, (tier_ends.store_over, tier, event_idx, slots, hashes))
    return result


def _only_found(index: Any, hashes: list[bytes | None]) -> None:
    """Replace by None the hashes of blocks that are not in the index: looks at both ends first."""
    if not hashes:
        return
    if all(each is not None and index.get_one_block(each) is not None for each in (hashes[0], hashes[-1])):
        return
    for at, each in enumerate(hashes):
        if each is not None and index.get_one_block(each) is None:
            hashes[at] = None


@_observed
def _cleanup_load(tier: Tier, original: Method, self: Any, req_id: str) -> Any:
    known = self._reqs_to_load.get(req_id)
    if known is None:
        known = getattr(self, "_abandoned_reqs_to_load", {}).get(req_id)
    computed = None if known is None else int(known.request.num_computed_tokens)
    result, mark = _call_marked(tier, original, self, req_id)
    tier.note_queue.end(mark, (tier_ends.load_over, tier, req_id, computed))
    return result


@_observed
def _finished(tier: Tier, original: Method, self: Any, request: Any, block_ids: Any) -> Any:
    return _until_ended(tier, original, self, request, block_ids, True)


def _until_ended(
    tier: Tier, original: Method, manager: Any, request: Any, block_ids: Any, withdraws: bool
) -> Any:
    """Call ``original``, which ends a request, and note what that takes."""
    note_queue, id_ = tier.note_queue, request.request_id
    tier.seen.pop(id_, None)
    note_queue.append((tier_ends.ending, tier, id_, withdraws, _cursors(manager, id_)))
    storing, note_queue.storing = note_queue.storing, True
    try:
        return original(manager, request, block_ids)
    finally:
        note_queue.storing = storing
        note_queue.append((tier_ends.ending_over, tier, id_, _cursors(manager, id_)))


def _cursors(manager: Any, id_: str) -> tuple[str, list[int], int] | None:
    """Copies how a request is tracked for stores."""
    known = manager._reqs_to_store.get(id_)
    if known is None:
        return None
    return id_, known.num_stored_blocks.copy(), int(known.request.num_computed_tokens)


@_observed
def _finished_all(tier: Tier, original: Method, self: Any, request: Any, block_ids: Any) -> Any:
    result = _until_ended(tier, original, self, request, block_ids, False)
    try:
        computed, free = int(request.num_computed_tokens), tier.tap.queue.num_free_blocks
        tables = [list(table) for table in block_ids]
        known = (request.request_id, request.status.name, computed, free, tables)
        tier.note_queue.append((decisions.account_finished, tier, *known))
    except Exception as error:
        tier.note_queue.trouble(error)
    return result


@_observed
def _reset(tier: Tier, original: Method, self: Any) -> Any:
    tier.note_queue.append((tier_ends.resetting, tier))
    try:
        return original(self)
    finally:
        tier.note_queue.append((tier.stream.leave,))
