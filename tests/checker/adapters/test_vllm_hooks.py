"""The hooks on a block pool with the methods of vLLM's, without vLLM."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import fake_pool
import pytest

from kvfence.checker.adapters.vllm.hooks.engine import Engines
from kvfence.checker.adapters.vllm.hooks.patching import Patches
from kvfence.checker.adapters.vllm.hooks.pool import hook_pool
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage
from kvfence.checker.adapters.vllm.stream.decisions import Cursors, account_cursors
from kvfence.checker.adapters.vllm_plugin import register
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.spec import events as ev

block_pool = fake_pool.block_pool


class Observed:
    """A pool under observation, and the events that it emitted."""

    def __init__(self, count: int = 9, sink: Any = None) -> None:
        self.module = block_pool()
        self.patches = Patches(Coverage())
        hook_pool(self.patches, self.module)
        self.events: list[Any] = []
        self.ledger: Ledger | None = None

        def open_sink(header: ev.Header) -> Any:
            self.ledger = Ledger(header, "count")
            return sink or self.emit

        self.engines = Engines(open_sink, "test")
        self.pool = self.module.BlockPool(count)
        self.stream = self.engines.stream_for(self.pool)

    def emit(self, event: Any) -> None:
        self.events.append(event)
        assert self.ledger is not None
        self.ledger.apply(event)

    @property
    def broken(self) -> dict[str, int]:
        assert self.ledger is not None
        return dict(self.ledger.violation_counts)


def test_holders_without_a_name_are_counted() -> None:
    seen = Observed()
    blocks = seen.pool.get_new_blocks(2)
    seen.pool.touch(blocks[:1])
    seen.pool.free_blocks(block for block in blocks)
    seen.pool.free_blocks(blocks[:1])
    assert seen.events == [
        ev.Alloc("gpu", "ref:0.0", [1, 2], 6),
        ev.Touch("gpu", "ref:1.0", [1], 6),
        ev.Free("gpu", "ref:1.0", [1]),
        ev.Free("gpu", "ref:0.0", [2], 7),
        ev.Free("gpu", "ref:0.0", [1], 8),
    ]
    assert not seen.broken


def test_a_cached_slot_is_evicted_before_it_is_given_away() -> None:
    seen = Observed(3)
    blocks = seen.pool.get_new_blocks(2)
    seen.pool.cache_full_blocks(None, blocks, 0, 2, 16, 1)
    seen.pool.free_blocks(blocks)
    seen.pool.get_new_blocks(1)
    labels = [event for event in seen.events if isinstance(event, ev.Label)]
    assert [(list(event.slots), event.group) for event in labels] == [([1, 2], 1)]
    assert [event for event in seen.events if isinstance(event, ev.Evict)] == [ev.Evict("gpu", [1])]
    assert not seen.broken


def test_a_slot_that_leaves_the_index_alone_is_told() -> None:
    seen = Observed()
    blocks = seen.pool.get_new_blocks(2)
    seen.pool.cache_full_blocks(None, blocks, 0, 2, 16, 0)
    seen.pool.evict_blocks({1})
    seen.pool.reset_prefix_cache()
    assert [list(event.slots) for event in seen.events if isinstance(event, ev.Unlabel)] == [[1], [2]]


def test_the_null_block_has_no_holders() -> None:
    seen = Observed()
    seen.pool.touch([seen.pool.null_block])
    seen.pool.free_blocks([seen.pool.null_block])
    assert not seen.events


def test_rows_longer_than_a_few_are_told_the_same() -> None:
    seen = Observed(100)
    blocks = seen.pool.get_new_blocks(60)
    seen.pool.cache_full_blocks(None, blocks, 0, 60, 16, 0)
    seen.pool.free_blocks(list(reversed(blocks)))
    seen.pool.get_new_blocks(99)
    assert not seen.broken
    assert seen.ledger is not None
    assert seen.ledger.held() == {"gpu": 99}


def test_a_pool_that_counts_wrong_is_caught() -> None:
    seen = Observed()
    seen.pool.get_new_blocks(2)
    seen.pool.free.pop()
    seen.pool.get_new_blocks(1)
    assert set(seen.broken) == {"CONSERVE"}


def test_a_refusal_is_told_and_still_raised() -> None:
    seen = Observed(3)
    with pytest.raises(ValueError, match="Cannot get"):
        seen.pool.get_new_blocks(5)
    assert seen.events[0].asked == 5
    assert not seen.broken


def test_an_exception_of_the_sink_does_not_reach_the_pool() -> None:
    def sink(_: Any) -> None:
        raise RuntimeError("no")

    seen = Observed(9, sink)
    assert len(seen.pool.get_new_blocks(2)) == 2
    assert seen.stream.trouble_count == 1
    assert "RuntimeError" in seen.stream.troubles[0]


def test_too_much_trouble_ends_the_observation() -> None:
    def sink(_: Any) -> None:
        raise RuntimeError("no")

    seen = Observed(50, sink)
    for _ in range(30):
        seen.pool.get_new_blocks(1)
    assert seen.stream.off
    assert seen.stream.trouble_count == 20


def test_a_violation_reaches_the_caller_when_it_is_to_be_raised() -> None:
    seen = Observed()
    strict = Ledger(seen.stream.header(), "raise")
    seen.stream.open_sink = lambda _: strict
    seen.pool.get_new_blocks(2)
    seen.pool.free.pop()
    with pytest.raises(InvariantViolation):
        seen.pool.get_new_blocks(1)


def test_a_missing_method_is_not_checked_and_nothing_is_determined() -> None:
    module = block_pool()
    del module.BlockPool.evict_blocks
    patches = Patches(Coverage())
    hook_pool(patches, module)
    assert patches.coverage["BlockPool.evict_blocks"] == "not checked: this release has no such method"
    assert patches.coverage.undetermined


def test_a_method_with_other_parameters_is_left_alone() -> None:
    module = block_pool()
    module.BlockPool.touch = lambda self, groups, more: None  # noqa: ARG005
    untouched = module.BlockPool.touch
    patches = Patches(Coverage())
    hook_pool(patches, module)
    assert patches.coverage["BlockPool.touch"].startswith("not checked: its parameters are groups, more")
    assert module.BlockPool.touch is untouched


def test_a_method_nobody_knows_is_not_checked() -> None:
    module = block_pool()
    module.BlockPool.steal_blocks = lambda self: None  # noqa: ARG005
    patches = Patches(Coverage())
    hook_pool(patches, module)
    assert "steal_blocks" in patches.coverage["BlockPool"]
    assert patches.coverage.undetermined


def test_hooks_are_put_in_once_and_taken_out_again() -> None:
    module = block_pool()
    before = dict(vars(module.BlockPool))
    first, second = Patches(Coverage()), Patches(Coverage())
    hook_pool(first, module)
    hooked = module.BlockPool.touch
    hook_pool(second, module)
    assert module.BlockPool.touch is hooked
    assert second.coverage.undetermined
    second.remove()
    assert module.BlockPool.touch is hooked
    first.remove()
    assert dict(vars(module.BlockPool)) == before


def test_steps_that_are_alike_are_told_as_one() -> None:
    seen = Observed()
    seen.stream.tiers.append(seen.stream.gpu)
    for _ in range(4):
        seen.stream.dispatched(7, {"a": 1, "b": 1})
        seen.stream.processed(7)
    assert seen.events == [ev.Dispatch(0, ["a", "b"], [1, 1]), ev.Process(0)]
    seen.pool.get_new_blocks(1)
    assert seen.events[2:4] == [ev.Dispatch(1, ["a", "b"], [3, 3]), ev.Process(1)]
    assert not seen.broken


def test_without_a_tier_a_table_may_be_freed_under_a_step() -> None:
    seen = Observed()
    seen.stream.dispatched(7, {"a": 1})
    blocks = seen.pool.get_new_blocks(1)
    seen.pool.free_blocks(blocks)
    assert not [event for event in seen.events if isinstance(event, ev.Dispatch)]
    assert not seen.broken


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_tier_a_finished_request_has_no_tokens_to_count(steps: int) -> None:
    seen = Observed()
    seen.stream.submit("a", 8)
    for _ in range(steps):
        seen.stream.dispatched(7, {"a": 8})
        seen.stream.processed(7)
    seen.stream.finishing("a", "FINISHED_ABORTED", 8 * steps)
    seen.stream.gone("a")
    assert not seen.broken


@pytest.mark.parametrize(("computed", "broken"), [(8, {}), (6, {"COUNT": 1})])
def test_with_a_tier_the_tokens_of_a_finished_request_are_counted(
    computed: int, broken: dict[str, int]
) -> None:
    seen = Observed()
    seen.stream.tiers.append(seen.stream.gpu)
    seen.stream.submit("a", 8)
    seen.stream.admit(seen.stream.request("a"), 0, 0, 8)
    seen.stream.dispatched(7, {"a": 8})
    seen.stream.processed(7)
    seen.stream.finishing("a", "FINISHED_ABORTED", computed)
    assert {name: count for name, count in seen.broken.items() if name == "COUNT"} == broken


@pytest.mark.parametrize("used", [False, True])
def test_a_scheduler_whose_connector_put_the_hooks_in_place_is_followed_from_its_first_use(
    used: bool,
) -> None:
    """With a connector that has ledger state of its own nothing else tells of the pool."""
    seen = Observed()
    pool = seen.module.BlockPool(9)
    emitted: list[str] = []
    seen.engines.not_seen = emitted.append
    coordinator = types.SimpleNamespace(single_type_managers=[])
    manager = types.SimpleNamespace(
        block_pool=pool, coordinator=coordinator, kv_cache_config=types.SimpleNamespace(kv_cache_groups=[])
    )
    connector = types.SimpleNamespace(connector_scheduler=None)
    scheduler = types.SimpleNamespace(kv_cache_manager=manager, connector=connector)
    if used:
        pool.get_new_blocks(1)
    seen.engines.scheduler_found(scheduler)
    pool.get_new_blocks(1)
    assert [type(event) for event in seen.events] == ([] if used else [ev.Alloc])
    (line,) = emitted
    assert ("in use before it was observed" if used else "its own tier is not judged") in line


def beside_an_unseen_tier(promised: int = 0) -> Observed:
    """An engine with a tier that is observed, which may have given a promise, and one that is not."""
    seen = Observed()
    seen.stream.tiers.append(seen.stream.gpu)
    seen.stream.unseen = True
    seen.stream.submit("a", 12)
    if promised:
        seen.stream.emit(ev.Lookup("a", 0, 4, promised, "gpu", []))
        seen.stream.request("a").promised = True
    seen.events.clear()
    return seen


def admissions(seen: Observed) -> list[tuple[int, int, int]]:
    return [(e.local, e.external, e.compute) for e in seen.events if isinstance(e, ev.Admit)]


def test_what_an_unseen_tier_loads_counts_at_once_and_is_no_promise_broken() -> None:
    seen = beside_an_unseen_tier()
    seen.stream.admit(seen.stream.request("a"), 4, 4, 12)
    assert admissions(seen) == [(8, 0, 4)]
    seen.stream.dispatched(7, {"a": 4})
    seen.stream.processed(7)
    seen.stream.finishing("a", "FINISHED_ABORTED", 12)
    assert not seen.broken


@pytest.mark.parametrize(("observed", "emitted"), [(True, (4, 4, 4)), (False, (8, 0, 4))])
def test_a_promise_beside_an_unseen_tier_is_kept_only_by_who_gave_it(
    observed: bool, emitted: tuple[int, int, int]
) -> None:
    seen = beside_an_unseen_tier(promised=4)
    state = seen.stream.request("a")
    seen.stream.admit(state, 4, 4, 12)
    assert admissions(seen) == []
    seen.stream.load_settled(state, observed)
    assert admissions(seen) == [emitted]
    assert any(isinstance(event, ev.Withdraw) for event in seen.events) != observed
    seen.stream.load_settled(state, not observed)
    assert len(admissions(seen)) == 1
    assert not {"COUNT", "PIN"} & set(seen.broken)


@pytest.mark.parametrize("steps", [0, 1])
def test_the_last_token_is_computed_though_an_unseen_tier_loaded_it(steps: int) -> None:
    seen = beside_an_unseen_tier()
    seen.stream.admit(seen.stream.request("a"), 0, 12, 12)
    assert admissions(seen) == [(11, 0, 1)]
    for _ in range(steps):
        seen.stream.dispatched(7, {"a": 1})
        seen.stream.processed(7)
    seen.stream.finishing("a", "FINISHED_ABORTED", 12)
    assert not seen.broken
    assert not seen.stream.loaded_whole


def test_without_an_unseen_tier_no_more_may_be_loaded_than_was_promised() -> None:
    seen = beside_an_unseen_tier(promised=4)
    seen.stream.unseen = False
    seen.stream.admit(seen.stream.request("a"), 4, 8, 12)
    assert admissions(seen) == [(4, 8, 0)]
    assert seen.broken["COUNT"] == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_store_cursor_is_told_only_of_a_table_that_was_seen(known: bool) -> None:
    seen = Observed()
    seen.stream.submit("a", 32)
    state = seen.stream.request("a")
    tier: Any = types.SimpleNamespace(stream=seen.stream, tap=seen.stream.gpu)
    if known:
        state.enter(0, 0, seen.pool.get_new_blocks(2) and [1, 2])
    account_cursors(tier, Cursors("a", [2], 32))
    emitted = [event for event in seen.events if isinstance(event, ev.Cursor)]
    assert emitted == ([ev.Cursor("a", 0, 2, 0)] if known else [])


def test_something_that_happens_during_such_a_step_is_told_between_its_ends() -> None:
    seen = Observed()
    seen.stream.tiers.append(seen.stream.gpu)
    for step in range(2):
        seen.stream.dispatched(step, {"a": 1})
        seen.stream.processed(step)
    seen.stream.dispatched(2, {"a": 1})
    seen.pool.get_new_blocks(1)
    seen.stream.processed(2)
    kinds = [(type(event), getattr(event, "tokens", None)) for event in seen.events]
    assert kinds == [
        (ev.Dispatch, [1]),
        (ev.Process, None),
        (ev.Dispatch, [1]),
        (ev.Process, None),
        (ev.Dispatch, [1]),
        (ev.Alloc, None),
        (ev.Process, None),
    ]
    assert not seen.broken


def test_the_plugin_imports_nothing_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFENCE_MODE", raising=False)
    register()
    program = (
        "import sys\n"
        "import kvfence.checker.adapters.vllm_plugin as plugin, kvfence.checker.adapters.pytest_plugin\n"
        "plugin.register()\n"
        "heavy = {'vllm', 'torch', 'numpy', 'kvfence.checker.ledger.ledger'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plugin_that_cannot_work_says_so_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVFENCE_MODE", "loud")
    register()
    assert "kvfence has no mode 'loud'" in caplog.text


def test_pytest_says_when_there_is_no_vllm(tmp_path: Any) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--kvfence=raise", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 4
    assert "needs an importable vLLM" in done.stderr
