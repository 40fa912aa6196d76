"""Ranks as threads of one process: the same search without torch, quick enough for every test run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvfence.checker.engines.base import Result
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.ranks import Ranks
from kvfence.checker.engines.gpu.device.search_device import NoGpu, Words


def card_or_skip(ordinal: int = 0) -> None:
    """Skips the test where there is no GPU of this number."""
    try:
        CudaDevice(ordinal).close()
    except NoGpu as why:
        pytest.skip(str(why))


class Meeting:
    """Where ``count`` ranks put something down and take what all of them put down."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count, timeout=60)
        self.there: list[object] = [None] * count

    def share(self, rank: int, mine: object) -> list[object]:
        self.there[rank] = mine
        self.barrier.wait()
        every = list(self.there)
        self.barrier.wait()
        return every


class Arrived:
    """Keys that are there already."""

    def __init__(self, came: list[tuple[int, int]]) -> None:
        self.came = came

    def wait(self) -> list[tuple[int, int]]:
        return self.came


class ThreadRanks(Ranks):
    """One of the ranks."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.count = meeting, rank, meeting.count

    def speaks(self) -> bool:
        return self.rank == 0

    def total(self, numbers: Sequence[int]) -> list[int]:
        every = self.meeting.share(self.rank, list(numbers))
        return [sum(column) for column in zip(*every, strict=True)]  # type: ignore[call-overload]

    def agree(self, numbers: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
        every = self.meeting.share(self.rank, (list(numbers), list(counts)))
        sums = [sum(column) for column in zip(*(e[0] for e in every), strict=True)]  # type: ignore[index]
        return sums, [e[1][self.rank] for e in every]  # type: ignore[index]

    def largest(self, number: int) -> int:
        return max(self.meeting.share(self.rank, number))  # type: ignore[type-var]

    def lowest(self, sights: Words, size: int) -> Words:
        every = [np.array(s).reshape(-1, size) for s in self.meeting.share(self.rank, sights.copy())]
        rows = [min(tuple(int(x) for x in e[k]) for e in every) for k in range(len(every[0]))]
        return np.array(rows, np.uint64).reshape(-1, size)

    def boxes(self, room: int, words: int) -> list[int]:
        self.words = words
        self.mine = [np.zeros((self.count, room * words), np.uint64) for _ in range(2)]
        self.theirs = [np.zeros((self.count, room * words), np.uint64) for _ in range(2)]
        return [b.ctypes.data for b in self.mine]

    def exchange(self, which: int, counts: Sequence[int], coming: Sequence[int]) -> Arrived:
        sent = [self.mine[which][r, : n * self.words].copy() for r, n in enumerate(counts)]
        came = []
        for r, boxes in enumerate(self.meeting.share(self.rank, sent)):
            keys = boxes[self.rank]  # type: ignore[index]
            place = self.theirs[which][r]
            assert len(keys) == coming[r] * self.words
            place[: len(keys)] = keys
            if len(keys):
                came.append((place.ctypes.data, len(keys) // self.words))
        return Arrived(came)


def together(count: int, run: Callable[[ThreadRanks], Result]) -> list[Result]:
    """What each of ``count`` ranks answers."""
    meeting = Meeting(count)
    out: list[Result | None] = [None] * count

    def work(rank: int) -> None:
        try:
            out[rank] = run(ThreadRanks(meeting, rank))
        except BaseException:
            meeting.barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [r for r in out if r is not None]
