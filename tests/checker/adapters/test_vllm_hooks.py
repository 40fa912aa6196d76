"""The hooks on a block pool with the methods of vLLM's, without vLLM."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
from fake_pool import ObservedPool, block_pool, hooked

from kvfence.checker.adapters.vllm.stream.decisions import Cursors, account_cursors
from kvfence.checker.adapters.vllm_plugin import register
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.spec import events as ev


class Observed(ObservedPool):
    """A pool under observation, and the events that it emitted."""

    ledger: Ledger

    def __init__(self, count: int = 9, sink: Any = None) -> None:
        self.events: list[Any] = []

        def open_sink(header: ev.Header) -> Any:
            self.ledger = Ledger(header, "count")
            return sink or self.emit

        super().__init__(count, open_sink)

    def emit(self, event: Any) -> None:
        self.events.append(event)
        self.ledger.apply(event)

    def of(self, kind: Any) -> list[Any]:
        """The events of this kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def broken(self) -> dict[str, int]:
        return dict(self.ledger.violation_counts)

    def step(self, number: int = 7, **tokens: int) -> None:
        """A step that computes so many tokens of each request."""
        self.stream.dispatched(number, tokens)
        self.stream.processed(number)


@pytest.fixture
def module() -> Any:
    return block_pool()


@pytest.fixture
def observed() -> Observed:
    return Observed()


def with_tier(observed: Observed) -> Observed:
    """The same engine with a tier."""
    observed.stream.tiers.append(observed.stream.gpu)
    return observed


@pytest.fixture
def tiered(observed: Observed) -> Observed:
    return with_tier(observed)


def test_holders_without_a_name_are_counted(observed: Observed) -> None:
    blocks = observed.pool.get_new_blocks(2)
    observed.pool.touch(blocks[:1])
    observed.pool.free_blocks(block for block in blocks)
    observed.pool.free_blocks(blocks[:1])
    assert observed.events == [
        ev.Alloc("gpu", "ref:0.0", [1, 2], 6),
        ev.Touch("gpu", "ref:1.0", [1], 6),
        ev.Free("gpu", "ref:1.0", [1]),
        ev.Free("gpu", "ref:0.0", [2], 7),
        ev.Free("gpu", "ref:0.0", [1], 8),
    ]
    assert not observed.broken


def test_a_cached_slot_is_evicted_before_it_is_given_away() -> None:
    observed = Observed(3)
    blocks = observed.pool.get_new_blocks(2)
    observed.pool.cache_full_blocks(None, blocks, 0, 2, 16, 1)
    observed.pool.free_blocks(blocks)
    observed.pool.get_new_blocks(1)
    labels = observed.of(ev.Label)
    assert [(list(event.slots), event.group) for event in labels] == [([1, 2], 1)]
    assert observed.of(ev.Evict) == [ev.Evict("gpu", [1])]
    assert not observed.broken


def test_a_slot_that_leaves_the_index_alone_is_emitted(observed: Observed) -> None:
    blocks = observed.pool.get_new_blocks(2)
    observed.pool.cache_full_blocks(None, blocks, 0, 2, 16, 0)
    observed.pool.evict_blocks({1})
    observed.pool.reset_prefix_cache()
    assert [list(event.slots) for event in observed.of(ev.Unlabel)] == [[1], [2]]


def test_the_null_block_has_no_holders(observed: Observed) -> None:
    observed.pool.touch([observed.pool.null_block])
    observed.pool.free_blocks([observed.pool.null_block])
    assert not observed.events


def test_rows_longer_than_a_few_are_emitted_the_same() -> None:
    observed = Observed(100)
    blocks = observed.pool.get_new_blocks(60)
    observed.pool.cache_full_blocks(None, blocks, 0, 60, 16, 0)
    observed.pool.free_blocks(list(reversed(blocks)))
    observed.pool.get_new_blocks(99)
    assert not observed.broken
    assert observed.ledger.held() == {"gpu": 99}


def test_a_pool_that_counts_wrong_is_caught(observed: Observed) -> None:
    observed.pool.get_new_blocks(2)
    observed.pool.free.pop()
    observed.pool.get_new_blocks(1)
    assert set(observed.broken) == {"CONSERVE"}


def test_a_refusal_is_emitted_and_still_raised() -> None:
    observed = Observed(3)
    with pytest.raises(ValueError, match="Cannot get"):
        observed.pool.get_new_blocks(5)
    assert observed.events[0].asked == 5
    assert not observed.broken


def failing(_: Any) -> None:
    """A sink that cannot judge."""
    raise RuntimeError("no")


