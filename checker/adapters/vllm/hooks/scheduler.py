"""Hooks on vLLM's Scheduler and KVCacheManager: requests, steps and block tables."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.hooks.engine import NOTE_QUEUE, STREAM, TABLES, UNKNOWN, Engines
from kvfence.checker.adapters.vllm.hooks.patching import Method, NotSeenError, Patches, observing, shaped
from kvfence.checker.adapters.vllm.notes.compiled_hooks import Compiled
from kvfence.checker.adapters.vllm.stream.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.stream.pool_events import PoolTap
from kvfence.checker.adapters.vllm.stream.tables import Tables

IN_FLIGHT: Final = "kvfence_in_flight"
"""Attribute of the note queue, or of an unobserved scheduler: the steps whose output is not processed yet.

Of a step's output: how many there were before it. Workers learn only from here which steps are over."""


def hook_scheduler(patches: Patches, scheduler: Any, kv_cache_manager: Any, engines: Engines) -> None:
    """Observe all instances of ``Scheduler`` and ``KVCacheManager`` made from here on."""
    owner = scheduler.Scheduler

    def init(original: Method) -> Method:
        def made(self: Any, *args: Any, **named: Any) -> None:
            original(self, *args, **named)
            engines.scheduler_made(self)

        return made

    def late(scheduler: Any) -> EngineStream | None:
        if scheduler._kvfence_stream is UNKNOWN:
            engines.scheduler_found(scheduler)
        stream: EngineStream | None = scheduler._kvfence_stream
        return stream

    patches.mark(owner, IN_FLIGHT, 0)
    patches.mark(owner, STREAM, UNKNOWN)
    patches.mark(owner, NOTE_QUEUE)
    patches.wrap(owner, "__init__", init)
    patches.wrap(owner, "add_request", lambda original: _add_request(original, late), parameters=("request",))
    patches.wrap(
        owner,
        "schedule",
        lambda original: _schedule(original, late),
        compiled=Compiled("schedule", (EngineStream.dispatched,)),
    )
    patches.wrap(
        owner,
        "update_from_output",
        _update_from_output,
        parameters=("scheduler_output", "model_runner_output"),
        compiled=Compiled("update_from_output", (EngineStream.processed, _settle), ("scheduler_output",)),
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
    for name in (STREAM, NOTE_QUEUE, TABLES):
        patches.mark(manager, name)
    patches.wrap(
        manager,
        "allocate_slots",
        _allocate_slots,
        parameters=("request", "num_new_tokens"),
        compiled=Compiled(
            "allocate_slots",
            (EngineStream.gather, EngineStream.table_changed, PoolTap.labelled),
            ("request", "num_new_computed_tokens", "num_external_computed_tokens"),
        ),
    )
    patches.wrap(manager, "free", _in_table(True), parameters=("request",))
    patches.wrap(
        manager, "pop_blocks_for_free", _pop_blocks_for_free, parameters=("request",), absent_is_fine=True
    )
    patches.wrap(manager, "remove_skipped_blocks", _in_table(False, "request_id"), needed=False)
    patches.wrap(
        manager, "cache_blocks", _in_table(False), parameters=("request", "num_computed_tokens"), needed=False
    )


Late: TypeAlias = Callable[[Any], EngineStream | None]
"""The stream of a scheduler that may have been made before the hooks were in place, by its connector."""


def _add_request(original: Method, late: Late) -> Method:
    def add_request(self: Any, request: Any) -> Any:
        stream = late(self)
        if stream is not None:
            stream.note_queue.append((stream.submit, request.request_id, request.num_tokens))
        return original(self, request)

    return add_request


_SCHEDULE = """
def hook(PARAMETERS):
    stream = self._kvfence_stream
    if stream is UNKNOWN:
        stream = late(self)
    output = original(ARGUMENTS)
    try:
        tokens = output.num_scheduled_tokens
        counter = self if stream is None else stream.note_queue
        output.kvfence_in_flight = running = counter.kvfence_in_flight
        if tokens:
            counter.kvfence_in_flight = running + 1
            if stream is not None:
                if output.scheduled_spec_decode_tokens:
                    uneven = list(output.scheduled_spec_decode_tokens)
                    stream.note_queue.append((stream.dispatched, id(output), tokens.copy(), uneven))
                else:
                    stream.note_queue.append((stream.dispatched, id(output), tokens.copy()))
    except Exception as error:
        if stream is not None:
            stream.note_queue.trouble(error)
    return output
"""


def _schedule(original: Method, late: Late) -> Method:
    return shaped(original, _SCHEDULE, late=late, UNKNOWN=UNKNOWN)


def _update_from_output(original: Method) -> Method:
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        stream: EngineStream | None = self._kvfence_stream or None
        tokens = scheduler_output.num_scheduled_tokens
        counter = self if stream is None else stream.note_queue
        if tokens and counter.kvfence_in_flight:
            counter.kvfence_in_flight -= 1
        if stream is None:
            return original(self, scheduler_output, model_runner_output)
        note_queue = stream.note_queue
        if tokens:
            note_queue.append((stream.processed, id(scheduler_output)))
        outputs = original(self, scheduler_output, model_runner_output)
        if scheduler_output.scheduled_spec_decode_tokens:
            try:
                _settle(self, scheduler_output)
            except Exception as error:
                note_queue.trouble(error)
        note_queue.done = done = note_queue.size()
        if done > note_queue.full:
            note_queue.turn()
        return outputs

    return update_from_output


def _settle(scheduler: Any, output: Any) -> None:
    """Note how many tokens count of the requests with speculative ones in a step that is over."""
    stream: EngineStream = scheduler._kvfence_stream
    known = scheduler.requests
    drafted = output.scheduled_spec_decode_tokens
    computed = [(id_, int(known[id_].num_computed_tokens)) for id_ in drafted if id_ in known]
    stream.note_queue.append((stream.settle_rejected, computed))


_observed = observing(lambda thing: thing._kvfence_stream or None)
"""A scheduler or a table manager by its stream."""


@_observed
def _preempt_request(
    stream: EngineStream, original: Method, self: Any, request: Any, *args: Any, **named: Any
) -> Any:
    id_ = request.request_id
    for noted in stream.noted_cursors:
        noted.pop(id_, None)
    stream.note_queue.append((stream.preempting, id_, int(request.num_computed_tokens)))
    result = original(self, request, *args, **named)
    stream.note_queue.append((stream.preempted, id_))
    return result


@_observed
def _free_request(
    stream: EngineStream, original: Method, self: Any, request: Any, *args: Any, **named: Any
) -> Any:
    computed = int(request.num_computed_tokens)
    stream.note_queue.append((stream.finishing, request.request_id, request.status.name, computed))
    return original(self, request, *args, **named)


@_observed
def _free_blocks(
    stream: EngineStream, original: Method, self: Any, request: Any, *args: Any, **named: Any
) -> Any:
    result = original(self, request, *args, **named)
    stream.note_queue.append((stream.gone, request.request_id))
    return result


@_observed
def _reset_prefix_cache(stream: EngineStream, original: Method, self: Any, *args: Any, **named: Any) -> Any:
    stream.note_queue.append((stream.begin_reset,))
    done = False
    try:
        done = original(self, *args, **named)
    finally:
        with_connector = bool(named.get("reset_connector", args[1] if len(args) > 1 else False))
        stream.note_queue.append((stream.end_reset, bool(done), with_connector))
    return done


@_observed
def _handle_invalid_blocks(
    stream: EngineStream, original: Method, self: Any, invalid_block_ids: Any, *args: Any, **named: Any
) -> Any:
    stream.note_queue.append((stream.failed_blocks, set(invalid_block_ids)))
    return original(self, invalid_block_ids, *args, **named)


_ALLOCATE_SLOTS = """
def hook(PARAMETERS):
    note_queue = self._kvfence_note_queue
    if note_queue is None:
        return original(ARGUMENTS)
    mark = note_queue.begin()
    try:
        blocks = original(ARGUMENTS)
    except BaseException:
        allocated(self, request, num_new_computed_tokens, num_external_computed_tokens, mark, False)
        raise
    if note_queue.size() != mark:
        done = blocks is not None
        allocated(self, request, num_new_computed_tokens, num_external_computed_tokens, mark, done)
    return blocks
"""


def _allocate_slots(original: Method) -> Method:
    if not {"num_new_computed_tokens", "num_external_computed_tokens"} <= set(signature(original).parameters):
        raise NotSeenError("it does not take how many tokens are computed")
    return shaped(original, _ALLOCATE_SLOTS, allocated=_allocated)


def _allocated(manager: Any, request: Any, local: int, external: int, mark: int, done: bool) -> None:
    """Note that a request's tables were changed by ``allocate_slots``, which may have admitted it."""
    stream: EngineStream = manager._kvfence_stream
    note_queue, reader = stream.note_queue, manager._kvfence_tables
    id_ = request.request_id
    tables: Tables = ()
    admission = None
    try:
        computed = int(request.num_computed_tokens)
        most = None
        if computed and reader.appending:
            made = note_queue.since(mark)
            if made is not None:
                most = sum(_given(note) for note in made)
        tables = reader.read(id_, most)
        if done:
            admission = (int(local) + computed, int(external), int(request.num_tokens))
    except Exception as error:
        note_queue.trouble(error)
    note_queue.end(mark, (stream.table_changed, id_, tables, admission))


def _given(note: Any) -> int:
    """How many blocks a note says were given or shared."""
    return len(note[2]) if len(note) > 4 and not isinstance(note[2], int | str) else 0


def _in_table(emptied: bool, first: str = "request") -> Callable[[Method], Method]:
    """Observe a method that takes blocks out of the tables of a request: all of them if ``emptied``.

    ``first``: the name of its first argument, which is the request or its id.
    """

    @_observed
    def call(stream: EngineStream, original: Method, self: Any, *args: Any, **named: Any) -> Any:
        request = args[0] if args else named[first]
        note_queue, id_ = stream.note_queue, request if isinstance(request, str) else request.request_id
        mark = note_queue.begin()
        try:
            return original(self, *args, **named)
        finally:
            if emptied or note_queue.size() != mark:
                note_queue.end(mark, (stream.table_shrunk, id_, emptied))

    return call


@_observed
def _pop_blocks_for_free(stream: EngineStream, original: Method, self: Any, request: Any) -> Any:
    blocks = original(self, request)
    stream.note_queue.append((stream.free_is_deferred, request.request_id, list(blocks)))
    return blocks
