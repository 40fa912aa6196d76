"""When an engine says holds, violated or undetermined, and what it keeps when it is stopped."""

import json
from collections.abc import Callable

import pytest
from shapes import counter

from kvfence.checker.engines import Engine, Explore, Interpret, Native, Progress, Verdict, base
from kvfence.spec.language import Exists, Expr, ForAll, Int, Machine, SpecError, State

ENGINES = [Explore(), Interpret(), Native(), Native(threads=2)]


@pytest.fixture(params=ENGINES, ids=lambda e: e.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that explores."""
    made: Engine = request.param
    return made


def stairs(top: int = 5, *, terminal: bool = True, goal: int = 3, trap: bool = False) -> Machine:
    """Up one at a time; the trap is an action nobody can take."""
    m = Machine("stairs")
    m.function("n", value=Int(0, top), init=0)

    @m.action()
    def up(s: State) -> None:
        """One step up."""
        s.require(s.n < top)
        s.n = s.n + 1

    if trap:

        @m.action()
        def fall(s: State) -> None:
            s.require(s.n > 3, s.n < 2)
            s.n = 0

    @m.invariant("COUNT")
    def never_negative(s: State) -> Expr:
        return s.n + 0 >= 0

    @m.goal
    def reaches(s: State) -> Expr:
        return s.n == goal

    if terminal:
        m.terminal(lambda s: s.n == top)
    return m


def test_a_complete_search_with_every_goal_reached_holds(engine: Engine) -> None:
    r = engine.run(stairs())
    assert r.verdict is Verdict.holds
    assert (r.states, r.transitions, r.depth, r.goals) == (6, 5, 5, {"reaches": 3})
    assert [str(s) for s in r.witnesses["reaches"].steps] == ["up()"] * 3


def test_a_state_without_successor_is_a_deadlock_unless_terminal(engine: Engine) -> None:
    r = engine.run(stairs(terminal=False))
    assert r.verdict is Verdict.violated
    assert r.deadlock is not None
    assert (r.deadlock.id, len(r.deadlock), r.deadlock.steps[-1].after.n) == ("DEADLOCK", 5, 5)


def test_a_deadlock_is_told_from_live_and_terminal_states_beside_it(engine: Engine) -> None:
    m = Machine("rooms")
    m.function("n", value=Int(0, 30), init=0)

    @m.action(k=Int(1, 20))
    def enter(s: State, k: Expr) -> None:
        s.require(s.n == 0)
        s.n = k

    @m.action()
    def leave(s: State) -> None:
        s.require(s.n > 0, s.n < 15)
        s.n = 0

    m.terminal(lambda s: s.n < 18)
    r = engine.run(m)
    assert r.deadlock is not None
    assert [str(s) for s in r.deadlock.steps] == ["enter(k=18)"]


def test_an_unreached_goal_is_undetermined_and_named(engine: Engine) -> None:
    m = stairs()

    @m.goal
    def flies(s: State) -> Expr:
        return (s.n == 2) & (s.n == 3)

    r = engine.run(m)
    assert (r.verdict, r.missing) == (Verdict.undetermined, ("goal flies was never reached",))


def test_an_action_never_taken_is_undetermined_and_named(engine: Engine) -> None:
    r = engine.run(stairs(trap=True))
    assert (r.verdict, r.missing) == (Verdict.undetermined, ("action fall was never taken",))
    assert r.coverage == {"up": 5, "fall": 0}


def crowd() -> Machine:
    """Two to the number of people states, and one that is forbidden."""
    m = Machine("crowd")
    person = m.sort("Person", default=16)
    m.relation("up", person, init=False)

    @m.action(p=person)
    def stand(s: State, p: Expr) -> None:
        s.require(~s.up[p])
        s.up[p] = True

    @m.action(p=person)
    def sit(s: State, p: Expr) -> None:
        s.require(s.up[p])
        s.up[p] = False

    @m.invariant("PIN")
    def somebody_sits(s: State) -> Expr:
        return Exists(person, lambda p: ~s.up[p])

    @m.invariant("FREEZE")
    def nobody_stands_alone(s: State) -> Expr:
        return ForAll(person, lambda p: ~s.up[p] | Exists(person, lambda q: (q != p) & s.up[q]))

    @m.invariant("ONCE")
    def true(s: State) -> Expr:
        return ForAll(person, lambda p: s.up[p] | ~s.up[p])

    return m


def test_running_out_of_memory_stops_the_search_and_keeps_what_was_found(engine: Engine) -> None:
    r = engine.run(crowd(), {"Person": 20}, memory=6_000_000)
    assert "memory" in str(r.stopped)
    assert 1 < r.states < 1 << 20
    assert [len(p) for p in r.violated] == [1]
    assert r.findings["true"].verdict is Verdict.undetermined


def test_a_memory_limit_too_small_to_begin_with_is_undetermined(engine: Engine) -> None:
    r = engine.run(stairs(), memory=1)
    assert (r.verdict, "memory" in str(r.stopped)) == (Verdict.undetermined, True)


def test_the_explorer_holds_no_more_memory_than_allowed() -> None:
    small, large = (Explore().run(crowd(), {"Person": 20}, memory=n) for n in (8_000_000, 12_000_000))
    assert small.states < large.states < 1 << 20


def test_too_many_states_stop_the_search_undetermined(engine: Engine) -> None:
    r = engine.run(stairs(200), max_states=50)
    assert r.verdict is Verdict.undetermined
    assert "50 states" in str(r.stopped)


def test_states_found_just_before_the_search_stops_are_judged(engine: Engine) -> None:
    m = Machine("fan")
    m.function("n", value=Int(0, 100), init=0)

    @m.action(k=Int(1, 100))
    def jump(s: State, k: Expr) -> None:
        s.require(s.n == 0)
        s.n = k

    @m.invariant("COUNT")
    def small(s: State) -> Expr:
        return s.n < 60

    r = engine.run(m, max_states=70)
    assert r.stopped is not None
    assert [len(p) for p in r.violated] == [1]
    assert r.depth == 1


def test_an_interrupt_keeps_what_was_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REPORT_EVERY", 0.0)

    def interrupt(now: Progress) -> None:
        if now.states > 100:
            raise KeyboardInterrupt

    r = engine.run(crowd(), progress=interrupt)
    assert r.stopped == "interrupted"
    assert [len(p) for p in r.violated] == [1]
    assert r.verdict is Verdict.violated
    assert r.findings["true"].verdict is Verdict.undetermined


def test_progress_says_how_far_the_search_is(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REPORT_EVERY", 0.0)
    seen: list[Progress] = []
    r = engine.run(crowd(), {"Person": 8}, progress=seen.append)
    assert seen
    assert max(p.states for p in seen) <= r.states == 256
    assert max(p.depth for p in seen) == 8


def test_each_violated_invariant_has_a_shortest_counterexample(engine: Engine) -> None:
    r = engine.run(crowd(), {"Person": 6})
    assert {p.name: len(p) for p in r.violated} == {"nobody_stands_alone": 1, "somebody_sits": 6}


def test_a_result_is_plain_json(engine: Engine) -> None:
    plain = json.loads(json.dumps(engine.run(crowd(), {"Person": 2}).to_dict()))
    assert (plain["verdict"], plain["engine"], plain["sizes"]) == ("violated", engine.name, {"Person": 2})
    (longest,) = [f["path"] for f in plain["findings"] if f["name"] == "somebody_sits"]
    assert longest["steps"][-1]["after"] == {"up[0]": True, "up[1]": True}


def test_the_answer_is_the_same_each_time(engine: Engine) -> None:
    a, b = (engine.run(crowd(), {"Person": 5}).to_dict() for _ in range(2))
    assert {**a, "seconds": 0} == {**b, "seconds": 0}


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"nothing": (0, 1)}, "nothing of machine stairs is not one"),
        ({"n": (0, 1)}, "n of machine stairs is not one"),
    ],
)
def test_bounds_that_fit_nothing_are_refused(
    engine: Engine, bounds: dict[str, tuple[int, int]], text: str
) -> None:
    with pytest.raises(SpecError, match=text):
        engine.run(stairs(), bounds=bounds)


def test_the_explorer_asks_for_bounds_of_an_unbounded_number() -> None:
    m = counter("endless", start=5)
    with pytest.raises(SpecError, match="give bounds="):
        Explore().run(m)
    with pytest.raises(SpecError, match="initial value 5"):
        Explore().run(m, bounds={"n": (0, 4)})
    assert Interpret().run(m, max_states=20).verdict is Verdict.undetermined


@pytest.mark.parametrize(
    ("sizes", "states", "transitions", "depth"),
    [((2, 2), None, None, None), ((3, 2), 12_864, 71_154, 19), ((3, 3), 110_400, 740_994, 21)],
)
def test_the_benchmark_machine_has_the_known_number_of_states(
    kvlife: Callable[..., Machine],
    sizes: tuple[int, int],
    states: int | None,
    transitions: int | None,
    depth: int | None,
) -> None:
    r = Explore().run(kvlife(), {"Block": sizes[0], "Request": sizes[1]})
    assert r.verdict is Verdict.holds
    if states:
        assert (r.states, r.transitions, r.depth) == (states, transitions, depth)


@pytest.mark.slow
def test_the_larger_benchmark_machine_has_the_known_number_of_states(kvlife: Callable[..., Machine]) -> None:
    r = Explore().run(kvlife(), {"Block": 4, "Request": 3})
    assert (r.states, r.transitions, r.depth, r.verdict) == (3_250_176, 25_802_664, 27, Verdict.holds)


def test_evicting_referenced_blocks_is_caught(engine: Engine, kvlife: Callable[..., Machine]) -> None:
    r = engine.run(kvlife(frozenset({"evict_referenced"})))
    assert {p.id: len(p) for p in reversed(r.violated)} == {"FREEZE": 4, "CONSERVE": 6, "RANGE": 8}
