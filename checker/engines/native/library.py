"""The compiled search, called from Python. Calls release the interpreter's lock."""

from __future__ import annotations

import ctypes as c
import errno
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.explicit.pack import WORD

U64 = c.c_uint64
_Words = c.POINTER(U64)
TIME_IS_UP, TABLE_IS_FULL, BLOCKS_ARE_MANY, NO_MEMORY, NO_FILE = 1, 2, 4, 8, 16


class Status(NamedTuple):
    """How far a search is. Sizes in bytes; ``level`` is the one being expanded, ``fresh`` the next."""

    states: int
    slots: int
    table_bytes: int
    block_bytes: int
    depth: int  # of the level being filled
    level_states: int
    expanded: int
    fresh_states: int
    file_bytes: int
    error_number: int


class Sight(NamedTuple):
    """Where something was seen: the words of the state, its depth, and the instance taken there."""

    words: tuple[int, ...]
    depth: int
    instance: int


_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "open_search": ([c.c_int, c.c_int, c.c_int], c.c_void_p),
    "close_search": ([c.c_void_p], None),
    "begin": ([c.c_void_p, _Words], c.c_int),
    "run": ([c.c_void_p, U64, U64, U64], c.c_int),
    "grow": ([c.c_void_p, c.c_int], c.c_int),
    "next_level": ([c.c_void_p], c.c_int),
    "save": ([c.c_void_p], c.c_int),
    "spill": ([c.c_void_p, U64], c.c_int),
    "set_file": ([c.c_void_p, c.c_int], None),
    "status": ([c.c_void_p, _Words], None),
    "level_states": ([c.c_void_p, U64], U64),
    "taken_of": ([c.c_void_p], _Words),
    "looked_of": ([c.c_void_p], _Words),
    "failed_of": ([c.c_void_p], _Words),
    "dead_of": ([c.c_void_p], _Words),
    "outside_of": ([c.c_void_p], c.POINTER(c.c_uint8)),
    "buffers": ([], U64),
    "representative": ([_Words], None),
    "restore": ([c.c_void_p, U64, _Words, U64], c.c_int64),
    "predecessors": ([c.c_void_p, U64, U64, _Words, _Words], c.c_int),
    "number_states": ([c.c_void_p], c.c_int),
    "copy_level": ([c.c_void_p, U64, c.c_void_p], c.c_int),
    "steps_of": ([c.c_void_p, c.c_void_p, U64, c.c_void_p, c.c_void_p, c.c_void_p], c.c_int64),
}


def bound(library: c.CDLL) -> c.CDLL:
    """The library, its functions given their types."""
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


