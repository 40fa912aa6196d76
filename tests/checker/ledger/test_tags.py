"""Both ways to count labels and stores by their key count alike."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.checker.ledger.kernels.kernels import kernels
from kvfence.checker.ledger.state.tags import Bag, NativeTagCounts, TagCounts

HASH = 0x9E3779B97F4A7C15
INVERSE = pow(HASH, -1, 2**64)

# Tags whose places in a small table are close together, around its end, besides ordinary ones.
crowded = st.builds(
    lambda home, more: (home << 58 | more) * INVERSE % 2**64,
    st.sampled_from([62, 63, 0, 1]),
    st.integers(0, 9),
)
tags = st.lists(st.one_of(crowded, st.integers(0, 5), st.just(2**64 - 1)), max_size=12)
changes = st.lists(st.tuples(st.sampled_from(["label", "store", "undo", "clear", "copy"]), tags), max_size=40)


def compiled() -> NativeTagCounts:
    """Counts in a table that compiled code keeps."""
    found = kernels()
    if found is None:
        pytest.skip("there is no C compiler")
    return NativeTagCounts(found, np.zeros(6, np.int64))


@given(changes)
def test_labels_and_stores_are_counted_alike(steps: list[tuple[str, list[int]]]) -> None:
    native, plain = compiled(), TagCounts()
    open_: list[tuple[str, list[int]]] = []
    expected: dict[str, Counter[int]] = {"label": Counter(), "store": Counter()}
    for what, some in steps:
        if what == "undo" and open_:
            kind, some = open_.pop(len(some) % len(open_))  # noqa: PLW2901
            for counts in (native, plain):
                counts.unlabel(some) if kind == "label" else counts.unstore(some)
            expected[kind].subtract(some)
        elif what in expected:
            assert native.fresh(some) == plain.fresh(some)
            for counts in (native, plain):
                counts.label(some) if what == "label" else counts.store(some)
            expected[what].update(some)
            open_.append((what, some))
        elif what == "clear":
            native.clear_labels()
            plain.clear_labels()
            expected["label"].clear()
            open_ = [(kind, some) for kind, some in open_ if kind == "store"]
        elif what == "copy":
            before, native = native, native.copy_to(np.zeros(6, np.int64))
            before.label([1])
            plain = plain.copy_to(np.zeros(6, np.int64))
        told = tuple({tag: n for tag, n in expected[kind].items() if n} for kind in ("label", "store"))
        assert native.counts() == plain.counts() == told
        for tag in (*some, 3):
            assert native.labelled(tag) == plain.labelled(tag) == (tag in told[0])
            assert native.stored(tag) == plain.stored(tag) == (tag in told[1])


def test_a_table_grows_with_what_is_in_it_and_not_with_what_was() -> None:
    counts = compiled()
    for start in range(0, 100_000, 1000):
        some = list(range(start, start + 1000))
        counts.label(some)
        counts.unlabel(some)
    assert counts.size <= 4096
    counts.label(list(range(100_000)))
    assert len(counts.counts()[0]) == 100_000


def test_a_tag_is_there_as_often_as_it_was_put_in_and_not_taken_out() -> None:
    bag = Bag()
    bag.add([7, 8])
    bag.add([7])
    bag.add([7])
    bag.add([8])
    seen = []
    for _ in range(3):
        seen.append(bag.counts())
        bag.remove([7])
    assert seen == [{7: 3, 8: 2}, {7: 2, 8: 2}, {7: 1, 8: 2}]
    assert bag.counts() == {8: 2}


def test_a_bag_in_which_each_tag_is_once_remembers_nothing_more() -> None:
    """Then sets of tags are put in and taken out as a whole, which is what costs little."""
    bag = Bag()
    bag.add([7])
    bag.add([7])
    assert bag.again
    bag.remove([7])
    assert (bag.once, bag.again) == ({7}, {})
