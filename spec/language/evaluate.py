"""The value of an expression in one concrete state, straight from its meaning: no grounding, no compiling.

Slow and short. It explains and replays single runs, and is one more reading of the language to hold the
engines against.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from kvfence.spec.language.errors import fail
from kvfence.spec.language.expr import Expr
from kvfence.spec.language.machine import Action, Function
from kvfence.spec.language.sizes import Sizes, bound_at
from kvfence.spec.language.types import Type
from kvfence.spec.language.view import Layout

Env = Mapping[int, int]  # value of each free variable, by uid
Values = tuple[int, ...]  # a state, one integer per cell


class Evaluator:
    """Evaluates expressions of a machine whose states are laid out by ``layout`` at ``sizes``."""

    def __init__(self, layout: Layout, sizes: Sizes) -> None:
        self.layout, self.sizes = layout, sizes

    def value(self, e: Expr, state: Sequence[int], env: Env) -> int:
        """The value as an integer; ``env`` has every free variable of ``e``."""
        op, args = e.op, e.args
        if op == "const":
            assert isinstance(e.value, int)
            return e.value
        if op in ("param", "bound"):
            return env[e.uid]
        if op == "limit":
            assert callable(e.value)
            return bound_at(e.value, self.sizes)
        if op == "index":
            return self.value(args[0], state, env)
        if op == "apply":
            return state[self.cell(e, state, env)]
        if op in ("forall", "exists", "count"):
            found = (self.value(args[0], state, full) for full in self.choices(e, env))
            return sum(found) if op == "count" else int(all(found) if op == "forall" else any(found))
        if op == "and":
            return int(all(self.value(a, state, env) for a in args))
        if op == "or":
            return int(any(self.value(a, state, env) for a in args))
        if op == "not":
            return 1 - self.value(args[0], state, env)
        if op == "ite":
            return self.value(args[1] if self.value(args[0], state, env) else args[2], state, env)
        a, b = (self.value(x, state, env) for x in args)
        return {"eq": int(a == b), "lt": int(a < b), "le": int(a <= b), "add": a + b, "sub": a - b}[op]

    def cell(self, e: Expr, state: Sequence[int], env: Env) -> int:
        """The cell that an ``apply`` reads. Outside the domain: the nearest one, as for every engine."""
        assert isinstance(e.value, Function)
        field = self.layout.fields[e.value.name]
        at = (self.value(a, state, env) for a in e.args)
        cell = field.cell([min(max(i, lo), hi) for i, (_, lo, hi) in zip(at, field.domain, strict=True)])
        assert cell is not None
        return cell

    def choices(self, e: Expr, env: Env) -> Iterator[Env]:
        """``env`` with every choice of values for the variables that ``e`` quantifies."""
        assert isinstance(e.value, tuple)
        for values in itertools.product(*(self.values(v.type) for v in e.value)):
            yield {**env, **{v.uid: x for v, x in zip(e.value, values, strict=True)}}

    def values(self, t: Type) -> range:
        """Every value of a finite type."""
        ends = t.range(self.sizes)
        assert ends is not None
        return range(ends[0], ends[1] + 1)

    def after(self, action: Action, state: Sequence[int], env: Env) -> Values:
        """The state after ``action``, whose parameters ``env`` gives; values may leave their range."""
        out = list(state)
        for f, next_value in action.updates.items():
            field = self.layout.fields[f.name]
            for k, at in enumerate(field.indices()):
                own = {**env, **{v.uid: i for v, i in zip(f.formals, at, strict=True)}}
                out[field.base + k] = self.value(next_value, state, own)
        return tuple(out)

    def bind(self, action: Action, args: Mapping[str, object]) -> dict[int, int]:
        """The arguments of ``action`` by uid of its parameters. SpecError where they do not fit."""
        names = [str(p.value) for p in action.params]
        if set(args) != set(names):
            raise fail(f"{action.name} takes ({', '.join(names)}), not ({', '.join(args)})")
        env = {}
        for p, name in zip(action.params, names, strict=True):
            try:
                env[p.uid] = p.type.encode(args[name])
            except ValueError as error:
                raise fail(f"{name} of {action.name}: {error}") from None
            if env[p.uid] not in self.values(p.type):
                known = self.values(p.type)
                raise fail(
                    f"{name}={args[name]} of {action.name} is not in {p.type.name}, which "
                    f"goes from {known.start} to {known.stop - 1} here; use another value or larger sizes"
                )
        return env


_SIGNS = {"eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
_TIGHT = {"const", "param", "bound", "apply", "forall", "exists", "count", "index", "limit"}
_WORDS = {"forall": "all", "exists": "some", "count": "count"}
_OPPOSITE = {"eq": "!=", "lt": ">=", "le": ">"}


def spell(e: Expr, env: Env | None = None) -> str:
    """The expression in words a report can print: variables that ``env`` knows show their value."""
    known = env or {}

    def inside(x: Expr) -> str:
        text = spell(x, known)
        return text if x.op in _TIGHT or (x.op == "not" and x.args[0].op in _TIGHT) else f"({text})"

    a = e.args
    if e.op == "const":
        assert isinstance(e.value, int)
        return spell_value(e.type, e.value)
    if e.op in ("param", "bound"):
        return spell_value(e.type, known[e.uid]) if e.uid in known else str(e.value)
    if e.op == "limit":
        return "limit"
    if e.op == "apply":
        name = getattr(e.value, "name", "?")
        return f"{name}[{', '.join(spell(x, known) for x in a)}]" if a else name
    if e.op in _SIGNS:
        return f"{inside(a[0])} {_SIGNS[e.op]} {inside(a[1])}"
    if e.op == "not":
        if a[0].op in _OPPOSITE:
            return f"{inside(a[0].args[0])} {_OPPOSITE[a[0].op]} {inside(a[0].args[1])}"
        return f"not {inside(a[0])}"
    if e.op == "ite":
        return f"if {inside(a[0])} then {inside(a[1])} else {inside(a[2])}"
    if e.op in ("and", "or"):
        return f" {e.op} ".join(inside(x) for x in a)
    if isinstance(e.value, tuple):
        over = ", ".join(f"{v.type.name} {v.value}" for v in e.value)
        return f"{_WORDS[e.op]}({over}: {spell(a[0], known)})"
    return f"Index({spell(a[0], known)})"


def spell_value(t: Type, value: int) -> str:
    """A value of a type as reports print it: ``true`` and ``false`` as in JSON, labels and numbers."""
    shown = t.shown(value)
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


__all__ = ["Env", "Evaluator", "Values", "spell", "spell_value"]
