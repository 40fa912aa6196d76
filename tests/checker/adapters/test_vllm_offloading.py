"""The hooks on OffloadingConnector's worker side, on one like vLLM's and without vLLM."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import fake_offloading as fake
import pytest
import worker_lab
from fake_offloading import blocks, chunks
from worker_lab import Event, Tensor, group, scheduled

from kvfence.checker.adapters.vllm.hooks.offloading import hook_offloading, within_chunks
from kvfence.checker.adapters.vllm.hooks.worker import STEP, Workers
from kvfence.checker.adapters.vllm.stream.known_parts import unseen_orders
from kvfence.checker.adapters.vllm.worker.observed_cuda import OBSERVED

UNJUDGED = "Connector: the order of its streams is not judged"


class Lab(worker_lab.Lab):
    """A worker side under observation, and the scheduler whose steps it takes."""

    def __init__(self, modules: dict[str, Any]) -> None:
        super().__init__(modules)
        self.workers.patches.append(hook_offloading(self.workers))
        self.copies = modules[fake.COPIES]
        self.handler = self.copies.SingleDirectionOffloadingHandler
        self.side: Any = None

    def start(
        self, caches: Any = None, *, spec: str = "CPUOffloadingSpec", copies: str = "CPUOffloadingWorker"
    ) -> Any:
        kind = self.modules[fake.CONNECTOR].OffloadingConnectorWorker
        made = type(spec, (), {"copies": copies})()
        self.side = kind(made, worker_lab.vllm_config(), self.kv_cache_config)
        self.side.register_kv_caches(caches or {"layer": Tensor(1 << 20)})
        return self.side

    def step(
        self,
        work: dict[str, list[int]],
        *,
        stores: Any = (),
        loads: Any = (),
        flush: tuple[int, ...] = (),
        loads_last: bool = False,
        early: bool = True,
        **named: Any,
    ) -> None:
        """A step that computes all tokens of new requests in these blocks.

        ``early``: whether the process around the worker reports it; ``loads_last``: as newer model runners
        do, loads come after its kernels.
        """
        side = self.side or self.start()
        meta = types.SimpleNamespace(stores=stores, loads=loads, flush=flush)
        counts = {name: 4 * len(ids) for name, ids in work.items()}
        output = scheduled([(name, (ids,), 0) for name, ids in work.items()], **named, **counts)
        output.kv_connector_metadata = meta
        if early:
            STEP.begin(output)
        side.handle_preemptions(kv_connector_metadata=meta)
        STEP.begin(output)
        STEP.launched = loads_last
        side.start_kv_transfers(meta)
        side.prepare_store_kv(meta)
        side.get_finished(set())


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return worker_lab.put_in(monkeypatch, fake.package())


@pytest.fixture
def lab(modules: dict[str, Any]) -> Iterator[Lab]:
    made = Lab(modules)
    yield made
    made.workers.remove()
    Event.over = True
    STEP.begin(None)


STORE = (0, blocks([1, 2]), chunks([5, 6]))


def test_a_store_that_waits_for_the_steps_is_silent(lab: Lab) -> None:
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]}, in_flight=1)
    lab.assert_silent(6)


def test_a_store_that_does_not_wait_for_a_step_in_flight_is_reported_with_both_accesses(lab: Lab) -> None:
    lab.handler.waits = False
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]}, in_flight=1)
    lab.assert_early_store()


def test_it_need_not_wait_for_a_step_that_is_over(lab: Lab) -> None:
    lab.handler.waits = False
    lab.step({"a": [1, 2]}, stores=[STORE])
    lab.step({"b": [3]})
    assert not lab.races


def test_a_load_over_blocks_that_a_step_in_flight_reads_is_reported(lab: Lab) -> None:
    lab.handler.waits = False
    lab.step({"a": [1, 2]})
    lab.step({}, loads=[(7, chunks([5]), blocks([2]))], in_flight=1, ended=("a",))
    assert {(race.invariant, race.second.by) for race in lab.races} == {("LOAD-ORDER", "load 7")}


def test_loads_that_come_after_the_kernels_of_their_step_are_ordered_after_them(lab: Lab) -> None:
    lab.handler.waits = False
    lab.step({"a": [1, 2]}, loads=[(7, chunks([5]), blocks([2]))], loads_last=True)
    assert {(race.first.by, race.second.by) for race in lab.races} == {("step 1", "load 7")}


def test_a_step_that_reads_before_its_load_is_over_is_reported(lab: Lab) -> None:
    Event.over = False
    lab.step({}, loads=[(0, chunks([5]), blocks([3]))])
    lab.step({"a": [3, 4]})
    assert "USE-READY" in {race.invariant for race in lab.races}


def test_a_load_that_was_waited_for_on_the_host_may_be_read(lab: Lab) -> None:
    Event.over = False
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
    lab.step({"a": [1, 2]}, stores=[STORE], early=False)
    lab.step({"b": [3]}, early=False)
    lab.assert_silent(6)


def test_steps_that_nothing_reports_leave_the_worker_unjudged(lab: Lab) -> None:
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


def test_nothing_is_reported_when_nobody_observes_and_all_names_are_put_back(lab: Lab) -> None:
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


def other_transfer(self: Any, job_id: int, transfer_spec: Any) -> bool:
    """Transfers are asked for in another way."""
    del self, job_id, transfer_spec
    return True


NO_METHOD = "this release has no such method"
OTHER_PARAMETERS = "its parameters are job_id, transfer_spec, not job_id, src_spec, dst_spec"


@pytest.mark.parametrize(
    ("owner", "name", "instead", "why"),
    [
        (fake.CONNECTOR, "OffloadingConnectorWorker.handle_preemptions", None, NO_METHOD),
        (fake.CONNECTOR, "OffloadingConnectorWorker.get_finished", None, NO_METHOD),
        (fake.COPIES, "SingleDirectionOffloadingHandler.transfer_async", None, NO_METHOD),
        (fake.COPIES, "SingleDirectionOffloadingHandler.transfer_async", other_transfer, OTHER_PARAMETERS),
        (fake.COPIES, "SingleDirectionOffloadingHandler", None, "has no attribute"),
        (fake.COPIES, "current_platform", None, "does not use current_platform"),
        (fake.CONNECTOR, "OffloadingConnectorWorker", None, ""),
    ],
)
def test_a_release_that_lacks_what_is_hooked_is_reported_and_left_alone(
    modules: dict[str, Any], owner: str, name: str, instead: Any, why: str
) -> None:
    side = modules[fake.CONNECTOR].OffloadingConnectorWorker
    outer, _, inner = name.partition(".")
    changed = getattr(modules[owner], outer) if inner else modules[owner]
    delattr(changed, inner or outer)
    if instead is not None:
        setattr(changed, inner, instead)
    workers = Workers("test", on_race=lambda _: None)
    workers.patches.append(hook_offloading(workers))
    (line,) = unseen_orders(fake.Connector(side(None, None, None) if why else object()))
    assert line.startswith(f"{UNJUDGED}: ") if why else line == UNJUDGED
    assert why in line
    assert not hasattr(side.prepare_store_kv, "__wrapped__")
    workers.remove()


@pytest.mark.parametrize(
    ("group_of_other", "start", "why"),
    [
        (
            (),
            {"spec": "TieringOffloadingSpec"},
            "what TieringOffloadingSpec does with host memory beside its copies",
        ),
        (
            (),
            {"copies": "RemoteOffloadingWorker"},
            "copies are made by RemoteOffloadingWorker, which is not known",
        ),
        ((group(host=True),), {}, "group 1 lies in host memory"),
        ((group("MambaSpec"),), {}, "which blocks of group 1 (MambaSpec) a step writes is not known"),
    ],
    ids=["tiers", "other copies", "in host memory", "unknown group"],
)
def test_what_is_not_judged_is_reported(
    lab: Lab, group_of_other: tuple[Any, ...], start: dict[str, str], why: str
) -> None:
    lab.groups += group_of_other
    lab.start(**start)
    (line,) = lab.workers.unchecked
    assert why in line
