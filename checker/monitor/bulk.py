"""Questions about the words of many slots at once, and changes to them.

Few slots are cheapest one by one; for many, numpy answers at once. Both ways give the same answer, and a slot
that
does not exist makes every question false. The changes expect slots that exist, each once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from kvfence.checker.monitor.pool_state import REF, REFS, PoolState, Tag


def distinct(values: Collection[Hashable]) -> bool:
    """Whether no value appears twice."""
    return len(values) < 2 or len(set(values)) == len(values)


def index_of(pool: PoolState, slots: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """``slots`` for numpy; None if one of them does not exist."""
    try:
        index = np.array(slots, dtype=np.int64)
    except OverflowError:
        return None
    # Seen as unsigned, a negative number is too great as well.
    if len(index) and int(index.view(np.uint64).max()) >= pool.total:
        return None
    return index


def all_are(pool: PoolState, slots: Sequence[int], word: int) -> bool:
    """Whether the word of each slot is ``word``."""
    if len(slots) < pool.long_from:
        words = pool.words
        try:
            for slot in slots:
                if slot < 0 or words[slot] != word:
                    return False
        except IndexError:
            return False
        return True
    index = index_of(pool, slots)
    return index is not None and bool((pool.array[index] == word).all())


def all_have(pool: PoolState, slots: Sequence[int], some: int, none: int) -> bool:
    """Whether the word of each slot has a bit of ``some`` and no bit of ``none``."""
    if len(slots) < pool.long_from:
        words = pool.words
        try:
            for slot in slots:
                if slot < 0:
                    return False
                word = words[slot]
                if word & none or not word & some:
                    return False
        except IndexError:
            return False
        return True
    index = index_of(pool, slots)
    if index is None:
        return False
    found = pool.array[index]
    return not (found & none).any() and bool((found & some).all())


def dying(pool: PoolState, slots: Sequence[int], allowed: int) -> int | None:
    """How many of the held ``slots`` have one holder; None if such a one has flags beyond ``allowed``."""
    count = 0
    if len(slots) < pool.long_from:
        words = pool.words
        for slot in slots:
            word = words[slot] - REF
            if not word & REFS:
                if word & ~allowed:
                    return None
                count += 1
        return count
    left = pool.array[index_of(pool, slots)] - REF
    alone = (left & REFS) == 0
    if (left[alone] & ~allowed).any():
        return None
    return int(np.count_nonzero(alone))


def put(pool: PoolState, slots: Sequence[int], word: int) -> None:
    """Make ``word`` the word of each slot."""
    if len(slots) < pool.long_from:
        words = pool.words
        for slot in slots:
            words[slot] = word
    else:
        pool.array[index_of(pool, slots)] = word


def add(pool: PoolState, slots: Sequence[int], amount: int) -> None:
    """Add ``amount`` to the word of each slot."""
    if len(slots) < pool.long_from:
        words = pool.words
        for slot in slots:
            words[slot] += amount
    else:
        pool.array[index_of(pool, slots)] += amount


def add_holder(pool: PoolState, slots: Sequence[int]) -> int:
    """Add a holder to each slot; how many had none."""
    if len(slots) < pool.long_from:
        words = pool.words
        alone = 0
        for slot in slots:
            word = words[slot]
            if not word & REFS:
                alone += 1
            words[slot] = word + REF
        return alone
    index = index_of(pool, slots)
    before = pool.array[index]
    pool.array[index] = before + REF
    return int(np.count_nonzero((before & REFS) == 0))


def add_labels(pool: PoolState, slots: Sequence[int], tags: Sequence[Tag]) -> None:
    """Record labels of slots that have none; the words are not touched."""
    pool.labels.update(zip(slots, tags, strict=True))
    if not pool.indexed:
        return
    where = pool.where
    if len(tags) > 1 and where.keys().isdisjoint(tags) and distinct(tags):
        where.update(dict.fromkeys(tags, 1))
        return
    for tag in tags:
        where[tag] = where.get(tag, 0) + 1


def remove_labels(pool: PoolState, slots: Sequence[int]) -> None:
    """Forget the labels of slots that have one; the words are not touched."""
    tags = list(map(pool.labels.pop, slots))
    if not pool.indexed:
        return
    where = pool.where
    for tag in tags:
        left = where[tag] - 1
        if left:
            where[tag] = left
        else:
            del where[tag]
