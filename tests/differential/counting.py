"""Draws machines whose conditions count elements, for what proofs of any size are told about counts.

A step changes the set that is counted at some named elements, or as a whole; a number beside it is kept up to
date, or is not. Drawn at random, conditions rarely count what a step has just changed.
"""

from __future__ import annotations

import random

from recipes import BOOL, FALSE, INT, TRUE, Action, Field, Node, Prop, Recipe, Stmt, T, lit

S = T("sort", "S")
NUMBER = T("int", "", 0, ("S", 0))
WRONG = 0.15  # of the steps that leave the number as it was


def counting(rng: random.Random) -> Recipe:
    """A machine of one sort: the set ``held``, how many there are in ``n``, and what is said of them."""
    steps = [step for step in (_take, _give, _clear, _fill, _only, _exchange, _invert) if rng.random() < 0.5]
    actions = tuple(step(rng) for step in (_take, *(s for s in steps if s is not _take)))
    conditions = [
        Node("eq", BOOL, (_n(), _count())),
        Node("le", BOOL, (_count(), lit(INT, rng.choice([0, 1, 2])))),
        Node("le", BOOL, (_count(), _size())),
        Node("eq", BOOL, (Node("add", INT, (_count(), _count(free=True))), _size())),
        Node("forall", BOOL, (_implies(_held("q"), Node("ge", BOOL, (_n(), lit(INT, 1)))),), (("q", S),)),
        _implies(Node("eq", BOOL, (_n(), lit(INT, 0))), Node("eq", BOOL, (_count(), lit(INT, 0)))),
        _implies(Node("eq", BOOL, (_count(), _size())), Node("eq", BOOL, (_n(), _size()))),
    ]
    chosen = [conditions[0]] if rng.random() < 0.6 else []
    chosen += rng.sample(conditions[1:], rng.choice([1, 1, 2]))
    return Recipe(
        (("S", rng.choice([1, 2, 2, 3])),),
        (),
        (
            Field("held", (S,), BOOL, rng.choice([FALSE, FALSE, FALSE, TRUE])),
            Field("n", (), NUMBER, lit(NUMBER, 0)),
        ),
        actions,
        terminal=TRUE,
        invariants=tuple(Prop("COUNT", f"inv{k}", e) for k, e in enumerate(chosen)),
    )


def _held(x: str) -> Node:
    return Node("read", BOOL, (Node("var", S, (), x),), "held")


def _n() -> Node:
    return Node("read", NUMBER, (), "n")


def _count(free: bool = False) -> Node:
    return Node("count", INT, (Node("not", BOOL, (_held("c"),)) if free else _held("c"),), (("c", S),))


def _size() -> Node:
    return Node("count", INT, (TRUE,), (("c", S),))


def _implies(a: Node, b: Node) -> Node:
    return Node("implies", BOOL, (a, b))


def _action(
    rng: random.Random, name: str, params: str, guards: list[Node], number: Node | None, *rest: Stmt
) -> Action:
    """An action that says how many there are before it changes which; sometimes it forgets to."""
    told = [Stmt("set", number, "n")] if number is not None and rng.random() >= WRONG else []
    return Action(
        name, None, tuple((p, S) for p in params), (*(Stmt("require", g) for g in guards), *told, *rest)
    )


def _put(x: str, e: Node) -> Stmt:
    return Stmt("set", e, "held", (Node("var", S, (), x),))


def _whole(e: Node) -> Stmt:
    return Stmt("update", e, "held", (), ("q",))


def _take(rng: random.Random) -> Action:
    guards = [Node("not", BOOL, (_held("x"),))] if rng.random() < 0.9 else []
    return _action(rng, "take", "x", guards, Node("add", INT, (_n(), lit(INT, 1))), _put("x", TRUE))


def _give(rng: random.Random) -> Action:
    guards = [_held("x")] if rng.random() < 0.9 else []
    return _action(rng, "give", "x", guards, Node("sub", INT, (_n(), lit(INT, 1))), _put("x", FALSE))


def _clear(rng: random.Random) -> Action:
    return _action(rng, "clear", "", [], lit(INT, 0), _whole(FALSE))


def _fill(rng: random.Random) -> Action:
    return _action(rng, "fill", "", [], _size(), _whole(TRUE))


def _only(rng: random.Random) -> Action:
    """All but ``x`` are let go of."""
    here = Node("eq", BOOL, (Node("var", S, (), "q"), Node("var", S, (), "x")))
    number = Node("if", INT, (_held("x"), lit(INT, 1), lit(INT, 0)))
    return _action(rng, "only", "x", [], number, _whole(Node("and", BOOL, (_held("q"), here))))


def _exchange(rng: random.Random) -> Action:
    """``x`` is given for ``y``: as many as before, if they differ as they should."""
    guards = [_held("x"), Node("not", BOOL, (_held("y"),))]
    return _action(
        rng, "exchange", "xy", guards[: rng.choice([1, 2, 2, 2])], None, _put("x", FALSE), _put("y", TRUE)
    )


def _invert(rng: random.Random) -> Action:
    number = Node("sub", INT, (_size(), _n()))
    return _action(rng, "invert", "", [], number, _whole(Node("not", BOOL, (_held("q"),))))
