"""Packing: a state as a few 64-bit words.

Each cell lies inside one lane, the smallest aligned 8, 16, 32 or 64 bits it fits, and so inside one word.
Cells are read and written by lane, which numpy does 8 times faster on bytes than on words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.base import CellBounds
from kvfence.spec.language import Grounded

Words = NDArray[np.uint64]  # shape (words per state, states)
WORD = np.dtype("<u8")  # little-endian, so that lane k of a word is its k-th byte, half or quarter
WORD_BITS = 64


class Slot:
    """Where a cell lies: ``bits`` wide at bit ``shift`` of lane ``lane`` (of ``lane_bits`` each) of ``word``.

    The bits hold the value minus ``lo``.
    """

    def __init__(self, lo: int, bits: int, lane_bits: int) -> None:
        self.lo, self.bits, self.lane_bits = lo, bits, lane_bits
        self.word = self.lane = self.shift = 0

    @property
    def offset(self) -> int:
        """First bit within the word."""
        return self.lane * self.lane_bits + self.shift

    @property
    def mask(self) -> int:
        """The bits of the cell, at their place in the word."""
        return ((1 << self.bits) - 1) << self.offset


class Packing:
    """The place of every cell. ``bounds`` gives the range of cells that have none of their own."""

    def __init__(self, grounded: Grounded, bounds: CellBounds) -> None:
        self.slots: list[Slot] = []
        for cell in grounded.cells:
            lo, hi = bounds[cell.number] if cell.lo is None or cell.hi is None else (cell.lo, cell.hi)
            bits = (hi - lo).bit_length()
            lane_bits = next((w for w in (8, 16, 32, 64) if bits <= w), None)
            if lane_bits is None:
                raise ValueError(f"{cell.label} needs {bits} bits; give narrower bounds")
            self.slots.append(Slot(lo, bits, lane_bits))
        used = self._place()
        self.words = max(1, -(-used // WORD_BITS))
        self.bits = sum(s.bits for s in self.slots)
        # with a bit to spare, no state is all ones, which can then mark an empty table entry
        self.spare = self.words == 1 and self.bits < WORD_BITS

    def _place(self) -> int:
        """Give each cell its lane, first fit by falling width; the number of bits laid out."""
        at = 0
        for lane_bits in (64, 32, 16, 8):
            room: list[int] = []  # bits used in each lane
            start = at
            cells = [s for s in self.slots if s.lane_bits == lane_bits and s.bits]
            for s in sorted(cells, key=lambda s: -s.bits):
                k = next((k for k, used in enumerate(room) if used + s.bits <= lane_bits), len(room))
                if k == len(room):
                    room.append(0)
                s.shift = room[k]
                s.word, bit = divmod(start + k * lane_bits, WORD_BITS)
                s.lane = bit // lane_bits
                room[k] += s.bits
            at = start + len(room) * lane_bits
        return at

    def pack(self, state: Sequence[int]) -> Words:
        """One state as a column of words."""
        out = [0] * self.words
        for s, v in zip(self.slots, state, strict=True):
            out[s.word] |= (v - s.lo) << s.offset
        return np.array(out, WORD).reshape(-1, 1)

    def unpack(self, words: Sequence[int]) -> tuple[int, ...]:
        """The state whose words these are."""
        return tuple(((int(words[s.word]) & s.mask) >> s.offset) + s.lo for s in self.slots)
