"""A driver without a GPU: streams hold what was launched, and run it in an order drawn from a seed."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kvfence.reference.copy import batched
from kvfence.reference.copy.baselines import LoopedDMA
from kvfence.reference.copy.batched import BatchedDMA
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import KernelCopy, Kernels
from kvfence.reference.copy.staged import StagedCopy
from kvfence.reference.driver.driver import SRC_ANY, Card
from kvfence.spec import order as od


class FakeEvent:
    """Complete when the record that it last had has run."""

    def __init__(self, world: FakeDriver) -> None:
        self.world = world
        self.number = world.next_number()
        self.done = {"record": True}

    def record(self, stream: FakeStream) -> None:
        done = {"record": False}
        self.done = done
        self.world.emit(od.Record(0, stream.number, self.number))
        stream.work.append(("record", lambda: done.update(record=True)))

    def query(self) -> bool:
        return self.done["record"]


class FakeStream:
    """What was launched on it and has not run."""

    def __init__(self, world: FakeDriver) -> None:
        self.world = world
        self.number = world.next_number()
        self.cuda_stream = self.number
        self.work: list[tuple[str, Callable[[], object]]] = []
        world.streams[self.number] = self

    def wait_event(self, event: FakeEvent) -> None:
        bound = event.done
        self.world.emit(od.Wait(0, self.number, event.number))
        self.work.append(("wait", lambda: bound["record"]))


class FakeDriver:
    """Executes copies and kernels on plain memory when :meth:`run` lets it.

    Each stream runs in order, the streams in an order drawn from ``seed``. Reads of order ANY go as early
    as the copy is launched, or with it.
    """

    ordinal = 0
    card = Card("no card", (9, 0), 132, "13.0")
    has_batched_copy = True
    maps_host_memory = True
    version = 13000

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.streams: dict[int, FakeStream] = {}
        self.events: list[od.OrderEvent] = []
        self.keep: list[torch.Tensor] = []
        self.launches: list[tuple[str, int]] = []
        self.sent: dict[int, bytes] = {}
        """What was last copied to an address by :meth:`copy`, as it was at the call."""
        self._count = 0

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def emit(self, event: od.OrderEvent) -> None:
        self.events.append(event)

    def new_stream(self) -> FakeStream:
        return FakeStream(self)

    def new_event(self) -> FakeEvent:
        return FakeEvent(self)

    def new_pinned(self, count: int) -> torch.Tensor:
        self.keep.append(torch.full((count,), -1, dtype=torch.int64))
        return self.keep[-1]

    def new_buffer(self, nbytes: int) -> torch.Tensor:
        self.keep.append(torch.full((nbytes,), 0xEE, dtype=torch.uint8))
        return self.keep[-1]

    def compile(self, source: str, name: str) -> str:
        assert f" {name}(" in source
        return name

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self.launches.append(("copy", 1))
        self.sent[dst] = ctypes.string_at(src, nbytes)
        self.emit(od.Copy(0, stream, [_range(src, nbytes)], [_range(dst, nbytes)]))
        self.streams[stream].work.append(("copy", lambda: ctypes.memmove(dst, src, nbytes)))

    def copy_batch(self, dst, src, nbytes, order, stream) -> None:  # type: ignore[no-untyped-def]
        self.launches.append(("batch", dst.size))
        moves = list(zip(dst.tolist(), src.tolist(), nbytes.tolist(), strict=True))
        if not moves:
            return
        reads, writes = [_range(s, n) for _, s, n in moves], [_range(d, n) for d, _, n in moves]
        self.emit(od.Copy(0, stream, reads, writes, "any" if order == SRC_ANY else "stream"))
        early = order == SRC_ANY and self.random.random() < 0.5
        taken = [ctypes.string_at(s, n) for _, s, n in moves] if early else None

        def move() -> None:
            order_of = list(range(len(moves)))
            self.random.shuffle(order_of)
            for i in order_of:
                to, at, size = moves[i]
                ctypes.memmove(to, taken[i] if taken is not None else at, size)

        self.streams[stream].work.append(("copy", move))

    def launch(  # type: ignore[no-untyped-def]
        self, function, grid, threads, stream, arguments, types
    ) -> None:
        assert function == "copy_blocks"
        assert min(grid, threads) > 0
        assert len(arguments) == len(types)
        self.launches.append(("kernel", arguments[2]))
        sources, targets, count, size = arguments
        addresses = np.frombuffer(self.sent[sources], np.uint64).tolist()
        reads = [_range(sources, 16 * count), *(_range(at, size) for at in addresses[:count])]
        self.emit(od.Kernel(0, stream, reads, [_range(at, size) for at in addresses[count:]]))

        def run() -> None:
            for i in range(count):
                at = ctypes.c_uint64.from_address(sources + 8 * i).value
                to = ctypes.c_uint64.from_address(targets + 8 * i).value
                ctypes.memmove(to, at, size)

        self.streams[stream].work.append(("kernel", run))

    def run(self, most: int | None = None) -> None:
        """Run up to ``most`` operations, or all. Fails when all streams wait for each other."""
        done = 0
        while most is None or done < most:
            ready = [stream for stream in self.streams.values() if stream.work and self._can_begin(stream)]
            if not ready:
                assert not any(stream.work for stream in self.streams.values()), "streams wait for each other"
                return
            _, work = self.random.choice(ready).work.pop(0)
            work()
            done += 1

    @staticmethod
    def _can_begin(stream: FakeStream) -> bool:
        kind, work = stream.work[0]
        return kind != "wait" or bool(work())


ENGINES: dict[str, Callable[[Any], CopyEngine]] = {
    "dma": lambda driver: BatchedDMA(driver, lanes=1),
    "lanes": lambda driver: BatchedDMA(driver, lanes=3),
    "kernel": lambda driver: KernelCopy(Kernels(driver)),
    "staged": lambda driver: StagedCopy(Kernels(driver), room=640),
    "loop": LoopedDMA,
}
"""Engines by name, with lanes and staging so small that a test fills several."""


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    """Each engine's name."""
    return str(request.param)


@pytest.fixture(params=["store", "load"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each direction."""
    return str(request.param)


@pytest.fixture
def engine(name: str, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> CopyEngine:
    """The engine ``name`` on ``driver``."""
    monkeypatch.setattr(batched, "LANE_BYTES", 64)
    return ENGINES[name](driver)


def _range(address: int, nbytes: int) -> od.Range:
    return (0, address, nbytes)


@pytest.fixture(params=range(6))
def driver(request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
    """The fake driver, with several orders of its streams."""
    return FakeDriver(request.param)  # type: ignore[return-value]
