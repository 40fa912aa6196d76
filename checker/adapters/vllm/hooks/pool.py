"""Hooks on vLLM's BlockPool: what is given, shared, taken back, labelled and evicted, in either pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvfence.checker.adapters.vllm.hooks.patching import Method, Patches, observing
from kvfence.checker.adapters.vllm.notes.compiled_hooks import Compiled
from kvfence.checker.adapters.vllm.notes.note_queue import LIVELY
from kvfence.checker.adapters.vllm.stream.pool_events import PoolTap

TAP: Final = "_kvfence_tap"
"""Attribute of a pool under observation."""

KNOWN_CHANGERS: Final = frozenset(
    {
        "cache_full_blocks",
        "cache_partial_block",
        "emit_cached_block_events",  # informs subscribers, changes nothing
        "evict_blocks",
        "free_blocks",
        "get_cached_block",
        "get_new_blocks",
        "get_num_free_blocks",
        "get_usage",
        "is_block_writable",
        "move_block_hashes",
        "reset_prefix_cache",
        "take_events",
        "touch",
        "unpin_blocks",
    }
)
"""Public methods that are observed, or known to change nothing."""


def hook_pool(patches: Patches, block_pool: Any) -> None:
    """Observe all instances of the class ``BlockPool`` that have a tap."""
    pool = block_pool.BlockPool
    patches.mark(pool, TAP)
    patches.wrap(
        pool,
        "get_new_blocks",
        _get_new_blocks,
        parameters=("num_blocks",),
        compiled=Compiled("get_new_blocks", (PoolTap.allocated, PoolTap.denied)),
    )
    patches.wrap(
        pool, "touch", _touch, parameters=("blocks",), compiled=Compiled("touch", (PoolTap.touched,))
    )
    patches.wrap(
        pool,
        "free_blocks",
        _free_blocks,
        parameters=("ordered_blocks",),
        compiled=Compiled("free_blocks", (PoolTap.freed,)),
    )
    patches.wrap(
        pool,
        "cache_full_blocks",
        _cache_full_blocks,
        parameters=(
            "request",
            "blocks",
            "num_cached_blocks",
            "num_full_blocks",
            "block_size",
            "kv_cache_group_id",
        ),
        compiled=Compiled(
            "cache_full_blocks", (PoolTap.labelled,), ("blocks", "num_cached_blocks", "num_full_blocks")
        ),
    )
    patches.wrap(pool, "evict_blocks", _evict_blocks, parameters=("block_ids",))
    patches.wrap(pool, "reset_prefix_cache", _reset_prefix_cache)
    patches.wrap(pool, "cache_partial_block", _relabels(_first_block), absent_is_fine=True)
    patches.wrap(
        pool,
        "move_block_hashes",
        _relabels(_two_blocks),
        parameters=("src_block", "dst_block"),
        absent_is_fine=True,
    )
    patches.wrap(pool, "unpin_blocks", _unpin_blocks, parameters=("blocks", "on_reuse"), absent_is_fine=True)
    unknown = sorted(
        name
        for name, member in vars(pool).items()
        if callable(member) and not name.startswith("_") and name not in KNOWN_CHANGERS
    )
    if unknown:
        patches.coverage.missing(
            "BlockPool", f"this release has methods that are not known: {', '.join(unknown)}"
        )


def _get_new_blocks(original: Method) -> Method:
    def get_new_blocks(self: Any, num_blocks: int) -> Any:
        tap: PoolTap | None = self._kvfence_tap
        if tap is None:
            return original(self, num_blocks)
        note_queue = tap.note_queue
        try:
            blocks = original(self, num_blocks)
        except ValueError:
            note_queue.append((PoolTap.denied, tap, num_blocks, tap.queue.num_free_blocks))
            raise
        try:
            note_queue.lively = LIVELY
            hashes = [block._block_hash for block in blocks]
            note_queue.append((PoolTap.allocated, tap, blocks.copy(), tap.queue.num_free_blocks, hashes))
        except Exception as error:
            note_queue.trouble(error)
        return blocks

    return get_new_blocks


def _touch(original: Method) -> Method:
    def touch(self: Any, blocks: Any) -> Any:
        tap: PoolTap | None = self._kvfence_tap
        if tap is None:
            return original(self, blocks)
        blocks = blocks.copy() if isinstance(blocks, list) else _once(blocks)
        original(self, blocks)
        note_queue = tap.note_queue
        try:
            note_queue.lively = LIVELY
            hashes = [block._block_hash for block in blocks] if note_queue.storing else None
            note_queue.append((PoolTap.touched, tap, blocks, tap.queue.num_free_blocks, hashes))
        except Exception as error:
            note_queue.trouble(error)
        return None

    return touch


def _once(blocks: Any) -> list[Any]:
    """``blocks`` as a list; releases up to 0.19 passed one list for each group."""
    listed = list(blocks)
    if listed and isinstance(listed[0], list | tuple):
        return [block for group in listed for block in group]
    return listed


def _free_blocks(original: Method) -> Method:
    def free_blocks(self: Any, ordered_blocks: Any, *args: Any, **named: Any) -> Any:
        tap: PoolTap | None = self._kvfence_tap
        if tap is None:
            return original(self, ordered_blocks, *args, **named)
        blocks = list(ordered_blocks)
        original(self, blocks, *args, **named)
        note_queue = tap.note_queue
        try:
            note_queue.lively = LIVELY
            note_queue.append((PoolTap.freed, tap, blocks, tap.queue.num_free_blocks))
        except Exception as error:
            note_queue.trouble(error)
        return None

    return free_blocks


def _cache_full_blocks(original: Method) -> Method:
    def cache_full_blocks(
        self: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **named: Any,
    ) -> Any:
        tap: PoolTap | None = self._kvfence_tap
        if tap is None or num_cached_blocks >= num_full_blocks:
            return original(self, request, blocks, num_cached_blocks, num_full_blocks, *args, **named)
        result = original(self, request, blocks, num_cached_blocks, num_full_blocks, *args, **named)
        note_queue = tap.note_queue
        try:
            note_queue.lively = LIVELY
            new = blocks[num_cached_blocks:num_full_blocks]
            note_queue.append((PoolTap.labelled, tap, new, [block._block_hash for block in new]))
        except Exception as error:
            note_queue.trouble(error)
        return result

    return cache_full_blocks


_observed = observing(lambda pool: pool._kvfence_tap)


@_observed
def _evict_blocks(tap: PoolTap, original: Method, self: Any, block_ids: Any) -> Any:
    result = original(self, block_ids)
    try:
        lost = [slot for slot in block_ids if self.blocks[slot]._block_hash is None]
        tap.note_queue.append((PoolTap.unlabelled, tap, lost, "not to be trusted"))
    except Exception as error:
        tap.note_queue.trouble(error)
    return result


@_observed
def _reset_prefix_cache(tap: PoolTap, original: Method, self: Any) -> Any:
    done = original(self)
    if done:
        tap.note_queue.append((tap.stream.pool_reset, tap))
    return done


@_observed
def _unpin_blocks(tap: PoolTap, original: Method, self: Any, blocks: Any, on_reuse: Any) -> Any:
    listed = list(blocks)
    result = original(self, listed, on_reuse)
    tap.note_queue.append((PoolTap.freed, tap, listed, tap.queue.num_free_blocks))
    return result


def _first_block(args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    block = named.get("block", args[1] if len(args) > 1 else None)
    return [] if block is None else [block]


def _two_blocks(args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    return [*args, *named.values()]


def _relabels(
    concerned: Callable[[tuple[Any, ...], dict[str, Any]], list[Any]],
) -> Callable[[Method], Method]:
    """Observe a method that changes the first hash of the few blocks that ``concerned`` finds."""

    @_observed
    def relabel(tap: PoolTap, original: Method, self: Any, *args: Any, **named: Any) -> Any:
        note_queue = tap.note_queue
        try:
            blocks = [block for block in concerned(args, named) if hasattr(block, "_block_hash")]
            before = [block._block_hash for block in blocks]
        except Exception as error:
            note_queue.trouble(error)
            blocks, before = [], []
        result = original(self, *args, **named)
        try:
            changes = [(block, was, block._block_hash) for block, was in zip(blocks, before, strict=True)]
            lost = [block.block_id for block, was, now in changes if was is not None and now is None]
            if lost:
                note_queue.append((PoolTap.unlabelled, tap, lost, "moved"))
            new = [(block, now) for block, was, now in changes if now is not None and now != was]
            if new:
                labelled, hashes = ([each[at] for each in new] for at in (0, 1))
                note_queue.append((PoolTap.labelled, tap, labelled, hashes))
        except Exception as error:
            note_queue.trouble(error)
        return result

    return relabel
