"""Reports in text: tables and paragraphs keep to the width, and violations have all that is known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.checker.analysis.verify import verify
from kvfence.checker.core.text_tables import paragraph, table
from kvfence.checker.ledger.state.violation import Violation
from kvfence.checker.ledger.violation_text import event_text, value_text, violation_text
from kvfence.checker.report.text.verdicts import verification_text
from kvfence.spec import events as ev

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


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_every_machine_has_its_column_and_no_line_is_too_long(width: int, count: int) -> None:
    found = verify(machine="block_pool", sizes={"Block": 2})
    (one,) = found.machines
    names = [f"machine_{k}" for k in range(count)]
    found = msgspec.structs.replace(
        found, machines=tuple(msgspec.structs.replace(one, machine=name) for name in names)
    )
    printed = verification_text(found, width=width)
    assert all(len(line) <= width for line in printed.splitlines())
    headers = [line.split() for line in printed.splitlines() if line.startswith("invariant ")]
    assert [name for header in headers for name in header[1:-1]] == names
    assert len([line for line in printed.splitlines() if line.startswith("CONSERVE ")]) == len(headers)
    assert (len(headers) == 1) == (width >= 46 + count * (2 + len("machine_10"))) or count == 1


VIOLATION = Violation(
    invariant="PIN",
    number=7,
    event=ev.Evict("cpu", [5]),
    condition="nobody pins an evicted slot",
    values={"promises": 1},
    pool="cpu",
    slots=(5,),
    holders={5: ("hit:3.0",)},
    history={5: ((2, ev.Alloc("cpu", "op:1.0", [5])), (6, ev.Touch("cpu", "hit:3.0", [5])))},
)


def test_everything_that_is_known_is_printed() -> None:
    text = violation_text(VIOLATION, width=100)
    for part in (
        "PIN",
        "event 7",
        "nobody pins an evicted slot",
        "evict pool=cpu slots=[5]",
        "promises = 1",
        "hit:3.0",
    ):
        assert part in text
    assert text.index("2: alloc") < text.index("6: touch")


def test_lines_keep_to_the_width() -> None:
    assert all(len(line) <= 60 for line in violation_text(VIOLATION, width=60).splitlines())


def test_fields_with_their_default_are_left_out() -> None:
    assert event_text(ev.Alloc("gpu", "req:1.0", [1, 2])) == "alloc pool=gpu holder=req:1.0 slots=[1, 2]"
    assert event_text(ev.Alloc("gpu", "req:1.0", [1], free=3)).endswith("free=3")


def test_a_long_list_ends_with_how_many_more() -> None:
    assert value_text(list(range(100))).endswith("and 88 more]")
