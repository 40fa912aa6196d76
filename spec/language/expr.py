"""Expressions: a graph in which equal expressions are one node.

A node is immutable and carries its type and its free variables. ``op`` is one of

===========  =======================  ==========================================
op           args                     value
===========  =======================  ==========================================
const                                 the integer (labels and truth values too)
param                                 name of an action's parameter
bound                                 name of a quantified or formal variable
apply        indices                  the ``Function`` read
forall       body                     tuple of bound variables
exists       body                     tuple of bound variables
count        body                     tuple of bound variables
ite          condition, then, else
and          two or more
or           two or more              how many of the first were written as a premise, or none
not          one
eq, lt, le   left, right
add, sub     left, right
index        an element               its number (finite engines only)
limit                                 a bound that is a function of the sort sizes
===========  =======================  ==========================================
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvfence.spec.language.errors import fail
from kvfence.spec.language.sizes import Sizes, place_of
from kvfence.spec.language.types import INTEGER, Bool, Enum, Int, Sort, Type, check_number, kind, same_kind

if TYPE_CHECKING:
    from kvfence.spec.language.machine import Function

_serial = itertools.count()
# Nodes are values: sharing them between machines cannot make one machine affect another.
_pool: weakref.WeakValueDictionary[tuple[object, ...], Expr] = weakref.WeakValueDictionary()


class Expr:
    """A typed symbolic value. Build with operators and the functions of this module.

    >>> Exists(Int(0, 3), lambda i: (i + 1 <= 2) & ~(i == 0))
    Exists(Int(0, 3), lambda i: And(((i + 1) <= 2), (i != 0)))
    """

    __slots__ = ("__weakref__", "args", "free", "op", "type", "uid", "value")

    uid: int
    op: str
    type: Type
    args: tuple[Expr, ...]
    value: object
    free: tuple[Expr, ...]  # free parameters and bound variables, oldest first

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return equal(self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return Not(equal(self, other))

    def __lt__(self, other: Expr | int) -> Expr:
        return _order("lt", self, other, "<")

    def __le__(self, other: Expr | int) -> Expr:
        return _order("le", self, other, "<=")

    def __gt__(self, other: Expr | int) -> Expr:
        return _order("lt", other, self, ">")

    def __ge__(self, other: Expr | int) -> Expr:
        return _order("le", other, self, ">=")

    def __add__(self, other: Expr | int) -> Expr:
        return _arith("add", self, other, "+")

    def __radd__(self, other: int) -> Expr:
        return _arith("add", other, self, "+")

    def __sub__(self, other: Expr | int) -> Expr:
        return _arith("sub", self, other, "-")

    def __rsub__(self, other: int) -> Expr:
        return _arith("sub", other, self, "-")

    def __and__(self, other: Expr | bool) -> Expr:
        return And(self, other)

    def __rand__(self, other: bool) -> Expr:
        return And(other, self)

    def __or__(self, other: Expr | bool) -> Expr:
        return Or(self, other)

    def __ror__(self, other: bool) -> Expr:
        return Or(other, self)

    def __invert__(self) -> Expr:
        return Not(self)

    def __hash__(self) -> int:
        if self.op == "const" and isinstance(self.type, Enum):
            return hash(self.uid)  # equal labels are one node
        raise fail(
            f"{show(self)} is symbolic, so sets and dicts cannot look it up; write IsIn, or If for each case"
        )

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self  # equal expressions are one node

    def __neg__(self) -> Expr:
        return constant(INTEGER, 0) - self

    def __pos__(self) -> Expr:
        return _lift_int(self, "+")

    def __str__(self) -> str:
        if self.op == "const":
            return show(self)
        raise fail(
            f"{show(self)} is symbolic, so its value has no text; compare it, or write {{x!r}} in a message"
        )

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __bool__(self) -> bool:
        raise fail(
            "a symbolic value has no truth value yet, so Python's if, and, or, not, in and a < b < c cannot "
            "use it; write If, &, |, ~, IsIn, or two comparisons joined by &"
        )

    def __repr__(self) -> str:
        return show(self)


_WAYS = {
    "int index float complex round trunc floor ceil": "it has no number yet; use it as it is, or compare it",
    "len iter reversed contains": "it has no elements; quantify: ForAll, Exists or Count",
    "getitem setitem delitem": "it is no function of the state, so it has no index",
    "mul rmul": "numbers are only added and subtracted; add it to itself, or use If",
    "truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow abs matmul rmatmul": (
        "numbers are only added, subtracted and compared; use If"
    ),
    "lshift rlshift rshift rrshift xor rxor": "write &, |, ~ and != for truth values",
}


def _refuse(name: str, way: str) -> Callable[..., None]:
    def refuse(self: Expr, *_: object) -> None:
        raise fail(f"Python's {name} does not work on the symbolic {show(self)}: {way}")

    return refuse


for _names, _way in _WAYS.items():
    for _name in _names.split():
        setattr(Expr, f"__{_name}__", _refuse(_name, _way))


class Elem(Expr):
    """An element of a sort: a parameter or a quantified variable. Only ``==`` and ``!=`` apply.

    >>> Block = Machine("doc").sort("Block")
    >>> Exists(Block, Block, lambda a, b: a != b)
    Exists(Block, Block, lambda a, b: (a != b))
    """

    __slots__ = ()


def make(op: str, type_: Type, args: tuple[Expr, ...] = (), value: object = None) -> Expr:
    """The one node with these contents, built without simplification."""
    label: object = value if isinstance(value, int) or value is None else id(value)
    if isinstance(value, tuple):
        label = tuple(v.uid for v in value)
    key = (op, id(type_), label, *[a.uid for a in args])
    node = _pool.get(key)
    if node is None:
        node = _fresh(op, type_, args, value)
        _pool[key] = node
    return node


def variable(op: str, type_: Type, name: str) -> Expr:
    """A new ``param`` or ``bound`` variable, different from every other."""
    node = _fresh(op, type_, (), name, Elem if isinstance(type_, Sort) else Expr)
    node.free = (node,)
    return node


def _fresh(op: str, type_: Type, args: tuple[Expr, ...], value: object, cls: type[Expr] = Expr) -> Expr:
    node = object.__new__(cls)
    node.uid, node.op, node.type, node.args, node.value = next(_serial), op, type_, args, value
    free = {v.uid: v for a in args for v in a.free}
    if op in ("forall", "exists", "count") and isinstance(value, tuple):
        for v in value:
            free.pop(v.uid, None)
    node.free = tuple(free[u] for u in sorted(free))
    return node


def constant(type_: Type, value: int) -> Expr:
    """A constant of a type, given as the integer that stands for it."""
    return make("const", type_, (), int(value))


TRUE, FALSE = constant(Bool, 1), constant(Bool, 0)


def lift(x: object) -> Expr:
    """``x`` as an expression: expressions, truth values and integers are; SpecError for anything else."""
    if isinstance(x, Expr):
        if x.op == "field":
            raise fail(f"{x.value} is a whole function here; give its indices: s.{x.value}[…]")
        return x
    if isinstance(x, bool):
        return TRUE if x else FALSE
    if isinstance(x, int):
        check_number(x)
        return constant(INTEGER, x)
    if isinstance(x, str):
        raise fail(f"the text {x!r} is not a value; write the label as a constant, such as Phase.{x}")
    raise fail(f"{x!r} is not a value of the language; use an expression, True, False or an integer")


def lift_bool(x: object, what: str) -> Expr:
    """``x`` as a Bool expression; ``what`` names its use in the error."""
    e = lift(x)
    if e.type is not Bool:
        raise fail(f"{what} takes a Bool, not {kind(e.type)} ({show(e)}); compare it with something")
    return e


def _lift_int(x: object, what: str) -> Expr:
    e = lift(x)
    if not isinstance(e.type, Int):
        way = "use Index(x) for its number" if isinstance(e.type, Sort) else "use If(x, 1, 0) or Count"
        raise fail(f"{what} takes an Int, not {kind(e.type)} ({show(e)}); {way}")
    return e


def equal(a: object, b: object) -> Expr:
    """``a == b`` for two values of one type."""
    x, y = lift(a), lift(b)
    if not same_kind(x.type, y.type):
        raise fail(f"{show(x)} is of type {kind(x.type)} and {show(y)} of type {kind(y.type)}; give both one")
    if x is y:
        return TRUE
    if x.op == "const" and y.op == "const":
        return FALSE
    if x.type is Bool:
        for p, q in ((x, y), (y, x)):
            if p.op == "const":
                return q if p is TRUE else Not(q)
    swap = x.op == "const" or (y.op != "const" and x.uid > y.uid)
    return make("eq", Bool, (y, x) if swap else (x, y))


def _order(op: str, a: object, b: object, sign: str) -> Expr:
    x, y = _lift_int(a, sign), _lift_int(b, sign)
    if isinstance(x.value, int) and isinstance(y.value, int):
        return TRUE if (x.value < y.value if op == "lt" else x.value <= y.value) else FALSE
    if x is y:
        return FALSE if op == "lt" else TRUE
    return make(op, Bool, (x, y))


def _arith(op: str, a: object, b: object, sign: str) -> Expr:
    x, y = _lift_int(a, sign), _lift_int(b, sign)
    if isinstance(x.value, int) and isinstance(y.value, int):
        return constant(INTEGER, x.value + y.value if op == "add" else x.value - y.value)
    if y.value == 0 and y.op == "const":
        return x
    if op == "add" and x.value == 0 and x.op == "const":
        return y
    return make(op, INTEGER, (x, y))


def _junction(op: str, xs: Sequence[object], unit: Expr, zero: Expr) -> Expr:
    distinct: dict[int, Expr] = {}
    for x in xs:
        e = lift_bool(x, "And" if op == "and" else "Or")
        for part in e.args if e.op == op else (e,):
            if part is zero:
                return zero
            if part is not unit:
                distinct[part.uid] = part
    parts = tuple(distinct.values())
    if len(parts) < 2:
        return parts[0] if parts else unit
    return make(op, Bool, parts)


def And(*xs: Expr | bool) -> Expr:  # noqa: N802
    """True when all are; ``And()`` is true.

    >>> And(True, False)
    False
    >>> ForAll(Int(0, 3), lambda i: And(i > 0, i < 3))
    ForAll(Int(0, 3), lambda i: And((0 < i), (i < 3)))
    """
    return _junction("and", xs, TRUE, FALSE)


def Or(*xs: Expr | bool) -> Expr:  # noqa: N802
    """True when one is; ``Or()`` is false.

    >>> Or(False, True)
    True
    """
    return _junction("or", xs, FALSE, TRUE)


def Not(x: Expr | bool) -> Expr:  # noqa: N802
    """Negation.

    >>> Not(True)
    False
    >>> Exists(Int(0, 3), lambda i: Not(i == 2))
    Exists(Int(0, 3), lambda i: (i != 2))
    """
    e = lift_bool(x, "Not")
    if e.op == "const":
        return FALSE if e is TRUE else TRUE
    return e.args[0] if e.op == "not" else make("not", Bool, (e,))


def Implies(a: Expr | bool, b: Expr | bool) -> Expr:  # noqa: N802
    """If ``a`` then ``b``: ``Or(Not(a), b)``, which remembers that ``a`` is the premise.

    >>> Implies(True, False)
    False
    >>> ForAll(Int(0, 3), lambda i: Implies(i < 2, i < 3))
    ForAll(Int(0, 3), lambda i: Or(~(i < 2), (i < 3)))
    """
    unmet, then = Not(a), lift_bool(b, "Implies")
    e = Or(unmet, then)
    if e.op != "or" or e is unmet or e is then:
        return e
    premise = list(unmet.args if unmet.op == "or" else (unmet,))
    if then.op == "or" and isinstance(then.value, int):  # a implies that b implies c: of both together
        premise += then.args[: then.value]
    count = len({p.uid for p in premise})
    return make("or", Bool, e.args, count) if count < len(e.args) else e


def Iff(a: Expr | bool, b: Expr | bool) -> Expr:  # noqa: N802
    """Both or neither.

    >>> Iff(True, True)
    True
    """
    return equal(lift_bool(a, "Iff"), lift_bool(b, "Iff"))


def If(condition: Expr | bool, then: Expr | bool | int, otherwise: Expr | bool | int) -> Expr:  # noqa: N802
    """``then`` where the condition holds, else ``otherwise``; both of one type.

    >>> If(True, 1, 2)
    1
    >>> ForAll(Int(0, 3), lambda i: If(i < 2, i + 2, i) >= 2)
    ForAll(Int(0, 3), lambda i: (2 <= If((i < 2), (i + 2), i)))
    """
    c, a, b = lift_bool(condition, "If"), lift(then), lift(otherwise)
    if not same_kind(a.type, b.type):
        raise fail(f"the two arms of If are of types {kind(a.type)} and {kind(b.type)}; give both one type")
    if c.op == "const":
        return a if c is TRUE else b
    if a is b:
        return a
    if a is TRUE and b is FALSE:
        return c
    if a is FALSE and b is TRUE:
        return Not(c)
    return make("ite", a.type if a.type is b.type else INTEGER, (c, a, b))


def IsIn(e: Expr, *values: Expr | bool | int) -> Expr:  # noqa: N802
    """Whether ``e`` equals one of the values.

    >>> Phase = Enum("Phase", "waiting running done")
    >>> IsIn(Phase.done, Phase.running, Phase.done)
    True
    """
    return Or(*(equal(e, v) for v in values))


def Index(element: Expr) -> Expr:  # noqa: N802
    """The number of an element of a sort, from 0. Finite engines only: it breaks the symmetry of the sort.

    >>> Block = Machine("doc").sort("Block")
    >>> ForAll(Block, lambda b: Index(b) < 2)
    ForAll(Block, lambda b: (Index(b) < 2))
    """
    e = lift(element)
    if not isinstance(e.type, Sort):
        raise fail(f"Index takes an element of a sort, not {kind(e.type)}; an Int needs no Index")
    return make("index", INTEGER, (e,))


def limit(bound: int | Callable[[Sizes], int]) -> Expr:
    """A bound of an Int as an expression."""
    return constant(INTEGER, bound) if isinstance(bound, int) else make("limit", INTEGER, (), bound)


def ForAll(*domains_and_body: Type | Callable[..., Expr | bool]) -> Expr:  # noqa: N802
    """``ForAll(Block, lambda b: …)``: true when the body is for every element; several sorts may be given.

    >>> Block = Machine("doc").sort("Block")
    >>> ForAll(Block, Block, lambda a, b: a == b)
    ForAll(Block, Block, lambda a, b: (a == b))
    """
    variables, body = _quantified("ForAll", domains_and_body)
    return body if body.op == "const" else make("forall", Bool, (body,), variables)


def Exists(*domains_and_body: Type | Callable[..., Expr | bool]) -> Expr:  # noqa: N802
    """``Exists(Block, lambda b: …)``: true when the body is for some element (sorts are never empty).

    >>> Exists(Int(0, 3), lambda i: i + i == 4)
    Exists(Int(0, 3), lambda i: ((i + i) == 4))
    """
    variables, body = _quantified("Exists", domains_and_body)
    return body if body.op == "const" else make("exists", Bool, (body,), variables)


def Count(*domains_and_body: Type | Callable[..., Expr | bool]) -> Expr:  # noqa: N802
    """``Count(Block, lambda b: …)``: how many elements, or tuples of them, make the body true.

    >>> Count(Int(0, 3), lambda i: i < 2) == 2
    (Count(Int(0, 3), lambda i: (i < 2)) == 2)
    """
    variables, body = _quantified("Count", domains_and_body)
    return constant(INTEGER, 0) if body is FALSE else make("count", INTEGER, (body,), variables)


def _quantified(what: str, given: Sequence[object]) -> tuple[tuple[Expr, ...], Expr]:
    *domains, body = given
    types = [d for d in domains if isinstance(d, Type) and not (isinstance(d, Int) and not d.bounded)]
    if not domains or len(types) != len(domains) or isinstance(body, Type) or not callable(body):
        raise fail(f"{what} takes finite sorts and then a function: {what}(Block, lambda b: …)")
    names = list(inspect.signature(body).parameters)
    if len(names) != len(types):
        raise fail(f"{what} over {len(types)} sorts needs a function of {len(types)}, not {len(names)}")
    variables = tuple(variable("bound", t, n) for t, n in zip(types, names, strict=True))
    return variables, lift_bool(body(*variables), what)


def substitute(e: Expr, by: dict[int, Expr]) -> Expr:
    """``e`` with free variables replaced (keys are the variables' ``uid``), simplified on the way."""
    memo: dict[int, Expr] = {}

    def go(x: Expr) -> Expr:
        if not any(v.uid in by for v in x.free):
            return x
        if x.uid in by:
            return by[x.uid]
        done = memo.get(x.uid)
        if done is None:
            done = memo[x.uid] = rebuilt(x, tuple(go(a) for a in x.args))
        return done

    return go(e)


def rebuilt(x: Expr, args: tuple[Expr, ...]) -> Expr:
    """``x`` with other arguments, simplified."""
    build: dict[str, Callable[..., Expr]] = {"and": And, "or": Or, "not": Not, "eq": equal, "ite": If}
    if x.op in build:
        return build[x.op](*args)
    if x.op in ("lt", "le"):
        return _order(x.op, args[0], args[1], x.op)
    if x.op in ("add", "sub"):
        return _arith(x.op, args[0], args[1], x.op)
    if x.op in ("forall", "exists") and args[0].op == "const":
        return args[0]
    return make(x.op, x.type, args, x.value)


def apply(function: Function, indices: tuple[Expr, ...]) -> Expr:
    """The value of a function of the state at ``indices``, before the step."""
    return make("apply", function.value, indices, function)


_SIGNS = {"eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
_WORDS = {
    "forall": "ForAll",
    "exists": "Exists",
    "count": "Count",
    "and": "And",
    "or": "Or",
    "index": "Index",
}


def show(e: Expr) -> str:
    """The expression as text, in the notation of a machine file."""
    a = [show(x) for x in e.args]
    if e.op == "const":
        assert isinstance(e.value, int)
        return (
            f"{e.type.name}.{e.type.shown(e.value)}"
            if isinstance(e.type, Enum)
            else str(e.type.shown(e.value))
        )
    if e.op in ("param", "bound", "field"):
        return str(e.value)
    if e.op == "limit":
        return f"the limit of {place_of(e.value)}" if callable(e.value) else "limit"
    if e.op == "apply":
        name = getattr(e.value, "name", "?")
        return f"s.{name}[{', '.join(a)}]" if a else f"s.{name}"
    if e.op in _SIGNS:
        return f"({a[0]} {_SIGNS[e.op]} {a[1]})"
    if e.op == "not":
        return f"({e.args[0].args[0]!r} != {e.args[0].args[1]!r})" if e.args[0].op == "eq" else f"~{a[0]}"
    if e.op == "ite":
        return f"If({', '.join(a)})"
    if isinstance(e.value, tuple):
        names = ", ".join(str(v.value) for v in e.value)
        return f"{_WORDS[e.op]}({', '.join(v.type.name for v in e.value)}, lambda {names}: {a[0]})"
    return f"{_WORDS[e.op]}({', '.join(a)})"
