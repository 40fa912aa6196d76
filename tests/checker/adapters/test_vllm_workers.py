"""The hooks on worker sides, on a worker like vLLM's with real threads, and without vLLM."""

from __future__ import annotations

import gc
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import fake_worker as fake
import numpy as np
import pytest

from kvfence.checker.adapters.vllm.hooks.patching import Patches
from kvfence.checker.adapters.vllm.hooks.scheduler import IN_FLIGHT
from kvfence.checker.adapters.vllm.hooks.worker import STEP, Workers, hook_worker
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage
from kvfence.checker.adapters.vllm.worker.observed_cuda import OBSERVED
from kvfence.checker.adapters.vllm.worker.worker_races import OrderViolation, Races, race_text
from kvfence.checker.adapters.vllm.worker.worker_tables import BatchTables, GroupKind, group_kinds
from kvfence.checker.order.races import OrderChecker, Race
from kvfence.spec import order as od

PACKAGE, Event, Stream, Tensor, package = fake.PACKAGE, fake.Event, fake.Stream, fake.Tensor, fake.package


def group(kind: str = "FullAttentionSpec", **named: Any) -> Any:
    return types.SimpleNamespace(kv_cache_spec=type(kind, (), {"block_size": 4, **named})())


class Lab:
    """A worker under observation, and the scheduler that tells it what to do."""

    def __init__(self, modules: dict[str, Any], groups: list[Any] | None = None) -> None:
        self.modules = modules
        self.races: list[Race] = []
        self.emitted: list[Any] = []
        self.patches = Patches(Coverage())
        self.workers = Workers("test", on_race=self.races.append, order_sink=self.emitted.append)
        hook_worker(self.patches, self.workers)
        self.config = types.SimpleNamespace(kv_cache_groups=groups or [group()])
        self.worker: Any = None
        self.known: set[str] = set()
        self.tokens: dict[str, int] = {}

    @property
    def module(self) -> Any:
        return self.modules[f"{PACKAGE}.worker"]

    def start(self) -> Any:
        backends = self.modules[f"{PACKAGE}.copy_backend"]
        self.worker = self.module.SimpleCPUOffloadWorker(self.module, backends, self.config)
        self.worker.register_kv_caches({"layer": Tensor(1 << 20)})
        return self.worker

    def step(
        self,
        work: dict[str, tuple[list[int], int]],
        *,
        store: Any = None,
        load: Any = None,
        in_flight: int = 0,
        ended: tuple[str, ...] = (),
    ) -> None:
        """A step that computes so many tokens of each request, which has got these blocks besides."""
        new, cached = [], []
        for name, (blocks, _) in work.items():
            start = self.tokens.get(name, 0)
            if name in self.known:
                cached.append((name, (blocks,), start))
            else:
                new.append(types.SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=start))
            self.known.add(name)
        output = types.SimpleNamespace(
            finished_req_ids=set(ended),
            num_scheduled_tokens={name: count for name, (_, count) in work.items()},
            scheduled_new_reqs=new,
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[each[0] for each in cached],
                new_block_ids=[each[1] for each in cached],
                num_computed_tokens=[each[2] for each in cached],
                resumed_req_ids=set(),
            ),
        )
        for name, (_, count) in work.items():
            self.tokens[name] = self.tokens.get(name, 0) + count
        setattr(output, IN_FLIGHT, in_flight)
        STEP.output = output
        worker = self.worker
        self.number = getattr(self, "number", -1) + 1
        worker.bind_connector_metadata(types.SimpleNamespace(store=store, load=load, number=self.number))
        worker.start_load_kv()
        worker.wait_for_save()
        worker.settle()
        if store or load:
            while not worker.events:
                pass
        worker.get_finished(set())

    @property
    def replayed(self) -> list[Race]:
        """The races that the race checker finds in what the order sink was told."""
        checker = OrderChecker(self.emitted[0])
        checker.apply_all(self.emitted[1:])
        return checker.races


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    modules = package()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    made = Lab(modules)
    yield made
    if made.worker is not None:
        made.worker.close()
    made.workers.remove()
    made.patches.remove()
    STEP.output = None


