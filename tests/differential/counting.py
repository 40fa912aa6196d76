"""Draws machines whose conditions count elements, for what proofs of any size assume about counts.

A step changes the set that is counted at some named elements, or as a whole; a number beside it is kept up to
date, or is not. Drawn at random, conditions rarely count what a step has just changed.
"""

from __future__ import annotations

import random

from recipes import BOOL, FALSE, INT, TRUE, Action, Field, Node, Prop, Recipe, Stmt, T

S = T("sort", "S")
NUMBER = T("int", "", 0, ("S", 0))
WRONG = 0.15  # of the steps that leave the number as it was


def counting(rng: random.Random) -> Recipe:
    """A machine of one sort: the set ``held``, how many there are in ``n``, and what is said of them."""
    steps = [step for step in (_take, _give, _clear, _fill, _only, _exchange, _invert) if rng.random() < 0.5]
    actions = tuple(step(rng) for step in (_take, *(s for s in steps if s is not _take)))
    conditions = [
        _n().compared("eq", _count()),
        _count() <= rng.choice([0, 1, 2]),
        _count() <= _size(),
        (_count() + S.count("c", ~_held("c"))).compared("eq", _size()),
        Node("forall", BOOL, (Node("implies", BOOL, (_held("q"), _n() >= 1)),), (("q", S),)),
        Node("implies", BOOL, (_n().compared("eq", 0), _count().compared("eq", 0))),
        Node("implies", BOOL, (_count().compared("eq", _size()), _n().compared("eq", _size()))),
    ]
    chosen = [conditions[0]] if rng.random() < 0.6 else []
    chosen += rng.sample(conditions[1:], rng.choice([1, 1, 2]))
    sorts = (("S", rng.choice([1, 2, 2, 3])),)
    held = Field("held", (S,), BOOL, rng.choice([FALSE, FALSE, FALSE, TRUE]))
    fields = (held, Field("n", (), NUMBER, NUMBER.lit(0)))
    invariants = tuple(Prop("COUNT", f"inv{k}", e) for k, e in enumerate(chosen))
    return Recipe(sorts, (), fields, actions, terminal=TRUE, invariants=invariants)


def _held(x: str) -> Node:
    return Node("read", BOOL, (S.var(x),), "held")


def _n() -> Node:
    return Node("read", NUMBER, (), "n")


def _count() -> Node:
    return S.count("c", _held("c"))


def _size() -> Node:
    return S.count("c", TRUE)


def _action(
    rng: random.Random, name: str, params: str, guards: list[Node], number: Node | None, *rest: Stmt
) -> Action:
    """An action that says how many there are before it changes which; sometimes it forgets to."""
    counted = [Stmt("set", number, "n")] if number is not None and rng.random() >= WRONG else []
    required = (Stmt("require", g) for g in guards)
    return Action(name, None, tuple((p, S) for p in params), (*required, *counted, *rest))


def _put(x: str, e: Node) -> Stmt:
    return Stmt("set", e, "held", (S.var(x),))


def _whole(e: Node) -> Stmt:
    return Stmt("update", e, "held", (), ("q",))


def _take(rng: random.Random) -> Action:
    guards = [~_held("x")] if rng.random() < 0.9 else []
    return _action(rng, "take", "x", guards, _n() + 1, _put("x", TRUE))


def _give(rng: random.Random) -> Action:
    guards = [_held("x")] if rng.random() < 0.9 else []
    return _action(rng, "give", "x", guards, _n() - 1, _put("x", FALSE))


def _clear(rng: random.Random) -> Action:
    return _action(rng, "clear", "", [], INT.lit(0), _whole(FALSE))


def _fill(rng: random.Random) -> Action:
    return _action(rng, "fill", "", [], _size(), _whole(TRUE))


def _only(rng: random.Random) -> Action:
    """All but ``x`` are let go of."""
    here = S.var("q").compared("eq", S.var("x"))
    number = INT.ite(_held("x"), INT.lit(1), INT.lit(0))
    return _action(rng, "only", "x", [], number, _whole(Node("and", BOOL, (_held("q"), here))))


def _exchange(rng: random.Random) -> Action:
    """``x`` is given for ``y``: as many as before, if they differ as they should."""
    guards = [_held("x"), ~_held("y")]
    kept = guards[: rng.choice([1, 2, 2, 2])]
    return _action(rng, "exchange", "xy", kept, None, _put("x", FALSE), _put("y", TRUE))


def _invert(rng: random.Random) -> Action:
    return _action(rng, "invert", "", [], _size() - _n(), _whole(~_held("q")))
