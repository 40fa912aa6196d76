"""The kill matrix: what is noticed, by which condition, and what makes a machine fail."""

import pytest

from kvfence.checker.analysis.mutation import kill
from kvfence.checker.analysis.mutation.kill import Campaign, Fate, run
from kvfence.checker.analysis.mutation.matrix import Matrix, matrix
from kvfence.checker.engines.base import Verdict
from kvfence.spec.language import Count, Elem, Expr, ForAll, Implies, Int, Machine, Not, State
from kvfence.spec.machines import MACHINES


def tickets(*, counted: bool = True, vacuous: bool = False, twice: bool = False) -> Machine:
    """Guests take tickets; ``counted``: an invariant says how many are left."""
    m = Machine("tickets")
    Guest = m.sort("Guest", default=2)  # noqa: N806
    m.relation("has", Guest, init=False)
    m.relation("seen", Guest, init=False)
    m.function("left", value=Int(0, 2), init=2)

    @m.action(g=Guest)
    def take(s: State, g: Elem) -> None:
        s.require(Not(s.has[g]), s.left >= 1)
        s.has[g] = True
        s.left = s.left - 1

    @m.action(g=Guest)
    def give_back(s: State, g: Elem) -> None:
        s.require(s.has[g])
        s.has[g] = False
        s.left = s.left + 1

    @m.action(g=Guest)
    def look(s: State, g: Elem) -> None:
        s.require(Not(s.seen[g]))
        s.seen[g] = True

    if counted:

        @m.invariant("COUNT")
        def tickets_add_up(s: State) -> Expr:
            return s.left + Count(Guest, lambda g: s.has[g]) == 2

    if twice:

        @m.invariant("COUNT")
        def tickets_add_up_again(s: State) -> Expr:
            return Count(Guest, lambda g: s.has[g]) == 2 - s.left

    if vacuous:

        @m.invariant("RARE")
        def a_guest_sees_three_left(s: State) -> Expr:
            return ForAll(Guest, lambda g: Implies((s.left == 0) & (s.left == 2), s.seen[g]))

    @m.goal
    def all_gone(s: State) -> Expr:
        return s.left == 0

    @m.goal
    def a_guest_has_looked(s: State) -> Expr:
        return Count(Guest, lambda g: s.seen[g]) >= 1

    return m


LOOKS_AGAIN = "look: without guard not seen[g]"
OTHERS = "look: seen: as if always i0 == g"


def accepting(**options: bool) -> Machine:
    m = tickets(**options)
    m.accept_mutant(LOOKS_AGAIN, "Looking twice is looking.")
    m.accept_mutant("look: seen*", "Who has looked is nobody's business.")
    return m


def fates(campaign: Campaign) -> dict[str, Fate]:
    return {o.name: o.fate for o in campaign.outcomes}


def summed_up(machine: Machine) -> Matrix:
    return matrix(run(machine))


def test_what_breaks_an_invariant_is_noticed_by_it_at_its_depth() -> None:
    campaign = run(accepting())
    outcome = next(o for o in campaign.outcomes if o.name == "take: left is not assigned")
    assert outcome.fate is Fate.killed
    assert outcome.noticed["tickets_add_up"] == 1


def test_a_goal_that_is_no_longer_reached_is_noticed() -> None:
    outcome = next(o for o in run(accepting()).outcomes if o.name == "look: seen is not assigned")
    assert outcome.fate is Fate.killed
    assert list(outcome.noticed) == ["goal a_guest_has_looked"]


def test_a_survivor_is_listed_with_its_first_new_step() -> None:
    found = summed_up(tickets())
    assert found.verdict is Verdict.violated
    new = {s.name: s.new for s in found.unexplained}
    assert new[LOOKS_AGAIN] == "after look(g=0): look(g=0) can be taken: it changes nothing"
    assert new[OTHERS] == "at once: look(g=0) leaves seen[1] True instead of False"


def test_a_mutant_without_a_new_step_is_the_machine() -> None:
    # with as many tickets as guests, who has none finds one
    assert fates(run(accepting()))["take: without guard 1 <= left"] is Fate.same


