"""Promises about whole runs are kept under the fairness marked, or broken by a run that can be followed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Literal

import pytest
from shapes import counter

from kvfence.checker.core import c_build as build
from kvfence.checker.engines import Interpreter, Liveness, Path, Result, Verdict
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Expr, If, Int, Machine, Or, SpecError, State
from kvfence.spec.machines import MACHINES

Fair = Literal["weak", "strong"] | None
SMALL = {"Request": 1, "Block": 2, "Host": 1, "Operation": 1, "Rank": 1}


def check(m: Machine, fair: bool = True, **sizes: int) -> Result:
    return Liveness(fair=fair).run(m, sizes)


def lamp(off: Fair, *, flicker: bool = False) -> Machine:
    """A lamp is switched on, and off by an action of some fairness; flickering makes that come and go."""
    m = Machine("lamp")
    lamps = m.sort("Lamp", default=1)
    m.relation("on", lamps, init=False)
    m.relation("dim", lamps, init=False)

    @m.action(x=lamps)
    def switch_on(s: State, x: Expr) -> None:
        s.require(~s.on[x])
        s.on[x] = True

    @m.action(x=lamps, fair=off)
    def switch_off(s: State, x: Expr) -> None:
        s.require(s.on[x], ~s.dim[x])
        s.on[x] = False

    if flicker:

        @m.action(x=lamps, fair="weak")
        def flip(s: State, x: Expr) -> None:
            s.require(s.on[x])
            s.dim[x] = ~s.dim[x]

    m.leads_to("it_goes_dark", lambda s, x: s.on[x], lambda s, x: ~s.on[x], x=lamps)
    return m


def loops(path: Path) -> tuple[list[str], list[str]]:
    """The names of the steps before the loop and of those in it."""
    assert path.loop is not None
    names = [s.action for s in path.steps]
    return names[: path.loop], names[path.loop :]


def broken(r: Result) -> Path:
    (path,) = r.violated
    return path


def test_without_fairness_a_run_may_stop() -> None:
    r = check(lamp(None))
    assert loops(broken(r)) == (["switch_on"], [])
    assert str(broken(r)).splitlines()[-1] == "     nothing more happens"
    assert (broken(r).id, r.findings["it_goes_dark"].kind) == ("PROGRESS", "promise")


def test_what_stays_enabled_is_taken_under_weak_fairness() -> None:
    r = check(lamp("weak"))
    assert (r.verdict, r.states) == (Verdict.holds, 2)
    assert check(lamp("weak"), fair=False).verdict is Verdict.violated


def test_what_comes_and_goes_needs_strong_fairness() -> None:
    r = check(lamp("weak", flicker=True))
    stem, loop = loops(broken(r))
    assert stem == ["switch_on"]
    assert loop == ["flip", "flip"]
    assert "     again and again:" in str(broken(r)).splitlines()
    assert check(lamp("strong", flicker=True)).verdict is Verdict.holds


def test_each_instance_is_fair_on_its_own() -> None:
    assert check(lamp("weak"), Lamp=3).verdict is Verdict.holds
    assert check(lamp("strong", flicker=True), Lamp=2).verdict is Verdict.holds
    assert check(lamp("weak", flicker=True), Lamp=2).verdict is Verdict.violated


def test_a_strongly_fair_run_may_avoid_the_states_where_the_step_is_enabled() -> None:
    m = Machine("rounds")
    m.function("at", value=Int(0, 3), init=0)

    @m.action(fair="weak")
    def around(s: State) -> None:
        s.require(s.at < 2)
        s.at = 1 - s.at

    @m.action()
    def aside(s: State) -> None:
        s.require(s.at == 0)
        s.at = 2

    @m.action(fair="weak")
    def back(s: State) -> None:
        s.require(s.at == 2)
        s.at = 0

    @m.action(fair="strong")
    def leave(s: State) -> None:
        s.require(s.at == 2)
        s.at = 3

    m.eventually("it_leaves", lambda s: s.at == 3)
    assert loops(broken(check(m))) == ([], ["around", "around"])


def test_a_promise_from_the_beginning_is_owed_once() -> None:
    m = Machine("stairs")
    m.function("n", value=Int(0, 4), init=0)

    @m.action(fair="weak")
    def up(s: State) -> None:
        s.require(s.n < 4)
        s.n = s.n + 1

    m.eventually("it_passes_two", lambda s: s.n == 2)
    m.eventually("it_arrives", lambda s: s.n == 4, id_="ONCE")
    m.leads_to("it_comes_down", lambda s: s.n == 3, lambda s: s.n == 0, doc="what goes up comes down")
    r = check(m)
    verdicts = {name: f.verdict for name, f in r.findings.items()}
    assert verdicts == {
        "it_passes_two": Verdict.holds,
        "it_arrives": Verdict.holds,
        "it_comes_down": Verdict.violated,
    }
    assert (len(broken(r)), broken(r).loop, broken(r).text) == (4, 4, "what goes up comes down")
    assert r.to_dict()["findings"][2]["path"]["loop"] == 4  # type: ignore[index]


def test_a_promise_whose_occasion_never_comes_is_undetermined() -> None:
    m = lamp("weak")
    m.leads_to("vacuous", lambda s, x: s.dim[x], lambda s, x: ~s.dim[x], x=m.sorts["Lamp"])
    r = check(m)
    assert r.verdict is Verdict.undetermined
    assert r.vacuous == ("vacuous",)


def test_too_many_states_are_undetermined() -> None:
    r = Liveness().run(lamp("weak"), {"Lamp": 5}, max_states=20)
    assert (r.verdict, r.stopped) == (Verdict.undetermined, "more than 20 states")
    assert r.findings["it_goes_dark"].verdict is Verdict.undetermined


def test_a_machine_without_promises_is_refused() -> None:
    with pytest.raises(CannotRun, match="silent states no liveness property"):
        check(counter("silent", value=Int(0, 1), top=1))


def test_a_promise_about_another_machine_is_refused() -> None:
    m = Machine("here")
    with pytest.raises(SpecError, match="of another machine"):
        m.leads_to("x", lambda s, o: True, lambda s, o: True, o=Machine("there").sort("S"))  # noqa: ARG005
    with pytest.raises(SpecError, match="no field n"):
        m.eventually("x", lambda s: s.n == 1)


@pytest.mark.parametrize("extra", [{}, {"Rank": 2}, {"Operation": 2, "Block": 1}])
def test_every_queued_operation_of_a_transfer_completes_because_the_workers_are_fair(
    extra: dict[str, int],
) -> None:
    m = MACHINES["transfer"](frozenset())
    kept, unfair = (check(m, fair, **{**SMALL, **extra}) for fair in (True, False))
    assert kept.verdict is Verdict.holds
    stem, loop = loops(broken(unfair))
    assert (broken(unfair).id, loop) == ("ONCE", [])
    assert "queue" in stem[-1]


def test_a_completion_that_gets_lost_breaks_the_promise() -> None:
    # without the fair report of rank 0, the operation waits for ever
    m = MACHINES["transfer"](frozenset())
    m.actions["report"].fair = None
    m.actions["report_failure"].fair = None
    assert check(m, **SMALL).verdict is Verdict.violated


def test_python_and_c_explore_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [(MACHINES["transfer"](frozenset()), SMALL), (lamp("weak", flicker=True), {"Lamp": 2})]
    in_c = [check(m, **sizes) for m, sizes in machines]
    build._version.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    in_python = [check(m, **sizes) for m, sizes in machines]
    build._version.cache_clear()
    for a, b in zip(in_c, in_python, strict=True):
        assert (a.states, a.transitions, a.depth, a.verdict) == (b.states, b.transitions, b.depth, b.verdict)
        assert [(len(p), p.loop) for p in a.violated] == [(len(p), p.loop) for p in b.violated]


# Random machines, judged by trying every set of states in which a run might stay.

PLACES = 7
Step = tuple[int, int, str]


def drawn(seed: int) -> Machine:
    """A walk among a few places by random actions of random fairness."""
    rng = random.Random(seed)
    m = Machine("walk")
    m.function("at", value=Int(0, PLACES - 1), init=0)
    for name in ("a", "b", "c", "d"):
        table = [rng.randrange(PLACES) for _ in range(PLACES)]
        enabled = rng.sample(range(PLACES), rng.randint(1, PLACES - 2))

        def act(s: State, table: list[int] = table, enabled: list[int] = enabled) -> None:
            s.require(Or(*(s.at == k for k in enabled)))
            after: Expr | int = table[-1]
            for k in range(PLACES - 1):
                after = If(s.at == k, table[k], after)
            s.at = after

        fair: Fair = rng.choice([None, "weak", "weak", "strong"])
        m.action(fair=fair)(_named(name, act))
    p, q = rng.randrange(PLACES), rng.sample(range(PLACES), 2)
    m.leads_to("it_gets_there", lambda s: s.at == p, lambda s: Or(s.at == q[0], s.at == q[1]))
    return m


def _named(name: str, act: Callable[[State], None]) -> Callable[[State], None]:
    def body(s: State) -> None:
        act(s)

    body.__name__ = name
    return body


def steps_of(run: Interpreter) -> tuple[set[int], set[Step]]:
    seen, todo, steps = {run.initial()}, [run.initial()], set()
    while todo:
        x = todo.pop()
        for index, y, _ in run.successors(x):
            steps.add((x[0], y[0], run.instances[index].name))
            if y not in seen:
                seen.add(y)
                todo.append(y)
    return {x[0] for x in seen}, steps


def reach(begin: set[int], steps: set[Step], inside: set[int]) -> set[int]:
    found = begin & inside
    while True:
        more = {y for x, y, _ in steps if x in found and y in inside} - found
        if not more:
            return found
        found |= more


def may_stay(places: set[int], steps: set[Step], fair: dict[str, Fair]) -> bool:
    """Whether a fair run can visit exactly these places again and again."""
    inner = {(x, y, a) for x, y, a in steps if x in places and y in places}
    if any(reach({x}, inner, places) != places for x in places):
        return False
    for action, kind in fair.items():
        enabled = {x for x, _, a in steps if a == action} & places
        taken = any(a == action for _, _, a in inner)
        owed = enabled == places if kind == "weak" else bool(enabled) if kind == "strong" else False
        if owed and not taken:
            return False
    return True


def can_break(m: Machine) -> bool:
    run = Interpreter(m)
    states, steps = steps_of(run)
    (promise,) = run.grounded.liveness()
    assert promise.when is not None

    def at(node: object) -> set[int]:
        return {x for x in states if not run._false(f"f{id(node)}", [node], (x,))}  # type: ignore[list-item]

    pending = states - at(promise.then)
    region = reach(at(promise.when), steps, pending)
    fair = {name: a.fair for name, a in m.actions.items()}
    sets = (set(c) for n in range(1, len(region) + 1) for c in itertools.combinations(sorted(region), n))
    return any(may_stay(s, steps, fair) for s in sets)


@pytest.mark.usefixtures("compiled_without_optimisation")
def test_random_machines_are_judged_as_by_trying_every_set_of_states() -> None:
    answers = []
    for seed in range(300):
        m = drawn(seed)
        r = check_in_python(m)
        violated = r.findings["it_gets_there"].verdict is Verdict.violated
        assert violated == can_break(m), seed
        answers.append(violated)
        if violated:
            follow(m, broken(r))
    assert 50 < sum(answers) < 250
    assert any(len(loops(broken(check_in_python(drawn(k))))[1]) > 1 for k in range(300) if answers[k])


def check_in_python(m: Machine) -> Result:
    """The verdict on a graph made without compiling anything."""
    from kvfence.checker.engines.liveness import state_graph as graph

    def refuse(*_: object) -> None:
        raise build.CannotCompile("not for a machine of seven states")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "Model", refuse)
        return check(m)


def follow(m: Machine, path: Path) -> None:
    """Take the path step by step: it must owe the promise, loop, be fair, and never keep the promise."""
    run = Interpreter(m)
    states = [run.initial()]
    for step in path.steps:
        after, _ = run.step(states[-1], run.find(step.action, **step.args))
        assert run.view(after) == step.after
        states.append(after)
    assert path.loop is not None
    assert states[-1] == states[path.loop]
    (promise,) = run.grounded.liveness()
    assert promise.when is not None
    owed = [k for k, x in enumerate(states) if not run._false("when", [promise.when], x)]
    kept = [k for k, x in enumerate(states) if not run._false("then", [promise.then], x)]
    assert owed
    assert min(owed) <= path.loop or len(path.steps) > path.loop
    first = next(k for k in owed if not any(j >= k for j in kept))
    assert first <= path.loop
    around = states[path.loop :]
    taken = {s.action for s in path.steps[path.loop :]}
    for name, action in m.actions.items():
        enabled = [any(i.name == name for i in run.enabled(x)) for x in around]
        if action.fair == "weak":
            assert name in taken or not all(enabled)
        if action.fair == "strong":
            assert name in taken or not any(enabled)
