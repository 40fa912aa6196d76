"""Questions about the words of many slots at once, and changes to them.

Few slots are cheapest one by one, named by a list; many are cheapest for numpy, named by an array of
indexes. :func:`named` chooses. Both ways give the same answer; for a slot that does not exist it is no. The
changes expect slots that exist, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.checker.monitor.pool_state import LABEL, REF, REFS, Holder, PoolState, Tag

Named: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


def named(pool: PoolState, slots: Sequence[int]) -> Named | None:
    """``slots`` for the functions below; None if one of many does not exist (of few, the questions tell)."""
    if len(slots) < pool.long_from:
        return slots
    try:
        index = np.array(slots, dtype=np.int64)
    except OverflowError:
        return None
    # Seen as unsigned, a negative number is too great as well.
    if len(index) and int(index.view(np.uint64).max()) >= pool.total:
        return None
    return index


def distinct(pool: PoolState, slots: Named) -> bool:
    """Whether no slot appears twice."""
    if not isinstance(slots, np.ndarray):
        return len(slots) < 2 or len(set(slots)) == len(slots)
    places = np.arange(len(slots), dtype=np.int32)
    marks = pool.marks
    marks[slots] = places
    return bool((marks[slots] == places).all())


def all_of(pool: PoolState, slots: npt.NDArray[np.int64], holder: Holder) -> bool:
    """Whether ``slots``, as many as ``holder`` has, are its slots."""
    if not distinct(pool, slots):
        return False
    # ``distinct`` left in the marks where each slot is in ``slots``.
    last = len(slots) - 1
    parts = holder.parts
    if holder.own:
        parts = [*parts, np.fromiter(holder.own, np.int64, len(holder.own))]
    return all(bool((slots[np.minimum(pool.marks[part], last)] == part).all()) for part in parts)


def all_are(pool: PoolState, slots: Named, word: int) -> bool:
    """Whether the word of each slot is ``word``."""
    if isinstance(slots, np.ndarray):
        return bool((pool.array[slots] == word).all())
    words = pool.words
    try:
        for slot in slots:
            if slot < 0 or words[slot] != word:
                return False
    except IndexError:
        return False
    return True


def all_have(pool: PoolState, slots: Named, some: int, none: int) -> bool:
    """Whether the word of each slot has a bit of ``some`` and no bit of ``none``."""
    if isinstance(slots, np.ndarray):
        found = pool.array[slots]
        return not (found & none).any() and bool((found & some).all())
    words = pool.words
    try:
        for slot in slots:
            word = words[slot]
            if slot < 0 or word & none or not word & some:
                return False
    except IndexError:
        return False
    return True


def dying(pool: PoolState, slots: Named, allowed: int) -> int | None:
    """How many of the held ``slots`` have one holder; None if such a one has flags beyond ``allowed``."""
    if isinstance(slots, np.ndarray):
        left = pool.array[slots] - REF
        alone = (left & REFS) == 0
        if (left[alone] & ~allowed).any():
            return None
        return int(np.count_nonzero(alone))
    count = 0
    words = pool.words
    for slot in slots:
        word = words[slot] - REF
        if not word & REFS:
            if word & ~allowed:
                return None
            count += 1
    return count


def put(pool: PoolState, slots: Named, word: int) -> None:
    """Make ``word`` the word of each slot."""
    if isinstance(slots, np.ndarray):
        pool.array[slots] = word
    else:
        words = pool.words
        for slot in slots:
            words[slot] = word


def add(pool: PoolState, slots: Named, amount: int) -> None:
    """Add ``amount`` to the word of each slot."""
    if isinstance(slots, np.ndarray):
        pool.array[slots] += amount
    else:
        words = pool.words
        for slot in slots:
            words[slot] += amount


def add_holder(pool: PoolState, slots: Named) -> int:
    """Add a holder to each slot; how many had none."""
    if isinstance(slots, np.ndarray):
        before = pool.array[slots]
        pool.array[slots] = before + REF
        return int(np.count_nonzero((before & REFS) == 0))
    alone = 0
    words = pool.words
    for slot in slots:
        word = words[slot]
        if not word & REFS:
            alone += 1
        words[slot] = word + REF
    return alone


def add_labels(pool: PoolState, slots: Named, tags: Sequence[Tag]) -> None:
    """Label ``slots``, which have no label, each with its tag."""
    if isinstance(slots, np.ndarray):
        pool.tags[slots] = np.array(tags, dtype=np.uint64)
        pool.array[slots] |= LABEL
    else:
        words, labels = pool.words, pool.tag_words
        for slot, tag in zip(slots, tags, strict=True):
            labels[slot] = tag
            words[slot] |= LABEL
    pool.labelled += len(tags)
    if not pool.indexed:
        return
    if pool.again:
        for tag in tags:
            pool.count_tag(tag)
        return
    before = len(pool.where)
    pool.where.update(tags)
    if len(pool.where) != before + len(tags):
        pool.recount_tags()


def remove_labels(pool: PoolState, slots: Named) -> None:
    """Take the label from ``slots``, which have one."""
    add(pool, slots, -LABEL)
    pool.labelled -= len(slots)
    if not pool.indexed:
        return
    if isinstance(slots, np.ndarray):
        tags = pool.tags[slots].tolist()
    else:
        labels = pool.tag_words
        tags = [labels[slot] for slot in slots]
    if pool.again:
        for tag in tags:
            pool.uncount_tag(tag)
    else:
        pool.where.difference_update(tags)
