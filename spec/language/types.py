"""The types of a specification: truth values, labels, integers and sorts of finite size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvfence.spec.language.errors import close, fail
from kvfence.spec.language.sizes import Sizes, bound_at

if TYPE_CHECKING:
    from kvfence.spec.language.expr import Expr

Bound = int | Callable[[Sizes], int] | None


class Type:
    """What a value, an index or a parameter ranges over.

    >>> all(isinstance(each, Type) for each in (Bool, Int(0, 3), Enum("Phase", "waiting running")))
    True
    """

    name: str

    def range(self, sizes: Sizes) -> tuple[int, int] | None:
        """Smallest and largest value, as integers, for these sort sizes; None for an unbounded Int."""
        raise NotImplementedError

    def shown(self, value: int) -> bool | int | str:
        """The integer ``value`` the way people read it."""
        return value

    def encode(self, value: object) -> int:
        """The integer that stands for the shown ``value``; ValueError when it is not of this type."""
        if isinstance(value, int):
            return int(value)
        raise ValueError(f"{value!r} is not a value of {self.name}")

    def __repr__(self) -> str:
        return self.name


class BoolType(Type):
    """Truth values; use the one instance, ``Bool``.

    >>> Machine("doc").function("full", value=Bool, init=False)
    full(): Bool
    """

    name = "Bool"

    def range(self, sizes: Sizes) -> tuple[int, int]:  # noqa: ARG002
        return 0, 1

    def shown(self, value: int) -> bool:
        return bool(value)


Bool = BoolType()


class Int(Type):
    """Integers from ``lo`` to ``hi`` inclusive; ``Int()`` is unbounded.

    A bound may be a function of the sort sizes: ``Int(0, lambda sizes: sizes["Block"] - 1)``.

    >>> Int(0, 3), Int().bounded
    (Int(0, 3), False)
    """

    def __init__(self, lo: Bound = None, hi: Bound = None) -> None:
        if (lo is None) != (hi is None):
            raise fail("an Int has both bounds or none; write Int(lo, hi) or Int()")
        for bound in (lo, hi):
            _check_bound(bound)
        if isinstance(lo, int) and isinstance(hi, int) and lo > hi:
            raise fail(f"Int({lo}, {hi}) has no value; the lower bound comes first")
        self.lo, self.hi = lo, hi
        ends = [str(b) if isinstance(b, int) else "by size" for b in (lo, hi)]
        self.name = "Int" if lo is None else f"Int({ends[0]}, {ends[1]})"

    @property
    def bounded(self) -> bool:
        """Whether the values have a smallest and a largest."""
        return self.lo is not None

    @property
    def literal(self) -> tuple[int, int] | None:
        """The bounds when they are plain numbers, known before the sizes are."""
        if isinstance(self.lo, int) and isinstance(self.hi, int):
            return self.lo, self.hi
        return None

    def range(self, sizes: Sizes) -> tuple[int, int] | None:
        if self.lo is None or self.hi is None:
            return None
        return bound_at(self.lo, sizes), bound_at(self.hi, sizes)


def _check_bound(bound: object) -> None:
    if isinstance(bound, int) and not isinstance(bound, bool):
        check_number(bound)
    elif bound is not None and (isinstance(bound, bool | Type) or not callable(bound)):
        raise fail(
            f"{bound!r} is no bound of an Int; give a number, or a function of the sort sizes: "
            'Int(0, lambda sizes: sizes["Block"])'
        )


def check_number(value: int) -> None:
    """SpecError for an integer of more than ``MOST_BITS`` bits, which not every engine can read."""
    if value.bit_length() > MOST_BITS:
        raise fail(
            f"a number of {value.bit_length()} bits is too large; use numbers of up to {MOST_BITS} bits"
        )


MOST_BITS = 512  # what intervals compute with as a float, and solvers read as text
INTEGER = Int()


class Enum(Type):
    """Labels: ``Phase = Enum("Phase", "waiting running done")``; ``Phase.done`` is a constant.

    >>> Phase = Enum("Phase", "waiting running")
    >>> list(Phase)
    [Phase.waiting, Phase.running]
    """

    def __init__(self, name: str, labels: str) -> None:
        if not isinstance(name, str) or not isinstance(labels, str):
            raise fail("an Enum takes its name and its labels as text: Enum('Phase', 'first second')")
        self.name = name
        self.labels = tuple(labels.split())
        if not self.labels:
            raise fail(f"Enum {name} has no labels; list them in one string: Enum({name!r}, 'first second')")
        for label in self.labels:
            if self.labels.count(label) > 1:
                raise fail(f"Enum {name} lists {label} twice; each label has one name")
            if not label.isidentifier() or label.startswith("_") or hasattr(Type, label) or label in _TAKEN:
                raise fail(f"{label!r} cannot be a label of Enum {name}; pick another identifier")

    def range(self, sizes: Sizes) -> tuple[int, int]:  # noqa: ARG002
        return 0, len(self.labels) - 1

    def shown(self, value: int) -> str:
        return self.labels[value]

    def encode(self, value: object) -> int:
        if isinstance(value, str):
            if value in self.labels:
                return self.labels.index(value)
            raise ValueError(f"{value!r} is not a label of {self.name}; {close(value, self.labels)}")
        return super().encode(value)

    def __getattr__(self, label: str) -> Expr:
        if label.startswith("_"):
            raise AttributeError(label)
        if label not in self.labels:
            raise fail(f"{self.name} has no label {label}; {close(label, self.labels)}")
        from kvfence.spec.language.expr import constant

        return constant(self, self.labels.index(label))

    def __iter__(self) -> Iterator[Expr]:
        return (getattr(self, label) for label in self.labels)


_TAKEN = {"name", "labels", "range", "shown", "encode"}


class Sort(Type):
    """A set of interchangeable elements, such as blocks; each run gives it a finite size.

    Made by ``Machine.sort``. Elements compare with ``==`` and ``!=`` only.

    >>> Block = Machine("doc").sort("Block", default=3)
    >>> Block, Block.default
    (Block, 3)
    """

    def __init__(self, name: str, default: int, where: str) -> None:
        self.name, self.default, self.where = name, default, where

    def range(self, sizes: Sizes) -> tuple[int, int]:
        return 0, sizes[self.name] - 1


def same_kind(a: Type, b: Type) -> bool:
    """Whether values of the two types can be compared and assigned (bounds of an Int aside)."""
    return a is b or (isinstance(a, Int) and isinstance(b, Int))


def kind(t: Type) -> str:
    """The type's name for messages, without the bounds of an Int."""
    return "Int" if isinstance(t, Int) else t.name
