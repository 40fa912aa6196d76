"""Which parts of a specification differ: lines of its files, and parts of the traced machine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from kvfence.checker.analysis.named_specs import Built
from kvfence.checker.analysis.review.facts import Difference, SourceLine
from kvfence.spec.language import Action, Expr, Function, Guard, Int, Machine, Property, Type
from kvfence.spec.language.evaluate import spell
from kvfence.spec.language.expr import apply

Form = tuple[object, ...]
_PLAIN = 160
"""Characters of an expression that a difference shows."""


def same(base: Machine, change: Machine) -> bool:
    """Whether two machines are equal but for names of bound variables, docstrings and places."""
    return _whole(base) == _whole(change)


def weaker_only(base: Machine, change: Machine) -> bool:
    """Whether every step of ``base`` is one of ``change`` with the same effect, as can be seen at once.

    So it is when the state is the same, every action assigns the same, and no guard of the change says more.
    """
    if _state(base) != _state(change):
        return False
    for name, action in base.actions.items():
        other = change.actions.get(name)
        if other is None or _parameters(action) != _parameters(other):
            return False
        if _assigned(action) != _assigned(other) or not _guards(other).keys() <= _guards(action).keys():
            return False
    return True


def restated(base: Machine, change: Machine) -> set[str]:
    """The invariants that the two machines state in different words: conditions or checks differ."""
    stated = _statements(base), _statements(change)
    return {id_ for id_ in {*stated[0], *stated[1]} if stated[0].get(id_) != stated[1].get(id_)}


def _statements(m: Machine) -> dict[str, set[Form]]:
    out: dict[str, set[Form]] = {}
    for p in m.invariants.values():
        out.setdefault(p.id, set()).add(form(p.expr))
    for a in m.actions.values():
        for c in a.checks:  # by their text, see _of_action
            out.setdefault(c.id, set()).add((a.name, c.text))
    return out


def parts(base: Machine, change: Machine) -> tuple[Difference, ...]:
    """What differs between the traced machines, part by part."""
    return tuple(_parts(base, change))


def _parts(base: Machine, change: Machine) -> Iterator[Difference]:
    yield from _named("sort", base.sorts, change.sorts, lambda s: f"default {s.default}")
    yield from _named("field", base.functions, change.functions, _field_text)
    for name in dict.fromkeys((*base.actions, *change.actions)):
        if name in base.actions and name in change.actions:
            yield from _of_action(name, base.actions[name], change.actions[name])
        else:
            own, others = ({name: m.actions[name]} if name in m.actions else {} for m in (base, change))
            yield from _only_one(f"action {name}", own, others, repr)
    yield from _named("invariant", base.invariants, change.invariants, _text, _property)
    yield from _named("goal", base.goals, change.goals, _text, _property)
    yield from _named("promise", base.liveness, change.liveness, _liveness_text)
    terminal = base.terminal_states, change.terminal_states
    if _property(terminal[0]) != _property(terminal[1]):
        yield Difference("terminal states", _text(terminal[0]), _text(terminal[1]))


def _of_action(name: str, one: Action, other: Action) -> Iterator[Difference]:
    if _parameters(one) != _parameters(other):
        yield Difference(f"parameters of {name}", repr(one), repr(other), other.where)
        return
    yield from _only_one(f"guard of {name}", _guards(one), _guards(other), lambda g: short(spell(g.expr)))
    updates = [{f.name: (f, e) for f, e in a.updates.items()} for a in (one, other)]
    for field in dict.fromkeys((*updates[0], *updates[1])):
        forms = [_assignment(*u[field]) if field in u else None for u in updates]
        if forms[0] != forms[1]:
            texts = [short(spell(u[field][1])) if field in u else "not assigned" for u in updates]
            yield Difference(f"{field} after {name}", texts[0], texts[1], other.where)
    # the form of a check changes with the assignments before it, so its text says which one it is
    checks = [{(c.id, c.text): c for c in a.checks} for a in (one, other)]
    yield from _only_one(f"check of {name}", checks[0], checks[1], lambda c: f"{c.id}: {c.text}")
    if one.fair != other.fair:
        yield Difference(f"fairness of {name}", str(one.fair), str(other.fair), other.where)


def _only_one(
    what: str, base: Mapping[Any, Any], change: Mapping[Any, Any], text: Callable[[Any], str]
) -> Iterator[Difference]:
    """The parts that only base or only change has, by their keys."""
    for part in (base[key] for key in base if key not in change):
        yield Difference(what, base=text(part), where=part.where)
    for part in (change[key] for key in change if key not in base):
        yield Difference(what, change=text(part), where=part.where)


def _named(
    what: str,
    base: Mapping[str, Any],
    change: Mapping[str, Any],
    text: Callable[[Any], str],
    form: Callable[[Any], object] | None = None,
) -> Iterator[Difference]:
    """The parts of one name that differ by ``form``, which is their text unless given."""
    for name in dict.fromkeys((*base, *change)):
        both = [side.get(name) for side in (base, change)]
        forms = [(form or text)(part) if part is not None else None for part in both]
        if forms[0] != forms[1]:
            old, new = (text(part) if part is not None else "" for part in both)
            yield Difference(f"{what} {name}", old, new, getattr(both[1] or both[0], "where", ""))


def short(text: str) -> str:
    """``text``, cut where it gets too long to be read."""
    return text if len(text) <= _PLAIN else f"{text[: _PLAIN - 1]}…"


def _field_text(f: Function) -> str:
    return f"{f!r}, at first {spell(f.init)}"


def _liveness_text(p: Any) -> str:
    return f"{spell(p.when) if p.when is not None else 'always'} leads to {spell(p.then)}"


def _text(p: Property | None) -> str:
    return "" if p is None else short(f"{p.id}: {spell(p.expr)}" if p.id else spell(p.expr))


# Forms: equal exactly when two expressions mean the same by construction, whatever machine they are of.


def form(e: Expr, known: Mapping[int, Form] | None = None) -> Form:
    """``e`` as nested tuples, without the identities of its machine.

    ``known`` has a form for each free variable; bound variables are numbered from the outside in.
    """
    return _form(e, dict(known or {}), 0, {})


def _form(e: Expr, env: dict[int, Form], depth: int, memo: dict[tuple[object, ...], Form]) -> Form:
    if e.op in ("param", "bound"):
        return env.get(e.uid) or (e.op, e.type.name, e.value)
    key = (e.uid, depth, *(env.get(v.uid) for v in e.free))
    if key not in memo:
        memo[key] = _built(e, env, depth, memo)
    return memo[key]


def _built(e: Expr, env: dict[int, Form], depth: int, memo: dict[tuple[object, ...], Form]) -> Form:
    value = e.value
    if isinstance(value, Function):
        label: object = value.name
    elif isinstance(value, tuple):
        env = {**env, **{v.uid: ("bound", depth + k, v.type.name) for k, v in enumerate(value)}}
        depth += len(value)
        label = tuple(v.type.name for v in value)
    else:
        label = _bound(value)
    args = [_form(a, env, depth, memo) for a in e.args]
    if e.op in ("and", "or", "eq"):
        args.sort(key=hash)
    return (e.op, _type(e.type), label, *args)


def _type(t: Type) -> object:
    labels = getattr(t, "labels", None)
    return (t.name, labels) if labels else "Int" if isinstance(t, Int) else t.name


def _range(t: Type) -> object:
    return ("Int", _bound(t.lo), _bound(t.hi)) if isinstance(t, Int) else _type(t)


def _bound(value: object) -> object:
    """What a bound is: one that depends on the sort sizes is a function, of some code and some values."""
    code = getattr(value, "__code__", None)
    if code is None:
        return value
    cells = tuple(str(c.cell_contents) for c in getattr(value, "__closure__", None) or ())
    given = (repr(getattr(value, "__defaults__", None)), repr(getattr(value, "__kwdefaults__", None)))
    known = getattr(value, "__globals__", {})
    globals_ = tuple(
        repr(known[name]) for name in code.co_names if isinstance(known.get(name), int | str | tuple)
    )
    return (code.co_code, code.co_consts, code.co_names, cells, given, globals_)


def _parameters(a: Action) -> tuple[object, ...]:
    return tuple((p.value, _range(p.type)) for p in a.params)


def _assignment(f: Function, e: Expr, known: Mapping[int, Form] | None = None) -> Form:
    return form(e, {**(known or {}), **{v.uid: ("index", k) for k, v in enumerate(f.formals)}})


def _assigned(a: Action) -> dict[str, Form]:
    known = _positions(a.params)
    kept = {f: e for f, e in a.updates.items() if e is not apply(f, f.formals)}
    return {f.name: _assignment(f, e, known) for f, e in kept.items()}


def _guards(a: Action) -> dict[Form, Guard]:
    known = _positions(a.params)
    out: dict[Form, Guard] = {}
    for g in a.guards:
        for e in g.expr.args if g.expr.op == "and" else (g.expr,):
            out.setdefault(form(e, known), Guard(e, g.where))
    return out


def _state(m: Machine) -> Form:
    sorts = tuple((s.name, s.default) for s in m.sorts.values())
    fields = tuple(
        (f.name, tuple(_range(t) for t in f.domain), _range(f.value), _assignment(f, f.init))
        for f in m.functions.values()
    )
    return (sorts, fields)


def _property(p: Property | None) -> Form:
    return () if p is None else (p.id, p.name, form(p.expr))


def _whole(m: Machine) -> Form:
    actions = []
    for name, a in m.actions.items():
        known = _positions(a.params)
        checks = tuple((c.id, form(c.expr, known)) for c in a.checks)
        guards, assigned = frozenset(_guards(a)), frozenset(_assigned(a).items())
        actions.append((name, _parameters(a), a.fair, guards, assigned, checks))
    liveness = []
    for p in m.liveness.values():
        known = _positions(p.params)
        when = None if p.when is None else form(p.when, known)
        liveness.append((p.id, p.name, when, form(p.then, known)))
    invariants = tuple(_property(p) for p in m.invariants.values())
    goals = tuple(_property(p) for p in m.goals.values())
    return (_state(m), tuple(actions), invariants, goals, tuple(liveness), _property(m.terminal_states))


def _positions(params: tuple[Expr, ...]) -> dict[int, Form]:
    return {p.uid: ("parameter", k) for k, p in enumerate(params)}


# Lines.


def lines(base: Built, change: Built) -> tuple[SourceLine, ...]:
    """Lines that only one side has, or that only one side's machine was built by."""
    pairs = _pairs(base, change)
    return tuple(line for one, other in pairs for line in _between(base, one, change, other))


