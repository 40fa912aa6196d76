"""Every engine moves every block to its place and nothing else, whatever order the streams run in."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from kvfence.reference.copy.batched import BatchedDMA, lane_edges
from kvfence.reference.copy.kernel import KernelCopy, Kernels
from kvfence.reference.copy.plan import CopyError, Segment, View, plan
from kvfence.reference.copy.staged import fitting


class Pools:
    """Two groups on a device and a host: keys and values in separate tensors, and larger blocks in one."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.tensors = {
            side: [
                torch.randint(0, 256, (blocks, 2, 16), dtype=torch.uint8),
                torch.randint(0, 256, (blocks, 2, 16), dtype=torch.uint8),
                torch.randint(0, 256, (blocks, 160), dtype=torch.uint8),
            ]
            for side, blocks in (("device", 24), ("host", 40))
        }

    def segments(self, kind, first, second):
        views = {side: [View.of(t) for t in tensors] for side, tensors in self.tensors.items()}
        source, target = ("device", "host") if kind == "store" else ("host", "device")
        return [
            Segment(views[source][:2], first[0], views[target][:2], first[1]),
            Segment(views[source][2:], second[0], views[target][2:], second[1]),
        ]

    def expected(self, kind, first, second):
        source, target = ("device", "host") if kind == "store" else ("host", "device")
        want = [tensor.clone() for tensor in self.tensors[target]]
        for number, (src, dst) in enumerate((first, first, second)):
            want[number][dst] = self.tensors[source][number][src]
        return want


def lists(draw, kind):
    device, host = draw.permutation(24)[:14], draw.permutation(40)[:14]
    host[3:9] = np.arange(30, 36)
    host = host[np.sort(np.unique(host, return_index=True)[1])]
    device = device[: host.size].copy()
    device[3:7] = np.sort(device[3:7])
    return (device, host) if kind == "store" else (host, device)


def test_an_engine_moves_scattered_and_contiguous_blocks_of_several_groups(engine, kind, driver):
    draw = np.random.default_rng(driver.random.randrange(1000))
    pools = Pools(1)
    stream = driver.new_stream()
    for _ in range(3):
        first, second = lists(draw, kind), lists(draw, kind)
        want = pools.expected(kind, first, second)
        engine.copy(kind, pools.segments(kind, first, second), stream)
        driver.run()
        got = pools.tensors["host" if kind == "store" else "device"]
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_transfers_launched_behind_each_other_keep_their_descriptors_and_staging_apart(engine, driver):
    pools = Pools(2)
    store, load = driver.new_stream(), driver.new_stream()
    numbers = np.arange(24)
    half = numbers[:12], numbers[12:]
    host_before = [tensor.clone() for tensor in pools.tensors["host"]]
    device_before = [tensor.clone() for tensor in pools.tensors["device"]]
    for turn in range(4):
        part = numbers[turn * 3 : turn * 3 + 3]
        engine.copy("store", pools.segments("store", (part, part), (part, part)), store)
        back = part + 12
        engine.copy("load", pools.segments("load", (back + 8, back), (back + 8, back)), load)
        driver.run(most=3)
    driver.run()
    for number in range(3):
        host, device = pools.tensors["host"][number], pools.tensors["device"][number]
        assert torch.equal(host[half[0]], device_before[number][half[0]])
        assert torch.equal(device[half[1]], host_before[number][half[1] + 8])


def test_a_store_reads_after_what_its_stream_waited_for(engine, driver):
    pools = Pools(3)
    compute, copies = driver.new_stream(), driver.new_stream()
    wanted = torch.full((24, 160), 7, dtype=torch.uint8)
    compute.work.append(("kernel", lambda: pools.tensors["device"][2].copy_(wanted)))
    ready = driver.new_event()
    ready.record(compute)
    copies.wait_event(ready)
    numbers = np.arange(24)
    nothing = numbers[:0], numbers[:0]
    scattered = 39 - numbers
    engine.copy("store", pools.segments("store", nothing, (numbers, scattered)), copies)
    driver.run()
    assert torch.equal(pools.tensors["host"][2][scattered], wanted)


def test_what_follows_a_transfer_on_its_stream_comes_after_all_of_it(engine, driver):
    pools = Pools(4)
    stream = driver.new_stream()
    numbers = np.arange(24)
    segments = pools.segments("load", (numbers, numbers), (numbers, numbers))
    engine.copy("load", segments, stream)
    seen = []
    stream.work.append(("kernel", lambda: seen.append(pools.tensors["device"][2].clone())))
    driver.run()
    assert torch.equal(seen[0], pools.tensors["host"][2][:24])


def test_only_loads_may_read_their_source_out_of_stream_order(engine, name, kind):
    pools = Pools(5)
    numbers = np.arange(4)
    work = engine.plan(kind, pools.segments(kind, (numbers, numbers), (numbers, numbers)))
    wanted = "any" if kind == "load" and name in {"dma", "lanes", "staged"} else "stream"
    assert engine.source_order(work) == wanted