BOTH = ([1, 2], [5, 6])


def test_a_store_that_waits_for_its_step_is_silent(lab: Lab) -> None:
    lab.start()
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert not lab.races
    assert not lab.replayed
    assert not lab.workers.unchecked
    assert lab.workers.accesses > 0


def test_a_store_that_does_not_wait_is_told_with_both_accesses(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.start()
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    (race,) = lab.races
    assert (race.invariant, race.region, race.slots) == ("STORE-READY", "gpu", (1, 2))
    assert (race.first.name, race.first.by) == ("step", "step 1")
    assert (race.second.name, race.second.by) == ("store", "store 0")
    assert "make stream 1 (store) wait for the event" in race.missing
    assert [each.invariant for each in lab.replayed] == ["STORE-READY"]


def test_a_store_of_what_an_earlier_step_wrote_need_not_wait_if_that_step_is_over(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.start()
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, store=BOTH)
    assert not lab.races


def test_it_must_wait_if_that_step_is_still_in_flight(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.start()
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, store=BOTH, in_flight=1)
    assert [race.invariant for race in lab.races] == ["STORE-READY"]


def test_a_load_over_blocks_that_a_step_in_flight_reads_is_told(lab: Lab) -> None:
    lab.start()
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [1]), in_flight=1, ended=("a",))
    (race,) = [race for race in lab.races if not race.first.write]
    assert (race.invariant, race.first.by, race.second.by) == ("LOAD-ORDER", "step 2", "load 2")


def test_it_is_silent_when_that_step_is_over(lab: Lab) -> None:
    lab.start()
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [1]), ended=("a",))
    assert not lab.races
    assert not lab.replayed


def test_a_load_over_blocks_of_a_request_that_still_runs_is_told(lab: Lab) -> None:
    lab.start()
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [2]), in_flight=1)
    assert {race.invariant for race in lab.races} == {"LOAD-ORDER"}
    assert "step 2" in {race.first.by for race in lab.races}


def test_a_step_that_reads_before_its_load_is_over_is_told(lab: Lab) -> None:
    lab.start()
    lab.step({"b": ([9], 1)}, load=([7], [1]))
    lab.worker.events.clear()
    lab.step({}, load=([7], [2]))
    gate = lab.worker.get_finished
    lab.worker.get_finished = lambda _: None
    lab.step({}, load=([7], [3]))
    lab.tokens["a"] = 4
    lab.worker.get_finished = gate
    lab.step({"a": ([3, 4], 1)})
    assert [race.invariant for race in lab.races] == ["USE-READY"]


def test_nothing_is_told_when_nobody_observes(lab: Lab) -> None:
    lab.workers.remove()
    lab.start()
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert lab.workers.events == 0
    assert not lab.emitted
    assert type(lab.worker.store_stream) is Stream


def test_names_are_put_back_unless_somebody_else_replaced_them(lab: Lab) -> None:
    lab.start()
    backend = lab.modules[f"{PACKAGE}.copy_backend"]
    assert OBSERVED in vars(lab.module.torch)
    assert issubclass(lab.module.torch.Event, Event)
    other = object()
    backend.copy_blocks = other
    lab.workers.remove()
    assert lab.module.torch.Event is Event
    assert backend.copy_blocks is other


def test_names_that_are_replaced_later_are_observed_all_the_same(lab: Lab) -> None:
    """A connector may bring stand-ins for CUDA of its own, after the hooks are in place."""
    lab.module.torch = lab.modules[f"{PACKAGE}.copy_backend"].torch = types.SimpleNamespace(
        Event=Event, cuda=types.SimpleNamespace(Stream=Stream, current_stream=lambda: Stream(0))
    )
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.start()
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert len(lab.races) == 1


