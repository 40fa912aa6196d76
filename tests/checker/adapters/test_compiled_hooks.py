"""Compiled hooks note what the hooks in Python note, in ordinary cases and in odd ones."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from typing import Any

import pytest
from fake_pool import ObservedPool, block_pool

from kvfence.checker.adapters.vllm.hooks.scheduler import hook_scheduler
from kvfence.checker.adapters.vllm.notes.compiled_hooks import Compiled, compiled_hooks, hook
from kvfence.checker.adapters.vllm.notes.judge_thread import Judge
from kvfence.checker.adapters.vllm.stream import transfers

needs_compiled = pytest.mark.skipif(
    compiled_hooks() is None, reason="no compiled hooks: there is no C compiler, or no header files of Python"
)


@pytest.fixture(autouse=True)
def nothing_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes stay where the hooks put them."""
    monkeypatch.setattr(Judge, "wanted", lambda _: None)


class Observed(ObservedPool):
    """A pool whose hooks note; nothing judges the notes."""

    def __init__(self, compiled: bool = True, count: int = 30) -> None:
        self.judge = Judge()
        super().__init__(count, lambda _: lambda _: None, self.judge.note_queue, compiled=compiled)
        self.note_queue: Any = self.stream.note_queue
        self.refused = 0

    @property
    def row(self) -> Any:
        return self.note_queue.row

    def noted(self) -> list[Any]:
        """The notes, with numbers in the place of blocks."""
        return [tuple(self._plain(part) for part in note) for note in self.note_queue.row.since(0)]

    def _plain(self, part: Any) -> Any:
        if isinstance(part, list | tuple):
            listed = [getattr(each, "block_id", each) for each in part]
            # A compiled hook does not list the hashes of blocks if none has one.
            return [] if all(each is None for each in listed) else listed
        return part if isinstance(part, int | str | type(None)) else getattr(part, "__name__", "it")


@pytest.fixture
def observed() -> Observed:
    """A pool with compiled hooks."""
    return Observed()


def played(seen: Observed, seed: int) -> list[Any]:
    """Notes of a random life of a pool."""
    draw = random.Random(seed)
    held: list[Any] = []
    pool, note_queue = seen.pool, seen.note_queue
    for number in range(200):
        what = draw.randrange(8)
        note_queue.storing = draw.random() < 0.5
        if what < 3:
            count = draw.randrange(1, 9)
            try:
                taken = pool.get_new_blocks(num_blocks=count) if what else pool.get_new_blocks(count)
            except ValueError:
                seen.refused += 1
                continue
            held += taken
            pool.cache_full_blocks(None, taken, 0, draw.randrange(count + 1), 16, kv_cache_group_id=0)
        elif what == 3:
            some = draw.sample(held, min(2, len(held)))
            held += some
            pool.touch(tuple(some) if number % 2 else some)
        elif what == 4:
            pool.cache_full_blocks(
                request=None,
                blocks=held,
                num_cached_blocks=0,
                num_full_blocks=min(3, len(held)),
                block_size=16,
                kv_cache_group_id=1,
            )
        else:
            some, held = held[:3], held[3:]
            pool.free_blocks(reversed(some) if number % 2 else some)
    return seen.noted()


@needs_compiled
@pytest.mark.parametrize("seed", range(5))
def test_the_notes_are_those_of_the_hooks_in_python(seed: int) -> None:
    compiled, plain = Observed(), Observed(False)
    assert type(compiled.module.BlockPool.touch).__name__ == "Hook"
    assert type(plain.module.BlockPool.touch).__name__ == "function"
    notes = played(compiled, seed)
    assert notes == played(plain, seed)
    assert {note[0] for note in notes} == {"allocated", "touched", "freed", "labelled", "denied"}
    assert compiled.refused == plain.refused > 0
    assert compiled.note_queue.lively == plain.note_queue.lively == 3


