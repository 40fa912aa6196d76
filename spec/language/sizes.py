"""Bounds that are functions of the sort sizes: their value at given sizes, and what they are at any size.

At given sizes a bound is any function into the integers. For proofs at any size it has to be a polynomial of
the sizes. It is then called with unknown sizes that add, subtract and multiply, and refuse everything else:
Python would make something known, and so something wrong, of a comparison, a hash or a text of them.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kvfence.spec.language.errors import SpecError, close, fail, place

Sizes = Mapping[str, int]
Monomial = tuple[str, ...]  # the sorts whose sizes are multiplied, in order
Polynomial = dict[Monomial, int]  # coefficients, none of them 0; () is the constant term

_SAMPLED = (
    *range(1, 13),
    100,
)  # sizes at which a polynomial is compared with the function that it stands for
_WAY_OUT = "write it as sums and products of sizes, or check at given sizes with --engine native"


class NotPolynomial(SpecError):  # noqa: N818 (an answer: such a bound is decided at given sizes only)
    """A bound that nothing can be proved with at any size; the text is one line with its place."""


class KnownSizes(Mapping[str, int]):
    """The sizes that a run has, by sort. Whoever asks for a sort that the machine lacks gets a SpecError."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = dict(sizes)

    def _known(self, sort: object) -> str:
        if isinstance(sort, str) and sort in self._sizes:
            return sort
        hint = close(sort, self._sizes) if isinstance(sort, str) else 'give its name: sizes["Block"]'
        raise fail(f"there is no size of {sort!r}; {hint}")

    def __getitem__(self, sort: str) -> int:
        return self._sizes[self._known(sort)]

    def get(self, sort: str, default: Any = None) -> Any:  # noqa: ARG002 (there is nothing to default to)
        """The size of a sort of the machine; for another there is no default."""
        return self[sort]

    def __contains__(self, sort: object) -> bool:
        return bool(self._known(sort))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return repr(self._sizes)


class UnknownSize:
    """A polynomial of sort sizes that are not known: adds, subtracts and multiplies, with integers too."""

    def __init__(self, terms: Polynomial, refused: list[str]) -> None:
        self._terms, self._refused = {m: c for m, c in terms.items() if c}, refused

    def _other(self, other: object, sign: str) -> Polynomial:
        if isinstance(other, UnknownSize):
            return other._terms
        if type(other) is int:
            return {(): other}
        raise _refusal(self._refused, f"{sign} with {_text(other)}")

    def __add__(self, other: object) -> UnknownSize:
        return self._sum(self._terms, self._other(other, "+"), 1)

    __radd__ = __add__

    def __sub__(self, other: object) -> UnknownSize:
        return self._sum(self._terms, self._other(other, "-"), -1)

    def __rsub__(self, other: object) -> UnknownSize:
        return self._sum(self._other(other, "-"), self._terms, -1)

    def __neg__(self) -> UnknownSize:
        return self._sum({}, self._terms, -1)

    def __pos__(self) -> UnknownSize:
        return self

    def _sum(self, a: Polynomial, b: Polynomial, sign: int) -> UnknownSize:
        return UnknownSize({m: a.get(m, 0) + sign * b.get(m, 0) for m in {**a, **b}}, self._refused)

    def __mul__(self, other: object) -> UnknownSize:
        out: Polynomial = {}
        for (m, c), (n, d) in itertools.product(self._terms.items(), self._other(other, "*").items()):
            both = tuple(sorted((*m, *n)))
            out[both] = out.get(both, 0) + c * d
        return UnknownSize(out, self._refused)

    __rmul__ = __mul__

    def __getitem__(self, item: object) -> Any:
        raise _refusal(self._refused, "items")


class UnknownSizes:
    """The sizes of all sorts, none of them known: only ``sizes["Block"]`` has an answer."""

    def __init__(self, sorts: Collection[str] | None) -> None:
        self._sorts = sorts
        self._refused: list[str] = []

    def __getitem__(self, sort: object) -> UnknownSize:
        if not isinstance(sort, str):
            raise _refusal(self._refused, f"an index of type {type(sort).__name__}")
        if self._sorts is not None and sort not in self._sorts:
            raise fail(f"there is no size of {sort!r}; {close(sort, self._sorts)}")
        return UnknownSize({(sort,): 1}, self._refused)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(self._refused, f".{name}")


_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ASKED = {
    **_COMPARED,
    **{"bool": "a truth value", "hash": "a hash (as a key, or in a set)", "len": "len", "iter": "iteration"},
    **{"contains": "in", "int": "int()", "index": "its value as a number", "float": "float()"},
    **{"complex": "complex()", "round": "round()", "trunc": "trunc()", "floor": "floor()", "ceil": "ceil()"},
    **{"abs": "abs()", "str": "its text", "repr": "its text", "format": "its text", "bytes": "bytes()"},
    **{"call": "()", "reversed": "reversed()", "invert": "~", "divmod": "divmod()", "rdivmod": "divmod()"},
}
_SIGNS = {"truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<", "rshift": ">>"}
_SIGNS |= {"and": "&", "or": "|", "xor": "^", "matmul": "@"}
_ASKED |= {f"{side}{name}": sign for name, sign in _SIGNS.items() for side in ("", "r")}


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(self: UnknownSize | UnknownSizes, *_: object) -> Any:
        raise _refusal(self._refused, what)

    return refuse


