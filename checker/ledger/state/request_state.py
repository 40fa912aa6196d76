"""What the ledger knows about one request generation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kvfence.spec.packed import Numbers, ints

LAST_STEP: Final = 2
"""Place of a request's last step in its ``progress``."""


@dataclass(slots=True, eq=False)
class Promise:
    """A hit that a lookup promised: slots of ``pool`` have to stay until it is closed."""

    pool: str
    numbers: Numbers
    """The slots, each once."""
    external: int
    _slots: frozenset[int] | None = None
    """The set of them, made when it is asked for."""

    @property
    def slots(self) -> frozenset[int]:
        """The slots as a set."""
        if self._slots is None:
            self._slots = frozenset(ints(self.numbers))
        return self._slots


@dataclass(slots=True)
class Cover:
    """Which blocks of one table are accounted for (stored, queued or dropped), and the store cursor.

    Blocks below ``edge`` are, except ``holes``; above it, those in ``beyond`` are.
    """

    edge: int = 0
    holes: set[int] = field(default_factory=set)
    beyond: set[int] = field(default_factory=set)
    cursor: int = 0

    def copy(self) -> Cover:
        """An independent copy."""
        return replace(self, holes=set(self.holes), beyond=set(self.beyond))

    def add(self, blocks: Sequence[int]) -> None:
        """Account for ``blocks``."""
        beyond = self.beyond
        if not beyond and not self.holes and list(blocks) == list(range(self.edge, self.edge + len(blocks))):
            self.edge += len(blocks)
            return
        for block in blocks:
            if block >= self.edge:
                beyond.add(block)
            elif self.holes:
                self.holes.discard(block)
        edge = self.edge
        while edge in beyond:
            beyond.remove(edge)
            edge += 1
        self.edge = edge

    def add_range(self, start: int, stop: int) -> None:
        """Account for the blocks ``start`` .. ``stop - 1``."""
        if start <= self.edge and not self.holes and not self.beyond:
            self.edge = max(self.edge, stop)
        else:
            self.add(range(start, stop))

    def take(self, blocks: Iterable[int]) -> None:
        """``blocks`` are not accounted for any more: their store failed."""
        for block in blocks:
            if block < self.edge:
                self.holes.add(block)
            else:
                self.beyond.discard(block)

    def gap_below(self, to: int) -> int | None:
        """The first block below ``to`` that is not accounted for."""
        gap = min(self.holes, default=None) if self.holes else None
        if gap is not None and gap < to:
            return gap
        return None if to <= self.edge else self.edge


@dataclass(slots=True, eq=False)
class Request:
    """One generation of a request. Numbers of tokens mean something when ``known``: it was admitted."""

    id: str
    gen: int
    key: str
    """Id and generation, as in a holder's name: ``7.0``."""
    explicit: bool
    """An event named this generation as a request (not only as a holder)."""
    end: str = ""
    """Why no step of it may be dispatched any more: ``preempted`` or the reason of its ``Finish``."""
    progress: array[int] = field(default_factory=partial(array, "q", (1, 0, -1)))
    """What each dispatch looks at and changes: ``ready``, ``computed``, ``last_step``, in this order."""
    prompt: int | None = None
    known: bool = False
    admitted: bool = False
    local: int = 0
    external: int = 0
    """Tokens whose load has not landed yet."""
    final: int | None = None
    """Confirmed tokens when it finished."""
    _fresh: list[tuple[str, Numbers]] = field(default_factory=list)
    _fresh_after: int = -1
    promise: Promise | None = None
    replaced: tuple[str, frozenset[int]] | None = None
    """Pool and slots that only the promise before named: their pins go before the next event."""
    waits: set[int] = field(default_factory=set)
    """Open loads that write a slot of its table."""
    loads: int = 0
    stores: int = 0
    expects_rollback: bool = False
    limit: int | None = None
    """After a failed load: tokens that are valid all the same."""
    bad: list[tuple[str, Numbers]] = field(default_factory=list)
    """Slots of its table that a failed load should have filled."""
    suspects: dict[tuple[str, int], int] = field(default_factory=dict)
    """First token of each slot that it joined while a transfer was still writing it."""
    covers: dict[int, Cover] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether a step of it may be dispatched: not ended, nothing in ``waits``, no rollback owed."""
        return self.progress[0] != 0

    @ready.setter
    def ready(self, ready: bool) -> None:
        self.progress[0] = ready

    @property
    def computed(self) -> int:
        """Tokens dispatched, or counted as computed at admission."""
        return self.progress[1]

    @computed.setter
    def computed(self, tokens: int) -> None:
        self.progress[1] = tokens

    @property
    def last_step(self) -> int:
        """The last step that it was dispatched with."""
        return self.progress[LAST_STEP]

    @last_step.setter
    def last_step(self, step: int) -> None:
        self.progress[LAST_STEP] = step

    @property
    def address(self) -> int:
        """The address of ``progress``, for the kernels."""
        return self.progress.buffer_info()[0]

    def copy(self) -> Request:
        """An independent copy."""
        return replace(
            self,
            progress=self.progress[:],
            waits=set(self.waits),
            bad=list(self.bad),
            _fresh=list(self._fresh),
            suspects=dict(self.suspects),
            covers={group: cover.copy() for group, cover in self.covers.items()},
        )

    def cover(self, group: int) -> Cover:
        """What is accounted for in ``group``."""
        cover = self.covers.get(group)
        if cover is None:
            cover = self.covers[group] = Cover()
        return cover

    def fresh(self) -> list[tuple[str, Numbers]]:
        """Slots (by pool) that joined the table after the last dispatch: no dispatched step knows them."""
        return self._fresh if self._fresh_after == self.last_step else []

    def add_fresh(self, pool: str, slots: Numbers) -> None:
        """``slots`` of ``pool`` join the table."""
        if self._fresh_after != self.last_step:
            self._fresh, self._fresh_after = [], self.last_step
        self._fresh.append((pool, slots))

    def update_ready(self) -> None:
        """Work out ``ready`` again."""
        self.ready = not (self.end or self.waits or self.expects_rollback)

    def lower_limit(self, tokens: int | None) -> None:
        """A load failed: at most ``tokens`` tokens are valid (None: not known)."""
        self.expects_rollback = True
        self.ready = False
        if tokens is not None and (self.limit is None or tokens < self.limit):
            self.limit = tokens
