"""The symbolic state an action, invariant or goal is traced with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvfence.spec.language import expr as ex
from kvfence.spec.language.errors import SpecError, close, fail, here
from kvfence.spec.language.intervals import ANY, Facts, depends_on_size, interval, learn
from kvfence.spec.language.types import Int, Type, kind, same_kind

if TYPE_CHECKING:
    from kvfence.spec.language.machine import Function, Machine

Value = ex.Expr | bool | int
Indices = ex.Expr | bool | int | tuple[ex.Expr | bool | int, ...]

RESERVED = {"require", "check"}
OWN_IDS = ("LEMMA", "PREMISE", "DEADLOCK", "RANGE")  # of conditions that no machine declares under an id


def check_id(id_: str) -> None:
    """SpecError for an id that only kvfence itself gives."""
    if id_ in OWN_IDS:
        raise fail(f"the id {id_} is kvfence's own; give one of the catalogue, or another of yours")


class Guard:
    """One conjunct of an action's guard, over the state before the step."""

    def __init__(self, expr: ex.Expr, where: str) -> None:
        self.expr, self.where = expr, where


class Check:
    """An assertion of a step: whenever the action is taken, ``expr`` must hold.

    ``expr`` is over the state before the step; assignments made earlier in the action are folded in.
    """

    def __init__(self, name: str, id_: str, expr: ex.Expr, text: str, where: str) -> None:
        self.name, self.id, self.expr, self.text, self.where = name, id_, expr, text, where


class LateIndex:
    """An Int index whose bounds depend on the sort sizes: grounding decides whether it fits."""

    def __init__(self, function: Function, position: int, expr: ex.Expr, where: str) -> None:
        self.function, self.position, self.expr, self.where = function, position, expr, where


def misfit(
    function: Function, position: int, index: str, reach: str, domain: str, *, where: str | None = None
) -> SpecError:
    """The error for an Int index that may lie outside the function's domain."""
    return fail(
        f"index {index} (number {position + 1}) of {function.name} may be {reach}, outside {domain}; "
        f"require it to fit, or read s.{function.name}.get(i, default)",
        where,
    )


