"""Machines of every shape, and what two engines must agree on: for the tests of all explorers."""

from __future__ import annotations

import random

import kvlife

from kvfence.checker.engines import Result
from kvfence.spec.language import Bool, Enum, Int, Machine, State
from kvfence.spec.language.expr import And, Count, Exists, Expr, ForAll, If, Implies, Index, IsIn, Or

Colour = Enum("Colour", "red green blue")


def plain(r: Result) -> dict[str, object]:
    """Everything in a result that does not depend on the clock."""
    return {**r.to_dict(), "seconds": 0}


def facts(r: Result) -> dict[str, object]:
    """What two engines must agree on; paths may differ, their lengths may not."""
    return {
        "states": r.states,
        "transitions": r.transitions,
        "depth": r.depth,
        "coverage": r.coverage,
        "goals": r.goals,
        "witnesses": {name: len(p) for name, p in r.witnesses.items()},
        "findings": {f.name: (f.id, f.verdict, f.path and len(f.path)) for f in r.findings.values()},
        "deadlock": r.deadlock and len(r.deadlock),
        "stopped": r.stopped,
        "verdict": r.verdict,
    }


def tokens(places: int) -> Machine:
    """Two tokens that walk a ring in either direction; one bit for each place and token."""
    m = Machine("tokens")
    token = m.sort("Token", default=2)
    m.relation("at", token, Int(0, places - 1), init=lambda _, p: p == 0)
    m.relation("met", init=False)

    @m.action(t=token, p=Int(0, places - 1))
    def forward(s: State, t: Expr, p: Expr) -> None:
        s.require(s.at[t, p])
        s.at[t, p] = False
        s.at[t, If(p == places - 1, 0, p + 1)] = True

    @m.action(t=token, u=token, p=Int(0, places - 1))
    def meet(s: State, t: Expr, u: Expr, p: Expr) -> None:
        s.require(t != u, s.at[t, p], s.at[u, p], ~s.met)
        s.met = True

    @m.invariant("UNIQUE")
    def a_token_is_in_one_place(s: State) -> Expr:
        return ForAll(token, lambda t: Count(Int(0, places - 1), lambda p: s.at[t, p]) == 1)

    @m.invariant("ONCE")
    def nobody_reaches_place_five(s: State) -> Expr:
        return ForAll(token, lambda t: ~s.at[t, 5])

    @m.goal
    def all_meet_at_place_three(s: State) -> Expr:
        return ForAll(token, lambda t: s.at[t, 3]) & s.met

    return m


def numbers() -> Machine:
    """Wide, negative and size-dependent integers."""
    m = Machine("numbers")
    m.function("wide", value=Int(-300, 40_000), init=-300)
    m.function("byte", value=Int(-128, 127), init=-128)
    m.function("fixed", value=Int(7, 7), init=7)
    m.function("pair", Int(0, 2), value=Int(-5, 900), init=lambda k: k)
    m.function("at", Int(-1, 2), value=Int(0, 200), init=lambda k: If(k == 0, 100, 0))

    @m.action(k=Int(-1, 2))
    def grow(s: State, k: Expr) -> None:
        s.require(s.wide < 39_000, s.at[k] < 150, s.pair[1] < 500)
        s.wide = If(s.wide < 0, s.wide + 149, s.wide + s.at[k] + 9_000)
        s.at[k] = s.at.get(k + 1, 3) + 49
        s.pair[2] = s.at[k] + s.pair.get(k, 0) - s.pair[1]
        s.pair[1] = s.pair[1] + 40

    @m.action(down=Bool)
    def turn(s: State, down: Expr) -> None:
        s.require(If(down, s.byte > 100, s.byte < 100))
        s.byte = If(down, s.byte - s.at[0] + s.fixed, s.byte + 120)

    @m.invariant("COUNT")
    def sums_stay_small(s: State) -> Expr:
        return s.at[-1] + s.at[0] + s.at[1] + s.at[2] - s.fixed < 400

    m.terminal(lambda _: And())
    return m