def test_without_the_invariant_its_mutants_survive() -> None:
    names = {s.name for s in summed_up(accepting(counted=False)).unexplained}
    assert "take: without guard not has[g]" in names
    assert fates(run(accepting()))["take: without guard not has[g]"] is Fate.killed


def test_accepted_survivors_pass_and_keep_their_reason() -> None:
    found = summed_up(accepting())
    assert (found.verdict, found.faults) == (Verdict.holds, ())
    assert {s.why for s in found.survivors} == {
        "Looking twice is looking.",
        "Who has looked is nobody's business.",
    }


@pytest.mark.parametrize(
    ("name", "fault"),
    [("take: left is not assigned", "is noticed by now"), ("take: nothing such", "fits no mutant")],
)
def test_an_acceptance_that_is_out_of_date_fails(name: str, fault: str) -> None:
    machine = accepting()
    machine.accept_mutant(name, "It was so once.")
    found = summed_up(machine)
    assert found.verdict is Verdict.violated
    assert any(fault in line for line in found.faults)


def test_an_invariant_that_nothing_reaches_the_premise_of_fails_the_run() -> None:
    found = summed_up(accepting(vacuous=True))
    assert found.vacuous == ("a_guest_sees_three_left",)
    assert found.verdict is Verdict.violated


def test_an_invariant_that_notices_nothing_fails_unless_the_machine_says_why() -> None:
    machine = accepting(vacuous=True)
    assert summed_up(machine).idle == ("a_guest_sees_three_left",)
    machine.accept_idle("a_guest_sees_three_left", "There is no such number of tickets.")
    assert summed_up(machine).idle == ()


def test_a_reason_for_an_idle_invariant_must_be_about_one() -> None:
    machine = accepting()
    machine.accept_idle("tickets_add_up", "Nothing can happen to tickets.")
    assert any("it notices something" in fault for fault in summed_up(machine).faults)


def test_an_invariant_that_adds_nothing_is_said_to_be_implied_by_another() -> None:
    rows = {r.name: r for r in summed_up(accepting(twice=True)).rows}
    assert rows["tickets_add_up_again"].implied_by == ("tickets_add_up",)
    assert rows["tickets_add_up_again"].total > 0
    alone = {r.name: r for r in summed_up(accepting()).rows}["tickets_add_up"]
    assert alone.alone > 0
    assert alone.implied_by == ()


def test_a_search_that_is_cut_short_is_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "MAX_STATES", 3)
    found = summed_up(accepting())
    assert found.undetermined
    assert found.verdict is Verdict.undetermined


def test_too_little_memory_for_the_machine_is_undetermined() -> None:
    found = matrix(run(MACHINES["block_pool"](frozenset()), memory=1 << 20))
    assert found.stopped
    assert found.missing > 0
    assert found.verdict is Verdict.undetermined


def test_ctrl_c_keeps_what_was_found() -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    campaign = run(accepting(), progress=interrupt)
    assert campaign.stopped == "interrupted"
    assert len(campaign.of(Fate.killed)) == 3
    assert campaign.missing == len(fates(run(accepting()))) - 3
    assert matrix(campaign).verdict is Verdict.undetermined


@pytest.mark.parametrize("machine", ["block_pool", "lookup"])
def test_a_mutant_that_is_a_named_design_is_noticed_as_the_design_is(machine: str) -> None:
    campaign = run(MACHINES[machine](frozenset()), only="evict*")
    noticed = {o.name: set(o.noticed) for o in campaign.outcomes}
    design = next(o for o in campaign.outcomes if o.name == "evict_pinned")
    assert design.fate is Fate.killed
    same = "evict: without guard not some(Holder h: holds[h, b])"
    if machine == "block_pool":
        assert noticed[same] == noticed["evict_pinned"]


def test_a_check_after_an_assignment_notices_the_mutant_that_is_a_named_design() -> None:
    machine, name = MACHINES["transfer"](frozenset()), "reset: resident is not released"
    campaign = run(machine, [{"Operation": 1, "Block": 1}], only=name)
    (outcome,) = campaign.outcomes
    assert "reset.RESET#2" in outcome.noticed