@needs_compiled
def test_a_hook_looks_like_the_method_that_it_stands_for(observed: Observed) -> None:
    before = block_pool().BlockPool.touch
    method = observed.module.BlockPool.touch
    assert (method.__name__, method.__qualname__) == (before.__name__, before.__qualname__)
    assert method.__wrapped__.__code__ == before.__code__
    assert observed.pool.touch.__self__ is observed.pool
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        observed.pool.touch()
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        observed.pool.get_new_blocks(blocks=3)
    observed.patches.remove()
    assert type(observed.module.BlockPool.touch).__name__ == "function"


@needs_compiled
def test_what_a_hook_cannot_read_is_trouble_and_the_pool_goes_on(observed: Observed) -> None:
    (block,) = observed.pool.get_new_blocks(1)
    del block._block_hash
    observed.note_queue.storing = True
    observed.pool.touch([block])
    assert block.ref_cnt == 2
    assert "_block_hash" in observed.stream.troubles[0]
    observed.note_queue.stop()
    before = len(observed.row)
    observed.pool.free_blocks([block])
    assert (block.ref_cnt, len(observed.row)) == (1, before)


@needs_compiled
def test_a_pool_that_nobody_observes_is_left_alone(observed: Observed) -> None:
    other = observed.module.BlockPool(9)
    blocks = other.get_new_blocks(2)
    other.touch(blocks)
    other.cache_full_blocks(None, blocks, 0, 2, 16, 0)
    other.free_blocks(blocks)
    assert [block.ref_cnt for block in blocks] == [1, 1]
    assert observed.noted() == []


