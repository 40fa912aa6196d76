"""Tables and paragraphs keep to the width that they are given."""

from hypothesis import given
from hypothesis import strategies as st

from kvfence.checker.core.text_tables import paragraph, table

WORDS = st.lists(st.text("abcdef", min_size=1, max_size=9), min_size=1, max_size=30).map(" ".join)


@given(WORDS, st.integers(30, 100))
def test_the_last_column_is_wrapped_to_the_width(text: str, width: int) -> None:
    printed = table(("a", "what"), [("1", text)], width=width)
    assert all(len(line) <= width for line in printed.splitlines())
    assert printed.split()[3:] == text.split()


def test_columns_line_up_and_numbers_stand_flush_right() -> None:
    printed = table(
        ("name", "n", "what"), [("a", "1", "x"), ("bcdef", "100", "y")], width=80, right=frozenset({"n"})
    )
    assert printed.splitlines() == ["name     n  what", "a        1  x", "bcdef  100  y"]


@given(WORDS, st.integers(30, 100))
def test_a_paragraph_keeps_every_word_and_the_width(text: str, width: int) -> None:
    printed = paragraph(text, width=width, indent="  ", hanging="    ")
    assert all(len(line) <= width for line in printed.splitlines())
    assert printed.split() == text.split()
