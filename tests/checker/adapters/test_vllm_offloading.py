"""The hooks on OffloadingConnector's worker side, on one like vLLM's and without vLLM."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import fake_offloading as fake
import pytest

from kvfence.checker.adapters.vllm.hooks.offloading import hook_offloading, within_chunks
from kvfence.checker.adapters.vllm.hooks.scheduler import IN_FLIGHT
from kvfence.checker.adapters.vllm.hooks.worker import STEP, Workers
from kvfence.checker.adapters.vllm.stream.known_parts import unseen_orders
from kvfence.checker.adapters.vllm.worker.observed_cuda import OBSERVED
from kvfence.checker.order.races import OrderChecker, Race

blocks, chunks, Event, Tensor = fake.blocks, fake.chunks, fake.Event, fake.Tensor
UNJUDGED = "Connector: the order of its streams is not judged"


def group(kind: str = "FullAttentionSpec", host: bool = False) -> Any:
    spec = type(kind, (), {"block_size": 4})()
    return types.SimpleNamespace(kv_cache_spec=spec, host_resident=host)


class Lab:
    """A worker side under observation, and the scheduler that tells it what to do."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules
        self.races: list[Race] = []
        self.emitted: list[Any] = []
        self.workers = Workers("test", on_race=self.races.append, order_sink=self.emitted.append)
        self.workers.patches.append(hook_offloading(self.workers))
        self.groups = [group()]
        self.side: Any = None
        self.before: Any = None

    @property
    def copies(self) -> Any:
        return self.modules[fake.COPIES]

    @property
    def handler(self) -> Any:
        return self.copies.SingleDirectionOffloadingHandler

    def start(
        self, caches: Any = None, *, spec: str = "CPUOffloadingSpec", copies: str = "CPUOffloadingWorker"
    ) -> Any:
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(), scheduler_config=types.SimpleNamespace()
        )
        kind = self.modules[fake.CONNECTOR].OffloadingConnectorWorker
        groups = types.SimpleNamespace(kv_cache_groups=self.groups)
        self.side = kind(type(spec, (), {"copies": copies})(), config, groups)
        self.side.register_kv_caches(caches or {"layer": Tensor(1 << 20)})
        return self.side

    def step(
        self,
        work: dict[str, list[int]],
        *,
        stores: list[Any] | None = None,
        loads: list[Any] | None = None,
        flush: tuple[int, ...] = (),
        in_flight: int = 0,
        ended: tuple[str, ...] = (),
        loads_last: bool = False,
        early: bool = True,
    ) -> None:
        """A step that computes all tokens of new requests in these blocks.

        ``early``: whether the process around the worker tells of it; ``loads_last``: as newer model runners
        do, loads come after its kernels.
        """
        meta = types.SimpleNamespace(stores=stores or [], loads=loads or [], flush=flush)
        output = types.SimpleNamespace(
            finished_req_ids=set(ended),
            num_scheduled_tokens={name: 4 * len(ids) for name, ids in work.items()},
            scheduled_new_reqs=[
                types.SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=0)
                for name, ids in work.items()
            ],
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
            ),
            kv_connector_metadata=meta,
        )
        setattr(output, IN_FLIGHT, in_flight)
        if early:
            STEP.begin(output)
        self.side.handle_preemptions(kv_connector_metadata=meta)
        STEP.begin(output)
        STEP.launched = loads_last
        self.side.start_kv_transfers(meta)
        self.side.prepare_store_kv(meta)
        self.side.get_finished(set())

    @property
    def replayed(self) -> list[Race]:
        """The races that the race checker finds in what the order sink was told."""
        checker = OrderChecker(self.emitted[0])
        checker.apply_all(self.emitted[1:])
        return checker.races


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    modules = fake.package()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    made = Lab(modules)
    yield made
    made.workers.remove()
    Event.over = True
    STEP.begin(None)


STORE = (0, blocks([1, 2]), chunks([5, 6]))


