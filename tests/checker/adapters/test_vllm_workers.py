"""The hooks on worker sides, on a worker like vLLM's with real threads, and without vLLM."""

from __future__ import annotations

import gc
import logging
import types
from collections.abc import Iterator
from typing import Any

import fake_worker as fake
import numpy as np
import pytest
import worker_lab
from worker_lab import Event, Stream, Tensor, group, scheduled

from kvfence.checker.adapters.vllm.hooks.patching import Patches
from kvfence.checker.adapters.vllm.hooks.worker import STEP, Workers, hook_worker
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage
from kvfence.checker.adapters.vllm.worker.observed_cuda import OBSERVED
from kvfence.checker.adapters.vllm.worker.worker_races import OrderViolation, Races, race_text
from kvfence.checker.adapters.vllm.worker.worker_tables import BatchTables, GroupKind, group_kinds
from kvfence.spec import order as od


class Lab(worker_lab.Lab):
    """A worker under observation, and the scheduler whose steps it takes."""

    def __init__(self, modules: dict[str, Any]) -> None:
        super().__init__(modules)
        self.patches = Patches(Coverage())
        hook_worker(self.patches, self.workers)
        self.module, self.backend = modules[fake.WORKER], modules[fake.BACKEND]
        self.worker: Any = None
        self.known: set[str] = set()
        self.tokens: dict[str, int] = {}
        self.number = -1

    def start(self) -> Any:
        self.worker = self.module.SimpleCPUOffloadWorker(self.module, self.backend, self.kv_cache_config)
        self.worker.register_kv_caches({"layer": Tensor(1 << 20)})
        return self.worker

    def step(
        self, work: dict[str, tuple[list[int], int]], *, store: Any = None, load: Any = None, **named: Any
    ) -> None:
        """A step that computes so many tokens of each request, which has got these blocks besides."""
        worker = self.worker or self.start()
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for name, (blocks, count) in work.items():
            start = self.tokens.get(name, 0)
            parts[name in self.known].append((name, (blocks,), start))
            self.known.add(name)
            self.tokens[name] = start + count
        counts = {name: count for name, (_, count) in work.items()}
        STEP.output = scheduled(parts[False], parts[True], **named, **counts)
        self.number += 1
        worker.bind_connector_metadata(types.SimpleNamespace(store=store, load=load, number=self.number))
        worker.start_load_kv()
        worker.wait_for_save()
        worker.settle()
        if store or load:
            while not worker.events:
                pass
        worker.get_finished(set())


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return worker_lab.put_in(monkeypatch, fake.package())


@pytest.fixture
def lab(modules: dict[str, Any]) -> Iterator[Lab]:
    made = Lab(modules)
    yield made
    if made.worker is not None:
        made.worker.close()
    made.workers.remove()
    made.patches.remove()
    STEP.output = None


BOTH = ([1, 2], [5, 6])


def test_a_store_that_waits_for_its_step_is_silent(lab: Lab) -> None:
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    lab.assert_silent()


def test_a_store_that_does_not_wait_is_reported_with_both_accesses(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    lab.assert_early_store()


def test_a_store_of_what_an_earlier_step_wrote_need_not_wait_if_that_step_is_over(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, store=BOTH)
    assert not lab.races


def test_it_must_wait_if_that_step_is_still_in_flight(lab: Lab) -> None:
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, store=BOTH, in_flight=1)
    assert [race.invariant for race in lab.races] == ["STORE-READY"]


def test_a_load_over_blocks_that_a_step_in_flight_reads_is_reported(lab: Lab) -> None:
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [1]), in_flight=1, ended=("a",))
    (race,) = [race for race in lab.races if not race.first.write]
    assert (race.invariant, race.first.by, race.second.by) == ("LOAD-ORDER", "step 2", "load 2")


def test_it_is_silent_when_that_step_is_over(lab: Lab) -> None:
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [1]), ended=("a",))
    assert not lab.races
    assert not lab.replayed


def test_a_load_over_blocks_of_a_request_that_still_runs_is_reported(lab: Lab) -> None:
    lab.step({"a": ([1, 2], 8)})
    lab.step({"a": ([3], 1)}, in_flight=1)
    lab.step({}, load=([7], [2]), in_flight=1)
    assert {race.invariant for race in lab.races} == {"LOAD-ORDER"}
    assert "step 2" in {race.first.by for race in lab.races}


def test_a_step_that_reads_before_its_load_is_over_is_reported(lab: Lab) -> None:
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


def test_nothing_is_reported_when_nobody_observes(lab: Lab) -> None:
    lab.workers.remove()
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert lab.workers.events == 0
    assert not lab.emitted
    assert type(lab.worker.store_stream) is Stream


def test_names_are_put_back_unless_somebody_else_replaced_them(lab: Lab) -> None:
    lab.start()
    assert OBSERVED in vars(lab.module.torch)
    assert issubclass(lab.module.torch.Event, Event)
    other = object()
    lab.backend.copy_blocks = other
    lab.workers.remove()
    assert lab.module.torch.Event is Event
    assert lab.backend.copy_blocks is other


