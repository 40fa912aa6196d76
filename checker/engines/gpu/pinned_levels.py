"""Levels of a search on a GPU in registered host memory, moved by the reference's copy engine."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.gpu.device.search_device import Device, Words
from kvfence.checker.engines.gpu.host_levels import LevelStore, PlainStore

BLOCK = 2 << 20  # bytes
POOL = 1 << 30  # bytes registered at a time,
AHEAD = 4  # and how often at once, in threads: one alone takes as long as a search for so many states
Move = Callable[[str, NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]], None]
"""Does a ``store`` or a ``load``: from these addresses, to those, so many bytes each."""


class PinnedLevels:
    """Copies in pools that ``new_pool`` makes, of ``pool`` bytes each and ``limit`` together.

    Pools are cut into blocks, so that what was dropped makes room for anything else. They are made ``ahead``
    of their use. ``move`` returns when its copies are over; ``new_pool`` returns None if it gets no memory.
    """

    def __init__(
        self,
        move: Move,
        new_pool: Callable[[int, int], Any | None],
        limit: int,
        pool: int = POOL,
        ahead: int = AHEAD,
    ) -> None:
        self._move, self._new_pool = move, new_pool
        self._most, self._pool, self._ahead = limit // pool, pool, ahead
        self._threads = ThreadPoolExecutor(ahead, "kvfence-pools")
        self._coming: deque[Future[Any | None]] = deque()
        self._pools: list[Any] = []
        self._addresses = np.empty(0, np.uint64)  # of each block
        self._free: list[int] = []
        self._kept: dict[int, tuple[NDArray[np.int64], int]] = {}
        self._numbers = 0

    def keep(self, address: int, nbytes: int) -> int | None:
        """See ``LevelStore``."""
        count = -(-nbytes // BLOCK)
        while len(self._free) < count:
            if not self._another_pool():
                return None
        blocks = np.array([self._free.pop() for _ in range(count)], np.int64)
        self._numbers += 1
        self._kept[self._numbers] = blocks, nbytes
        host, offsets, sizes = self._parts(self._numbers, 0, nbytes)
        self._move("store", offsets + np.uint64(address), host, sizes)
        return self._numbers

    def copy_back(self, number: int, first: int, nbytes: int, address: int) -> None:
        """See ``LevelStore``."""
        host, offsets, sizes = self._parts(number, first, nbytes)
        self._move("load", host, offsets + np.uint64(address), sizes)

    def look(self, number: int, first: int, nbytes: int) -> Words:
        """See ``LevelStore``."""
        blocks = self._blocks(number, first, nbytes)
        whole = []
        for k in range(first // BLOCK, -(-(first + nbytes) // BLOCK)):
            pool, at = divmod(int(blocks[k]), self._pool // BLOCK)
            begin, end = max(first, k * BLOCK), min(first + nbytes, (k + 1) * BLOCK)
            place = at * BLOCK - k * BLOCK
            whole.append(self._pools[pool].array()[place + begin : place + end])
        return np.concatenate(whole).view(np.uint64) if whole else np.empty(0, np.uint64)

    def drop(self, number: int) -> None:
        """See ``LevelStore``."""
        blocks, _ = self._kept.pop(number)
        self._free += blocks[::-1].tolist()

    def close(self) -> None:
        """See ``LevelStore``."""
        self._kept, self._free = {}, []
        self._pools += [pool for made in self._coming if (pool := made.result()) is not None]
        self._coming.clear()
        self._threads.shutdown()
        while self._pools:
            self._pools.pop().close()

    def _make_ahead(self) -> None:
        while len(self._coming) < min(self._ahead, self._most - len(self._pools)):
            self._coming.append(self._threads.submit(self._new_pool, self._pool // BLOCK, BLOCK))

    def _another_pool(self) -> bool:
        self._make_ahead()
        made = None
        while made is None:
            if not self._coming:
                return False
            made = self._coming.popleft().result()
            if made is None:
                self._most = 0
        known = len(self._addresses)
        self._pools.append(made)
        each = np.arange(self._pool // BLOCK, dtype=np.uint64) * np.uint64(BLOCK) + np.uint64(made.address)
        self._addresses = np.concatenate((self._addresses, each))
        self._free = [*range(len(self._addresses) - 1, known - 1, -1), *self._free]
        self._make_ahead()
        return True

    def _blocks(self, number: int, first: int, nbytes: int) -> NDArray[np.int64]:
        """The blocks of a copy. IndexError for a part that is not within it: no copy is begun of that."""
        blocks, kept = self._kept[number]
        if not 0 <= first <= first + nbytes <= kept:
            raise IndexError(f"{nbytes} bytes from {first} on are not within the {kept} that are kept")
        return blocks

    def _parts(
        self, number: int, first: int, nbytes: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
        """Where a part lies on the host, block by block: addresses, offsets within the part, and sizes."""
        blocks = self._blocks(number, first, nbytes)
        k = np.arange(first // BLOCK, -(-(first + nbytes) // BLOCK))
        begin, end = np.maximum(k * BLOCK, first), np.minimum((k + 1) * BLOCK, first + nbytes)
        host = self._addresses[blocks[k]] + (begin - k * BLOCK).astype(np.uint64)
        return host, (begin - first).astype(np.uint64), (end - begin).astype(np.uint64)


def pinned_levels(device: Device, limit: int) -> LevelStore:
    """The store of a CUDA device; ordinary memory where the reference cannot copy, or for very little."""
    try:
        return _pinned(device, limit) if limit >= POOL else PlainStore(device, limit)
    except _unusable():
        return PlainStore(device, limit)


def _unusable() -> tuple[type[Exception], ...]:
    try:
        from kvfence.reference.driver.driver import NoDevice
    except ImportError:
        return (ImportError,)
    return ImportError, NoDevice


def _pinned(device: Any, limit: int) -> PinnedLevels:
    import torch

    from kvfence.reference.copy.batched import BatchedDMA
    from kvfence.reference.copy.plan import Plan
    from kvfence.reference.driver.driver import NoDevice, open_driver
    from kvfence.reference.driver.host_pool import HostMemoryRefused, HostPool

    if not hasattr(device, "stream"):
        raise NoDevice("states are in memory of the processor")
    driver = open_driver(device.ordinal)
    engine = BatchedDMA(driver)
    stream = torch.cuda.ExternalStream(int(device.stream), device=device.ordinal)

    def move(kind: str, src: NDArray[np.uint64], dst: NDArray[np.uint64], nbytes: NDArray[np.uint64]) -> None:
        engine.launch(Plan(kind, engine.name, (), src, dst, nbytes), stream)  # type: ignore[arg-type]
        stream.synchronize()

    class Touching:
        """Registers memory whose pages are there: the driver blocks all copies while it makes them."""

        def register(self, address: int, nbytes: int) -> None:
            ctypes.memset(address, 0, nbytes)
            driver.register(address, nbytes)

        def unregister(self, address: int) -> None:
            driver.unregister(address)

        def synchronize(self) -> None:
            driver.synchronize()

    def new_pool(blocks: int, block_bytes: int) -> HostPool | None:
        torch.cuda.set_device(device.ordinal)  # for this thread
        try:
            return HostPool(Touching(), blocks, block_bytes)
        except HostMemoryRefused:
            return None

    return PinnedLevels(move, new_pool, limit)