def test_a_store_that_waits_for_the_steps_is_silent(lab: Lab) -> None:
    lab.start()
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]}, in_flight=1)
    assert not lab.races
    assert not lab.replayed
    assert not lab.workers.unchecked
    assert lab.workers.accesses > 6


def test_a_store_that_does_not_wait_for_a_step_in_flight_is_told_with_both_accesses(lab: Lab) -> None:
    lab.handler.waits = False
    lab.start()
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]}, in_flight=1)
    (race,) = lab.races
    assert (race.invariant, race.region, race.slots) == ("STORE-READY", "gpu", (1, 2))
    assert (race.first.name, race.first.by) == ("step", "step 1")
    assert (race.second.name, race.second.by) == ("store", "store 0")
    assert "make stream 1 (store) wait for the event" in race.missing
    assert [each.invariant for each in lab.replayed] == ["STORE-READY"]


def test_it_need_not_wait_for_a_step_that_is_over(lab: Lab) -> None:
    lab.handler.waits = False
    lab.start()
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]})
    assert not lab.races


def test_a_load_over_blocks_that_a_step_in_flight_reads_is_told(lab: Lab) -> None:
    lab.handler.waits = False
    lab.start()
    lab.step({"a": [1, 2]})
    lab.step({}, loads=[(7, chunks([5]), blocks([2]))], in_flight=1, ended=("a",))
    assert {(race.invariant, race.second.by) for race in lab.races} == {("LOAD-ORDER", "load 7")}


def test_loads_that_come_after_the_kernels_of_their_step_are_ordered_after_them(lab: Lab) -> None:
    lab.handler.waits = False
    lab.start()
    lab.step({"a": [1, 2]}, loads=[(7, chunks([5]), blocks([2]))], loads_last=True)
    assert {(race.first.by, race.second.by) for race in lab.races} == {("step 1", "load 7")}


def test_a_step_that_reads_before_its_load_is_over_is_told(lab: Lab) -> None:
    Event.over = False
    lab.start()
    lab.step({}, loads=[(0, chunks([5]), blocks([3]))])
    lab.step({"a": [3, 4]})
    assert "USE-READY" in {race.invariant for race in lab.races}


def test_a_load_that_was_waited_for_on_the_host_may_be_read(lab: Lab) -> None:
    Event.over = False
    lab.start()
    lab.step({}, loads=[(0, chunks([5]), blocks([3]))])
    lab.step({"a": [3, 4]}, flush=(0,))
    assert not lab.races


def test_parts_of_a_chunk_are_slots_of_their_own(lab: Lab) -> None:
    """Two stores that nothing orders, into the two halves of a chunk; then into the same half."""
    lab.modules[fake.CONNECTOR].OffloadingConnectorWorker.chunk = 2
    lab.start()
    first, second = lab.side.worker.store, lab.side.worker.load
    second.gpu_to_cpu, second.src_blocks_per_chunk, second.dst_blocks_per_chunk = True, 1, 2
    Event.over = False
    lab.step({"a": [1, 2, 3]}, stores=[(0, blocks([1]), chunks([5]))])
    half = (1, blocks([2], [1], [1]), chunks([5]))
    lab.step({}, loads=[half])
    assert not lab.races
    lab.step({}, loads=[(2, blocks([3], [1], [2]), chunks([5]))])
    assert [race.region for race in lab.races] == ["cpu"]
    assert first is not second


@pytest.mark.parametrize(
    ("ids", "sizes", "firsts", "found"),
    [
        ([5, 6], [4], [0], [20, 21, 22, 23]),
        ([5, 6], [4], [2], [22, 23, 24, 25]),
        ([5, 6, 7], [2, 4], [3, 4], [23, 24, 28, 29, 30, 31]),
        ([5, 7], [3, 0, 1], [0, 9, 3], [20, 21, 22, 31]),
        ([], [0, 0], [0, 0], []),
    ],
)
def test_blocks_begin_where_their_first_one_is_within_its_chunk(
    ids: list[int], sizes: list[int], firsts: list[int], found: list[int]
) -> None:
    assert within_chunks(ids, sizes, firsts, 4).tolist() == found


