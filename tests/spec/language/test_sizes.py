"""A bound by the sort sizes is a polynomial of them, or is refused where no size is known."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvfence.spec.language import Int, Machine, SpecError, State, ground
from kvfence.spec.language.sizes import NotPolynomial, Sizes, bound_at, polynomial, value_at

SORTS = frozenset({"Block", "Rank"})


def _catching(z: Any) -> int:
    try:
        return 3 if z["Block"] < 7 else 5
    except SpecError:
        return 3


REFUSED: dict[str, Callable[[Any], Any]] = {
    "==": lambda z: 5 if z["Block"] == 7 else 3,
    "!=": lambda z: 3 if z["Block"] != 7 else 5,
    "<": lambda z: 3 if z["Block"] < 7 else 5,
    "chained": lambda z: 3 if 0 < z["Block"] < 7 else 5,
    "max": lambda z: max(z["Block"], 3),
    "min": lambda z: min(3, z["Block"]),
    "sorted": lambda z: sorted([z["Block"], 3])[0],
    "get": lambda z: z.get("Block", 3),
    "get of another": lambda z: z.get("Blokc", 3),
    "in": lambda z: 3 + 2 * ("Block" in z),
    "len": lambda z: len(z) + 1,
    "values": lambda z: sum(z.values()),
    "items": lambda z: dict(z.items())["Block"],
    "iteration": lambda z: sum(1 for _ in z),
    "unpacked": lambda z: {**z}["Block"],
    "key of a dict": lambda z: {7: 5}.get(z["Block"], 3),
    "in a set": lambda z: 5 if z["Block"] in {7} else 3,
    "in a list": lambda z: 5 if z["Block"] in [7] else 3,
    "index": lambda z: list(range(99))[z["Block"]],
    "range": lambda z: len(range(z["Block"])),
    "int": lambda z: int(z["Block"]),
    "truth": lambda z: 3 if z["Block"] else 5,
    "not": lambda z: 3 if not z["Block"] else 5,
    "text": lambda z: len(str(z["Block"])),
    "representation": lambda z: len(repr(z["Block"])),
    "format": lambda z: len(f"{z['Block']}"),
    "halved": lambda z: z["Block"] // 2,
    "modulo": lambda z: z["Block"] % 2,
    "power": lambda z: 2 ** z["Block"],
    "bits": lambda z: z["Block"] & 1,
    "real": lambda z: z["Block"] * 0.5,
    "truth of the comparison": lambda z: z["Block"] + (z["Block"] > 3),
    "match": lambda z: {True: 3}.get(z["Block"] == 7, 5),
    "type": lambda z: 5 if isinstance(z["Block"], int) else 3,
    "exact type": lambda z: 5 if type(z["Block"]) is int else 3,
    "caught": _catching,
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_asked_of_an_unknown_size_is_refused_with_its_place(form: str) -> None:
    with pytest.raises(NotPolynomial, match=r"test_sizes\.py:\d+: .* at given sizes with --engine native"):
        polynomial(REFUSED[form], SORTS)


def test_sums_and_products_are_what_they_are_at_every_size() -> None:
    forms: list[Callable[[Sizes], int]] = [
        lambda z: 3,  # noqa: ARG005
        lambda z: z["Block"],
        lambda z: 2 * z["Block"] + z["Rank"] - 1,
        lambda z: 1 - z["Block"],
        lambda z: -z["Block"] * z["Rank"] * z["Block"] + 4,
        lambda z: (z["Block"] - z["Rank"]) * (z["Block"] + z["Rank"]) - z["Block"] * z["Block"],
        lambda z: sum(z[sort] for sort in ("Block", "Rank")),
        lambda z: z["Block"] - z["Block"],
    ]
    draw = random.Random(3)
    for form in forms:
        terms = polynomial(form, SORTS)
        for _ in range(50):
            sizes = {sort: draw.randint(1, 1000) for sort in SORTS}
            assert value_at(terms, sizes) == form(sizes)


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (lambda z: z["Blokc"], "no size of 'Blokc'; did you mean Block"),
        (lambda z: z.get("Blokc", 0), "no size of 'Blokc'; did you mean Block"),
        (lambda z: 3 if "Blokc" in z else 4, "no size of 'Blokc'; did you mean Block"),
        (lambda z: z[3], "no size of 3; give its name"),
        (lambda z: z["Block"] / 2, "is 1.0 at sizes .*give a whole number"),
        (lambda z: z["Block"] == 2, "is True at sizes .*give a whole number"),
        (lambda z: 1 // (z["Block"] - 2), "cannot be computed at sizes .*ZeroDivisionError"),
        (lambda z: None, "is None at sizes"),  # noqa: ARG005
    ],
)
def test_a_bound_that_is_no_number_at_the_sizes_of_a_run_is_refused(
    bound: Callable[[Any], Any], text: str
) -> None:
    with pytest.raises(SpecError, match=rf"test_sizes\.py:\d+: .*{text}"):
        bound_at(bound, {"Block": 2, "Rank": 1})
    m = Machine("m")
    m.sort("Block", 2)
    m.sort("Rank", 1)
    m.function("n", value=Int(0, bound), init=0)

    @m.action()
    def act(s: State) -> None:
        s.n = 0

    with pytest.raises(SpecError, match=text):
        ground(m)


def test_at_given_sizes_a_bound_may_be_any_function() -> None:
    for form in ("==", "get", "values", "key of a dict", "len", "in", "max"):
        assert isinstance(bound_at(REFUSED[form], {"Block": 7, "Rank": 1}), int)
    assert bound_at(REFUSED["=="], {"Block": 7}) == 5


@pytest.mark.parametrize("bound", [True, 2.5, "3", Int(0, 1), 1 << 600])
def test_what_is_no_bound_is_refused(bound: Any) -> None:
    with pytest.raises(SpecError, match=r"no bound of an Int|too large"):
        Int(0, bound)


def test_the_header_too_knows_its_sorts() -> None:
    m = Machine("m")
    m.sort("Block", 2)
    m.header(lambda sizes: sizes.get("Blokc", 0))
    assert m.header_of is not None
    with pytest.raises(SpecError, match="no size of 'Blokc'"):
        m.header_of({"Block": 2})