def drawn(seed: int) -> Machine:
    """A machine of random actions and properties over functions of every kind."""
    rng = random.Random(seed)
    m = Machine("drawn")
    sort = m.sort("S", default=2)
    m.relation("b", sort, init=False)
    m.function("c", sort, value=Colour, init=lambda x: If(Index(x) == 0, Colour.red, Colour.green))
    m.function("n", sort, value=Int(-2, 3), init=0)
    m.function("big", value=Int(100, 131), init=110)
    m.function("a", Int(0, 2), value=Int(0, 2), init=lambda i: i)

    def number(s: State, x: Expr, k: int) -> Expr:
        pick = rng.randrange(8) if k else rng.randrange(3)
        if pick == 0:
            return s.n[x] + 0
        if pick == 1:
            return s.big - rng.choice([99, 110, 128])
        if pick == 2:
            return Index(x) + rng.randint(-3, 3)
        if pick == 3:
            return number(s, x, k - 1) + number(s, x, k - 1)
        if pick == 4:
            return number(s, x, k - 1) - number(s, x, k - 1)
        if pick == 5:
            base = number(s, x, k - 1)
            return If(truth(s, x, k - 1), base, base + rng.choice([-1, 1, 2]))
        if pick == 6:
            return Count(sort, lambda y: truth(s, y, k - 1))
        return If(truth(s, x, k - 1), number(s, x, k - 1), s.a.get(number(s, x, k - 1), -1))

    def truth(s: State, x: Expr, k: int) -> Expr:
        pick = rng.randrange(9) if k else rng.randrange(2)
        if pick == 0:
            return s.b[x]
        if pick == 1:
            return IsIn(s.c[x], Colour.red, rng.choice([Colour.green, Colour.blue]))
        if pick == 2:
            return number(s, x, k - 1) < number(s, x, k - 1)
        if pick == 3:
            return number(s, x, k - 1) == number(s, x, k - 1)
        if pick == 4:
            return ~truth(s, x, k - 1) | truth(s, x, k - 1)
        if pick == 5:
            return truth(s, x, k - 1) & truth(s, x, k - 1) & truth(s, x, k - 1)
        if pick == 6:
            return Exists(sort, lambda y: (y != x) & truth(s, y, k - 1))
        if pick == 7:
            return truth(s, x, k - 1) == truth(s, x, k - 1)
        return ForAll(sort, lambda y: Or(y == x, truth(s, y, k - 1)))

    for name in ("first", "second", "third"):

        def act(s: State, x: Expr, y: Expr) -> None:
            s.require(truth(s, x, 2))
            for _ in range(rng.randint(1, 3)):
                where = rng.choice([x, y])
                pick = rng.randrange(5)
                if pick == 0:
                    s.b[where] = truth(s, where, 2)
                elif pick == 1:
                    s.c[where] = If(truth(s, x, 1), Colour.blue, s.c[y])
                elif pick == 2:
                    low = number(s, where, 2)
                    s.n[where] = If((low >= -2) & (low <= 3), low, 0)
                elif pick == 3:
                    s.big = s.big + rng.choice([-1, 1])
                else:
                    s.a.update(lambda i: If(s.a[i] > 0, s.a[i] - 1, If(truth(s, x, 1), 2, 1)))
            s.check("COUNT", truth(s, y, 2))

        act.__name__ = name
        m.action(x=sort, y=sort)(act)

    for name in ("one", "two"):

        def prop(s: State) -> Expr:
            return ForAll(sort, lambda x: Implies(truth(s, x, 2), truth(s, x, 3)))

        prop.__name__ = name
        m.invariant("PIN")(prop)

    @m.goal
    def somewhere(s: State) -> Expr:
        return Exists(sort, lambda x: truth(s, x, 2) & (s.big == 113))

    return m


def named(name: str) -> tuple[Machine, dict[str, int] | None]:
    """``tokens40``, or the benchmark machine, ``sound`` or ``faulty``; with the sizes to search it at."""
    if name.startswith("tokens"):
        return tokens(int(name[6:])), None
    faults = frozenset({"evict_referenced"}) if name == "faulty" else frozenset()
    return kvlife.build(faults), {"Block": 3, "Request": 2}


def counter(
    name: str = "unbounded", start: int = 0, value: Int | None = None, top: int | None = None
) -> Machine:
    """Counts up for ever, or to ``top``."""
    m = Machine(name)
    m.function("n", value=value or Int(), init=start)

    @m.action()
    def up(s: State) -> None:
        """One more."""
        if top is not None:
            s.require(s.n < top)
        s.n = s.n + 1

    return m