def test_a_transfer_of_blocks_that_do_not_match_leaves_the_worker_unjudged(lab: Lab) -> None:
    lab.start()
    lab.step({"a": [1, 2]}, stores=[(0, blocks([1, 2]), chunks([5]))])
    lab.step({})
    assert "a transfer is of 2 blocks of the GPU, but of 1 of the tier" in lab.workers.unchecked[0]


def test_a_transfer_launched_elsewhere_leaves_the_worker_unjudged(lab: Lab) -> None:
    side = lab.start()
    side.worker.store.transfer_async(*STORE)
    assert "outside of the calls that are known" in lab.workers.unchecked[0]


def test_copies_that_are_launched_by_other_means_leave_the_worker_unjudged(lab: Lab) -> None:
    side = lab.start()
    side.worker.store._swap_blocks_batch = fake.swap_blocks_batch
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({})
    assert "did not launch its copies by _swap_blocks_batch" in lab.workers.unchecked[0]


def test_a_kernel_that_copies_reads_in_the_order_of_its_stream(lab: Lab) -> None:
    """A load may read early if the driver may; a kernel waits for what its stream waits for."""
    found = []
    for launch in (fake.swap_blocks_batch, functools.partial(fake.swap_blocks_batch)):
        lab.copies.swap_blocks_batch = launch
        lab.emitted.clear()
        lab.workers.seen = 0
        lab.start()
        lab.step({}, loads=[(0, chunks([5]), blocks([3]))])
        found += [event.order for event in lab.emitted if type(event).__name__ == "Copy"]
    assert found == ["any", "stream"]


def test_a_step_that_the_process_around_does_not_tell_of_is_known_from_the_model_runner(lab: Lab) -> None:
    lab.start()
    lab.step({"a": [1, 2]}, stores=[STORE], early=False)
    lab.step({"b": [3]}, early=False)
    assert not lab.races
    assert not lab.workers.unchecked
    assert lab.workers.accesses > 6


def test_steps_that_nobody_tells_leave_the_worker_unjudged(lab: Lab) -> None:
    side = lab.start()
    side.start_kv_transfers(types.SimpleNamespace(loads=[]))
    assert "the scheduler's output did not come" in lab.workers.unchecked[0]


def crowded(lab: Lab, first: Any, second: Any) -> None:
    """``second`` loads into a block that ``first`` still stores, since nobody told it to wait."""
    Event.over = False
    lab.side = first
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({}, ended=("a",))
    lab.side = second
    lab.step({}, loads=[(0, chunks([7]), blocks([2]))])


def test_connectors_that_are_given_the_same_caches_are_judged_together(lab: Lab) -> None:
    caches = {"layer": Tensor(1 << 20)}
    crowded(lab, lab.start(caches), lab.start(caches))
    (race,) = lab.races
    assert (race.invariant, race.first.name, race.second.name) == ("FREEZE", "store", "load")
    assert [each.invariant for each in lab.replayed] == ["FREEZE"]
    assert lab.workers.seen == 1


def test_workers_with_caches_of_their_own_are_judged_apart(lab: Lab) -> None:
    crowded(lab, lab.start({"layer": Tensor(1 << 20)}), lab.start({"layer": Tensor(1 << 24)}))
    assert not lab.races
    assert lab.workers.seen == 2


def test_connectors_that_see_the_caches_differently_are_not_judged(lab: Lab) -> None:
    caches = {"layer": Tensor(1 << 20)}
    lab.start(caches)
    caches["layer"] = Tensor(1 << 20, slots=16)
    lab.start(caches)
    assert "has 32 blocks for a connector, 16 for another" in lab.workers.unchecked[0]


