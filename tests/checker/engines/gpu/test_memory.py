"""A search whose levels do not fit the device goes on with states on the host."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import shapes
from thread_ranks import card_or_skip, together

from kvfence.checker.engines import Gpu, Interpreter, Native, Result, Verdict
from kvfence.checker.engines.gpu import checksums as sums
from kvfence.checker.engines.gpu import expansion, search
from kvfence.checker.engines.gpu.device import source
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.ranks import Ranks
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.gpu.exploration import GpuModel
from kvfence.checker.engines.gpu.host_levels import PlainStore
from kvfence.checker.engines.gpu.levels import Levels, Piece
from kvfence.checker.engines.gpu.pinned_levels import pinned_levels
from kvfence.spec.language import Machine

Kvlife = Callable[..., Machine]
FAULT = frozenset({"evict_referenced"})
BEING_EXPANDED = 1  # level above the one being filled


@pytest.fixture
def came_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each time that states came back from the host, how many levels above the last one they belong."""
    seen: list[int] = []
    copy_back = Levels.copy_back

    def holds(pieces: list[Piece], part: Piece) -> bool:
        inside = (p for p in pieces if p.segment is part.segment)
        return any(p.start <= part.start < p.start + p.count for p in inside)

    def watched(self: Levels, piece: Piece, address: int) -> int:
        depth = next(d for d, pieces in enumerate(self.levels) if holds(pieces, piece))
        seen.append(self.depth - depth)
        return copy_back(self, piece, address)

    monkeypatch.setattr(Levels, "copy_back", watched)
    return seen


@pytest.mark.parametrize("kept", [0, 150_000, 1 << 20])
def test_levels_that_do_not_fit_wait_on_the_host_and_the_search_goes_on(
    kvlife: Kvlife, came_back: list[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, "SMALLEST_SEGMENT", 1024)
    monkeypatch.setattr(expansion, "LARGEST_SEGMENT", 1024)
    m, sizes = kvlife(FAULT), {"Block": 3, "Request": 2}
    limits = Limits(host_memory=kept, batch=200)
    found = Gpu(device=lambda: HostDevice(room=860_000), limits=limits, queue=64).run(m, sizes)
    if not kept:
        assert "ran out of memory" in str(found.stopped)
        return
    native = Native().run(m, sizes)
    assert shapes.facts(found) == shapes.facts(native)
    assert [str(p) for p in found.violated] == [str(p) for p in native.violated]
    assert BEING_EXPANDED in came_back


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_a_card_with_little_memory_searches_on_and_finds_the_same(
    kvlife: Kvlife, came_back: list[int], pinned: bool
) -> None:
    card_or_skip()
    m, sizes = kvlife(FAULT), {"Block": 4, "Request": 2}
    engine = Gpu(
        device=lambda: CudaDevice(threads=64, blocks=1),
        limits=Limits(host_memory=4 << 30, batch=1 << 18),
        queue=96,
        **({"store": pinned_levels} if pinned else {}),
    )
    found = engine.run(m, sizes, memory=32 << 20)
    native = Native().run(m, sizes)
    assert shapes.facts(found) == shapes.facts(native)
    assert [str(p) for p in found.violated] == [str(p) for p in native.violated]
    assert BEING_EXPANDED in came_back


def test_ranks_that_lack_memory_for_levels_search_on_together(
    kvlife: Kvlife, came_back: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (source, expansion, search):
        monkeypatch.setattr(module, "SENT_LOG2", 6)
    monkeypatch.setattr(expansion, "SMALLEST_SEGMENT", 512)
    monkeypatch.setattr(expansion, "LARGEST_SEGMENT", 512)
    m, sizes = kvlife(FAULT), {"Block": 3, "Request": 2}
    limits = Limits(host_memory=1 << 20, batch=200)

    def run(ranks: Ranks) -> Result:
        return Gpu(device=lambda: HostDevice(room=450_000), ranks=ranks, limits=limits, queue=64).run(
            m, sizes
        )

    one, two = together(2, run)
    native = Native().run(m, sizes)
    assert shapes.facts(one) == shapes.facts(two) == shapes.facts(native)
    assert BEING_EXPANDED in came_back


def test_states_that_come_back_from_the_host_damaged_are_not_searched_on(
    kvlife: Kvlife, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of one state is flipped while it is on the host: undetermined, and no other count."""
    monkeypatch.setattr(expansion, "SMALLEST_SEGMENT", 1024)
    monkeypatch.setattr(expansion, "LARGEST_SEGMENT", 1024)
    keep, chance = PlainStore.keep, random.Random(15)
    limits = Limits(host_memory=1 << 20, batch=200)
    native = Native().run(kvlife(FAULT), {"Block": 3, "Request": 2})
    stopped = 0
    for flipped in (1, 20, 37, 39, 42):
        count = 0

        def damaged(self: PlainStore, address: int, nbytes: int, flipped: int = flipped) -> int | None:
            nonlocal count
            count += 1
            number = keep(self, address, nbytes)
            if count == flipped and number is not None:
                words = self._kept[number]
                words[chance.randrange(len(words))] ^= np.uint64(1 << chance.randrange(64))
            return number

        monkeypatch.setattr(PlainStore, "keep", damaged)
        found = Gpu(device=lambda: HostDevice(room=860_000), limits=limits, queue=64).run(
            kvlife(FAULT), {"Block": 3, "Request": 2}
        )
        if found.stopped is None:  # it was not looked at again
            assert (found.states, found.transitions) == (native.states, native.transitions)
        else:
            assert found.verdict is not Verdict.holds
            assert "states that were kept on the host are not what they were" in found.stopped
            stopped += 1
    assert stopped > 2


@pytest.mark.parametrize("words", [1, 255, 257, 3000, 256 * 256, 256 * 256 + 1, 200_000])
def test_sums_on_the_device_are_those_on_the_host_and_tell_a_flipped_bit(kvlife: Kvlife, words: int) -> None:
    device = HostDevice(threads=3)
    device.compile(GpuModel(Interpreter(kvlife(), {"Block": 2, "Request": 1}), {}).printed, "search")
    chance = np.random.default_rng(words)
    data = chance.integers(0, 1 << 64, words, np.uint64)
    address, scratch = device.allocate(data.nbytes), device.allocate(sums.BYTES)
    device.write(address, data)
    for block in (256, 512, sums.block_of(words)):
        known = sums.Sums(words, block, sums.on_device(device, scratch, address, words, block))
        assert np.array_equal(known.blocks, sums.on_host(data, block))
        at = int(chance.integers(words))
        begin, count = known.around(at, 1)
        part = sums.on_device(device, scratch, address + 8 * begin, count, block)
        known.check(begin, part)
        data[at] ^= np.uint64(1 << int(chance.integers(64)))
        with pytest.raises(sums.DamagedStates):
            known.check(begin, sums.on_host(data[begin : begin + count], block))
        device.write(address, data)
