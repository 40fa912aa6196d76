"""The explorers, in numpy and in C, find exactly what the interpreter finds, on machines of every shape."""

from collections.abc import Callable

import pytest
from shapes import counter, drawn, facts, numbers, tokens

from kvfence.checker.engines import Explore, Interpret, Native, Result, Verdict
from kvfence.checker.engines.explicit.pack import Packing
from kvfence.spec.language import Bool, Exists, Expr, ForAll, Int, Machine, State, ground


def agree(m: Machine, sizes: dict[str, int] | None = None, chunk: int = 1 << 15, **options: object) -> Result:
    explored = Explore(chunk).run(m, sizes, **options)  # type: ignore[arg-type]
    interpreted = facts(Interpret().run(m, sizes, **options))  # type: ignore[arg-type]
    assert facts(explored) == interpreted
    for threads in (1, 2):
        in_c = Native(threads=threads).run(m, sizes, **options)  # type: ignore[arg-type]
        assert in_c.engine == "native"
        assert facts(in_c) == interpreted
    return explored


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


def test_integers_of_every_width_and_sign_are_explored() -> None:
    r = agree(numbers())
    assert r.states > 100


def test_a_value_that_leaves_its_range_is_a_violation_and_not_a_state() -> None:
    r = agree(counter("overflow", value=Int(0, 3)))
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
