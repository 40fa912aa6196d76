"""Blocks that loads are filling, shared before they have landed: who shares waits as the owner does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.request import Request
from kvfence.reference.connector.transfers import Transfer


@dataclass(slots=True)
class Sharing:
    """A request generation that waits for loads of others into blocks of its table."""

    request: Request
    generation: int
    owners: set[str]
    """Holders of the requests whose loads it waits for."""
    failed: set[int] = field(default_factory=set)
    """Slots that they could not fill."""
    some_failed: bool = False


class _Index:
    """Keys of one group that are cached or on their way."""

    def __init__(self, cached: dict[int, int], filling: dict[int, int]) -> None:
        self._cached, self._filling = cached, filling

    def get(self, key: int) -> int | None:
        slot = self._cached.get(key)
        return self._filling.get(key) if slot is None else slot


class SharedLoads:
    """The prefix index of ``pool``, and besides what open loads are filling there."""

    def __init__(self, pool: BlockPool) -> None:
        self._filling: list[dict[int, int]] = [{} for _ in pool.index]
        self._owner: dict[int, str] = {}
        """Slot -> holder of the request whose load fills it."""
        self.waiting: dict[str, Sharing] = {}
        """Request holder -> what it waits for."""
        self.index = [_Index(*both) for both in zip(pool.index, self._filling, strict=True)]

    def longest_prefix(self, keys: Sequence[int], group: int = 0) -> list[int]:
        """The slots of the longest run of ``keys``, from the first on, that is cached or on its way."""
        slots = map(self.index[group].get, keys)
        return [slot for slot in takewhile(lambda slot: slot is not None, slots) if slot is not None]

    def owners(self, parts: Iterable[tuple[int, Slots]]) -> set[str]:
        """Whose loads fill blocks of a hit."""
        if not self._owner:
            return set()
        slots = (slot for _, part in parts for slot in part.tolist())
        return {self._owner[slot] for slot in slots if slot in self._owner}

    def begin(self, owner: str, load: Transfer) -> None:
        """A load of the request called ``owner`` is decided."""
        for key, slot in zip(load.keys.tolist(), load.dst.tolist(), strict=True):
            self._filling[load.group].setdefault(key, slot)
            self._owner[slot] = owner

    def share(self, request: Request, owners: set[str]) -> None:
        """The request has blocks in its table that loads of ``owners`` fill."""
        self.waiting[request.holder] = Sharing(request, request.generation, owners)

    def over(self, owner: str, loads: Iterable[Transfer]) -> list[Sharing]:
        """All loads of ``owner`` are over: who waits for nothing more."""
        failed: set[int] = set()
        some_failed = False
        for load in loads:
            some_failed |= not load.ok
            failed.update(load.dst[load.failed_blocks()].tolist())
            filling = self._filling[load.group]
            for key, slot in zip(load.keys.tolist(), load.dst.tolist(), strict=True):
                self._owner.pop(slot, None)
                if filling.get(key) == slot:
                    del filling[key]
        done = []
        for holder, sharing in list(self.waiting.items()):
            if owner in sharing.owners:
                sharing.owners.discard(owner)
                sharing.failed |= failed
                sharing.some_failed |= some_failed
                if not sharing.owners:
                    done.append(self.waiting.pop(holder))
        return done

    def forget(self, holder: str) -> None:
        """The request generation is over."""
        self.waiting.pop(holder, None)

    def reset(self) -> None:
        """What was decided before a reset is not shared after it."""
        for filling in self._filling:
            filling.clear()
