"""``Machine.assert_discovers`` pins a counterexample, and says what happened where it does not."""

import pytest

from kvfence.spec import language as kl
from kvfence.spec.language.evaluate import Evaluator, spell
from kvfence.spec.machines import lookup

LEAK = ["submit(r=0)", "begin_store(b=1, first=true)", "end_store(b=1)", "lookup(r=0, local=0)", "abort(r=0)"]
NAME = "a_request_that_is_gone_holds_nothing"


def leaky() -> kl.Machine:
    return lookup.build(frozenset({"pin_leak_on_abort"}))


def seats() -> kl.Machine:
    m = kl.Machine("seats")
    Guest = m.sort("Guest", default=3)  # noqa: N806
    m.relation("seated", Guest, init=False)
    m.function("free", value=kl.Int(0, 2), init=2)

    @m.action(g=Guest)
    def sit(s: kl.State, g: kl.Elem) -> None:
        """The guest takes a seat."""
        s.require(kl.Not(s.seated[g]))
        s.check("SEAT", s.free >= 1, "a free seat is needed")
        s.seated[g] = True
        s.free = s.free - 1

    @m.invariant("COUNT")
    def seats_add_up(s: kl.State) -> kl.Expr:
        return s.free + kl.Count(Guest, lambda g: s.seated[g]) == 2

    return m


def test_a_counterexample_is_pinned_by_own_name_and_by_id() -> None:
    leaky().assert_discovers(NAME, LEAK)
    leaky().assert_discovers("NO-LEAK", LEAK)


def test_steps_may_be_given_as_name_and_arguments() -> None:
    leaky().assert_discovers("NO-LEAK", [*LEAK[:3], ("lookup", {"r": 0, "local": 0}), ("abort", {"r": 0})])


def test_a_run_of_the_sound_design_discovers_nothing() -> None:
    with pytest.raises(AssertionError, match=r"5 steps end without a violation of NO-LEAK.*pin\[0, 1\]"):
        lookup.build().assert_discovers("NO-LEAK", LEAK)


def test_the_violation_must_come_with_the_last_step() -> None:
    with pytest.raises(AssertionError, match="step 5 of 6 violates NO-LEAK"):
        leaky().assert_discovers("NO-LEAK", [*LEAK, "submit(r=1)"])


def test_another_violation_than_the_one_named_does_not_count() -> None:
    with pytest.raises(AssertionError, match=f"another violation than PIN: NO-LEAK {NAME}"):
        leaky().assert_discovers("PIN", LEAK)


def test_a_step_whose_guard_is_false_names_the_guard_and_its_line() -> None:
    with pytest.raises(
        kl.SpecError, match=r"end_store\(b=1\) cannot be taken.*slot\[1\] == storing.*lookup\.py:"
    ):
        leaky().assert_discovers("NO-LEAK", ["submit(r=0)", "end_store(b=1)"])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("lokup(r=0, local=0)", "did you mean lookup"),
        ("lookup(r=0)", r"takes \(r, local\)"),
        ("lookup(r=5, local=0)", "goes from 0 to 1"),
        ("submit", "write it as"),
        ("submit(0)", "name=value"),
    ],
)
def test_a_step_that_does_not_exist_names_the_way_out(step: str, message: str) -> None:
    with pytest.raises(kl.SpecError, match=message):
        leaky().assert_discovers("NO-LEAK", [step])


def test_an_invariant_that_does_not_exist_offers_close_names() -> None:
    with pytest.raises(kl.SpecError, match="did you mean NO-LEAK"):
        leaky().assert_discovers("NOLEAK", LEAK)


def test_checks_and_ranges_are_violations_of_the_step() -> None:
    sits = [f"sit(g={g})" for g in range(3)]
    with pytest.raises(AssertionError, match=r"another violation than SEAT: RANGE range of free"):
        seats().assert_discovers("SEAT", sits)
    with pytest.raises(AssertionError, match=r"another violation than RANGE: SEAT sit\.SEAT"):
        seats().assert_discovers("RANGE", sits)


def test_sizes_decide_which_arguments_there_are() -> None:
    with pytest.raises(kl.SpecError, match="goes from 0 to 0"):
        seats().assert_discovers("SEAT", ["sit(g=2)"], sizes={"Guest": 1})


def test_an_expression_is_spelt_with_the_values_of_its_variables() -> None:
    m = seats()
    action = m.actions["sit"]
    (guard,) = action.guards
    assert spell(guard.expr) == "not seated[g]"
    assert spell(guard.expr, {action.params[0].uid: 2}) == "not seated[2]"
    assert spell(m.invariants["seats_add_up"].expr) == "(free + count(Guest g: seated[g])) == 2"


def test_the_evaluator_reads_quantifiers_as_grounding_does() -> None:
    m = kl.Machine("readings")
    Block = m.sort("Block", default=3)  # noqa: N806
    m.relation("held", Block, init=False)
    m.relation("odd", Block, init=False)

    @m.action(b=Block)
    def hold(s: kl.State, b: kl.Elem) -> None:
        s.held[b] = True

    @m.goal
    def some_but_not_all(s: kl.State) -> kl.Expr:
        return kl.And(kl.Exists(Block, lambda b: s.held[b]), kl.Not(kl.ForAll(Block, lambda b: s.held[b])))

    g = kl.ground(m)
    evaluator = Evaluator(g.layout, g.sizes)
    goal = m.goals["some_but_not_all"].expr
    found = [evaluator.value(goal, (*held, 0, 0, 0), {}) for held in [(0, 0, 0), (0, 1, 0), (1, 1, 1)]]
    assert found == [0, 1, 0]
