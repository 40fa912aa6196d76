"""Keys: states as few bits as their cells' ranges allow, in mixed radix: what table and levels hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.base import CellBounds
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language import Grounded

_CHUNK = (1 << 32) - 1  # cells of one chunk are told apart by arithmetic on 32 bits
_WORD = (1 << 64) - 1
_FIRST = 1 << 62  # with several words, two bits of the first one are taken by the table


@dataclass(frozen=True)
class _Digit:
    """A cell: where its bits lie in the dense state, and how many values it has."""

    word: int
    shift: int
    mask: int
    size: int


class Keys:
    """The keys of a machine's states. ``words`` of 64 bits each; ``bits`` in use of a key of one word.

    A key is the dense state itself where mixed radix would not make it a single word.
    """

    def __init__(self, g: Grounded, packing: Dense, limits: CellBounds) -> None:
        self.dense = packing
        self._chunks: list[tuple[list[_Digit], int]] = []
        self._radix = self._lay_out(g, limits)
        if self._radix:
            total = 1
            for _, size in self._chunks:
                total *= size
            self.words, self.bits = 1, max(2, (total - 1).bit_length())
        else:
            self.words = packing.words
            self.bits = max(2, packing.word_bits[0]) if packing.words == 1 else 64

    def _lay_out(self, g: Grounded, limits: CellBounds) -> bool:
        digits = []
        total = 1
        for cell, slot in zip(g.cells, self.dense.slots, strict=True):
            if not slot.bits:
                continue
            lo, hi = limits.get(cell.number, (cell.lo, cell.hi))
            assert lo is not None
            assert hi is not None
            size = hi - lo + 1
            total *= size
            digits.append(_Digit(slot.word, slot.shift, (1 << slot.bits) - 1, size))
            if size > _CHUNK or total > _WORD:
                return False
        for d in digits:
            for k, (some, size) in enumerate(self._chunks):
                if size * d.size <= _CHUNK:
                    some.append(d)
                    self._chunks[k] = (some, size * d.size)
                    break
            else:
                self._chunks.append(([d], d.size))
        return True

    def encode(self, state: Sequence[int]) -> tuple[int, ...]:
        """The key of a state given as dense words."""
        if not self._radix:
            return tuple(int(w) for w in state)
        key = 0
        for digits, size in reversed(self._chunks):
            chunk = 0
            for d in reversed(digits):
                chunk = chunk * d.size + (int(state[d.word]) >> d.shift & d.mask)
            key = key * size + chunk
        return (key,)

    def decode(self, key: Sequence[int]) -> tuple[int, ...]:
        """The dense words of a key."""
        if not self._radix:
            return tuple(int(w) for w in key)
        words, rest = [0] * self.dense.words, int(key[0])
        for digits, size in self._chunks:
            rest, chunk = divmod(rest, size)
            for d in digits:
                chunk, value = divmod(chunk, d.size)
                words[d.word] |= value << d.shift
        return tuple(words)

    def decode_all(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The dense words of many keys: a row for each."""
        if not self._radix:
            return keys
        words = np.zeros((len(keys), self.dense.words), np.uint64)
        rest = keys[:, 0]
        for digits, size in self._chunks:
            rest, chunk = np.divmod(rest, np.uint64(size))
            for d in digits:
                chunk, value = np.divmod(chunk, np.uint64(d.size))
                words[:, d.word] |= value << np.uint64(d.shift)
        return words

    def owner(self, key: Sequence[int], ranks: int) -> int:
        """The rank that a key belongs to."""
        return mix(self.hash(key) + 0x632BE59BD9B4E019 & _WORD) * ranks >> 64

    def hash(self, key: Sequence[int]) -> int:
        """``hash_key`` of table.cuh."""
        h = mix(key[0])
        for word in key[1:]:
            h = mix(h ^ word)
        return h

    def text(self) -> list[str]:
        """C for both directions."""
        if not self._radix:
            return [
                "FUNCTION inline void encode(const V *w, u64 *key) {",
                "  for (int k = 0; k < WORDS; k++) key[k] = (u64)w[k];",
                "}",
                "FUNCTION inline void decode(const u64 *key, V *w) {",
                "  for (int k = 0; k < WORDS; k++) w[k] = (V)key[k];",
                "}",
            ]
        encode, decode = (
            [],
            [f"  for (int k = 0; k < {self.dense.words}; k++) w[k] = 0;", "  u64 rest = key[0];"],
        )
        key = "0"
        for k, (digits, size) in enumerate(self._chunks):
            chunk = "0u"
            for d in reversed(digits):
                part = f"(u32)(((u64)w[{d.word}] >> {d.shift}) & {d.mask}ull)"
                chunk = part if chunk == "0u" else f"({chunk}) * {d.size}u + {part}"
            encode.append(f"  const u32 c{k} = {chunk};")
            decode.append(f"  u32 c{k} = (u32)(rest % {size}ull);")
            decode.append(f"  rest /= {size}ull;")
            for j, d in enumerate(digits):
                value = f"c{k}" if j == len(digits) - 1 else f"c{k} % {d.size}u"
                decode.append(f"  w[{d.word}] |= (V)((u64)({value}) << {d.shift});")
                decode.append(f"  c{k} /= {d.size}u;")
        for k, (_, size) in reversed(list(enumerate(self._chunks))):
            key = f"(u64)c{k}" if key == "0" else f"({key}) * {size}ull + c{k}"
        return [
            "FUNCTION inline void encode(const V *w, u64 *key) {",
            *encode,
            f"  key[0] = {key};",
            "}",
            "FUNCTION inline void decode(const u64 *key, V *w) {",
            *decode,
            "}",
        ]

    def mixing(self) -> dict[str, str]:
        """Constants of the bijection of keys of one word."""
        bits = self.bits
        mask = (1 << bits) - 1
        out = {"KEY_BITS": f"{bits}ull", "KEY_SHIFT": str((bits + 1) // 2), "KEY_MASK": f"{mask}ull"}
        for k, factor in ((1, 0x9E3779B97F4A7C15), (2, 0xBF58476D1CE4E5B9)):
            odd = factor >> (64 - bits) & mask | 1
            out[f"KEY_FACTOR_{k}"] = f"{odd}ull"
            out[f"KEY_INVERSE_{k}"] = f"{pow(odd, -1, 1 << bits)}ull"
        return out


def mix(h: int) -> int:
    """``mix`` of table.cuh."""
    h ^= h >> 32
    h = h * 0x9E3779B97F4A7C15 & _WORD
    h ^= h >> 29
    h = h * 0xBF58476D1CE4E5B9 & _WORD
    return h ^ h >> 32