def _refusal(refused: list[str], what: str) -> SpecError:
    refused.append(what)  # kept: a function may catch the error and go on
    return fail(f"it asks for {what} of a size that is not known")


for _name, _what in _ASKED.items():
    setattr(UnknownSizes, f"__{_name}__", _refuse(_what))
    setattr(UnknownSize, f"__{_name}__", _refuse(_what))


def place_of(bound: Callable[..., object]) -> str:
    """The ``file:line`` at which a bound was written."""
    code = getattr(bound, "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else "a bound of an Int"


def bound_at(bound: int | Callable[[Sizes], int], sizes: Sizes) -> int:
    """The value of a bound at given sizes. SpecError, with its place, where it has none."""
    if isinstance(bound, int):
        return bound
    try:
        value: object = bound(KnownSizes(sizes))
    except SpecError as problem:
        raise SpecError(_placed(str(problem), place_of(bound))) from problem
    except Exception as problem:
        raise fail(
            f"a bound of an Int cannot be computed at sizes {dict(sizes)}: {type(problem).__name__}: "
            f"{problem}; mend the function",
            place_of(bound),
        ) from problem
    if type(value) is not int:
        raise fail(
            f"a bound of an Int is {_text(value)} at sizes {dict(sizes)}; give a whole number",
            place_of(bound),
        )
    return value


def _placed(text: str, where: str) -> str:
    return text if text.startswith(f"{where.rpartition(':')[0]}:") else f"{where}: {text}"


def _text(value: object) -> str:
    return repr(value) if isinstance(value, bool | float | str | None) else type(value).__name__


@functools.lru_cache(maxsize=4096)
def polynomial(
    bound: Callable[[Sizes], int], sorts: frozenset[str] | None = None, what: str = "a bound"
) -> Polynomial:
    """The bound as a polynomial of the sizes of ``sorts``, any if None. NotPolynomial where it is not one.

    What it is with unknown sizes is compared with what it is at some sizes, as Python answers some questions
    without asking the unknown size: what its type is, for one.
    """
    unknown = UnknownSizes(sorts)
    where = place_of(bound)

    def no(why: str) -> NotPolynomial:
        return NotPolynomial(f"{where}: {what} cannot be used at any size: {why}; {_WAY_OUT}")

    try:
        value: object = bound(unknown)  # type: ignore[arg-type]  # it stands for every mapping of sizes
    except Exception as problem:
        if unknown._refused:
            raise no(f"it asks for {unknown._refused[0]} of a size") from problem
        if isinstance(problem, SpecError):
            raise
        raise no(f"{type(problem).__name__}: {problem}") from problem
    if unknown._refused:
        raise no(f"it asks for {unknown._refused[0]} of a size")
    if isinstance(value, UnknownSize):
        terms = value._terms
    elif type(value) is int:
        terms = {(): value} if value else {}
    else:
        raise no(f"it is {_text(value)}")
    for sizes in _samples(sorted({s for m in terms for s in m} | set(sorts or ()))):
        at = bound_at(bound, sizes)
        if at != value_at(terms, sizes):
            shown = ", ".join(f"{sort} {n}" for sort, n in sizes.items())
            raise no(f"it is {at} at {shown}, and {spell_polynomial(terms)} when no size is known")
    return terms


def value_at(terms: Polynomial, sizes: Sizes) -> int:
    """The value of a polynomial at given sizes."""
    total = 0
    for monomial, coefficient in terms.items():
        total += coefficient * math.prod(sizes[sort] for sort in monomial)
    return total


def _samples(sorts: list[str]) -> Iterator[dict[str, int]]:
    """Some sizes: all sorts alike, each sort alone, and some drawn."""
    for n in _SAMPLED:
        yield dict.fromkeys(sorts, n)
    for sort in sorts if len(sorts) > 1 else ():
        for n in _SAMPLED:
            yield {**dict.fromkeys(sorts, 2), sort: n}
    draw = random.Random(0)
    for _ in range(12 if len(sorts) > 1 else 0):
        yield {sort: draw.randint(1, 12) for sort in sorts}


def spell_polynomial(terms: Polynomial) -> str:
    """A polynomial in words of a message."""
    parts = [" * ".join([str(c), *m] if c != 1 or not m else m) for m, c in sorted(terms.items())]
    return " + ".join(parts) or "0"


__all__ = [
    "KnownSizes",
    "NotPolynomial",
    "Polynomial",
    "Sizes",
    "bound_at",
    "place_of",
    "polynomial",
    "value_at",
]
