"""Host memory that the ranks pin, all of them or none; and the buffers for copy descriptors in it."""

from kvfence.reference.blocks.pool import Observer
from kvfence.spec import events as ev

PIECES = 4
"""Pieces in which each rank registers a pool's memory: a driver may refuse one although it took others."""


class HostMemory:
    """Registers the host memory of pools on ``ranks`` ranks; the ``refusing`` ones cannot register all."""

    def __init__(self, ranks: int, refusing: frozenset[int], observer: Observer | None) -> None:
        self.ranks = ranks
        self.refusing = refusing
        self.observer = observer
        self.pinned: dict[str, bool] = {}

    def open(self, pool: str) -> bool:
        """Pin the memory of ``pool``, on all ranks or on none. Returns whether it is pinned."""
        registered = [self._register(pool, rank) for rank in range(self.ranks)]
        pinned = self._agreed(registered)
        for rank, pieces in enumerate(registered):
            mine = pinned if pinned is not None else pieces == PIECES
            if not mine:
                self._take_back(pool, rank, pieces)
            if self.observer is not None:
                self.observer(ev.Hostmem(pool=pool, rank=rank, pinned=mine))
        self.pinned[pool] = bool(pinned)
        return bool(pinned)

    def _register(self, pool: str, rank: int) -> int:
        """Pieces that the rank could register."""
        for piece in range(PIECES):
            ok = not (rank in self.refusing and piece == PIECES - 1)
            if self.observer is not None:
                self.observer(ev.Register(pool=pool, rank=rank, piece=piece, ok=ok))
            if not ok:
                return piece
        return PIECES

    def _agreed(self, registered: list[int]) -> bool | None:
        """What all ranks do; None if each does what it likes."""
        return min(registered) == PIECES

    def _take_back(self, pool: str, rank: int, pieces: int) -> None:
        for piece in range(pieces):
            if self.observer is not None:
                self.observer(ev.Unregister(pool=pool, rank=rank, piece=piece))


class DescriptorBuffers:
    """Buffers that copy descriptors are written to: one is used again when its copy was reported."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer
        self._idle: list[int] = []
        self._made = 0
        self._used: dict[tuple[int, int], int] = {}

    def take(self, op: int, generation: int) -> int:
        """A buffer for a copy."""
        buffer = self._idle.pop() if self._idle else self._made
        self._made = max(self._made, buffer + 1)
        self._used[op, generation] = buffer
        if self.observer is not None:
            self.observer(ev.Describe(op=op, gen=generation, buffer=buffer))
        return buffer

    def reported(self, op: int, generation: int, rank: int) -> None:
        """``rank`` is done with a copy. The buffers are those of rank 0, which stands for all of them."""
        if rank == 0:
            buffer = self._used.pop((op, generation), None)
            if buffer is not None:
                self._idle.append(buffer)