def scheduling(compiled: bool) -> tuple[Any, Observed]:
    """A scheduler of sorts on an observed pool, whose hooks note."""
    seen = Observed(compiled)

    class KVCacheManager:
        def __init__(self) -> None:
            self.block_pool = seen.pool
            self.tables: dict[str, list[Any]] = {}
            self.coordinator = types.SimpleNamespace(single_type_managers=[FullAttentionManager(self.tables)])
            self.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[])

        def allocate_slots(
            self,
            request: Any,
            num_new_tokens: int,
            num_new_computed_tokens: int = 0,
            new_computed_blocks: Any = None,  # noqa: ARG002 - as in vLLM
            num_external_computed_tokens: int = 0,  # noqa: ARG002
        ) -> list[Any] | None:
            table = self.tables.setdefault(request.request_id, [])
            if num_new_tokens < 0:
                self.block_pool.get_new_blocks(1)
                raise RuntimeError("broken off")
            if num_new_tokens > 16 * 20:
                return None
            need = -(-(request.num_computed_tokens + num_new_tokens) // 16) - len(table)
            new = self.block_pool.get_new_blocks(need) if need > 0 else []
            table += new
            full = (request.num_computed_tokens + num_new_tokens + num_new_computed_tokens) // 16
            self.block_pool.cache_full_blocks(request, table, request.cached, full, 16, 0)
            request.cached = max(request.cached, full)
            return new

        def free(self, request: Any) -> None:
            self.block_pool.free_blocks(self.tables.pop(request.request_id))

        def cache_blocks(self, request: Any, num_computed_tokens: int) -> None: ...

        def remove_skipped_blocks(self, request_id: str) -> None: ...

    class Scheduler:
        def __init__(self) -> None:
            self.kv_cache_manager = KVCacheManager()
            self.requests: dict[str, Any] = {}

        def schedule(self, tokens: dict[str, int], drafted: dict[str, list[int]]) -> Any:
            return types.SimpleNamespace(num_scheduled_tokens=tokens, scheduled_spec_decode_tokens=drafted)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> int:  # noqa: ARG002
            for id_, count in scheduler_output.num_scheduled_tokens.items():
                self.requests[id_].num_computed_tokens += count
            return len(scheduler_output.num_scheduled_tokens)

        def add_request(self, request: Any) -> None: ...

        def _preempt_request(self, request: Any, timestamp: float) -> None: ...

        def _free_request(self, request: Any) -> None: ...

        def _free_blocks(self, request: Any) -> None: ...

        def reset_prefix_cache(self) -> None: ...

        def _handle_invalid_blocks(self, invalid_block_ids: set[int]) -> None: ...

    modules = types.SimpleNamespace(Scheduler=Scheduler), types.SimpleNamespace(KVCacheManager=KVCacheManager)
    hook_scheduler(seen.patches, *modules, seen.engines)
    return Scheduler(), seen


def request_of(scheduler: Any, name: str) -> Any:
    """A new request of a scheduler."""
    made = types.SimpleNamespace(request_id=name, num_computed_tokens=0, num_tokens=40, cached=0)
    scheduler.requests[name] = made
    return made


class FullAttentionManager:
    block_size = 16

    def __init__(self, tables: dict[str, list[Any]]) -> None:
        self.req_to_blocks = tables


def stepped(scheduler: Any, seen: Observed) -> list[Any]:
    """Notes of a few steps of two requests, with a refusal, drafted tokens and an exception among them."""
    manager = scheduler.kv_cache_manager
    for name in ("a", "b"):
        request = request_of(scheduler, name)
        manager.allocate_slots(request, 20, 0 if name == "a" else 3, num_external_computed_tokens=2)
    outputs = [scheduler.schedule({"a": 20, "b": 20}, {})]
    assert scheduler.update_from_output(outputs[0], None) == 2
    assert manager.allocate_slots(scheduler.requests["a"], 16 * 30) is None
    with pytest.raises(RuntimeError, match="broken off"):
        manager.allocate_slots(scheduler.requests["a"], -1)
    for step in range(30):
        for request in scheduler.requests.values():
            manager.allocate_slots(request, num_new_tokens=1)
        outputs.append(scheduler.schedule({"a": 1, "b": 1}, {"a": [5]} if step == 4 else {}))
        assert seen.note_queue.kvfence_in_flight == 1
        scheduler.update_from_output(scheduler_output=outputs[-1], model_runner_output=None)
        assert seen.note_queue.kvfence_in_flight == 0
    empty = scheduler.schedule({}, {})
    assert empty.kvfence_in_flight == 0
    assert seen.note_queue.done == len(seen.row)
    manager.free(scheduler.requests["a"])
    at = {id(output): number for number, output in enumerate(outputs)}
    return [
        tuple(at.get(part, part) if isinstance(part, int) else part for part in note)
        for note in emitted(seen)
    ]


def emitted(seen: Observed) -> list[Any]:
    """Notes that mean something: a call that only labelled need not be told to begin and end."""
    notes = [note for row in seen.note_queue.rows for note in row.since(0)]
    found: list[Any] = []
    for at, note in enumerate(notes):
        name = note[0].__name__
        if name == "gather":
            inside = notes[at + 1 : next(n for n in range(at, len(notes)) if "table" in notes[n][0].__name__)]
            idle = all(each[0].__name__ == "labelled" for each in inside)
            if not idle:
                found.append(("gather",))
        elif name == "table_changed":
            if idle:
                continue
            id_, tables, admission = note[-3:]
            where = [(group, start, [block.block_id for block in table]) for group, start, table in tables]
            found.append((name, id_, where, None if admission is None else tuple(admission)))
        else:
            rest = note[2:] if not hasattr(note[0], "__self__") else note[1:]
            found.append((name, *(seen._plain(part) for part in rest)))
    return found


@needs_compiled
def test_steps_and_tables_are_noted_as_the_hooks_in_python_note_them() -> None:
    compiled, plain = (stepped(*scheduling(how)) for how in (True, False))
    for note, other in zip(compiled, plain, strict=True):
        assert note[: len(other)] == other or (note[0] == "dispatched" and note[:3] == other[:3])
    names = {note[0] for note in compiled}
    assert {"dispatched", "processed", "settle_rejected", "table_changed", "gather"} <= names


def test_cursors_of_a_request_that_is_preempted_are_noted_anew() -> None:
    scheduler, seen = scheduling(False)
    noted = {"a": 5, "b": 2}
    seen.stream.noted_cursors.append(noted)
    request = types.SimpleNamespace(request_id="a", num_computed_tokens=40)
    scheduler._preempt_request(request, 0.0)
    assert noted == {"b": 2}
    known = {"a": types.SimpleNamespace(num_stored_blocks=[5], request=request)}
    assert transfers.moved(known, {"a": 1}, noted) == [("a", [5], 40)]


@needs_compiled
def test_notes_that_are_reported_leave_nothing_behind() -> None:
    scheduler, seen = scheduling(True)
    manager = scheduler.kv_cache_manager
    request = request_of(scheduler, "a")

    def life() -> None:
        request.num_computed_tokens = request.cached = 0
        manager.allocate_slots(request, 40)
        seen.pool.touch(manager.tables["a"])
        seen.pool.free_blocks(iter(manager.tables["a"]))
        scheduler.update_from_output(scheduler.schedule({"a": 40}, {}), None)
        manager.free(request)
        with pytest.raises(ValueError, match="Cannot get"):
            seen.pool.get_new_blocks(1_000)
        assert len(seen.row.since(0)) > 8
        seen.note_queue.rows.clear()
        seen.note_queue._bind()

    life()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        life()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


@needs_compiled
def test_a_row_gives_back_the_notes_that_were_put_in() -> None:
    seen = Observed(count=3_000)
    row = seen.row
    row.append((print, "first"))
    blocks = seen.pool.get_new_blocks(2_500)  # more than a new row has room for
    row.append((print, 1 << 70, -5, True))
    seen.pool.free_blocks(blocks)
    row.insert(0, (print, "before"))
    names = ["print", "print", "allocated", "print", "freed"]
    assert [note[0].__name__ for note in row.since(0)] == names
    assert row.at == 0
    taken = [row.take() for _ in names]
    assert taken[0] == (print, "before")
    assert taken[2][2] == blocks
    assert taken[3] == (print, 1 << 70, -5, True)
    assert taken[4][2:] == (blocks, 2_999)
    assert row.at == len(row)
    assert (row.take(), row.since(0)) == (None, [])
    row.insert(0, (print, "late"))  # the engine stood still, and what it began is told already
    assert row.take() == (print, "late")
    with pytest.raises(IndexError, match="no note begins there"):
        row.insert(len(row) + 1, (print, "nowhere"))
    with pytest.raises(TypeError, match="a note is a tuple"):
        row.append([print])
    with pytest.raises(TypeError, match="is a NoteRow"):
        seen.note_queue.row = []


@needs_compiled
def test_a_note_that_comes_while_another_is_written_is_not_lost(observed: Observed) -> None:
    row = observed.note_queue.row
    (block,) = observed.pool.get_new_blocks(1)

    class Noting:
        """A block whose hash is made by code, which notes."""

        ref_cnt = 1
        is_null = False

        @property
        def _block_hash(self) -> None:
            row.append((print, "meanwhile"))
            observed.note_queue.end(0, (print, "end"))
            observed.pool.touch([block])

    observed.note_queue.storing = True
    observed.pool.touch([Noting()])
    kinds = [note[0].__name__ for note in row.since(0)]
    assert kinds[:2] == ["allocated", "touched"]
    assert kinds.count("print") == 2
    assert block.ref_cnt == 2
    assert "a note within a note" in observed.stream.troubles[0]
    while row.take() is not None:
        pass


@needs_compiled
def test_a_row_that_is_reported_is_used_again_unless_it_grew_large() -> None:
    seen = Observed(count=40_000)
    emitted: list[int] = []
    note_queue = seen.note_queue

    def full_row(notes: int) -> Any:
        row = note_queue.row
        for number in range(notes):
            note_queue.append((emitted.append, number))
        assert not row.reset()
        note_queue.turn()
        note_queue.play()
        return row

    first = full_row(9)
    assert (note_queue.spare, len(first)) == ([first], 0)
    full_row(3)
    assert note_queue.row is first
    note_queue.append((emitted.append, -1))
    note_queue.allow()
    note_queue.play()
    assert emitted == [*range(9), *range(3), -1]
    blocks = seen.pool.get_new_blocks(35_000)
    large = note_queue.row
    full_row(1)
    assert all(row is not large for row in note_queue.spare)
    del blocks


@needs_compiled
def test_several_engines_share_the_hooks_and_one_that_is_gone_is_let_go(observed: Observed) -> None:
    pools = [observed.pool, *(observed.module.BlockPool(9) for _ in range(3))]
    for pool in pools[1:]:
        observed.engines.stream_for(pool)
    for turn in range(3):
        for pool in pools:
            pool.get_new_blocks(1 + turn)
    for pool in pools:
        row = pool._kvfence_tap.note_queue.row
        assert [len(note[2]) for note in row.since(0)] == [1, 2, 3]
        assert all(note[1] is pool._kvfence_tap for note in row.since(0))
    gone = weakref.ref(pools[-1])
    while pools[-1]._kvfence_tap.note_queue.row.take():
        pass
    pools[-1]._kvfence_tap.note_queue.finish()
    del pool, row, pools[1:]
    observed.judge._note_queues.clear()
    gc.collect()
    assert gone() is None
    for _ in range(20):  # one of them may lie where that one was
        other = observed.module.BlockPool(9)
        other.get_new_blocks(1)
        other._kvfence_tap = None
    assert [len(note[2]) for note in observed.row.since(0)] == [1, 2, 3]


@needs_compiled
def test_cursors_that_moved_are_those_that_python_finds() -> None:
    made = compiled_hooks()
    assert made is not None
    draw = random.Random(7)
    seen: tuple[dict[str, int], ...] = ({}, {})
    tracked = {
        str(number): types.SimpleNamespace(
            num_stored_blocks=[0, 0], request=types.SimpleNamespace(num_computed_tokens=number)
        )
        for number in range(9)
    }
    moved_at_all = 0
    for _ in range(50):
        known = tracked[str(draw.randrange(9))]
        known.num_stored_blocks[draw.randrange(2)] += draw.randrange(2)
        tokens = {str(draw.randrange(12)): 1 for _ in range(6)}
        found = made.moved(tracked, tokens, seen[0])
        assert [tuple(each) for each in found] == transfers.moved(tracked, tokens, seen[1])
        assert seen[0] == seen[1]
        moved_at_all += len(found)
    assert moved_at_all > 9
    with pytest.raises(TypeError, match="three dictionaries"):
        made.moved(tracked, [], {})  # type: ignore[arg-type]


def test_without_a_compiler_the_hooks_in_python_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFENCE_COMPILE", "0")
    compiled_hooks.cache_clear()
    try:
        assert compiled_hooks() is None
        seen = Observed()
        assert type(seen.module.BlockPool.touch).__name__ == "function"
        seen.pool.get_new_blocks(2)
        assert [note[0] for note in seen.noted()] == ["allocated"]
    finally:
        compiled_hooks.cache_clear()


@needs_compiled
def test_a_method_with_other_arguments_gets_no_compiled_hook() -> None:
    def original(self: Any, request: Any) -> None: ...

    asked = Compiled("allocate_slots", (), ("request", "num_new_computed_tokens"))
    assert hook(asked, original, original) is original
    made = compiled_hooks()
    assert made is not None
    with pytest.raises(ValueError, match="no compiled hook steal"):
        made.hook("steal", original, original, (), ())
