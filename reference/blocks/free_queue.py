"""The free slots of a pool, least recently freed first, in batches."""

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.errors import OverPopped

Slots = npt.NDArray[np.int64]


class FreeQueue:
    """An append-only lane of slots with lazy deletion.

    ``place[slot]`` is the position of the slot's entry in the lane, -1 when the slot is not free; an entry
    whose slot says another place is dead and is skipped. The lane is packed when its end is reached, so that
    each operation costs O(1) per slot, amortised, and touches whole batches.
    """

    def __init__(self, slots: int) -> None:
        self._lane = np.empty(4 * slots + 64, np.int64)
        self._positions = np.arange(self._lane.size, dtype=np.int64)
        self._place = np.full(slots, -1, np.int64)
        self._head = 0
        self._tail = 0
        self._len = 0
        self.packed = 0
        """How often the lane was packed: positions returned by :meth:`scan` before are void after it."""

    def __len__(self) -> int:
        return self._len

    def __contains__(self, slot: int) -> bool:
        return bool(self._place[slot] >= 0)

    def push(self, slots: Slots) -> None:
        """``slots``, none of them free so far, become the last to be taken again."""
        n = slots.size
        if self._tail + n > self._lane.size:
            self._pack(n)
        tail = self._tail
        self._lane[tail : tail + n] = slots
        self._place[slots] = self._positions[tail : tail + n]
        self._tail = tail + n
        self._len += n

    def remove(self, slots: Slots) -> None:
        """``slots``, all of them free, are not free any more."""
        self._place[slots] = -1
        self._len -= slots.size

    def pop(self, n: int) -> Slots:
        """Take the ``n`` least recently freed slots. Raises IndexError when there are fewer; nothing changes
        then.
        """
        if n > self._len:
            raise IndexError(f"{n} slots asked, {self._len} free")
        found: list[Slots] = []
        missing = n
        while missing:
            window = self._lane[self._head : min(self._tail, self._head + missing + 16)]
            if not window.size:
                raise OverPopped(f"{n} slots popped, {n - missing} found: the count of free slots is wrong")
            live = self._alive(self._head, window)[:missing]
            taken = window[live]
            found.append(taken)
            missing -= live.size
            self._head += int(live[-1]) + 1 if not missing else window.size
        slots = found[0] if len(found) == 1 else np.concatenate(found) if found else np.empty(0, np.int64)
        self._place[slots] = -1
        self._len -= n
        return slots

    def scan(self, start: int, length: int) -> tuple[Slots, int]:
        """Free slots among the lane's first ``length`` entries, from position ``start`` on, and the position
        behind them.
        """
        start = max(start, self._head)
        end = min(self._tail, self._head + length)
        if end <= start:
            return np.empty(0, np.int64), start
        window = self._lane[start:end]
        return window[self._alive(start, window)], end

    def in_order(self) -> Slots:
        """All free slots in the order in which they would be taken."""
        window = self._lane[self._head : self._tail]
        return window[self._alive(self._head, window)].copy()

    def _alive(self, start: int, window: Slots) -> Slots:
        return np.flatnonzero(self._place[window] == self._positions[start : start + window.size])

    def _pack(self, room: int) -> None:
        live = self.in_order()
        if live.size + room > self._lane.size:
            raise IndexError("more free slots than the pool has")
        self._lane[: live.size] = live
        self._place[live] = self._positions[: live.size]
        self._head, self._tail = 0, live.size
        self.packed += 1