def _pairs(base: Built, change: Built) -> Iterator[tuple[str, str]]:
    """Files of the two sides that stand for each other: of one name, maybe in another folder or revision."""
    left = list(change.sources)
    for one in base.sources:
        alike = [o for o in left if o == one] or [o for o in left if _file_name(o) == _file_name(one)]
        if not alike and len(base.sources) == len(change.sources) == 1:
            alike = left
        other = alike[0] if alike else ""
        left = [o for o in left if o != other]
        yield one, other
    yield from (("", other) for other in left)


def _file_name(shown: str) -> str:
    return PurePosixPath(shown.rpartition(":")[2]).name


def _between(base: Built, one: str, change: Built, other: str) -> Iterator[SourceLine]:
    ours, theirs = base.sources.get(one, []), change.sources.get(other, [])
    went, goes = base.lines.get(one, set()), change.lines.get(other, set())
    matcher = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False)
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag == "equal":
            for k in range(a_end - a):
                n, m = a + k + 1, b + k + 1
                if (n in went) != (m in goes) and ".faulty(" not in ours[n - 1]:
                    at_base = SourceLine("base", one, n, ours[n - 1])
                    yield at_base if n in went else SourceLine("change", other, m, theirs[m - 1])
        else:
            gone = (SourceLine("base", one, n, text) for n, text in enumerate(ours[a:a_end], a + 1))
            came = (SourceLine("change", other, n, text) for n, text in enumerate(theirs[b:b_end], b + 1))
            yield from (line for line in (*gone, *came) if line.text.strip())