def test_an_exception_of_the_sink_does_not_reach_the_pool() -> None:
    observed = Observed(9, failing)
    assert len(observed.pool.get_new_blocks(2)) == 2
    assert observed.stream.trouble_count == 1
    assert "RuntimeError" in observed.stream.troubles[0]


def test_too_much_trouble_ends_the_observation() -> None:
    observed = Observed(50, failing)
    for _ in range(30):
        observed.pool.get_new_blocks(1)
    assert observed.stream.off
    assert observed.stream.trouble_count == 20


def test_a_violation_reaches_the_caller_when_it_is_to_be_raised(observed: Observed) -> None:
    strict = Ledger(observed.stream.header(), "raise")
    observed.stream.open_sink = lambda _: strict
    observed.pool.get_new_blocks(2)
    observed.pool.free.pop()
    with pytest.raises(InvariantViolation):
        observed.pool.get_new_blocks(1)


def test_a_missing_method_is_not_checked_and_nothing_is_determined(module: Any) -> None:
    del module.BlockPool.evict_blocks
    coverage = hooked(module).coverage
    assert coverage["BlockPool.evict_blocks"] == "not checked: this release has no such method"
    assert coverage.undetermined


def test_a_method_with_other_parameters_is_left_alone(module: Any) -> None:
    module.BlockPool.touch = lambda self, groups, more: None  # noqa: ARG005
    untouched = module.BlockPool.touch
    coverage = hooked(module).coverage
    assert coverage["BlockPool.touch"].startswith("not checked: its parameters are groups, more")
    assert module.BlockPool.touch is untouched


def test_a_method_that_is_not_known_is_not_checked(module: Any) -> None:
    module.BlockPool.steal_blocks = lambda self: None  # noqa: ARG005
    coverage = hooked(module).coverage
    assert "steal_blocks" in coverage["BlockPool"]
    assert coverage.undetermined


def test_hooks_are_put_in_once_and_taken_out_again(module: Any) -> None:
    before = dict(vars(module.BlockPool))
    first = hooked(module)
    hook = module.BlockPool.touch
    second = hooked(module)
    assert module.BlockPool.touch is hook
    assert second.coverage.undetermined
    second.remove()
    assert module.BlockPool.touch is hook
    first.remove()
    assert dict(vars(module.BlockPool)) == before


def test_steps_that_are_alike_are_emitted_as_one(tiered: Observed) -> None:
    for _ in range(4):
        tiered.step(a=1, b=1)
    assert tiered.events == [ev.Dispatch(0, ["a", "b"], [1, 1]), ev.Process(0)]
    tiered.pool.get_new_blocks(1)
    assert tiered.events[2:4] == [ev.Dispatch(1, ["a", "b"], [3, 3]), ev.Process(1)]
    assert not tiered.broken


def test_without_a_tier_a_table_may_be_freed_under_a_step(observed: Observed) -> None:
    observed.stream.dispatched(7, {"a": 1})
    blocks = observed.pool.get_new_blocks(1)
    observed.pool.free_blocks(blocks)
    assert not observed.of(ev.Dispatch)
    assert not observed.broken


@pytest.mark.parametrize("steps", [0, 1])
def test_without_a_tier_a_finished_request_has_no_tokens_to_count(observed: Observed, steps: int) -> None:
    observed.stream.submit("a", 8)
    for _ in range(steps):
        observed.step(a=8)
    observed.stream.finishing("a", "FINISHED_ABORTED", 8 * steps)
    observed.stream.gone("a")
    assert not observed.broken


@pytest.mark.parametrize(("computed", "broken"), [(8, {}), (6, {"COUNT": 1})])
def test_with_a_tier_the_tokens_of_a_finished_request_are_counted(
    tiered: Observed, computed: int, broken: dict[str, int]
) -> None:
    tiered.stream.submit("a", 8)
    tiered.stream.admit(tiered.stream.request("a"), 0, 0, 8)
    tiered.step(a=8)
    tiered.stream.finishing("a", "FINISHED_ABORTED", computed)
    assert {name: count for name, count in tiered.broken.items() if name == "COUNT"} == broken


