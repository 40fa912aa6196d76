"""Levels of a search keep their contents in registered host memory, moved by the reference's copy engine."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.pinned_levels import BLOCK, PinnedLevels, pinned_levels

POOL = 4 * BLOCK
made: list[int] = []
closed: list[int] = []


class Pool:
    """Ordinary memory that looks like a pool."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self._bytes = np.zeros(blocks * block_bytes, np.uint8)
        self.address = self._bytes.ctypes.data
        made.append(self.address)

    def array(self) -> NDArray[np.uint8]:
        return self._bytes

    def close(self) -> None:
        closed.append(self.address)


def move(_: str, src: NDArray[np.uint64], dst: NDArray[np.uint64], nbytes: NDArray[np.uint64]) -> None:
    for a, b, n in zip(src, dst, nbytes, strict=True):
        ctypes.memmove(int(b), int(a), int(n))


def words(nbytes: int, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 1 << 63, nbytes // 8, dtype=np.uint64)


def test_what_was_kept_is_there_in_part_and_whole_and_what_was_dropped_makes_room() -> None:
    made.clear()
    closed.clear()
    store = PinnedLevels(move, Pool, 3 * POOL, POOL)
    there = [words(size, k) for k, size in enumerate((3 * BLOCK + 8, 2 * BLOCK, 5 * BLOCK - 16))]
    numbers = [store.keep(a.ctypes.data, a.nbytes) for a in there]
    assert None not in numbers
    assert store.keep(there[0].ctypes.data, there[0].nbytes) is None  # 11 of 12 blocks are taken
    for number, a in zip(numbers, there, strict=True):
        assert number is not None
        for first, nbytes in ((0, a.nbytes), (8, a.nbytes - 24), (BLOCK - 8, 16), (BLOCK, BLOCK), (0, 0)):
            part = a[first // 8 : (first + nbytes) // 8]
            assert (store.look(number, first, nbytes) == part).all()
            back = np.zeros_like(part)
            store.copy_back(number, first, nbytes, back.ctypes.data)
            assert (back == part).all()
    assert numbers[1] is not None
    store.drop(numbers[1])
    again = words(3 * BLOCK, 9)
    number = store.keep(again.ctypes.data, again.nbytes)
    assert number is not None
    assert (store.look(number, 0, again.nbytes) == again).all()
    assert numbers[2] is not None
    assert (store.look(numbers[2], 0, there[2].nbytes) == there[2]).all()
    store.close()
    assert sorted(made) == sorted(closed)


def test_memory_that_is_refused_is_not_asked_for_again() -> None:
    asked: list[int] = []

    def refused(blocks: int, _: int) -> None:
        asked.append(blocks)

    store = PinnedLevels(move, refused, 8 * POOL, POOL, ahead=1)
    a = words(BLOCK, 1)
    assert store.keep(a.ctypes.data, a.nbytes) is None
    assert store.keep(a.ctypes.data, a.nbytes) is None
    assert asked == [POOL // BLOCK]


def test_without_a_card_levels_go_to_ordinary_memory() -> None:
    device = HostDevice()
    store = pinned_levels(device, 1 << 20)
    address = device.allocate(4096)
    device.write(address, words(4096, 2))
    number = store.keep(address, 4096)
    assert number is not None
    assert (store.look(number, 8, 64) == words(4096, 2)[1:9]).all()
    store.close()
