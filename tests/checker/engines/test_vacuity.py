"""An invariant that holds only because nothing reaches its premise is undetermined, never a pass."""

import pytest

from kvfence.checker.engines import Engine, Explore, Interpret, Verdict
from kvfence.spec.language import Elem, Expr, ForAll, Implies, Int, Machine, Not, State


def lamps(top: int) -> Machine:
    """Lamps that are switched on and counted; ``top`` is how bright they can get."""
    m = Machine("lamps")
    Lamp = m.sort("Lamp", default=2)  # noqa: N806
    m.relation("on", Lamp, init=False)
    m.function("bright", Lamp, value=Int(0, 3), init=0)

    @m.action(x=Lamp)
    def turn_up(s: State, x: Elem) -> None:
        s.require(s.bright[x] < top)
        s.bright[x] = s.bright[x] + 1
        s.on[x] = True

    @m.action(x=Lamp)
    def turn_off(s: State, x: Elem) -> None:
        s.require(s.on[x])
        s.bright[x] = 0
        s.on[x] = False

    @m.invariant("LIT")
    def the_brightest_is_on(s: State) -> Expr:
        return ForAll(Lamp, lambda x: Implies(s.bright[x] == 3, s.on[x]))

    @m.invariant("LIT")
    def one_that_is_off_is_dark(s: State) -> Expr:
        return ForAll(Lamp, lambda x: Implies(Not(s.on[x]), s.bright[x] == 0))

    return m


@pytest.mark.parametrize("engine", [Explore(), Interpret()])
def test_an_unreachable_premise_leaves_the_invariant_undetermined(engine: Engine) -> None:
    dim = engine.run(lamps(top=2))
    assert dim.vacuous == ("the_brightest_is_on",)
    assert dim.findings["the_brightest_is_on"].verdict is Verdict.undetermined
    assert dim.findings["one_that_is_off_is_dark"].verdict is Verdict.holds
    assert dim.verdict is Verdict.undetermined
    assert "the_brightest_is_on holds only because no state meets its premise" in dim.missing[0]


@pytest.mark.parametrize("engine", [Explore(), Interpret()])
def test_a_premise_that_is_met_lets_the_invariant_hold(engine: Engine) -> None:
    bright = engine.run(lamps(top=3))
    assert bright.premises["the_brightest_is_on"] == 3
    assert (bright.vacuous, bright.verdict) == ((), Verdict.holds)
    assert "the_brightest_is_on" not in bright.goals


def test_a_search_cut_short_does_not_call_an_invariant_vacuous() -> None:
    result = Explore().run(lamps(top=3), max_states=2)
    assert result.stopped
    assert result.vacuous == ()
