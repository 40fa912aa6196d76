"""What the ledger knows about one request generation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from kvfence.spec.packed import Numbers, ints

LAST_STEP: Final = 2
"""Place of a request's last step in its ``progress``."""


class Promise:
    """A hit that a lookup promised: slots of ``pool`` have to stay until it is closed.

    ``numbers``: the slots, each once. The set of them is made when it is asked for.
    """

    __slots__ = ("_slots", "external", "numbers", "pool")

    def __init__(self, pool: str, numbers: Numbers, external: int) -> None:
        self.pool = pool
        self.numbers = numbers
        self.external = external
        self._slots: frozenset[int] | None = None

    @property
    def slots(self) -> frozenset[int]:
        """The slots as a set."""
        if self._slots is None:
            self._slots = frozenset(ints(self.numbers))
        return self._slots


class Cover:
    """Which blocks of one table are accounted for (stored, queued or dropped), and the store cursor.

    Blocks below ``edge`` are, except ``holes``; above it, those in ``beyond`` are.
    """

    __slots__ = ("beyond", "cursor", "edge", "holes")

    def __init__(self) -> None:
        self.edge = 0
        self.holes: set[int] = set()
        self.beyond: set[int] = set()
        self.cursor = 0

    def copy(self) -> Cover:
        """An independent copy."""
        other = Cover()
        other.edge, other.cursor = self.edge, self.cursor
        other.holes, other.beyond = set(self.holes), set(self.beyond)
        return other

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


class Request:
    """One generation of a request. Numbers of tokens mean something when ``known``: an ``Admit`` was seen."""

    __slots__ = (
        "_fresh",
        "_fresh_after",
        "address",
        "admitted",
        "bad",
        "covers",
        "end",
        "expects_rollback",
        "explicit",
        "external",
        "final",
        "gen",
        "id",
        "key",
        "known",
        "limit",
        "loads",
        "local",
        "progress",
        "promise",
        "prompt",
        "replaced",
        "stores",
        "suspects",
        "waits",
    )

    def __init__(self, id_: str, gen: int, *, explicit: bool) -> None:
        self.id = id_
        self.gen = gen
        self.key = f"{id_}.{gen}"
        self.explicit = explicit
        """An event named this generation as a request (not only as a holder)."""
        self.end = ""
        """Why no step of it may be dispatched any more: ``preempted`` or the reason of its ``Finish``."""
        self.progress = array("q", (1, 0, -1))
        """What each dispatch looks at and changes: ``ready``, ``computed``, ``last_step``, in this order."""
        self.address = self.progress.buffer_info()[0]
        self.prompt: int | None = None
        self.known = False
        self.admitted = False
        self.local = 0
        self.external = 0
        """Tokens whose load has not landed yet."""
        self.final: int | None = None
        """Confirmed tokens when it finished."""
        self._fresh: list[tuple[str, Numbers]] = []
        self._fresh_after = -1
        self.promise: Promise | None = None
        self.replaced: tuple[str, frozenset[int]] | None = None
        """Pool and slots that only the promise before named: their pins go before the next event."""
        self.waits: set[int] = set()
        """Open loads that write a slot of its table."""
        self.loads = 0
        self.stores = 0
        self.expects_rollback = False
        self.limit: int | None = None
        """After a failed load: tokens that are valid all the same."""
        self.bad: list[tuple[str, Numbers]] = []
        """Slots of its table that a failed load should have filled."""
        self.suspects: dict[tuple[str, int], int] = {}
        """First token of each slot that it joined while a transfer was still writing it."""
        self.covers: dict[int, Cover] = {}

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

    def copy(self) -> Request:
        """An independent copy."""
        other = Request.__new__(Request)
        for name in Request.__slots__:
            setattr(other, name, getattr(self, name))
        other.progress = self.progress[:]
        other.address = other.progress.buffer_info()[0]
        other.waits = set(self.waits)
        other.bad = list(self.bad)
        other._fresh = list(self._fresh)
        other.suspects = dict(self.suspects)
        other.covers = {group: cover.copy() for group, cover in self.covers.items()}
        return other

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
