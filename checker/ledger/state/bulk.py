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

from kvfence.checker.ledger.kernels.slot_bits import LABEL, REF, REFS
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.tags import Tag, mix_of, tags_of
from kvfence.spec.packed import WIDE, Numbers, ints

Named: TypeAlias = Sequence[int] | npt.NDArray[np.int64]
Tags: TypeAlias = Sequence[Tag] | npt.NDArray[np.uint64]


def named(pool: PoolState, slots: Numbers) -> Named | None:
    """``slots`` for the functions below; None if one of many does not exist (of few, the questions tell)."""
    if isinstance(slots, list | tuple):
        if len(slots) < pool.long_from:
            return slots
        try:
            index = np.array(slots, dtype=np.int64)
        except OverflowError:
            return None
    else:
        given = _array(slots, "<u4")
        if given is None:
            return None
        if len(given) < pool.long_from:
            few: list[int] = given.tolist()
            return few
        index = given.astype(np.int64)
    # Seen as unsigned, a negative number is too great as well.
    if len(index) and int(index.view(np.uint64).max()) >= pool.total:
        return None
    return index


def tags_named(keys: Numbers, group: int, slots: Named) -> Tags | None:
    """The tags of ``keys`` in ``group``, in an array if ``slots`` are; None if they are not so many keys."""
    if not isinstance(slots, np.ndarray):
        listed = ints(keys, WIDE)
        return tags_of(listed, group) if len(listed) == len(slots) else None
    if isinstance(keys, list | tuple):
        given: npt.NDArray[np.integer[npt.NBitBase]] | None = np.array(keys, dtype=np.uint64)
    else:
        given = _array(keys, "<u8")
    if given is None or len(given) != len(slots) or (given.dtype.kind == "i" and (given < 0).any()):
        return None
    return given.astype(np.uint64) ^ np.uint64(mix_of(group))


def _array(numbers: Numbers, packed: str) -> npt.NDArray[np.integer[npt.NBitBase]] | None:
    """Numbers that are no list as an array; None if they are not a row of integers."""
    if isinstance(numbers, bytes):
        kind = np.dtype(packed)
        return None if len(numbers) % kind.itemsize else np.frombuffer(numbers, kind)
    array = np.asarray(numbers)
    return array if array.ndim == 1 and array.dtype.kind in "iu" else None


def same(some: Numbers, others: Numbers) -> bool:
    """Whether these are the same slots in the same order. May be False if they come in different forms."""
    if some is others:
        return True
    if isinstance(some, list | tuple) or isinstance(others, list | tuple):
        return isinstance(some, list) and isinstance(others, list) and some == others
    one, other = _array(some, "<u4"), _array(others, "<u4")
    return one is not None and other is not None and np.array_equal(one, other)


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
    parts = [np.asarray(part) for part in holder.parts]
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


def all_have_both(pool: PoolState, slots: Named, one: int, other: int) -> bool:
    """Whether the word of each slot has a bit of ``one`` and a bit of ``other``."""
    if isinstance(slots, np.ndarray):
        found = pool.array[slots]
        return bool((found & one).all()) and bool((found & other).all())
    return all_have(pool, slots, one, 0) and all_have(pool, slots, other, 0)


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


def add_labels(pool: PoolState, slots: Named, tags: Tags) -> None:
    """Label ``slots``, which have no label, each with its tag."""
    if isinstance(slots, np.ndarray):
        pool.tags[slots] = tags
        pool.array[slots] |= LABEL
    else:
        words, labels = pool.words, pool.tag_words
        for slot, tag in zip(slots, tags, strict=True):
            labels[slot] = tag
            words[slot] |= LABEL
    pool.labelled += len(slots)
    if pool.counts is not None:
        pool.counts.label(tags.tolist() if isinstance(tags, np.ndarray) else tags)


def remove_labels(pool: PoolState, slots: Named) -> None:
    """Take the label from ``slots``, which have one."""
    add(pool, slots, -LABEL)
    pool.labelled -= len(slots)
    if pool.counts is not None:
        labels = pool.tag_words
        pool.counts.unlabel(
            pool.tags[slots].tolist() if isinstance(slots, np.ndarray) else [labels[slot] for slot in slots]
        )
