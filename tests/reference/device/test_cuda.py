"""The CUDA device on a GPU: ordering rules, engines, memory, and a replay. Skipped where there is none."""

import gc
import threading
import time
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from kvfence.checker.order.races import OrderChecker
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.copy.auto import open_auto, open_engines
from kvfence.reference.copy.crossover import measure
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.device import cuda_faults
from kvfence.reference.device.cuda import CudaDevice
from kvfence.reference.device.protocol import CopyJob
from kvfence.reference.device.virtual_order import replay_header
from kvfence.reference.driver.driver import DriverError, NoDevice, open_driver
from kvfence.reference.driver.host_pool import HostMemoryRefused, HostPool
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options
from kvfence.spec import order as od

pytestmark = pytest.mark.gpu
TRIALS = 25


@pytest.fixture(scope="module")
def driver():
    try:
        return open_driver()
    except NoDevice as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["dma", "kernel"])
def arena(request, driver):
    arena = cuda_faults.Arena(driver, cuda_faults.engines_on_trial(driver)[request.param])
    yield arena
    arena.close()


@pytest.mark.parametrize("name", cuda_faults.RULES)
def test_breaking_an_order_rule_corrupts_content_and_obeying_it_does_not(arena, name):
    rule = cuda_faults.RULES[name]
    outcome = cuda_faults.try_rule(arena, rule, TRIALS)
    assert outcome.obeyed_corrupt == 0
    if outcome.verdict == "undetermined":
        assert not rule.certain, (
            f"the control corrupts {outcome.broken_corrupt} of {outcome.trials}: undetermined"
        )
        pytest.skip("undetermined: this device reads in stream order although it need not")


@pytest.mark.parametrize("name", ["dma", "kernel", "staged", "auto"])
@pytest.mark.parametrize("kind", ["store", "load"])
def test_an_engine_moves_several_layers_and_groups(driver, name, kind):
    engines = open_engines(driver)
    engine = open_auto(driver, "auto") if name == "auto" else engines[name]
    sizes, blocks = (512, 512, 49152, 16), 96
    pools = [HostPool(driver, blocks, size) for size in sizes]
    host = [
        torch.from_numpy(pool.array()).view(blocks, size) for pool, size in zip(pools, sizes, strict=True)
    ]
    device = [torch.randint(0, 256, (blocks, size), dtype=torch.uint8, device="cuda") for size in sizes]
    for tensor in host:
        tensor.random_(0, 256)
    stream = driver.new_stream()
    draw = np.random.default_rng(7)
    views = [[View.of(t) for t in tensors] for tensors in (device, host)]
    source, target = views if kind == "store" else views[::-1]
    for turn in range(4):
        first, second = ((draw.permutation(blocks)[:60], draw.permutation(blocks)[:60]) for _ in range(2))
        if turn % 2:
            first[1][:40] = np.arange(40)
            first[1][40:] = 40 + draw.permutation(56)[:20]
        wanted = [tensor.clone() for tensor in (host if kind == "store" else device)]
        from_side, to_side = (device, host) if kind == "store" else (host, device)
        for number, (src, dst) in enumerate((first, first, second, second)):
            moved = from_side[number][torch.from_numpy(src).to(from_side[number].device)]
            wanted[number][torch.from_numpy(dst).to(wanted[number].device)] = moved.to(wanted[number].device)
        torch.cuda.synchronize()
        engine.copy(
            kind,
            [
                Segment(source[:2], first[0], target[:2], first[1]),
                Segment(source[2:], second[0], target[2:], second[1]),
            ],
            stream,
        )
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(to_side, wanted, strict=True))
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("name", ["dma", "kernel", "staged"])
@pytest.mark.parametrize("kind", ["store", "load"])
def test_no_engine_copies_across_registrations_that_lie_side_by_side(driver, name, kind):
    engine, pool = open_engines(driver)[name], HostPool(driver, 64, 4096, most=4096)
    host = torch.from_numpy(pool.array())
    host.random_(0, 256)
    pools = [View.of(host[at : at + 32 * 4096].view(32, 4096), run=1) for at in (0, 32 * 4096)]
    device = torch.randint(0, 256, (2, 32, 4096), dtype=torch.uint8, device="cuda")
    there, blocks = [View.of(half) for half in device], np.arange(32)
    sides = (there, pools) if kind == "store" else (pools, there)
    segments = [Segment([source], blocks, [target], blocks) for source, target in zip(*sides, strict=True)]
    torch.cuda.synchronize()
    engine.copy(kind, segments, driver.new_stream())
    torch.cuda.synchronize()
    assert torch.equal(host.view(2, 32, 4096), device.cpu())