class State:
    """Reads and, in an action, writes the functions of the machine: ``s.ref[b] = s.ref[b] + 1``.

    Assignments take effect in order. Guards read the state before the step and so come first.

    >>> machine = Machine("blocks")
    >>> held = machine.relation("held", machine.sort("Block"))
    >>> @machine.action(b=machine.sorts["Block"])
    ... def take(s: State, b: Elem) -> None:
    ...     s.require(Not(s.held[b]))
    ...     s.held[b] = True
    >>> machine.actions["take"].updates[held]
    If((i0 == b), True, s.held[i0])
    """

    def __init__(
        self, machine: Machine, reader: str, action: str | None = None, params: tuple[ex.Expr, ...] = ()
    ) -> None:
        # Attributes are fields of the machine, so the state's own are set beside them.
        vars(self).update(_machine=machine, _reader=reader, _action=action, _params=params)
        vars(self).update(_now={}, _guards=[], _checks=[], _facts={}, _late=[])

    _machine: Machine
    _reader: str
    _action: str | None
    _params: tuple[ex.Expr, ...]
    _now: dict[Function, ex.Expr]  # next value over the function's formal indices
    _guards: list[Guard]
    _checks: list[Check]
    _facts: Facts
    _late: list[LateIndex]

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self._function(name)
        if not function.domain:
            return self._read(function, ())  # type: ignore[return-value]  # a plain variable is an Expr
        return _field(self, function)

    def __setattr__(self, name: str, value: Value) -> None:
        function = self._function(name)
        if function.domain:
            raise fail(f"{name} is indexed; assign s.{name}[…] or use s.{name}.update(lambda …)")
        self._write(function, (), value)

    def require(self, *conditions: ex.Expr | bool) -> None:
        """Conjuncts of the action's guard. SpecError after an assignment, or outside an action."""
        if self._action is None:
            raise fail(f"{self._reader} only reads the state; require belongs in an action")
        if self._now:
            raise fail(
                "require after an assignment; guards read the state before the step, so put them first"
            )
        where = here()
        for c in conditions:
            e = self._closed(ex.lift_bool(c, "require"))
            self._guards.append(Guard(e, where))
            learn(e, True, self._facts)

    def check(self, id_: str, condition: ex.Expr | bool, text: str = "") -> None:
        """Assert ``condition`` whenever the step is taken, under the id of an invariant of the catalogue."""
        if self._action is None:
            raise fail(f"{self._reader} only reads the state; check belongs in an action")
        if not isinstance(id_, str) or not id_:
            raise fail('a check needs the id of an invariant first: s.check("PIN", condition, "text")')
        check_id(id_)
        e = self._closed(ex.lift_bool(condition, "check"))
        name = f"{self._action}.{id_}"
        same = sum(c.name == name or c.name.startswith(name + "#") for c in self._checks)
        name = f"{name}#{same + 1}" if same else name
        self._checks.append(Check(name, id_, e, text or ex.show(e), here()))

    def _function(self, name: str) -> Function:
        function = self._machine.functions.get(name)
        if function is None:
            raise fail(
                f"machine {self._machine.name} has no field {name}; {close(name, self._machine.functions)}"
            )
        return function

    def _closed(self, e: ex.Expr, *also: ex.Expr) -> ex.Expr:
        allowed = {v.uid for v in (*self._params, *also)}
        for v in e.free:
            if v.uid not in allowed:
                where = "its quantifier" if v.op == "bound" else "its action"
                raise fail(
                    f"variable {v.value} is used outside {where}; use it inside the function it is given to"
                )
        return e

    def _indices(self, function: Function, given: Indices, guarded: bool = False) -> tuple[ex.Expr, ...]:
        raw = given if isinstance(given, tuple) else (given,)
        n = len(function.domain)
        if len(raw) != n:
            domain = ", ".join(t.name for t in function.domain)
            raise fail(
                f"{function.name} takes {n} {'index' if n == 1 else 'indices'} ({domain}), not {len(raw)}"
            )
        out = []
        for k, (x, t) in enumerate(zip(raw, function.domain, strict=True)):
            e = ex.lift(x)
            if not same_kind(e.type, t):
                raise fail(
                    f"index {k + 1} of {function.name} is a {kind(t)}; {ex.show(e)} is of type {kind(e.type)}"
                )
            if isinstance(t, Int) and not guarded:
                self._fits(function, k, e, t)
            out.append(e)
        return tuple(out)

    def _fits(self, function: Function, k: int, e: ex.Expr, domain: Int) -> None:
        lo, hi = interval(e, self._facts)
        if domain.literal is not None and domain.literal[0] <= lo and hi <= domain.literal[1]:
            return
        if domain.literal is None or depends_on_size(e):
            self._late.append(LateIndex(function, k, e, here()))
        else:
            raise misfit(
                function, k, ex.show(e), "any integer" if (lo, hi) == ANY else f"{lo} to {hi}", domain.name
            )

    def _read(self, function: Function, indices: tuple[ex.Expr, ...]) -> ex.Expr:
        now = self._now.get(function)
        if now is None:
            return ex.apply(function, indices)
        return ex.substitute(now, {f.uid: i for f, i in zip(function.formals, indices, strict=True)})

    def _write(self, function: Function, indices: tuple[ex.Expr, ...], value: Value) -> None:
        e = self._writable(function, value)
        self._closed(e)
        for i in indices:
            self._closed(i)
        here_only = ex.And(*(ex.equal(f, i) for f, i in zip(function.formals, indices, strict=True)))
        self._now[function] = ex.If(
            here_only, e, self._now.get(function, ex.apply(function, function.formals))
        )

    def _writable(self, function: Function, value: object) -> ex.Expr:
        if self._action is None:
            raise fail(f"{self._reader} only reads the state; assign {function.name} in an action")
        e = ex.lift(value)
        if not same_kind(e.type, function.value):
            raise fail(
                f"{function.name} holds {kind(function.value)}, and {ex.show(e)} is of type {kind(e.type)}"
            )
        return e


class Field(ex.Expr):
    """A function of the state: read ``s.f[i]``, assign ``s.f[i] = v``."""

    __slots__ = ("_function", "_state")

    _function: Function
    _state: State

    def __getitem__(self, indices: Indices) -> ex.Expr:
        checked = self._state._indices(self._function, indices)
        return self._state._read(self._function, checked)

    def __setitem__(self, indices: Indices, value: Value) -> None:
        checked = self._state._indices(self._function, indices)
        self._state._write(self._function, checked, value)

    def get(self, indices: Indices, default: Value) -> ex.Expr:
        """The value at ``indices``, or ``default`` where an Int index lies outside the function's domain."""
        f = self._function
        checked = self._state._indices(f, indices, guarded=True)
        inside = [e for i, t in zip(checked, f.domain, strict=True) for e in within(i, t)]
        return ex.If(ex.And(*inside), self._state._read(f, checked), default)

    def update(self, body: Callable[..., Value]) -> None:
        """Assign the whole function: ``body`` gives the value at each index, reading the current ones."""
        f, state = self._function, self._state
        e = state._writable(f, body(*f.formals))
        state._now[f] = state._closed(e, *f.formals)

    def __contains__(self, item: object) -> bool:
        raise fail(
            f"Python's in does not work on {self._function.name}; index it: s.{self._function.name}[…]"
        )

    def __iter__(self) -> None:
        raise fail(f"{self._function.name} cannot be iterated; quantify: ForAll, Exists, Count or update")


def _field(state: State, function: Function) -> Field:
    field: Field = object.__new__(Field)
    field.op, field.type, field.args, field.value, field.free = "field", function.value, (), function.name, ()
    field._state, field._function = state, function
    return field


def within(e: ex.Expr, t: Type) -> list[ex.Expr]:
    """Conditions under which the Int ``e`` is a value of ``t``; none for other types."""
    if not isinstance(t, Int) or t.lo is None or t.hi is None:
        return []
    return [ex.limit(t.lo) <= e, e <= ex.limit(t.hi)]
