"""The third tier: blocks of CPU memory go to files before they are evicted, and come back when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import BlockPool, Keys, Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.connector.stores import ConnectorMetadata
from kvfence.reference.connector.transfers import Transfer, TransferTable
from kvfence.spec import events as ev

MOST_TRIES = 3
"""Times that blocks are fetched for one request generation: what is lost or evicted meanwhile is computed."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asked: whether there are files with ``keys`` of ``group``."""

    ask: int
    request: Request
    generation: int
    group: int
    keys: list[int]


class Owner(Protocol):
    """What the disk tier needs of the connector's scheduler side."""

    epoch: int
    storing: list[set[int]]
    to_issue: ConnectorMetadata
    transfers: TransferTable


class DiskTier:
    """Moves blocks between ``tier`` (CPU memory) and ``pool`` (files). Each transfer holds both of its ends.

    A block is written to a file when its slot is about to be given away. It comes back when a request asks
    for it: the request waits, without holding anything but the pins of its promise, and asks again.
    """

    def __init__(
        self,
        pool: BlockPool,
        tier: BlockPool,
        manager: KVCacheManager,
        stats: Stats,
        observer: Observer | None = None,
        horizon: int = 256,
    ) -> None:
        self.observer = observer
        self.pool = pool
        self.tier = tier
        self.manager = manager
        self.stats = stats
        self.horizon = horizon
        self.storing: list[set[int]] = [set() for _ in manager.groups]
        """Per group: keys on their way to files."""
        self.fetching: dict[str, int] = {}
        """Request holder -> transfers under way for it."""
        self.tries: dict[str, int] = {}
        self.questions: dict[str, Question] = {}
        """Request holder -> what it asked, until that is answered."""
        self._asked = 0
        self._for: dict[str, str] = {}
        self._scanned = (0, 0)

    def owns(self, transfer: Transfer) -> bool:
        """Whether this is one of its transfers."""
        return self.pool.name in (transfer.src_pool, transfer.dst_pool)

    # To files.

    def save_before_eviction(self, owner: Owner) -> None:
        """Write the cached blocks that the tier gives away next; sees each entry of its free queue once."""
        queue = self.tier.free_queue
        packed, start = self._scanned
        slots, end = queue.scan(start if packed == queue.packed else 0, self.horizon)
        self._scanned = (queue.packed, end)
        slots = slots[self.tier.group_of[slots] >= 0]
        if not slots.size:
            return
        groups = self.tier.group_of[slots]
        for group, (known, moving) in enumerate(zip(self.pool.index, self.storing, strict=True)):
            mine = slots[groups == group]
            fresh: dict[int, int] = {}
            for slot, key in zip(mine.tolist(), self.tier.key[mine].tolist(), strict=True):
                if key not in known and key not in moving:
                    fresh.setdefault(key, slot)
            if len(fresh) > self.pool.num_free:
                self._scanned = (-1, 0)
            keys = np.array(list(fresh)[: self.pool.num_free], np.int64)
            if keys.size:
                src = np.array(list(fresh.values())[: keys.size], np.int64)
                transfer = self._transfer(owner, "store", src, keys, group)
                moving.update(keys.tolist())
                owner.to_issue.stores.append(transfer)
                self.stats.disk_stored_blocks += keys.size

    # From files.

    def is_fetching(self, request: Request) -> bool:
        """Whether blocks are on their way for the request."""
        return request.holder in self.fetching

    def fetch(self, owner: Owner, request: Request, local: int, have: int) -> bool:
        """Ask for blocks that make the hit longer than ``have`` tokens beyond ``local``, which are pinned;
        when the answer is there, fetch them. Whether it is worth waiting.
        """
        question = self.questions.pop(request.holder, None)
        if question is not None:
            self._answer(question)
        if self.tries.get(request.holder, 0) >= MOST_TRIES:
            return False
        most = max(local, (request.total - 1) // self.manager.unit * self.manager.unit)
        both = _Both(self.tier, self.pool, owner.storing)
        end, parts = self.manager.longest_hit(both, request, local, most)
        if end - local <= have:
            return False
        wanted = []
        for group, (at, slots) in enumerate(parts):
            absent = np.flatnonzero(slots < 0)
            if absent.size:
                wanted.append((group, _ON_DISK - slots[absent], request.keys_of[group][at + absent]))
        if question is None:
            self._ask(request, wanted[0][0], wanted[0][2])
            return True
        total = sum(src.size for _, src, _ in wanted)
        if total > self.tier.num_free:
            return False
        self.tries[request.holder] = self.tries.get(request.holder, 0) + 1
        self.fetching[request.holder] = len(wanted)
        for group, src, keys in wanted:
            transfer = self._transfer(owner, "load", src, keys, group)
            self._for[transfer.holder] = request.holder
            owner.storing[group].update(keys.tolist())
            owner.to_issue.loads.append(transfer)
        self.stats.fetched_blocks += total
        return True

    def _ask(self, request: Request, group: int, keys: Keys) -> None:
        question = Question(self._asked, request, request.generation, group, keys.tolist())
        self.questions[request.holder] = question
        self._asked += 1
        if self.observer is not None:
            self.observer(
                ev.Ask(
                    ask=question.ask,
                    req=request.id,
                    gen=request.generation,
                    pool=self.pool.name,
                    keys=keys,
                    group=group,
                )
            )

    def _answer(self, question: Question) -> None:
        """The answer reaches the request, a round after it asked."""
        to, hits = self._addressee(question), self._hits(question)
        if self.observer is not None:
            self.observer(ev.Answer(ask=to.ask, req=to.request.id, gen=to.generation, hits=hits))

    def _addressee(self, question: Question) -> Question:
        return question

    def _hits(self, question: Question) -> int:
        """The first so many of its keys have files, as far as is known now."""
        known = self.pool.index[question.group]
        return sum(1 for _ in takewhile(known.__contains__, question.keys))

    def forget(self, holder: str) -> None:
        """The request generation is over; transfers under way end by themselves."""
        self.questions.pop(holder, None)
        self.tries.pop(holder, None)
        self.fetching.pop(holder, None)

    # Ends.

    def over(self, owner: Owner, transfer: Transfer) -> None:
        """A transfer of this tier is over."""
        if transfer.kind == "store":
            self.storing[transfer.group].difference_update(transfer.keys.tolist())
            if transfer.ok and self._may_register(owner, transfer):
                self._register(self.pool, transfer)
        else:
            owner.storing[transfer.group].difference_update(transfer.keys.tolist())
            holder = self._for.pop(transfer.holder)
            left = self.fetching.get(holder, 0) - 1
            if left > 0:
                self.fetching[holder] = left
            else:
                self.fetching.pop(holder, None)
            if not transfer.ok:
                self.stats.failed_fetches += 1
                self._distrust(transfer)
            elif self._may_register(owner, transfer):
                self._register(self.tier, transfer)
        self._release(transfer)
        owner.transfers.forget(transfer)

    def _may_register(self, owner: Owner, transfer: Transfer) -> bool:
        return transfer.epoch == owner.epoch

    def _register(self, pool: BlockPool, transfer: Transfer) -> None:
        pool.cache_full_blocks(transfer.dst, transfer.keys, transfer.group, transfer.op, transfer.generation)

    def _distrust(self, transfer: Transfer) -> None:
        """Files that could not be read are misses from here on."""
        lost = transfer.src[transfer.failed_blocks()]
        keys = transfer.keys[transfer.failed_blocks()]
        same = (self.pool.key[lost] == keys) & (self.pool.group_of[lost] == transfer.group)
        if same.any():
            self.pool.uncache(lost[same], "file lost")

    def _release(self, transfer: Transfer) -> None:
        src, dst = self._ends(transfer.kind)
        dst.free_blocks(transfer.holder, transfer.dst[::-1])
        src.free_blocks(transfer.holder, transfer.src[::-1])

    def reset(self) -> None:
        """Forget all labels."""
        self.pool.reset_prefix_cache()
        self._scanned = (-1, 0)

    def _ends(self, kind: ev.Kind) -> tuple[BlockPool, BlockPool]:
        """From which pool to which one transfers of this kind go."""
        return (self.tier, self.pool) if kind == "store" else (self.pool, self.tier)

    def _transfer(self, owner: Owner, kind: ev.Kind, src: Slots, keys: Keys, group: int) -> Transfer:
        src_pool, dst_pool = self._ends(kind)
        op, generation = owner.transfers.next_id()
        names = src_pool.name, dst_pool.name
        transfer = Transfer(
            op, generation, kind, names[0], src, names[1], src, keys, group, owner.epoch, src[:0]
        )
        src_pool.touch(transfer.holder, src)
        transfer.dst = dst_pool.get_new_blocks(transfer.holder, src.size)
        owner.transfers.add(transfer)
        return transfer


_ON_DISK = -2
"""Slot ``s`` of the disk pool is ``-2 - s`` in a hit of both."""


class _BothIndex:
    """Keys of one group that either pool has; not those on their way to the tier."""

    def __init__(self, tier: dict[int, int], disk: dict[int, int], moving: set[int]) -> None:
        self._tier, self._disk, self._moving = tier, disk, moving

    def get(self, key: int) -> int | None:
        slot = self._tier.get(key)
        if slot is not None:
            return slot
        slot = self._disk.get(key)
        return None if slot is None or key in self._moving else _ON_DISK - slot


class _Both:
    """The prefix indexes of both pools as one."""

    def __init__(self, tier: BlockPool, disk: BlockPool, moving: Sequence[set[int]]) -> None:
        self.index = [_BothIndex(*parts) for parts in zip(tier.index, disk.index, moving, strict=True)]

    def longest_prefix(self, keys: Sequence[int], group: int = 0) -> list[int]:
        """The slots of the longest run of ``keys``, from the first on, that one of the pools has."""
        slots = map(self.index[group].get, keys)
        return [slot for slot in takewhile(lambda slot: slot is not None, slots) if slot is not None]
