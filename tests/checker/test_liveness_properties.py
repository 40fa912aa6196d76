"""Liveness properties are judged beside what is explored, at sizes whose graph fits."""

from __future__ import annotations

import pytest

from kvfence.checker.analysis.liveness import judged, liveness_sizes
from kvfence.checker.analysis.mutation.kill import Fate, run
from kvfence.checker.analysis.mutation.matrix import matrix
from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.spec.language import Elem, Exists, Expr, ForAll, Machine, Not, SpecError, State


def counter(*, progress: bool = True) -> Machine:
    """A guest who waits at the counter is served; ``progress``: that is promised as PROGRESS."""
    m = Machine("counter")
    Guest = m.sort("Guest", default=2)  # noqa: N806
    m.relation("waits", Guest, init=False)
    m.relation("open", init=False)

    @m.action(g=Guest)
    def come(s: State, g: Elem) -> None:
        s.require(Not(s.waits[g]))
        s.waits[g] = True

    @m.action(fair="weak")
    def open_up(s: State) -> None:
        s.require(Not(s.open))
        s.open = True

    @m.action(g=Guest, fair="weak")
    def serve(s: State, g: Elem) -> None:
        s.require(s.waits[g], s.open)
        s.waits[g] = False

    @m.action()
    def shut(s: State) -> None:
        s.require(s.open, ForAll(Guest, lambda g: Not(s.waits[g])))
        s.open = False

    @m.goal
    def somebody_waits(s: State) -> Expr:
        return Exists(Guest, lambda g: s.waits[g])

    m.leads_to(
        "who_waits_is_served",
        lambda s, g: s.waits[g],
        lambda s, g: Not(s.waits[g]),
        id_="PROGRESS" if progress else "SOMETHING",
        g=Guest,
    )
    return m


def test_promises_are_judged_at_the_sizes_of_the_run() -> None:
    m = counter()
    found = judged(Explore().run(m, {"Guest": 3}), m)
    assert found is not None
    assert (found.sizes, found.verdict) == ({"Guest": 3}, "holds")


def test_they_are_judged_at_smaller_sizes_where_the_machine_says_so() -> None:
    m = counter()
    m.liveness_sizes(Guest=2)
    assert liveness_sizes(m, {"Guest": 3}) == {"Guest": 2}
    assert liveness_sizes(m, {"Guest": 1}) == {"Guest": 1}
    found = judged(Explore().run(m, {"Guest": 3}), m)
    assert found is not None
    assert found.sizes == {"Guest": 2}


def test_a_size_of_no_sort_is_refused() -> None:
    with pytest.raises(SpecError, match="no sort Gest; did you mean Guest"):
        counter().liveness_sizes(Gest=2)


@pytest.mark.parametrize(("progress", "fate"), [(True, Fate.killed), (False, Fate.survived)])
def test_a_mutant_that_shuts_again_and_again_is_noticed_by_the_promise_alone(
    progress: bool, fate: Fate
) -> None:
    campaign = run(counter(progress=progress), only="shut: without guard all*", workers=1)
    (outcome,) = campaign.outcomes
    assert outcome.fate is fate
    assert list(outcome.noticed) == (["who_waits_is_served"] if progress else [])
    rows = {row.name: row.invariant for row in matrix(campaign, partial=True).rows}
    assert rows == ({"who_waits_is_served": "PROGRESS"} if progress else {})


def test_the_verdicts_say_where_promises_were_judged_and_where_they_were_not() -> None:
    explored = verify(machine="ranks", sizes={"Operation": 1})
    assert explored.machines[0].verdict_on("PROGRESS") == "holds"
    assert explored.machines[0].promised is not None
    assert explored.machines[0].promised.sizes == {"Operation": 1, "Rank": 2}
    bounded = verify(machine="ranks", engine="bmc", sizes={"Operation": 1})
    assert bounded.machines[0].verdict_on("PROGRESS") is None
    assert bounded.machines[0].unjudged == ("every_operation_ends",)