class Search:
    """One search. MemoryError when there is no memory, OSError when the file cannot be written or read."""

    def __init__(self, library: c.CDLL, words: int, *, threads: int, log2: int) -> None:
        self._library, self.words = library, words
        self.buffer_bytes = threads * int(library.buffers())
        self._search = c.c_void_p(library.open_search(threads, log2, -1))
        if not self._search:
            raise MemoryError("no memory for the table of states")

    def close(self) -> None:
        """Give everything back."""
        self._library.close_search(self._search)
        self._search = c.c_void_p()

    def begin(self, state: Sequence[int]) -> None:
        """Enter the initial state; level 0 is then ready to be expanded."""
        _need_memory(not self._library.begin(self._search, self._array(state)), "the first level")

    def run(self, seconds: float, full_at: int, block_bytes: int) -> int:
        """Expand the present level for so long; 0 at its end, else why it stopped (several bits)."""
        why = int(self._library.run(self._search, int(seconds * 1e9), full_at, block_bytes))
        if why & NO_MEMORY:
            raise MemoryError("no memory for a level")
        if why & NO_FILE:
            self._failed()
        return why

    def grow(self, times: int = 1) -> None:
        """Double the table, ``times`` times."""
        _need_memory(not self._library.grow(self._search, times), "a larger table")

    def next_level(self) -> bool:
        """Go on to the next level; false when it is empty."""
        answer = int(self._library.next_level(self._search))
        if answer < 0:
            raise MemoryError("no memory for a level")
        return answer == 1

    def set_file(self, descriptor: int) -> None:
        """Where blocks go when they are saved."""
        self._library.set_file(self._search, descriptor)

    def save(self) -> None:
        """Write every state that the file does not have yet."""
        self._check(self._library.save(self._search))

    def spill(self, keep: int) -> None:
        """Save, then drop blocks from memory until so many bytes are left."""
        self._check(self._library.spill(self._search, keep))

    def status(self) -> Status:
        """How far the search is."""
        out = (U64 * len(Status._fields))()
        self._library.status(self._search, out)
        return Status(*map(int, out))

    def levels(self) -> list[int]:
        """States of each level; the last one may be empty."""
        depth = self.status().depth
        return [int(self._library.level_states(self._search, d)) for d in range(depth + 1)]

    def taken(self, instances: int) -> list[int]:
        """How often each instance was taken."""
        return [int(x) for x in self._library.taken_of(self._search)[:instances]]

    def sights(self, what: str, count: int) -> list[Sight | None]:
        """The first ``count`` sights of ``looked``, ``failed`` or ``dead``."""
        size = 3 + self.words
        flat = getattr(self._library, f"{what}_of")(self._search)[: size * count]
        each = [[int(x) for x in flat[k : k + size]] for k in range(0, size * count, size)]
        return [Sight(tuple(e[3:]), e[1], e[2]) if e[0] else None for e in each]

    def outside(self, cells: int) -> list[int]:
        """Cells that some step would have taken out of their bounds."""
        return [k for k, left in enumerate(self._library.outside_of(self._search)[:cells]) if left]

    def put_back(self, taken: list[int], sights: dict[str, list[Sight | None]], outside: list[int]) -> None:
        """Set what a checkpoint kept."""
        counts = self._library.taken_of(self._search)
        for k, n in enumerate(taken):
            counts[k] = n
        for what, kept in sights.items():
            array = getattr(self._library, f"{what}_of")(self._search)
            for k, sight in enumerate(kept):
                if sight is not None:
                    at = k * (3 + self.words)
                    for j, x in enumerate([1, sight.depth, sight.instance, *sight.words]):
                        array[at + j] = x
        for cell in outside:
            self._library.outside_of(self._search)[cell] = 1

    def restore(self, levels: list[int], expanded: int) -> int:
        """Read the levels back from the file; 0, or the number of a state that is there twice, plus 1."""
        answer = int(self._library.restore(self._search, len(levels), self._array(levels), expanded))
        if answer < 0:
            self._failed()
        return answer

    def representative(self, state: Sequence[int]) -> tuple[int, ...]:
        """The state that stands for this one and its renamings."""
        words = self._array(state)
        self._library.representative(words)
        return tuple(int(x) for x in words)

    def predecessors(self, depth: int, targets: list[tuple[int, ...]]) -> list[Sight | None]:
        """For each target the smallest state at ``depth``, with its instance, that leads there."""
        size = 3 + self.words
        came = (U64 * (size * len(targets)))()
        flat = self._array([x for t in targets for x in t])
        self._check(self._library.predecessors(self._search, depth, len(targets), flat, came))
        each = [[int(x) for x in came[k : k + size]] for k in range(0, len(came), size)]
        return [Sight(tuple(e[3:]), depth, e[2]) if e[0] else None for e in each]

    def number_states(self) -> None:
        """Number all states, level by level; ``steps`` speaks of these numbers."""
        self._check(self._library.number_states(self._search))

    def states_of(self, depth: int, count: int) -> NDArray[np.uint64]:
        """The states of a level: (states, words)."""
        out = np.empty((count, self.words), WORD)
        self._check(self._library.copy_level(self._search, depth, out.ctypes.data))
        return out

    def steps(self, states: NDArray[np.uint64], instances: int) -> tuple[NDArray[np.uint32], ...]:
        """The steps out of some states: (position among them, instance, number of the next state)."""
        n = len(states)
        found = [np.empty(max(1, n * instances), np.uint32) for _ in range(3)]
        states = np.ascontiguousarray(states)
        count = int(
            self._library.steps_of(self._search, states.ctypes.data, n, *(a.ctypes.data for a in found))
        )
        if count < 0:
            raise MemoryError("no memory for the steps")
        return tuple(a[:count].copy() for a in found)

    def _array(self, values: Sequence[int]) -> Any:
        return (U64 * max(1, len(values)))(*values)

    def _check(self, answer: int) -> None:
        """OSError or MemoryError where a call that uses the file has failed."""
        if answer:
            self._failed()

    def _failed(self) -> None:
        number = self.status().error_number
        if number == errno.ENOMEM:
            raise MemoryError("no memory for a level")
        raise OSError(number, os.strerror(number))


def _need_memory(there_is: bool, what: str) -> None:
    if not there_is:
        raise MemoryError(f"no memory for {what}")