def test_a_pool_that_is_dropped_takes_its_registration_along(driver):
    for _ in range(20):
        pool = HostPool(driver, blocks=96, block_bytes=512)
        address, array = pool.address, pool.array()
        del pool
        driver.unregister(address)  # raises unless it is registered while the array lives
        driver.register(address, array.nbytes)
        del array
        with pytest.raises(DriverError):
            driver.unregister(address)


def test_a_device_that_is_dropped_ends_its_thread_and_gives_its_host_memory_back(driver):
    before = threading.active_count()
    made = CudaDevice({"gpu": 16, "cpu": 16}, 16)
    gone = weakref.ref(made)
    address = made.memory["cpu"].data_ptr()
    del made
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
    gc.collect()
    with pytest.raises(DriverError):
        driver.unregister(address)


def test_a_measured_crossover_names_an_engine_everywhere(driver):
    table = measure(driver, open_engines(driver), sizes=(4096, 65536))
    assert set(table.fastest) == {f"{k} {at}" for k in ("store", "load") for at in ("scattered", "host runs")}
    assert all(rate > 0 for rates in table.rates.values() for rate in rates)


def test_host_memory_that_cannot_be_registered_is_given_back(driver):
    granted = []

    class OneChunk:
        def register(self, address, nbytes):
            driver.register(address if not granted else 0, nbytes)
            granted.append(nbytes)

        def unregister(self, address):
            driver.unregister(address)

        def synchronize(self):
            driver.synchronize()

    with pytest.raises(HostMemoryRefused, match="granted before one was refused"):
        HostPool(OneChunk(), blocks=64, block_bytes=4096, most=4096 * 16)
    assert granted == [65536]


@pytest.fixture
def device(driver):
    assert driver.has_batched_copy
    made = CudaDevice({"gpu": 256, "cpu": 512}, 16)
    yield made
    made.close()


def test_a_flush_waits_for_copies_that_are_still_queued(device):
    with torch.cuda.stream(device.compute):
        torch.cuda._sleep(20_000_000)
        device.memory["gpu"].fill_(5)
    for op in range(50):
        slots = np.array([op, op + 100], np.int64)
        device.submit(CopyJob(op, 0, "gpu", slots, "cpu", slots, load=False))
    device.flush()
    assert {report.op for report in device.poll()} == set(range(50))
    assert (device.memory["cpu"][:50] == 5).all()
    moved = device.metrics.moved["store"]
    assert (moved.transfers, moved.nbytes) == (50, 100 * 128)
    assert moved.seconds < 5e-3, "the wait for compute was counted"


def test_copies_end_when_they_have_landed_and_not_before(device):
    with torch.cuda.stream(device.compute):
        torch.cuda._sleep(40_000_000)
        device.memory["gpu"].fill_(9)
    slots = np.arange(8, dtype=np.int64)
    device.submit(CopyJob(1, 0, "gpu", slots, "cpu", slots, load=False))
    device.advance()
    assert device.poll() == []
    device.flush()
    assert len(device.poll()) == 1
    assert (device.memory["cpu"][:8] == 9).all()


SMALL = {"device": "cuda", "block_size": 4, "gpu_blocks": 300, "cpu_blocks": 900, "max_running": 8}


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_replay_on_the_gpu_reads_what_was_computed_and_its_accesses_are_ordered(mode, depth):
    kinds = Counter()
    checker = OrderChecker(replay_header(Options(**SMALL)), most_pieces=10**6)

    def judge(event):
        kinds[type(event)] += 1
        checker(event)

    options = Options(mode=mode, async_depth=depth, **SMALL)
    report = run(conversations(120, seed=3), options, order=judge)
    assert report.complete
    assert sum(report.stats.finished.values()) == 120
    assert report.moved["store"].transfers == report.stats.stores > 0
    assert report.moved["load"].transfers == report.stats.loads > 0
    assert checker.races == []
    assert checker.complete
    assert kinds[od.Copy] == report.stats.stores + report.stats.loads
    assert kinds[od.Kernel] == report.stats.steps


@pytest.mark.usefixtures("driver")
def test_the_order_check_reports_a_replay_whose_copies_do_not_wait():
    checker = OrderChecker(replay_header(Options(**SMALL)), most_pieces=10**6)

    def judge(event):
        if not isinstance(event, od.Wait):
            checker(event)

    run(conversations(60, seed=3), Options(async_depth=2, **SMALL), order=judge)
    assert {race.invariant for race in checker.races} >= {"STORE-READY", "LOAD-ORDER"}
