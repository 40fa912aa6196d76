"""Promises about whole runs are judged beside what is explored, at sizes whose graph fits."""

from __future__ import annotations

import pytest

from kvfence.checker.engines import Explore
from kvfence.checker.mutation.kill import Fate, run
from kvfence.checker.mutation.matrix import matrix
from kvfence.checker.promises import judged, promise_sizes
from kvfence.checker.verify import verify
from kvfence.spec.language import Elem, Expr, ForAll, Machine, Not, SpecError, State


def queue(*, progress: bool = True) -> Machine:
    """Whoever waits is served; ``progress``: that this comes about is promised as PROGRESS."""
    m = Machine("queue")
    Guest = m.sort("Guest", default=2)  # noqa: N806
    m.relation("waits", Guest, init=False)
    m.relation("served", Guest, init=False)

    @m.action(g=Guest)
    def come(s: State, g: Elem) -> None:
        s.require(Not(s.waits[g]), Not(s.served[g]))
        s.waits[g] = True

    @m.action(g=Guest, fair="weak")
    def serve(s: State, g: Elem) -> None:
        s.require(s.waits[g])
        s.waits[g] = False
        s.served[g] = True

    @m.action(g=Guest)
    def leave(s: State, g: Elem) -> None:
        s.require(s.served[g])
        s.served[g] = False

    @m.invariant("ONCE")
    def who_is_served_waits_no_more(s: State) -> Expr:
        return ForAll(Guest, lambda g: Not(s.waits[g] & s.served[g]))

    m.leads_to(
        "who_waits_is_served",
        lambda s, g: s.waits[g],
        lambda s, g: s.served[g],
        id_="PROGRESS" if progress else "SOMETHING",
        g=Guest,
    )
    return m


def test_promises_are_judged_at_the_sizes_of_the_run() -> None:
    m = queue()
    found = judged(Explore().run(m, {"Guest": 3}), m)
    assert found is not None
    assert (found.sizes, found.verdict) == ({"Guest": 3}, "holds")


def test_they_are_judged_at_smaller_sizes_where_the_machine_says_so() -> None:
    m = queue()
    m.promise_sizes(Guest=2)
    assert promise_sizes(m, {"Guest": 3}) == {"Guest": 2}
    assert promise_sizes(m, {"Guest": 1}) == {"Guest": 1}
    found = judged(Explore().run(m, {"Guest": 3}), m)
    assert found is not None
    assert found.sizes == {"Guest": 2}


def test_a_size_of_no_sort_is_refused() -> None:
    with pytest.raises(SpecError, match="no sort Gest; did you mean Guest"):
        queue().promise_sizes(Gest=2)


def test_a_mutant_that_only_keeps_somebody_waiting_is_noticed_by_the_promise() -> None:
    fate = {}
    for progress in (True, False):
        campaign = run(queue(progress=progress), workers=1)
        fate[progress] = next(o for o in campaign.outcomes if o.name == "serve: served is not assigned")
    assert fate[True].noticed == fate[False].noticed  # an action is never taken: noticed anyhow
    name = "serve: waits is not released"
    campaign = run(queue(), workers=1)
    assert next(o for o in campaign.outcomes if o.name == name).fate is Fate.killed
    rows = {row.name: row for row in matrix(campaign).rows}
    assert "who_waits_is_served" in rows


def test_the_verdicts_tell_where_promises_were_judged_and_where_they_were_not() -> None:
    explored = verify(machine="ranks", sizes={"Operation": 1})
    assert explored.machines[0].verdict_on("PROGRESS") == "holds"
    assert explored.machines[0].promised is not None
    assert explored.machines[0].promised.sizes == {"Operation": 1, "Rank": 2}
    bounded = verify(machine="ranks", engine="bmc", sizes={"Operation": 1})
    assert bounded.machines[0].verdict_on("PROGRESS") is None
    assert bounded.machines[0].unjudged == ("every_operation_ends",)
