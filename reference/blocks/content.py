"""The content oracle: what each token's KV must be, as a 64-bit identity of its prefix."""

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.workload import RequestSpec

Tokens = npt.NDArray[np.int64]

_BY_HASH = np.int64(0x1E3779B97F4A7C15)
_BY_OWNER = np.int64(0x3F58476D1CE4E5B9)
_BY_POSITION = np.int64(0x14D049BB133111EB)
_BY_GROUP = np.int64(0x2545F4914F6CDD1D)


class ContentOracle:
    """Expected identities, vectorised over the rows of a batch.

    A token below ``known`` is identified by its span's hash id and its position (the hash id stands for the
    whole prefix), a later one by its request and position. Groups differ, as their layers do. Linear in 64
    bits with odd factors: equal values for different tokens are as unlikely as a hash collision.
    """

    def __init__(self, rows: int) -> None:
        self._base = np.zeros((rows, 16), np.int64)
        self._own = np.zeros(rows, np.int64)
        self._known = np.zeros(rows, np.int64)
        self._span = np.ones(rows, np.int64)

    def open_row(self, row: int, spec: RequestSpec) -> None:
        """Row ``row`` stands for ``spec`` from now on."""
        n = spec.hash_ids.size
        if n >= self._base.shape[1]:
            self._base = np.pad(self._base, ((0, 0), (0, n + 1)))
        with np.errstate(over="ignore"):
            self._base[row, :n] = spec.hash_ids * _BY_HASH
            self._own[row] = np.int64(spec.uid + 1) * _BY_OWNER
        self._known[row] = spec.known
        self._span[row] = spec.span

    def tokens(self, row: int, start: int, end: int, group: int) -> Tokens:
        """Identities of the tokens ``start`` .. ``end - 1`` of one row."""
        position = np.arange(start, end, dtype=np.int64)
        known = min(max(int(self._known[row]) - start, 0), end - start)
        expected = position * _BY_POSITION
        expected += np.int64((group * int(_BY_GROUP)) & (2**62 - 1))
        expected[:known] += self._base[row].take(position[:known] // self._span[row])
        expected[known:] += self._own[row]
        return expected

    def at(self, rows: npt.NDArray[np.int64], positions: Tokens, group: int) -> Tokens:
        """Identities at ``positions`` ([n] or [n, k]) of ``rows`` ([n])."""
        if positions.ndim == 2:
            rows = rows[:, None]
        known = positions < self._known[rows]
        span = np.minimum(positions // self._span[rows], self._base.shape[1] - 1)
        expected = np.where(known, self._base[rows, span], self._own[rows])
        expected += positions * _BY_POSITION
        expected += np.int64((group * int(_BY_GROUP)) & (2**62 - 1))
        return expected
