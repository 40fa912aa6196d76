"""A proof borrows what was taken, reached and met from a search, and never claims more than that saw."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import verdicts as M  # noqa: N812
from shapes import counter

from kvfence.checker.analysis.verify import machine_facts
from kvfence.checker.core.c_build import CannotCompile
from kvfence.checker.engines import Engine, Finding, Result, Verdict, native
from kvfence.checker.engines.base import Log
from kvfence.checker.engines.smt.exercised import Exercised
from kvfence.spec.language import Int, Machine, State, ground


class Believer(Engine):
    """Says that everything holds, as a proof does that knows nothing of what is reached."""

    name = "believer"

    def __init__(self, stopped: str | None = None) -> None:
        self.stopped = stopped

    def run(self, machine: Machine, sizes: Mapping[str, int] | None = None, **_: Any) -> Result:
        """Every invariant holds."""
        found = {
            p.name: Finding(p.id, p.name, "invariant", Verdict.holds) for p in machine.invariants.values()
        }
        found |= {
            c.name: Finding(c.id, c.name, "check", Verdict.holds)
            for a in machine.actions.values()
            for c in a.checks
        }
        nothing = Log(ground(machine, sizes)).result(self.name, 0.0)
        known = {"coverage": {}, "goals": {}, "premises": {}, "unmet": {}, "unjudged": ()}
        return replace(nothing, findings=found, stopped=self.stopped, **known)


@pytest.fixture(autouse=True)
def _in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of these machines takes no time; compiling it would."""

    def refuse(*_: object) -> None:
        raise CannotCompile("not here")

    monkeypatch.setattr(native.native, "Model", refuse)


def test_what_everything_was_seen_of_holds_and_the_result_says_who_looked() -> None:
    found = Exercised(Believer()).run(M.declared())
    assert (found.verdict, found.missing) == (Verdict.holds, ())
    assert found.searched is not None
    assert (found.searched.sizes, found.searched.stopped) == ({"Block": 2}, None)


@pytest.mark.parametrize("name", ["check", "goal", "unsat", "shaped", "idle_check"])
def test_what_the_search_never_came_by_is_undetermined(name: str) -> None:
    found = Exercised(Believer()).run(getattr(M, name)())
    assert found.verdict is Verdict.undetermined
    assert any("never" in line or "no state meets" in line for line in found.missing)


def test_a_search_that_ends_early_leaves_open_what_it_did_not_come_by_and_says_so() -> None:
    found = Exercised(Believer(), states=1).run(M.declared())
    assert found.verdict is Verdict.undetermined
    assert found.missing[0].startswith(
        "the search for taken actions, goals and premises ended early: more than 1"
    )
    facts = machine_facts(found, machine=M.declared())
    assert facts.verdict is Verdict.undetermined


def test_a_search_in_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvfence.checker.engines.base.REPORT_EVERY", 0.0)
    late = Exercised(Believer(), seconds=0.0).run(M.goal(), {"Block": 8})
    assert late.searched is not None
    assert late.searched.stopped == "the 0 s for it were over"
    assert "goal one_is_hot was not seen to be reached" in late.missing
    small = Exercised(Believer()).run(M.goal(), {"Block": 8}, memory=1000)
    assert small.searched is not None
    assert "memory limit" in (small.searched.stopped or "")
    assert small.verdict is Verdict.undetermined


def test_what_the_search_finds_violated_is_violated_whatever_was_proved() -> None:
    for machine, id_ in ((M.bad0(), "PIN"), (M.dead0(), "DEADLOCK"), (M.incons(), "LEMMA")):
        found = Exercised(Believer()).run(machine)
        assert found.verdict is Verdict.violated
        assert [p.id for p in found.violated] == [id_]


def test_a_machine_with_endless_numbers_is_searched_by_the_interpreter_up_to_a_bound() -> None:
    m = counter("endless")

    @m.invariant("COUNT")
    def up(s: State) -> Any:
        """It counts up."""
        return s.n >= 0

    found = Exercised(Believer(), states=50).run(m)
    assert (found.verdict, found.missing) == (Verdict.holds, ())

    @m.goal
    def below(s: State) -> Any:
        """Never."""
        return s.n < 0

    found = Exercised(Believer(), states=50).run(m)
    assert found.verdict is Verdict.undetermined
    assert "goal below was not seen to be reached" in found.missing


def test_what_is_interrupted_or_violated_is_searched_no_further() -> None:
    assert Exercised(Believer("interrupted")).run(M.goal()).searched is None
    broken = Believer().run(M.goal())
    path = Exercised(Believer()).run(M.bad0()).violated[0]
    findings = {"x": Finding("PIN", "x", "invariant", Verdict.violated, path)}

    class Breaker(Believer):
        def run(self, machine: Machine, sizes: Mapping[str, int] | None = None, **_: Any) -> Result:  # noqa: ARG002
            return replace(broken, findings=findings)

    assert Exercised(Breaker()).run(M.goal()).searched is None


def wide(*, goal: int) -> Machine:
    """Two states, in numbers that no 64-bit engine computes."""
    m = Machine("wide", doc="Up and down.")
    m.function("n", value=Int(0, 2**62), init=2**62 - 1)

    @m.action()
    def up(s: State) -> None:
        """Up."""
        s.require(s.n < 2**62)
        s.n = s.n + 1

    @m.action()
    def down(s: State) -> None:
        """Down."""
        s.require(s.n == 2**62)
        s.n = s.n - 1

    @m.invariant("COUNT")
    def large(s: State) -> Any:
        """It stays large."""
        return s.n > 2**61

    @m.goal
    def there(s: State) -> Any:
        """It comes there."""
        return s.n == goal

    return m


def test_numbers_beyond_64_bits_are_searched_by_the_interpreter() -> None:
    found = Exercised(Believer()).run(wide(goal=2**62))
    assert (found.verdict, found.missing) == (Verdict.holds, ())
    assert found.searched is not None
    assert (found.searched.engine, found.searched.states) == ("interpret", 2)
    never = Exercised(Believer()).run(wide(goal=0))
    assert never.verdict is Verdict.undetermined
    assert "goal there was never reached" in never.missing
