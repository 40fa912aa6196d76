"""Sums of states that leave the device, by which it is seen whether they come back as they were.

The device computes them, in a fraction of the time that the copies take.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np

from kvfence.checker.engines.gpu.device.search_device import Device, Params, Words

RUN = 256  # words that a thread adds up; ``SUM_RUN`` of search.cuh
SHARE = 16  # a block is one part in so many of what is copied back at a time
MOST = 256  # blocks summed up by one launch,
BYTES = 8 * MOST  # and the memory of the device that their sums take


class DamagedStates(OSError):  # noqa: N818 (a reason to stop)
    """States did not come back from the host as they were put there."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "states that were kept on the host are not what they were")

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True)
class Sums:
    """The sums of so many words, ``block`` of which share one."""

    words: int
    block: int
    blocks: Words

    def around(self, first: int, count: int) -> tuple[int, int]:
        """The whole blocks that hold ``count`` words from ``first`` on: the first word, and how many."""
        begin = first // self.block * self.block
        return begin, min(-(-(first + count) // self.block) * self.block, self.words) - begin

    def check(self, first: int, found: Words) -> None:
        """Compare the sums of whole blocks, the first of which begins at word ``first``. DamagedStates."""
        at = first // self.block
        if not np.array_equal(found, self.blocks[at : at + len(found)]):
            raise DamagedStates


def block_of(words: int) -> int:
    """How many words share a sum where so many are copied back at a time."""
    return max(1, words // SHARE // RUN) * RUN


def on_device(device: Device, scratch: int, address: int, words: int, block: int) -> Words:
    """The sums of words that lie on the device, block by block. ``scratch`` has room for ``BYTES``."""
    out = []
    for first in range(0, words, MOST * block):
        n = min(MOST * block, words - first)
        device.clear(scratch, BYTES)
        params = Params(into=address + 8 * first, in_count=n, out=scratch, block=block)
        device.launch("sum_words", params, -(-n // RUN))
        out.append(device.read(scratch, -(-n // block)))
    return np.concatenate(out)


def on_host(data: Words, block: int) -> Words:
    """The same of words on the host."""
    h = data ^ (data >> np.uint64(32))  # ``mix`` of table.cuh
    h *= np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    return np.asarray(np.add.reduceat(h, np.arange(0, len(data), block)), np.uint64)
