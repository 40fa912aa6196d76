"""Where cells lie in the words of the native engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvfence.checker.engines.native.layout import Dense


def placed(*bits: int) -> tuple[list[Any], list[int], int]:
    """Word and shift of cells of so many bits, the bits in use of each word, and bits in all."""
    dense: Any = Dense.__new__(Dense)
    dense.slots = [SimpleNamespace(bits=each, word=None, shift=None) for each in bits]
    total = dense._place()
    return [(slot.word, slot.shift) for slot in dense.slots], dense.word_bits, total


def test_wide_cells_come_first_the_widest_of_them_before_the_others() -> None:
    where, used, total = placed(3, 9, 20, 40)
    assert where == [(1, 9), (1, 0), (0, 40), (0, 0)]
    assert (used, total) == ([60, 12], 128)


def test_cells_of_up_to_eight_bits_stay_in_their_order() -> None:
    assert placed(3, 8, 1)[0] == [(0, 0), (0, 3), (0, 11)]


def test_narrow_cells_fill_what_wide_ones_left_over() -> None:
    where, used, _ = placed(2, 60, 1, 60)
    assert where == [(0, 60), (0, 0), (1, 60), (1, 0)]
    assert used == [62, 61]


def test_a_cell_of_no_bits_has_no_place() -> None:
    assert placed(0, 1) == ([(None, None), (0, 0)], [1], 64)


def test_a_word_alone_has_a_bit_more_than_the_first_of_several() -> None:
    """One word gives its top bit to the table, the first of several words two."""
    assert placed(60, 3)[1] == [63]
    assert placed(60, 4)[1] == [60, 4]
    assert placed(60, 2, 2)[1] == [62, 2]
    assert placed(60, 2, 64)[0] == [(0, 0), (0, 60), (1, 0)]