@pytest.mark.parametrize("used", [False, True])
def test_a_scheduler_whose_connector_put_the_hooks_in_place_is_followed_from_its_first_use(
    observed: Observed, used: bool
) -> None:
    """With a connector that has ledger state of its own nothing else reports on the pool."""
    pool = observed.module.BlockPool(9)
    emitted: list[str] = []
    observed.engines.not_seen = emitted.append
    coordinator = types.SimpleNamespace(single_type_managers=[])
    manager = types.SimpleNamespace(
        block_pool=pool, coordinator=coordinator, kv_cache_config=types.SimpleNamespace(kv_cache_groups=[])
    )
    connector = types.SimpleNamespace(connector_scheduler=None)
    scheduler = types.SimpleNamespace(kv_cache_manager=manager, connector=connector)
    if used:
        pool.get_new_blocks(1)
    observed.engines.scheduler_found(scheduler)
    pool.get_new_blocks(1)
    assert [type(event) for event in observed.events] == ([] if used else [ev.Alloc])
    (line,) = emitted
    assert ("in use before it was observed" if used else "its own tier is not judged") in line


def beside_an_unseen_tier(promised: int = 0) -> Observed:
    """An engine with a tier that is observed, which may have given a promise, and one that is not."""
    observed = with_tier(Observed())
    observed.stream.unseen = True
    observed.stream.submit("a", 12)
    if promised:
        observed.stream.emit(ev.Lookup("a", 0, 4, promised, "gpu", []))
        observed.stream.request("a").promised = True
    observed.events.clear()
    return observed


def admissions(observed: Observed) -> list[tuple[int, int, int]]:
    return [(e.local, e.external, e.compute) for e in observed.of(ev.Admit)]


def test_what_an_unseen_tier_loads_counts_at_once_and_is_no_promise_broken() -> None:
    observed = beside_an_unseen_tier()
    observed.stream.admit(observed.stream.request("a"), 4, 4, 12)
    assert admissions(observed) == [(8, 0, 4)]
    observed.step(a=4)
    observed.stream.finishing("a", "FINISHED_ABORTED", 12)
    assert not observed.broken


@pytest.mark.parametrize(("mine", "emitted"), [(True, (4, 4, 4)), (False, (8, 0, 4))])
def test_a_promise_beside_an_unseen_tier_is_kept_only_by_who_gave_it(
    mine: bool, emitted: tuple[int, int, int]
) -> None:
    observed = beside_an_unseen_tier(promised=4)
    state = observed.stream.request("a")
    observed.stream.admit(state, 4, 4, 12)
    assert admissions(observed) == []
    observed.stream.load_settled(state, mine)
    assert admissions(observed) == [emitted]
    assert bool(observed.of(ev.Withdraw)) != mine
    observed.stream.load_settled(state, not mine)
    assert len(admissions(observed)) == 1
    assert not {"COUNT", "PIN"} & set(observed.broken)


@pytest.mark.parametrize("steps", [0, 1])
def test_the_last_token_is_computed_though_an_unseen_tier_loaded_it(steps: int) -> None:
    observed = beside_an_unseen_tier()
    observed.stream.admit(observed.stream.request("a"), 0, 12, 12)
    assert admissions(observed) == [(11, 0, 1)]
    for _ in range(steps):
        observed.step(a=1)
    observed.stream.finishing("a", "FINISHED_ABORTED", 12)
    assert not observed.broken
    assert not observed.stream.loaded_whole


def test_without_an_unseen_tier_no_more_may_be_loaded_than_was_promised() -> None:
    observed = beside_an_unseen_tier(promised=4)
    observed.stream.unseen = False
    observed.stream.admit(observed.stream.request("a"), 4, 8, 12)
    assert admissions(observed) == [(4, 8, 0)]
    assert observed.broken["COUNT"] == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_store_cursor_is_emitted_only_of_a_table_that_was_observed(observed: Observed, known: bool) -> None:
    observed.stream.submit("a", 32)
    state = observed.stream.request("a")
    tier: Any = types.SimpleNamespace(stream=observed.stream, tap=observed.stream.gpu)
    if known:
        state.enter(0, 0, observed.pool.get_new_blocks(2) and [1, 2])
    account_cursors(tier, Cursors("a", [2], 32))
    emitted = observed.of(ev.Cursor)
    assert emitted == ([ev.Cursor("a", 0, 2, 0)] if known else [])


def test_something_that_happens_during_such_a_step_is_emitted_between_its_ends(tiered: Observed) -> None:
    for step in range(2):
        tiered.step(step, a=1)
    tiered.stream.dispatched(2, {"a": 1})
    tiered.pool.get_new_blocks(1)
    tiered.stream.processed(2)
    kinds = [(type(event), getattr(event, "tokens", None)) for event in tiered.events]
    assert kinds == [
        (ev.Dispatch, [1]),
        (ev.Process, None),
        (ev.Dispatch, [1]),
        (ev.Process, None),
        (ev.Dispatch, [1]),
        (ev.Alloc, None),
        (ev.Process, None),
    ]
    assert not tiered.broken


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
