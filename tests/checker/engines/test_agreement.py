"""The explorers, in numpy and in C, find exactly what the interpreter finds, on machines of every shape."""

import random
from collections.abc import Callable

import pytest

from kvfence.checker.engines.base import Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.explicit.pack import Packing
from kvfence.checker.engines.native.native import Native
from kvfence.spec.language import (
    And,
    Bool,
    Count,
    Enum,
    Exists,
    Expr,
    ForAll,
    If,
    Implies,
    Index,
    Int,
    IsIn,
    Machine,
    Or,
    State,
    ground,
)

Colour = Enum("Colour", "red green blue")


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


def agree(m: Machine, sizes: dict[str, int] | None = None, chunk: int = 1 << 15, **options: object) -> Result:
    explored = Explore(chunk).run(m, sizes, **options)  # type: ignore[arg-type]
    interpreted = facts(Interpret().run(m, sizes, **options))  # type: ignore[arg-type]
    assert facts(explored) == interpreted
    for threads in (1, 2):
        in_c = Native(threads=threads).run(m, sizes, **options)  # type: ignore[arg-type]
        assert in_c.engine == "native"
        assert facts(in_c) == interpreted
    return explored


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


@pytest.mark.parametrize(("places", "words"), [(10, 1), (31, 1), (40, 2), (70, 3)])
def test_states_of_one_word_and_of_several_are_explored_alike(places: int, words: int) -> None:
    m = tokens(places)
    assert Packing(ground(m), {}).words == words
    r = agree(m)
    assert r.states == 2 * places * places
    assert r.goals == {"all_meet_at_place_three": 7}
    assert {p.name: len(p) for p in r.violated} == {"nobody_reaches_place_five": 5}


def test_a_state_that_fills_its_word_to_the_last_bit_is_explored() -> None:
    m = Machine("full")
    bit = m.sort("Bit", default=64)
    m.relation("on", bit, init=True)

    @m.action(b=bit)
    def off(s: State, b: Expr) -> None:
        s.require(ForAll(bit, lambda c: (c == b) | s.on[c]), s.on[b])
        s.on[b] = False

    m.terminal(lambda s: Exists(bit, lambda b: ~s.on[b]))
    assert Packing(ground(m), {}).bits == 64
    assert agree(m).states == 65


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


def test_integers_of_every_width_and_sign_are_explored() -> None:
    r = agree(numbers())
    assert r.states > 100


def test_a_value_that_leaves_its_range_is_a_violation_and_not_a_state() -> None:
    m = Machine("overflow")
    m.function("n", value=Int(0, 3), init=0)

    @m.action()
    def up(s: State) -> None:
        s.n = s.n + 1

    r = agree(m)
    assert (r.states, r.transitions, r.verdict) == (4, 4, Verdict.violated)
    (path,) = r.violated
    assert (path.id, len(path), path.steps[-1].after.n) == ("RANGE", 4, 4)


def test_a_failing_check_of_a_step_is_a_violation_with_that_step_last() -> None:
    m = Machine("checked")
    m.function("n", value=Int(0, 9), init=0)

    @m.action(by=Int(1, 3))
    def up(s: State, by: Expr) -> None:
        s.require(s.n + by <= 9)
        s.n = s.n + by
        s.check("COUNT", s.n != 7, "seven is never counted")

    m.terminal(lambda s: s.n == 9)
    r = agree(m)
    (path,) = r.violated
    assert (path.id, path.name, path.text) == ("COUNT", "up.COUNT", "seven is never counted")
    assert (len(path), path.steps[-1].after.n) == (3, 7)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_small_chunks_change_nothing(chunk: int, kvlife: Callable[..., Machine]) -> None:
    agree(kvlife(frozenset({"evict_referenced"})), {"Block": 2, "Request": 2}, chunk=chunk)
    agree(tokens(33), chunk=8 * chunk)


@pytest.mark.parametrize("until", ["first", "end"])
def test_the_first_violation_ends_both_engines_at_the_same_level(
    until: str, kvlife: Callable[..., Machine]
) -> None:
    r = agree(kvlife(frozenset({"evict_referenced"})), {"Block": 2, "Request": 2}, until=until)
    assert (r.stopped is None) == (until == "end")
    assert r.findings["an_allocated_block_has_one_holder"].verdict is not Verdict.holds


def test_an_unbounded_number_needs_bounds_and_leaving_them_is_undetermined() -> None:
    m = Machine("unbounded")
    m.function("n", value=Int(), init=0)
    m.function("flag", value=Bool, init=False)

    @m.action()
    def up(s: State) -> None:
        s.n = s.n + 1

    @m.action()
    def flip(s: State) -> None:
        s.flag = ~s.flag

    r = agree(m, bounds={"n": (-2, 1000)})
    assert (r.states, r.verdict) == (2002, Verdict.undetermined)
    assert "n leaves its bounds -2 to 1000" in str(r.stopped)


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


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.usefixtures("compiled_without_optimisation")
def test_random_machines_are_explored_alike(seed: int) -> None:
    m = drawn(seed)
    engines = (Interpret(), Explore(), Native(), Native(threads=2))
    interpreted, *explored = (facts(e.run(m, max_states=30_000)) for e in engines)
    if interpreted["stopped"] is None:
        assert explored == [interpreted] * 3
    else:
        assert all(r["stopped"] is not None for r in explored)


def test_enough_of_the_random_machines_are_worth_it() -> None:
    results = [facts(Explore().run(drawn(seed), max_states=30_000)) for seed in range(25)]
    complete = [r["states"] for r in results if r["stopped"] is None]
    assert sum(isinstance(n, int) and n > 100 for n in complete) >= 5


def test_a_step_that_leaves_two_ranges_is_told_of_both() -> None:
    m = Machine("both")
    m.function("x", value=Int(0, 3), init=0)
    m.function("y", value=Int(0, 3), init=0)

    @m.action()
    def up(s: State) -> None:
        s.x = s.x + 2
        s.y = s.y + 2

    @m.action()
    def down(s: State) -> None:
        s.require(s.x > 0)
        s.x = s.x - 2
        s.y = s.y - 2

    found = agree(m).findings
    assert [found[f"range of {name}"].verdict for name in "xy"] == [Verdict.violated] * 2