@pytest.mark.parametrize(
    "name", ["wait_for_save", "get_finished", "bind_connector_metadata", "handle_preemptions"]
)
def test_a_worker_without_a_hook_is_not_checked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    modules = package()
    delattr(modules[f"{PACKAGE}.worker"].SimpleCPUOffloadWorker, name)
    for module_name, module in modules.items():
        monkeypatch.setitem(sys.modules, module_name, module)
    patches = Patches(Coverage())
    hook_worker(patches, Workers("test"))
    assert (
        patches.coverage[f"SimpleCPUOffloadWorker.{name}"] == "not checked: this release has no such method"
    )
    assert patches.coverage.undetermined
    patches.remove()


def test_a_backend_that_copies_by_other_means_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = package()
    del modules[f"{PACKAGE}.copy_backend"].copy_blocks
    for module_name, module in modules.items():
        monkeypatch.setitem(sys.modules, module_name, module)
    patches = Patches(Coverage())
    hook_worker(patches, Workers("test"))
    assert patches.coverage["copy_backend.py"] == "not checked: it does not use copy_blocks any more"
    assert patches.coverage.undetermined
    patches.remove()


def test_steps_that_nobody_tells_leave_the_worker_unjudged(lab: Lab) -> None:
    lab.start()
    STEP.output = None
    lab.worker.bind_connector_metadata(types.SimpleNamespace(store=None, load=None, number=0))
    assert "the scheduler's output did not come" in lab.workers.unchecked[0]


def test_an_event_that_nobody_saw_made_leaves_the_worker_unjudged(lab: Lab) -> None:
    worker = lab.start()
    worker.store_stream.wait_event(Event())
    assert not lab.workers.unchecked  # Outside of the worker's own calls nobody listens.
    worker.waits = False
    lab.module.SimpleCPUOffloadWorker.wait_for_save.__wrapped__  # noqa: B018 - it is wrapped
    launch = worker._backend.launch_copy

    def with_a_stranger(*args: Any, **named: Any) -> None:
        launch(*args, **named, wait_event=Event())

    worker._backend.launch_copy = with_a_stranger
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert "an event that nobody saw made" in lab.workers.unchecked[0]
    assert not lab.races


def test_groups_that_are_not_known_are_told() -> None:
    config = types.SimpleNamespace(
        kv_cache_groups=[
            group(),
            group("SlidingWindowSpec", sliding_window=8),
            group("ChunkedLocalAttentionSpec", attention_chunk_size=16),
            group("MambaSpec"),
        ]
    )
    kinds, unknown = group_kinds(config)
    assert [kind and (kind.block_size, kind.span, kind.chunk) for kind in kinds] == [
        (4, 0, 0),
        (4, 8, 0),
        (4, 0, 16),
        None,
    ]
    assert unknown == ["which blocks of group 3 (MambaSpec) a step writes is not known"]


def test_a_worker_with_a_group_that_is_not_known_is_not_determined(lab: Lab) -> None:
    lab.config.kv_cache_groups.append(group("MambaSpec"))
    lab.start()
    assert lab.workers.unchecked == ["which blocks of group 1 (MambaSpec) a step writes is not known"]


def output(new: list[Any] = (), cached: list[Any] = (), ended: tuple[str, ...] = (), **counts: int) -> Any:  # type: ignore[assignment]
    return types.SimpleNamespace(
        finished_req_ids=set(ended),
        num_scheduled_tokens=counts,
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=name, block_ids=tables, num_computed_tokens=start)
            for name, tables, start in new
        ],
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[each[0] for each in cached],
            new_block_ids=[each[1] for each in cached],
            num_computed_tokens=[each[2] for each in cached],
            resumed_req_ids={each[0] for each in cached if len(each) > 3},
        ),
    )