def test_names_that_are_replaced_later_are_observed_all_the_same(lab: Lab) -> None:
    """A connector may bring stand-ins for CUDA of its own, after the hooks are in place."""
    lab.module.torch = lab.backend.torch = worker_lab.torch(current_stream=lambda: Stream(0))
    lab.module.SimpleCPUOffloadWorker.waits = False
    lab.step({"a": ([1, 2], 8)}, store=BOTH)
    assert len(lab.races) == 1


NO_METHOD = "this release has no such method"


@pytest.mark.parametrize(
    ("module", "owner", "name", "hook", "why"),
    [
        *(
            (fake.WORKER, "SimpleCPUOffloadWorker", name, f"SimpleCPUOffloadWorker.{name}", NO_METHOD)
            for name in ("wait_for_save", "get_finished", "bind_connector_metadata", "handle_preemptions")
        ),
        (fake.BACKEND, "", "copy_blocks", "copy_backend.py", "it does not use copy_blocks any more"),
    ],
)
def test_a_worker_or_backend_that_lacks_what_is_hooked_is_not_checked(
    modules: dict[str, Any], module: str, owner: str, name: str, hook: str, why: str
) -> None:
    delattr(getattr(modules[module], owner) if owner else modules[module], name)
    patches = Patches(Coverage())
    hook_worker(patches, Workers("test"))
    assert patches.coverage[hook] == f"not checked: {why}"
    assert patches.coverage.undetermined
    patches.remove()


def test_steps_that_nothing_reports_leave_the_worker_unjudged(lab: Lab) -> None:
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


def test_groups_that_are_not_known_are_reported() -> None:
    groups = [
        group(),
        group("SlidingWindowSpec", sliding_window=8),
        group("ChunkedLocalAttentionSpec", attention_chunk_size=16),
        group("MambaSpec"),
    ]
    kinds, unknown = group_kinds(types.SimpleNamespace(kv_cache_groups=groups))
    assert [kind and (kind.block_size, kind.span, kind.chunk) for kind in kinds] == [
        (4, 0, 0),
        (4, 8, 0),
        (4, 0, 16),
        None,
    ]
    assert unknown == ["which blocks of group 3 (MambaSpec) a step writes is not known"]


def test_a_worker_with_a_group_that_is_not_known_is_not_determined(lab: Lab) -> None:
    lab.groups.append(group("MambaSpec"))
    lab.start()
    assert lab.workers.unchecked == ["which blocks of group 1 (MambaSpec) a step writes is not known"]


def accessed(tables: BatchTables) -> tuple[list[int], list[int]]:
    """What the step that arrived reads for the first time, and what it writes."""
    reads, writes = tables.accesses()
    return reads.tolist(), writes.tolist()


def test_a_window_that_slides_leaves_its_blocks_as_read_by_the_step_before() -> None:
    last: list[tuple[list[int], tuple[int, int]]] = []
    tables = BatchTables([GroupKind(4, span=5)], 32, lambda slots, by: last.append((slots.tolist(), by)))
    tables.follow(scheduled(new=[("a", ([1, 2, 3],), 0)], a=10))
    assert accessed(tables) == ([1, 2, 3], [1, 2, 3])
    tables.launched((0, 1))
    tables.follow(scheduled(cached=[("a", ([4],), 10)], a=3))
    assert tables.all_reads().tolist() == [2, 3, 4]
    assert accessed(tables) == ([4], [3, 4])
    assert last == [([1], (0, 1))]
    tables.launched((0, 2))
    tables.follow(scheduled(ended=("a",)))
    assert last[1:] == [([2, 3, 4], (0, 2))]
    assert not tables._readers.any()


def test_a_request_that_comes_back_has_other_blocks() -> None:
    last: list[list[int]] = []
    tables = BatchTables([GroupKind(4)], 32, lambda slots, _: last.append(slots.tolist()))
    tables.follow(scheduled(new=[("a", ([1, 2],), 0)], a=8))
    tables.accesses()
    tables.launched((0, 1))
    tables.follow(scheduled(cached=[("a", ([7, 8],), 0, True)], a=6))
    assert accessed(tables) == ([7, 8], [7, 8])
    assert last == [[1, 2]]


def test_the_null_block_is_no_block() -> None:
    tables = BatchTables([GroupKind(4)], 32, lambda *_: None)
    tables.follow(scheduled(new=[("a", ([0, 0, 3],), 8)], a=4))
    assert accessed(tables) == ([3], [3])


def test_events_that_are_gone_are_forgotten(lab: Lab) -> None:
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
    tables.follow(scheduled(new=[("a", (blocks,), 0)], a=5600 * 16))
    reads, writes = tables.accesses()
    assert len(reads) == len(writes) == 5600
    assert np.array_equal(np.sort(reads), np.arange(1, 5601))
