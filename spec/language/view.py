"""A concrete state, read by name: ``view.phase[r] == "waiting"``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvfence.spec.language.errors import close, fail
from kvfence.spec.language.types import Type

Shown = bool | int | str


class Layout:
    """Where each function's values lie in a state tuple, for given sizes."""

    def __init__(self) -> None:
        self.fields: dict[str, FieldLayout] = {}
        self.cells = 0

    def add(self, name: str, domain: Sequence[tuple[Type, int, int]], value: Type) -> FieldLayout:
        """Append a function; ``domain`` gives each index type with its smallest and largest value."""
        field = FieldLayout(name, tuple(domain), value, self.cells)
        self.fields[name] = field
        self.cells += field.size
        return field


class FieldLayout:
    """The cells of one function: row-major from ``base``."""

    def __init__(self, name: str, domain: tuple[tuple[Type, int, int], ...], value: Type, base: int) -> None:
        self.name, self.domain, self.value, self.base = name, domain, value, base
        self.size = 1
        for _, lo, hi in domain:
            self.size *= hi - lo + 1

    def indices(self) -> Iterator[tuple[int, ...]]:
        """All index tuples, in the order of the cells."""
        return itertools.product(*(range(lo, hi + 1) for _, lo, hi in self.domain))

    def cell(self, indices: Sequence[int]) -> int | None:
        """The cell at integer indices, or None outside the domain."""
        at = 0
        for i, (_, lo, hi) in zip(indices, self.domain, strict=True):
            if not lo <= i <= hi:
                return None
            at = at * (hi - lo + 1) + i - lo
        return self.base + at

    def label(self, indices: Sequence[int]) -> str:
        """``name[1, waiting]``."""
        inside = ", ".join(str(t.shown(i)) for i, (t, _, _) in zip(indices, self.domain, strict=True))
        return f"{self.name}[{inside}]" if self.domain else self.name


class View:
    """A state: plain variables as attributes, functions as mappings from an index (or a tuple) to the value.

    Labels read as text, truth values as bool, elements of a sort as their number.

    >>> from kvfence.lockstep import Interpreter
    >>> machine = Machine("blocks")
    >>> Block = machine.sort("Block")
    >>> _ = machine.relation("held", Block)
    >>> @machine.action(b=Block)
    ... def take(s, b):
    ...     s.held[b] = True
    >>> run = Interpreter(machine)
    >>> state = run.view(run.initial())
    >>> state.held[1]
    False
    """

    __slots__ = ("_layout", "_values")

    def __init__(self, layout: Layout, values: Sequence[int]) -> None:
        self._layout, self._values = layout, tuple(int(v) for v in values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        field = self._layout.fields.get(name)
        if field is None:
            raise AttributeError(f"the state has no field {name}; {close(name, self._layout.fields)}")
        if not field.domain:
            return field.value.shown(self._values[field.base])
        return FieldView(field, self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"View({', '.join(f'{k}={v}' for k, v in flat(self).items())})"


class FieldView(Mapping[object, bool | int | str]):
    """The values of one function in a state."""

    __slots__ = ("_field", "_values")

    def __init__(self, field: FieldLayout, values: tuple[int, ...]) -> None:
        self._field, self._values = field, values

    def __getitem__(self, key: object) -> Shown:
        given = key if isinstance(key, tuple) else (key,)
        field = self._field
        if len(given) != len(field.domain):
            raise KeyError(f"{field.name} takes {len(field.domain)} indices, not {len(given)}")
        at = [t.encode(i) for i, (t, _, _) in zip(given, field.domain, strict=True)]
        cell = field.cell(at)
        if cell is None:
            raise KeyError(f"{field.label(at)} is outside the state")
        return field.value.shown(self._values[cell])

    def __iter__(self) -> Iterator[object]:
        for at in self._field.indices():
            shown = tuple(t.shown(i) for i, (t, _, _) in zip(at, self._field.domain, strict=True))
            yield shown if len(shown) > 1 else shown[0]

    def __len__(self) -> int:
        return self._field.size

    def __contains__(self, key: object) -> bool:
        name = self._field.name
        raise fail(f"Python's in does not work on {name}; read the value: {name}[…]")

    def __bool__(self) -> bool:
        raise fail(f"{self._field.name} is a whole function, which has no truth value; give its indices")

    def __repr__(self) -> str:
        return repr(dict(self))


def flat(view: View) -> dict[str, Shown]:
    """Every value of a state by its printed name, such as ``pin[0, 2]``.

    >>> from kvfence.lockstep import Interpreter
    >>> machine = Machine("blocks")
    >>> Block = machine.sort("Block")
    >>> _ = machine.relation("held", Block)
    >>> @machine.action(b=Block)
    ... def take(s, b):
    ...     s.held[b] = True
    >>> run = Interpreter(machine)
    >>> flat(run.view(run.initial()))
    {'held[0]': False, 'held[1]': False}
    """
    return {
        f.label(at): f.value.shown(view._values[f.base + k])
        for f in view._layout.fields.values()
        for k, at in enumerate(f.indices())
    }


def changes(before: View, after: View) -> dict[str, tuple[Shown, Shown]]:
    """The values that differ, by printed name: (before, after).

    >>> from kvfence.lockstep import Interpreter
    >>> machine = Machine("blocks")
    >>> Block = machine.sort("Block")
    >>> _ = machine.relation("held", Block)
    >>> @machine.action(b=Block)
    ... def take(s, b):
    ...     s.held[b] = True
    >>> run = Interpreter(machine)
    >>> before = run.initial()
    >>> after, _ = run.step(before, run.enabled(before)[1])
    >>> changes(run.view(before), run.view(after))
    {'held[1]': (False, True)}
    """
    old, new = flat(before), flat(after)
    return {k: (old[k], new[k]) for k in old if old[k] != new[k]}