def test_nothing_is_told_when_nobody_observes_and_all_names_are_put_back(lab: Lab) -> None:
    lab.start()
    assert OBSERVED in vars(lab.copies.torch)
    assert issubclass(lab.copies.torch.Event, Event)
    lab.workers.remove()
    assert lab.copies.torch.Event is Event
    assert not hasattr(lab.handler.transfer_async, "__wrapped__")
    before = len(lab.emitted)
    lab.start()
    lab.step({"a": [1, 2]}, stores=[STORE])
    assert len(lab.emitted) == before


def test_a_connector_under_observation_is_judged(lab: Lab) -> None:
    assert unseen_orders(fake.Connector(lab.start())) == []


@pytest.mark.parametrize(
    ("owner", "name", "emitted"),
    [
        (fake.CONNECTOR, "OffloadingConnectorWorker.handle_preemptions", "this release has no such method"),
        (fake.CONNECTOR, "OffloadingConnectorWorker.get_finished", "this release has no such method"),
        (fake.COPIES, "SingleDirectionOffloadingHandler.transfer_async", "this release has no such method"),
        (fake.COPIES, "SingleDirectionOffloadingHandler", "has no attribute"),
        (fake.COPIES, "current_platform", "does not use current_platform"),
    ],
)
def test_a_release_that_lacks_what_is_hooked_is_told_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str, emitted: str
) -> None:
    modules = fake.package()
    outer, _, inner = name.partition(".")
    if inner:
        delattr(getattr(modules[owner], outer), inner)
    else:
        delattr(modules[owner], outer)
    for module_name, module in modules.items():
        monkeypatch.setitem(sys.modules, module_name, module)
    workers = Workers("test", on_race=lambda _: None)
    workers.patches.append(hook_offloading(workers))
    side = modules[fake.CONNECTOR].OffloadingConnectorWorker
    (line,) = unseen_orders(fake.Connector(side(None, None, None)))
    assert line.startswith(f"{UNJUDGED}: ")
    assert emitted in line
    assert not hasattr(side.prepare_store_kv, "__wrapped__")
    workers.remove()


def test_a_release_whose_transfers_are_asked_for_in_another_way_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = fake.package()

    def transfer_async(self: Any, job_id: int, transfer_spec: Any) -> bool:
        del self, job_id, transfer_spec
        return True

    modules[fake.COPIES].SingleDirectionOffloadingHandler.transfer_async = transfer_async
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    workers = Workers("test", on_race=lambda _: None)
    workers.patches.append(hook_offloading(workers))
    side = modules[fake.CONNECTOR].OffloadingConnectorWorker
    (line,) = unseen_orders(fake.Connector(side(None, None, None)))
    assert "its parameters are job_id, transfer_spec, not job_id, src_spec, dst_spec" in line
    workers.remove()


def test_a_release_without_its_modules_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = fake.package()
    del modules[fake.CONNECTOR].OffloadingConnectorWorker
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    workers = Workers("test")
    workers.patches.append(hook_offloading(workers))
    assert unseen_orders(fake.Connector(object())) == [UNJUDGED]
    workers.remove()


def _tiers(lab: Lab) -> str:
    lab.start(spec="TieringOffloadingSpec")
    return "what TieringOffloadingSpec does with host memory beside its copies"


def _other_copies(lab: Lab) -> str:
    lab.start(copies="RemoteOffloadingWorker")
    return "copies are made by RemoteOffloadingWorker, which is not known"


def _in_host_memory(lab: Lab) -> str:
    lab.groups.append(group(host=True))
    lab.start()
    return "group 1 lies in host memory"


def _unknown_group(lab: Lab) -> str:
    lab.groups.append(group("MambaSpec"))
    lab.start()
    return "which blocks of group 1 (MambaSpec) a step writes is not known"


@pytest.mark.parametrize("case", [_tiers, _other_copies, _in_host_memory, _unknown_group])
def test_what_is_not_judged_is_said(lab: Lab, case: Callable[[Lab], str]) -> None:
    emitted = case(lab)
    (line,) = lab.workers.unchecked
    assert emitted in line
