"""Exact sets of packed states: every state visited, in the order of discovery, and a table to find them in.

Tables are open-addressed. A batch is entered in rounds: all look at their slot, those at an empty slot write
a claim, and reading the claims back shows which one got it. So duplicates within a batch need no sorting.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.explicit.pack import WORD, Packing, Words

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)
_EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_LOW = np.uint64(0xFFFF_FFFF)
_REHASH = 1 << 17  # states entered at a time when a table grows


class StateSet:
    """The states found so far: ``words[:, :count]``.

    ``reserve`` is asked before memory is taken, with the bytes held at the peak of the change; it may raise.
    """

    def __init__(self, packing: Packing, reserve: Callable[[int], None]) -> None:
        self.packing, self.reserve = packing, reserve
        self.count = 0
        self.words: Words = np.empty((packing.words, 1 << 12), WORD)
        self._log2 = 0
        self._slots: Keys = np.empty(0, WORD)
        self._resize(15)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.words.nbytes + self._slots.nbytes)

    def add(self, batch: Words) -> int:
        """Enter states, with repetitions; how many were new. The new ones are appended to ``words``."""
        raise NotImplementedError

    def _enter_all(self) -> None:
        """Fill the empty table from ``words``."""
        raise NotImplementedError

    def _make_room(self, more: int) -> None:
        """Grow so that ``more`` states fit in with the table at most half full."""
        need = self.count + more
        if need > self.words.shape[1]:
            size = max(need, self.words.shape[1] * 3 // 2)
            self.reserve(self.nbytes + self.words.shape[0] * size * WORD.itemsize)
            grown = np.empty((self.words.shape[0], size), WORD)
            grown[:, : self.count] = self.words[:, : self.count]
            self.words = grown
        log2 = self._log2
        while need * 2 > 1 << log2:
            log2 += 1
        if log2 > self._log2:
            self._resize(max(log2, self._log2 + 2) if log2 < 23 else log2)

    def _resize(self, log2: int) -> None:
        size = WORD.itemsize << log2
        self.reserve(self.nbytes - self._slots.nbytes + size)
        self._slots = np.empty(0, WORD)
        self._slots = np.full(1 << log2, _EMPTY, WORD)
        self._log2, self._mask = log2, np.int64((1 << log2) - 1)
        self._shift = np.uint64(64 - log2)
        self._enter_all()

    def _append(self, fresh: Words) -> None:
        n = fresh.shape[1]
        self.words[:, self.count : self.count + n] = fresh
        self.count += n


class SetOfWords(StateSet):
    """States of one word: the table holds the states themselves."""

    def add(self, batch: Words) -> int:
        """See ``StateSet``."""
        keys: Keys = batch[0]
        at = self._hash(keys)
        unknown = (self._slots.take(at) != keys).nonzero()[0]
        log2 = self._log2
        self._make_room(len(unknown))
        keys = keys.take(unknown)
        at = at.take(unknown) if log2 == self._log2 else self._hash(keys)
        before = self.count
        for fresh in self._enter(keys, at):
            self._append(fresh.reshape(1, -1))
        return self.count - before

    def _hash(self, keys: Keys) -> Places:
        h = keys >> _HALF
        h ^= keys
        h *= _SPREAD
        h >>= self._shift
        return h.view(np.int64)

    def _enter(self, keys: Keys, at: Places) -> list[Keys]:
        slots, out = self._slots, []
        while len(keys):
            found = slots.take(at)
            empty = found == _EMPTY
            free = empty.nonzero()[0]
            empty |= found == keys
            other = (~empty).nonzero()[0]
            if len(free):
                claimants, places = keys.take(free), at.take(free)
                claim = np.arange(len(free), dtype=WORD)
                slots[places] = claim
                won = slots.take(places) == claim
                slots[places[won]] = claimants[won]
                out.append(claimants[won])
                lost = (slots.take(places) != claimants).nonzero()[0]
                keys = np.concatenate((keys.take(other), claimants.take(lost)))
                at = np.concatenate((at.take(other), places.take(lost)))
            else:
                keys, at = keys.take(other), at.take(other)
            at = (at + 1) & self._mask
        return out

    def _enter_all(self) -> None:
        for a in range(0, self.count, _REHASH):
            keys = self.words[0, a : min(a + _REHASH, self.count)]
            self._enter(keys, self._hash(keys))


class SetOfRows(StateSet):
    """States of several words: the table holds half of the hash and the state's number in ``words``."""

    def add(self, batch: Words) -> int:
        """See ``StateSet``."""
        self._make_room(batch.shape[1])
        before = self.count
        self._enter(batch, *self._hash(batch))
        return self.count - before

    def _hash(self, batch: Words) -> tuple[Keys, Places]:
        """Tag (in the upper half) and slot of each state."""
        h = batch[0] >> _HALF
        h ^= batch[0]
        h *= _SPREAD
        for word in batch[1:]:
            h ^= h >> _HALF
            h ^= word
            h *= _MIX
        tag = (h ^ (h >> _HALF)) * _SPREAD
        h *= _SPREAD
        h >>= self._shift
        return tag & ~_LOW, h.view(np.int64)

    def _enter(self, batch: Words, tag: Keys, at: Places) -> None:
        """Enter states; numbers from ``count`` on are claims, settled before the next round."""
        slots = self._slots
        left = np.arange(batch.shape[1])
        while len(left):
            found = slots.take(at)
            empty = found == _EMPTY
            alike = np.flatnonzero(~empty & ((found & ~_LOW) == tag))
            done = empty.copy()
            if len(alike):
                rows = left.take(alike)
                done[alike] = _same(self.words, (found.take(alike) & _LOW).view(np.int64), batch, rows)
            other = np.flatnonzero(~done)
            free = np.flatnonzero(empty)
            lost = free[:0]
            if len(free):
                places, rows = at.take(free), left.take(free)
                claim = np.arange(len(free), dtype=WORD)
                slots[places] = claim
                winner = slots.take(places)
                won = winner == claim
                fresh = rows[won]
                numbers = np.arange(self.count, self.count + len(fresh), dtype=WORD)
                slots[places[won]] = tag.take(free[won]) | numbers
                self._append(batch.take(fresh, axis=1))
                losers = np.flatnonzero(~won)
                same = _same(batch, rows.take(winner.take(losers).view(np.int64)), batch, rows.take(losers))
                lost = free.take(losers[~same])
            keep = np.concatenate((other, lost))
            left, tag, at = left.take(keep), tag.take(keep), (at.take(keep) + 1) & self._mask

    def _enter_all(self) -> None:
        """States in ``words`` are distinct, so only the table is written."""
        slots = self._slots
        for a in range(0, self.count, _REHASH):
            batch = self.words[:, a : min(a + _REHASH, self.count)]
            tag, at = self._hash(batch)
            entry = tag | np.arange(a, a + batch.shape[1], dtype=WORD)
            while len(entry):
                free = np.flatnonzero(slots.take(at) == _EMPTY)
                slots[at.take(free)] = entry.take(free)
                out = np.flatnonzero(slots.take(at) != entry)
                entry, at = entry.take(out), (at.take(out) + 1) & self._mask


def _same(a: Words, i: Places, b: Words, j: Places) -> NDArray[np.bool_]:
    """Whether state ``i[k]`` of ``a`` is state ``j[k]`` of ``b``, for each k."""
    out: NDArray[np.bool_] = a[0].take(i) == b[0].take(j)
    for x, y in zip(a[1:], b[1:], strict=True):
        out &= x.take(i) == y.take(j)
    return out


def state_set(packing: Packing, reserve: Callable[[int], None]) -> StateSet:
    """An empty set for states of this packing."""
    return SetOfWords(packing, reserve) if packing.spare else SetOfRows(packing, reserve)
