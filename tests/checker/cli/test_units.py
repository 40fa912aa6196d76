"""Amounts of memory and sort sizes: what is accepted, and one clear line for what is not."""

import pytest

from kvfence.checker.core.units import parse_memory, parse_sizes
from kvfence.spec.errors import CannotRun


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2GiB", 2**31),
        ("1.5gib", 3 * 2**29),
        ("512 MiB", 2**29),
        ("64MB", 64_000_000),
        ("20000000", 20_000_000),
    ],
)
def test_memory_is_read_with_and_without_a_unit(text: str, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["", "much", "2 Gibs", "-1GiB", "0", "1MiB", "nan"])
def test_what_is_no_memory_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(CannotRun, match="MiB"):
        parse_memory(text)


def test_sizes_are_read_by_sort() -> None:
    assert parse_sizes(["Block=4", "Request=2"]) == {"Block": 4, "Request": 2}


@pytest.mark.parametrize("text", ["Block", "Block=", "Block=two", "=3", "Block=0", "Block=-1", "Block=1.5"])
def test_an_impossible_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(CannotRun) as refused:
        parse_sizes([text])
    assert text in str(refused.value)


def test_a_size_given_twice_is_refused() -> None:
    with pytest.raises(CannotRun, match="twice"):
        parse_sizes(["Block=4", "Block=5"])
