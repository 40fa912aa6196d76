"""A block pool: ref counts, named holders, the free queue and the prefix index of one memory."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.errors import NotHeld, OutOfBlocks
from kvfence.reference.blocks.free_queue import FreeQueue, Slots
from kvfence.spec import events as ev

Keys: TypeAlias = npt.NDArray[np.int64]
Observer: TypeAlias = Callable[[ev.Event], None]


def unshared(numbers: Slots) -> Slots:
    """``numbers`` for an event, which must not change afterwards: a part of another array is copied."""
    return numbers if numbers.base is None else numbers.copy()


class BlockPool:
    """``slots`` slots of one memory; slot ``null``, if any, stands for "no block" and is never given away.

    A slot's ref count is the number of its holders, and holders have names (see :mod:`kvfence.spec.events`).
    A slot without a holder is in the free queue and keeps its label until it is given away, so a hit can
    revive it.
    """

    def __init__(
        self, name: str, slots: int, null: int | None = 0, groups: int = 1, observer: Observer | None = None
    ) -> None:
        self.name = name
        self.slots = slots
        self.null = null
        self.ref = np.zeros(slots, np.int32)
        self.key = np.zeros(slots, np.int64)
        self.group_of = np.full(slots, -1, np.int8)
        """Group of the slot's label, -1 without a label."""
        self.index: list[dict[int, int]] = [{} for _ in range(groups)]
        """Per group: key -> one slot with that content."""
        self.spares: list[dict[int, list[int]]] = [{} for _ in range(groups)]
        """Per group: key -> further slots with that content (two requests computed the same prefix side by
        side).
        """
        self.publishes = False
        """Whether it is published which keys can be looked up."""
        self._gone_keys: list[ev.Removed] = []
        self.holders: dict[str, set[int]] = {}
        self.evicted = 0
        self.free_queue = FreeQueue(slots)
        self.free_queue.push(np.array([slot for slot in range(slots) if slot != null], np.int64))
        self.observer = observer

    @property
    def num_free(self) -> int:
        """Slots without a holder, cached or not."""
        return len(self.free_queue)

    @property
    def usable(self) -> int:
        """Slots that can be held at all."""
        return self.slots - (self.null is not None)

    # Holding.

    def get_new_blocks(self, holder: str, n: int, group: int = 0, at: int = 0) -> Slots:
        """Give ``holder`` the ``n`` least recently freed slots, without their labels. All or nothing:
        OutOfBlocks.
        """
        if self._short(n):
            self.refuse(holder, n)
        slots = self._take(n)
        self._evict(slots)
        self.ref[slots] += 1
        self.holders.setdefault(holder, set()).update(slots.tolist())
        if self.observer is not None:
            own = unshared(slots)
            self.observer(
                ev.Alloc(pool=self.name, holder=holder, slots=own, free=self.num_free, group=group, at=at)
            )
        return slots

    def refuse(self, holder: str, asked: int) -> NoReturn:
        """Emit that ``asked`` slots are not to be had, and raise OutOfBlocks."""
        if self.observer is not None:
            self.observer(ev.Deny(pool=self.name, holder=holder, asked=asked, free=self.num_free))
        raise OutOfBlocks(self.name, asked, self.num_free, self.holders)

    def touch(self, holder: str, slots: Slots, group: int = 0, at: int = 0) -> None:
        """``holder`` joins the holders of ``slots``: cached or held ones, none that it holds already."""
        idle = slots[self.ref[slots] == 0]
        if idle.size:
            self._leave_queue(holder, idle)
        self.ref[slots] += 1
        self.holders.setdefault(holder, set()).update(slots.tolist())
        if self.observer is not None:
            own = unshared(slots)
            self.observer(
                ev.Touch(pool=self.name, holder=holder, slots=own, free=self.num_free, group=group, at=at)
            )

    def free_blocks(self, holder: str, slots: Slots) -> None:
        """``holder`` leaves ``slots``; those without a holder become evictable in the order given.

        Give a table's tail first: the start of a prefix is worth more than its end. Raises NotHeld.
        """
        self._forget(holder, slots.tolist())
        self.ref[slots] -= 1
        idle = slots[self.ref[slots] == 0]
        if idle.size:
            self.free_queue.push(idle)
        if self.observer is not None:
            self.observer(ev.Free(pool=self.name, holder=holder, slots=unshared(slots), free=self.num_free))

    def held(self, holder: str) -> set[int]:
        """The slots of ``holder``."""
        return self.holders.get(holder, set())

    # The prefix index.

    def cache_full_blocks(
        self, slots: Slots, keys: Keys, group: int = 0, op: int = -1, generation: int = 0
    ) -> None:
        """``slots``, held, can be found under ``keys`` from now on. ``op``: the transfer that filled them."""
        self.key[slots] = keys
        self.group_of[slots] = group
        slot_list, key_list = slots.tolist(), keys.tolist()
        index = self.index[group]
        new = self._not_known(key_list, group) if self.publishes else []
        if index.keys().isdisjoint(key_list) and len(set(key_list)) == len(key_list):
            index.update(zip(key_list, slot_list, strict=True))
        else:
            for key, slot in zip(key_list, slot_list, strict=True):
                if index.setdefault(key, slot) != slot:
                    self.spares[group].setdefault(key, []).append(slot)
        if self.observer is not None:
            own, own_keys = unshared(slots), unshared(keys)
            self.observer(
                ev.Label(pool=self.name, slots=own, keys=own_keys, group=group, op=op, gen=generation)
            )
            if new:
                self._publish(ev.Stored(pool=self.name, keys=new, group=group))

    def get_cached_block(self, key: int, group: int = 0) -> int | None:
        """A slot with the content ``key``, or None."""
        return self.index[group].get(key)

    def longest_prefix(self, keys: Sequence[int], group: int = 0) -> list[int]:
        """The slots of the longest run of ``keys``, from the first on, that is cached."""
        index = self.index[group]
        return [index[key] for key in takewhile(index.__contains__, keys)]

    def uncache(self, slots: Slots, why: str) -> None:
        """``slots``, held or not, are not to be found any more: their content is not to be trusted."""
        self._drop_labels(slots[self.group_of[slots] >= 0])
        if self.observer is not None:
            self.observer(ev.Unlabel(pool=self.name, slots=unshared(slots), why=why))
        self._publish_gone()

    def reset_prefix_cache(self) -> None:
        """Forget every label. Who holds what stays as it is."""
        for index, spares in zip(self.index, self.spares, strict=True):
            index.clear()
            spares.clear()
        self.group_of[:] = -1

    # What is published of the prefix index.

    def _not_known(self, keys: list[int], group: int) -> list[int]:
        return [key for key in dict.fromkeys(keys) if key not in self.index[group]]

    def _publish(self, event: ev.Event) -> None:
        if self.publishes and self.observer is not None:
            self.observer(event)

    def _publish_gone(self) -> None:
        for event in self._gone_keys:
            self._publish(event)
        self._gone_keys.clear()

    def publish_cleared(self) -> None:
        """The pool was reset."""
        self._publish(ev.Cleared(pool=self.name))

    def publish_rest(self) -> None:
        """Everything is published by now."""
        self._publish(ev.Published(pool=self.name))

    # Small steps, each of which a faulty design can get wrong.

    def _short(self, n: int) -> bool:
        return n > self.num_free

    def _take(self, n: int) -> Slots:
        return self.free_queue.pop(n)

    def _leave_queue(self, holder: str, idle: Slots) -> None:
        """``idle`` slots got a holder: they are not free, hence not evictable, any more."""
        del holder
        self.free_queue.remove(idle)

    def _forget(self, holder: str, slots: list[int]) -> None:
        held = self.holders.get(holder, set())
        before = len(held)
        held.difference_update(slots)
        if len(held) != before - len(slots):
            raise NotHeld(self.name, holder, slots)
        if not held:
            self.holders.pop(holder, None)

    def _evict(self, slots: Slots) -> None:
        cached = slots[self.group_of[slots] >= 0]
        if cached.size:
            self.evicted += cached.size
            self._drop_labels(cached)
            if self.observer is not None:
                self.observer(ev.Evict(pool=self.name, slots=cached))
            self._publish_gone()

    def _drop_labels(self, slots: Slots) -> None:
        groups = self.group_of[slots]
        for group, (index, spares) in enumerate(zip(self.index, self.spares, strict=True)):
            mine = slots if len(self.index) == 1 else slots[groups == group]
            keys = self.key[mine].tolist()
            if not spares or spares.keys().isdisjoint(keys):
                for key in keys:
                    del index[key]
                self._gone(keys, group)
                continue
            for key, slot in zip(keys, mine.tolist(), strict=True):
                others = spares.get(key)
                if others is None:
                    del index[key]
                    continue
                if index[key] == slot:
                    index[key] = others.pop()
                else:
                    others.remove(slot)
                if not others:
                    del spares[key]
            self._gone([key for key in dict.fromkeys(keys) if key not in index], group)
        self.group_of[slots] = -1

    def _gone(self, keys: list[int], group: int) -> None:
        """``keys``, which had been there, are not any more."""
        if self.publishes and keys:
            self._gone_keys.append(ev.Removed(pool=self.name, keys=keys, group=group))