def test_a_window_that_slides_leaves_its_blocks_as_read_by_the_step_before() -> None:
    last: list[tuple[list[int], tuple[int, int]]] = []
    tables = BatchTables([GroupKind(4, span=5)], 32, lambda slots, by: last.append((slots.tolist(), by)))
    tables.follow(output(new=[("a", ([1, 2, 3],), 0)], a=10))
    reads, writes = tables.accesses()
    assert (reads.tolist(), writes.tolist()) == ([1, 2, 3], [1, 2, 3])
    tables.launched((0, 1))
    tables.follow(output(cached=[("a", ([4],), 10)], a=3))
    assert tables.all_reads().tolist() == [2, 3, 4]
    reads, writes = tables.accesses()
    assert (reads.tolist(), writes.tolist()) == ([4], [3, 4])
    assert last == [([1], (0, 1))]
    tables.launched((0, 2))
    tables.follow(output(ended=("a",)))
    assert last[1:] == [([2, 3, 4], (0, 2))]
    assert not tables._readers.any()


def test_a_request_that_comes_back_has_other_blocks() -> None:
    last: list[list[int]] = []
    tables = BatchTables([GroupKind(4)], 32, lambda slots, _: last.append(slots.tolist()))
    tables.follow(output(new=[("a", ([1, 2],), 0)], a=8))
    tables.accesses()
    tables.launched((0, 1))
    tables.follow(output(cached=[("a", ([7, 8],), 0, True)], a=6))
    reads, writes = tables.accesses()
    assert (reads.tolist(), writes.tolist()) == ([7, 8], [7, 8])
    assert last == [[1, 2]]


def test_the_null_block_is_no_block() -> None:
    tables = BatchTables([GroupKind(4)], 32, lambda *_: None)
    tables.follow(output(new=[("a", ([0, 0, 3],), 8)], a=4))
    reads, writes = tables.accesses()
    assert (reads.tolist(), writes.tolist()) == ([3], [3])


def test_events_that_are_gone_are_forgotten(lab: Lab) -> None:
    lab.start()
    for number in range(200):
        lab.step({"a": ([number % 30 + 1], 4)}, store=([number % 30 + 1], [3]))
    gc.collect()
    lab.step({})
    order = lab.workers._orders[0]
    assert order.checker is not None
    assert len(order.checker.clocks._records) < 20
    assert len(order._given) < 20
    assert len(order._running) <= 2
    assert isinstance(lab.emitted[0], od.Header)
    assert sum(isinstance(event, od.Kernel) for event in lab.emitted) == 200


def test_races_are_logged_once_counted_or_raised(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    for mode in ("log", "count", "raise"):
        races = Races(mode)  # type: ignore[arg-type]
        lab.workers.on_race = races.found
        lab.workers.after_step = races.raise_found
        lab.known.clear()
        lab.tokens.clear()
        lab.start()
        with caplog.at_level(logging.ERROR, "kvfence.guard"):
            if mode == "raise":
                with pytest.raises(OrderViolation, match="STORE-READY violated: nothing orders two accesses"):
                    lab.step({"a": ([1, 2], 8)}, store=BOTH)
            else:
                lab.step({"a": ([1, 2], 8)}, store=BOTH)
                lab.step({"b": ([3, 4], 8)}, store=([3, 4], [7, 8]))
        assert races.counts == {"STORE-READY": 1}
        assert len(caplog.records) == 1
        lab.worker.close()
    assert "write of step (step 1) on stream 0" in caplog.text
    assert "read of store (store 0) on stream 1" in caplog.text
    assert race_text(races.kept[0]).count("\n") == 3
    lab.worker = None


def test_many_slots_at_once_are_judged_as_one_row() -> None:
    tables = BatchTables([GroupKind(16)], 6000, lambda *_: None)
    blocks = list(range(1, 5601))
    tables.follow(output(new=[("a", (blocks,), 0)], a=5600 * 16))
    reads, writes = tables.accesses()
    assert len(reads) == len(writes) == 5600
    assert np.array_equal(np.sort(reads), np.arange(1, 5601))
