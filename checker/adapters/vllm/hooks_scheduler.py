"""Hooks on vLLM's Scheduler and KVCacheManager: requests, steps and block tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.engine import Engines
from kvfence.checker.adapters.vllm.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.patching import Method, Patches
from kvfence.checker.adapters.vllm.stream import Item
from kvfence.checker.adapters.vllm.tables import table_handler

STREAM: Final = "_kvfence_stream"
"""Attribute of a scheduler, table manager or connector under observation."""


def stream_of(thing: Any) -> EngineStream | None:
    """The stream that observes ``thing``, if any."""
    stream: EngineStream | None = thing.__dict__.get(STREAM)
    return stream if stream is not None and not stream.off else None


def hook_scheduler(patches: Patches, scheduler: Any, kv_cache_manager: Any, engines: Engines) -> None:
    """Observe all instances of ``Scheduler`` and ``KVCacheManager`` made from here on."""
    owner = scheduler.Scheduler

    def init(original: Method) -> Method:
        def made(self: Any, *args: Any, **named: Any) -> None:
            original(self, *args, **named)
            engines.scheduler_made(self)

        return made

    def late(scheduler: Any) -> EngineStream | None:
        if STREAM not in scheduler.__dict__:
            engines.scheduler_found(scheduler)
        return stream_of(scheduler)

    patches.wrap(owner, "__init__", init)
    patches.wrap(owner, "add_request", lambda original: _add_request(original, late), parameters=("request",))
    patches.wrap(owner, "schedule", lambda original: _schedule(original, late))
    patches.wrap(
        owner,
        "update_from_output",
        _update_from_output,
        parameters=("scheduler_output", "model_runner_output"),
    )
    patches.wrap(owner, "_preempt_request", _preempt_request, parameters=("request", "timestamp"))
    patches.wrap(owner, "_free_request", _free_request, parameters=("request",))
    patches.wrap(owner, "_free_blocks", _free_blocks, parameters=("request",))
    patches.wrap(owner, "reset_prefix_cache", _reset_prefix_cache)
    patches.wrap(
        owner,
        "_handle_invalid_blocks",
        _handle_invalid_blocks,
        parameters=("invalid_block_ids",),
        needed=False,
    )
    manager = kv_cache_manager.KVCacheManager
    patches.wrap(manager, "allocate_slots", _allocate_slots, parameters=("request", "num_new_tokens"))
    patches.wrap(manager, "free", _free_table, parameters=("request",))
    patches.wrap(
        manager, "pop_blocks_for_free", _pop_blocks_for_free, parameters=("request",), absent_is_fine=True
    )
    patches.wrap(manager, "remove_skipped_blocks", _remove_skipped_blocks, needed=False)
    patches.wrap(
        manager, "cache_blocks", _cache_blocks, parameters=("request", "num_computed_tokens"), needed=False
    )


Late: TypeAlias = Callable[[Any], EngineStream | None]
"""The stream of a scheduler that may have been made before the hooks were in place, by its connector."""


def _add_request(original: Method, late: Late) -> Method:
    def add_request(self: Any, request: Any) -> Any:
        stream = late(self)
        if stream is not None:
            try:
                stream.submit(request)
            except Exception as error:
                stream.trouble(error)
        return original(self, request)

    return add_request


def _schedule(original: Method, late: Late) -> Method:
    def schedule(self: Any, *args: Any, **named: Any) -> Any:
        stream = late(self)
        output = original(self, *args, **named)
        if stream is not None:
            try:
                stream.dispatched(output)
            except Exception as error:
                stream.trouble(error)
        return output

    return schedule


def _update_from_output(original: Method) -> Method:
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, scheduler_output, model_runner_output)
        try:
            stream.processed(scheduler_output)
        except Exception as error:
            stream.trouble(error)
        outputs = original(self, scheduler_output, model_runner_output)
        try:
            if scheduler_output.scheduled_spec_decode_tokens:
                stream.settle_rejected(self, scheduler_output)
        except Exception as error:
            stream.trouble(error)
        return outputs

    return update_from_output


def _preempt_request(original: Method) -> Method:
    def _preempt_request(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, request, *args, **named)
        state = None
        try:
            state = stream.preempting(request)
        except Exception as error:
            stream.trouble(error)
        result = original(self, request, *args, **named)
        try:
            if state is not None:
                stream.preempted(state)
        except Exception as error:
            stream.trouble(error)
        return result

    return _preempt_request


def _free_request(original: Method) -> Method:
    def _free_request(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        if stream is not None:
            try:
                stream.finishing(request)
            except Exception as error:
                stream.trouble(error)
        return original(self, request, *args, **named)

    return _free_request


def _free_blocks(original: Method) -> Method:
    def _free_blocks(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        result = original(self, request, *args, **named)
        if stream is not None:
            try:
                stream.gone(request)
            except Exception as error:
                stream.trouble(error)
        return result

    return _free_blocks


def _reset_prefix_cache(original: Method) -> Method:
    def reset_prefix_cache(self: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, *args, **named)
        stream.begin_reset()
        done = False
        try:
            done = original(self, *args, **named)
        finally:
            try:
                with_connector = bool(named.get("reset_connector", args[1] if len(args) > 1 else False))
                stream.end_reset(bool(done), with_connector)
            except Exception as error:
                stream.trouble(error)
        return done

    return reset_prefix_cache


def _handle_invalid_blocks(original: Method) -> Method:
    def _handle_invalid_blocks(self: Any, invalid_block_ids: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        if stream is not None:
            try:
                stream.failed_blocks(invalid_block_ids)
            except Exception as error:
                stream.trouble(error)
        return original(self, invalid_block_ids, *args, **named)

    return _handle_invalid_blocks


def _allocate_slots(original: Method) -> Method:
    def allocate_slots(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        stream = self.__dict__.get(STREAM)
        if stream is None or stream.off:
            return original(self, request, *args, **named)
        state = stream.requests.get(request.request_id) or stream.request(request.request_id)
        outer = stream.pending
        stream.pending = items = list[Item]()
        try:
            blocks = original(self, request, *args, **named)
        finally:
            stream.pending = outer
            if items:
                stream.table_changed(state, items)
        if blocks is not None and not state.admitted:
            try:
                stream.admit(state, request, args, named)
            except Exception as error:
                stream.trouble(error)
        return blocks

    return allocate_slots


def _in_table(original: Method, stream: EngineStream, self: Any, id_: str, *args: Any, **named: Any) -> Any:
    outer = stream.enter(table_handler(stream, stream.request(id_)))
    try:
        return original(self, *args, **named)
    finally:
        stream.leave(outer)


def _free_table(original: Method) -> Method:
    def free(self: Any, request: Any) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, request)
        result = _in_table(original, stream, self, request.request_id, request)
        stream.table_emptied(request.request_id)
        return result

    return free


def _pop_blocks_for_free(original: Method) -> Method:
    def pop_blocks_for_free(self: Any, request: Any) -> Any:
        stream = stream_of(self)
        blocks = original(self, request)
        if stream is not None:
            try:
                stream.free_is_deferred(request, blocks)
            except Exception as error:
                stream.trouble(error)
        return blocks

    return pop_blocks_for_free


def _remove_skipped_blocks(original: Method) -> Method:
    def remove_skipped_blocks(self: Any, request_id: Any, *args: Any, **named: Any) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, request_id, *args, **named)
        id_ = request_id if isinstance(request_id, str) else request_id.request_id
        return _in_table(original, stream, self, id_, request_id, *args, **named)

    return remove_skipped_blocks


def _cache_blocks(original: Method) -> Method:
    def cache_blocks(self: Any, request: Any, num_computed_tokens: int) -> Any:
        stream = stream_of(self)
        if stream is None:
            return original(self, request, num_computed_tokens)
        return _in_table(original, stream, self, request.request_id, request, num_computed_tokens)

    return cache_blocks
