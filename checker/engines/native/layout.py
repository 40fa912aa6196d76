"""Packing for the native engine: as dense as whole cells in 64-bit words allow."""

from __future__ import annotations

from kvfence.checker.engines.explicit.pack import WORD_BITS, Packing

ONE_WORD = 63  # the top bit of the first word marks an occupied table entry,
FIRST_WORD = 62  # and with several words the bit below says that all of them are written


class Dense(Packing):
    """Cells at any bit of a word. Neighbouring cells of a function are neighbours where they can be.

    ``word_bits`` are the bits in use of each word.
    """

    word_bits: list[int]

    def _place(self) -> int:
        for s in self.slots:
            s.lane_bits = WORD_BITS
        single = sum(s.bits for s in self.slots) <= ONE_WORD
        room = [ONE_WORD if single else FIRST_WORD]
        used = [0]
        # wide cells first: single bits then fill what is left over
        for s in sorted((s for s in self.slots if s.bits), key=lambda s: -s.bits if s.bits > 8 else 0):
            k = next((k for k, most in enumerate(room) if used[k] + s.bits <= most), len(room))
            if k == len(room):
                room.append(WORD_BITS)
                used.append(0)
            s.word, s.shift = k, used[k]
            used[k] += s.bits
        self.word_bits = used
        return WORD_BITS * len(used)
