"""The disk tier's memory: blocks in real files of a temporary folder, some of which get lost."""

import heapq
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.free_queue import Slots

Rows = npt.NDArray[np.int64]

LASTS: int = 2000
"""Ticks after which a file that gets lost is gone, at most."""


class FileStore:
    """``slots`` blocks of ``cells`` tokens each. Blocks that are written together share a file.

    ``lose_rate`` of the files vanish some time after they were written, without a word: it shows when they
    are read. A file goes when all of its blocks have been written again elsewhere.
    """

    def __init__(self, slots: int, cells: int, lose_rate: float, seed: int) -> None:
        self._folder = TemporaryDirectory(prefix="kvfence-disk-")
        self._cells = cells
        self._lose_rate = lose_rate
        self.lasts = LASTS
        self._random = random.Random(seed)
        self._file = np.full(slots, -1, np.int64)
        self._row = np.zeros(slots, np.int64)
        self._alive: dict[int, int] = {}
        """File -> blocks in it that count."""
        self._doomed: list[tuple[int, int]] = []
        self._now = 0
        self._written = 0
        self.lost = 0

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / str(number)

    def advance(self) -> None:
        """One tick: files whose time has come get lost."""
        self._now += 1
        while self._doomed and self._doomed[0][0] <= self._now:
            number = heapq.heappop(self._doomed)[1]
            if number in self._alive:
                self.lost += 1
                self._path(number).unlink(missing_ok=True)

    def write(self, slots: Slots, content: Rows) -> None:
        """``slots`` hold ``content``, [slots, cells], from here on."""
        if not slots.size:
            return
        number, self._written = self._written, self._written + 1
        self._path(number).write_bytes(content.tobytes())
        old, counts = np.unique(self._file[slots], return_counts=True)
        for before, count in zip(old.tolist(), counts.tolist(), strict=True):
            if before >= 0:
                self._forget(before, count)
        self._file[slots] = number
        self._row[slots] = np.arange(slots.size)
        self._alive[number] = slots.size
        if self._lose_rate and self._random.random() < self._lose_rate:
            heapq.heappush(self._doomed, (self._now + self._random.randint(1, self.lasts), number))

    def _forget(self, number: int, blocks: int) -> None:
        self._alive[number] -= blocks
        if not self._alive[number]:
            del self._alive[number]
            self._path(number).unlink(missing_ok=True)

    def read(self, slots: Slots) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """The content of ``slots``, [slots, cells], and for which of them it could be read."""
        content = np.zeros((slots.size, self._cells), np.int64)
        there = np.zeros(slots.size, bool)
        files = self._file[slots]
        for number in np.unique(files).tolist():
            try:
                data = np.frombuffer(self._path(number).read_bytes(), np.int64).reshape(-1, self._cells)
            except FileNotFoundError:
                continue
            mine = files == number
            content[mine] = data[self._row[slots[mine]]]
            there |= mine
        return content, there

    def close(self) -> None:
        """Remove what is left."""
        self._folder.cleanup()