def test_the_kernels_refuse_blocks_that_are_no_multiple_of_16_bytes(driver):
    memory = torch.zeros((4, 24), dtype=torch.uint8)
    numbers = np.arange(2)
    odd = [Segment([View.of(memory)], numbers, [View.of(memory)], numbers + 2)]
    with pytest.raises(CopyError, match="use the engine dma"):
        KernelCopy(Kernels(driver)).copy("store", odd, driver.new_stream())
    BatchedDMA(driver, lanes=1).copy("store", odd, driver.new_stream())


def test_runs_merge_where_both_sides_continue_and_not_across_registrations():
    memory = torch.zeros((32, 64), dtype=torch.uint8)
    src, dst = np.array([4, 5, 6, 7, 20, 22, 23]), np.array([0, 1, 2, 3, 4, 5, 6])
    whole = plan("load", "dma", [Segment([View.of(memory)], src, [View.of(memory)], dst)], merge=True)
    assert whole.nbytes.tolist() == [256, 64, 128]
    cut = plan("load", "dma", [Segment([View.of(memory, run=6)], src, [View.of(memory)], dst)], merge=True)
    assert cut.nbytes.tolist() == [128, 128, 64, 128]
    single = plan("load", "dma", [Segment([View.of(memory)], src, [View.of(memory)], dst)], merge=False)
    assert single.nbytes.tolist() == [64] * 7
    assert whole.total == cut.total == single.total == 7 * 64


def test_blocks_with_gaps_between_them_do_not_merge():
    memory = torch.zeros((8, 2, 64), dtype=torch.uint8)
    numbers = np.arange(4)
    keys = View.of(memory[:, 0])
    work = plan("store", "dma", [Segment([keys], numbers, [keys], numbers + 4)], merge=True)
    assert work.nbytes.tolist() == [64] * 4
    assert np.diff(work.src).tolist() == [128] * 3


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [([0, 1], [0], "2 source blocks for 1"), ([0, 8], [0, 1], "source blocks 0 .. 8 of a pool of 8"),
     ([0, 1], [-1, 0], "destination blocks -1 .. 0")],
)  # fmt: skip
def test_block_lists_that_do_not_fit_are_refused(src, dst, message):
    view = View.of(torch.zeros((8, 16), dtype=torch.uint8))
    with pytest.raises(CopyError, match=message):
        plan("store", "dma", [Segment([view], np.array(src), [view], np.array(dst))], merge=True)


def test_sizes_that_differ_between_the_sides_are_refused():
    a, b = (View.of(torch.zeros((8, n), dtype=torch.uint8)) for n in (16, 32))
    with pytest.raises(CopyError, match="16 bytes for destination blocks of 32"):
        plan("store", "dma", [Segment([a], np.arange(2), [b], np.arange(2))], merge=True)


def test_lanes_share_the_bytes_and_staging_parts_fit():
    memory = torch.zeros((64, 64), dtype=torch.uint8)
    numbers = np.arange(0, 64, 2)
    work = plan("load", "dma", [Segment([View.of(memory)], numbers, [View.of(memory)], numbers)], merge=True)
    assert lane_edges(work, 4) == [0, 8, 16, 24, 32]
    sizes = np.array([30, 30, 50, 100, 10, 90, 1], np.uint64)
    edges = fitting(sizes, 100)
    assert edges[0] == 0
    assert edges[-1] == sizes.size
    assert all(sizes[a:b].sum() <= 100 for a, b in pairwise(edges))


def test_no_copy_crosses_registrations_that_lie_side_by_side(engine, name, kind, driver, monkeypatch):
    memory, device = (torch.randint(0, 256, (48, 32), dtype=torch.uint8) for _ in range(2))
    host = [View.of(memory[:16]), View.of(memory[16:], run=8)]  # two pools, the second of four registrations
    there = [View.of(device[:16]), View.of(device[16:])]
    edges = [0, 16 * 32, 24 * 32, 32 * 32, 40 * 32, 48 * 32]
    copied = driver.copy_batch
    copies = []

    def strict(dst, src, nbytes, order, stream):
        for at, size in zip(src if kind == "load" else dst, nbytes, strict=True):
            begin = int(at) - memory.data_ptr()
            if 0 <= begin < 48 * 32:
                copies.append(int(size))
                assert not any(begin < edge < begin + size for edge in edges), "a copy across registrations"
        copied(dst, src, nbytes, order, stream)

    monkeypatch.setattr(driver, "copy_batch", strict)
    numbers = [np.arange(16), np.arange(32)]
    sides = (there, host) if kind == "store" else (host, there)
    segments = [
        Segment([source], blocks, [target], blocks)
        for source, target, blocks in zip(*sides, numbers, strict=True)
    ]
    engine.copy(kind, segments, driver.new_stream())
    driver.run()
    assert torch.equal(memory, device)
    if name == "dma":
        assert copies == [16 * 32, *[8 * 32] * 4]
    if name == "staged":
        assert len(copies) == 6, "each run within a registration and the staging buffer is one copy"
