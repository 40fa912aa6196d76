"""Sums of states that leave the device, by which it is seen whether they come back as they were.

The device computes them, in a fraction of the time that the copies take.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np

from kvfence.checker.engines.gpu.device import Device, Params, Words

RUN = 256  # words that a thread adds up; ``SUM_RUN`` of search.cuh
MOST = 256  # sums of a segment,
BYTES = 8 * (MOST + 1)  # which are computed here


class DamagedStates(OSError):  # noqa: N818 (a reason to stop)
    """States did not come back from the host as they were put there."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "states that were kept on the host are not what they were")

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass
class Sums:
    """The sums of the blocks of a segment of so many words.

    A part of the segment that is compared may begin or end within a block: where the next part begins there,
    the block is compared then, and else it is not.
    """

    words: int
    block: int
    blocks: Words
    open: tuple[int, Words] | None = None
    """Where the part before ended within a block, and the sum of that block up to there."""

    def check(self, first: int, found: Words) -> None:
        """Compare the sums of words from ``first`` on, block by block. DamagedStates."""
        end, found = first + int(found[-1]), found[:-1].copy()
        whole = first % self.block == 0
        if not whole and self.open is not None and self.open[0] == first:
            found[:1] += self.open[1]
            whole = True
        over = end == self.words or end % self.block == 0
        at = first // self.block
        compared = slice(0 if whole else 1, len(found) if over else len(found) - 1)
        if not np.array_equal(found[compared], self.blocks[at : at + len(found)][compared]):
            raise DamagedStates
        self.open = None if over or not (whole or len(found) > 1) else (end, found[-1:])


def block_of(words: int) -> int:
    """How many words of a segment share a sum."""
    return -(-words // MOST // RUN) * RUN or RUN


def on_device(device: Device, scratch: int, address: int, first: int, words: int, block: int) -> Words:
    """The sums of words that lie on the device, ``first`` being the number of the first in its segment.

    The last entry is the number of words. ``scratch`` has room for ``BYTES``.
    """
    count = (first + words - 1) // block + 1 - first // block
    device.clear(scratch, 8 * count)
    runs = (first + words - 1) // RUN + 1 - first // RUN
    params = Params(into=address, in_count=words, out=scratch, start=first, block=block)
    device.launch("sum_words", params, runs)
    return np.append(device.read(scratch, count), np.uint64(words))


def on_host(data: Words, first: int, block: int) -> Words:
    """The same for words on the host."""
    count = (first + len(data) - 1) // block + 1 - first // block
    begins = np.maximum((first // block + np.arange(count)) * block - first, 0)
    return np.append(np.add.reduceat(_mixed(data), begins), np.uint64(len(data)))


def _mixed(data: Words) -> Words:
    """``mix`` of table.cuh."""
    h = data ^ (data >> np.uint64(32))
    h *= np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    return h
