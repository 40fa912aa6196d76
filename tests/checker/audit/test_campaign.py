"""Campaigns on a small fake: a target that is wrong in ways that are known here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvfence.checker.audit.campaign import Campaign, campaign
from kvfence.checker.audit.cases.case import Abort, Case, Setup, Submit
from kvfence.checker.audit.cases.outcome import Evidence, Outcome, Sighting
from kvfence.checker.audit.cases.setup_features import Reach
from kvfence.checker.audit.findings import examined, grounds_of, slug, verdict_of
from kvfence.checker.audit.release_table import rows
from kvfence.checker.report.text.audited import audit_text, summary, table_text


def sighting(invariant: str, cause: str, evidence: Evidence = "content") -> Sighting:
    return Sighting(
        invariant=invariant, cause=cause, evidence=evidence, detail=f"{cause} 17", story=("event 1: x",)
    )


class Fake:
    """Leaks on every abort; breaks a rule without harm when lazy; holds whenever it is asked not to."""

    name = "a fake"
    width = 1

    def __init__(self, stop_after: int = 10**9) -> None:
        self.runs, self.stop_after = 0, stop_after

    def run(self, case: Case) -> Outcome:
        self.runs += 1
        if self.runs > self.stop_after:
            raise KeyboardInterrupt
        seen = []
        if case.setup.lazy:
            seen.append(sighting("COUNT", "tokens do not add up", "rule"))
        first = next((i for i, action in enumerate(case.actions) if isinstance(action, Submit)), None)
        if first is not None and any(isinstance(action, Abort) for action in case.actions[first:]):
            seen.append(sighting("NO-LEAK", "an abort leaks", "leak"))
        return Outcome(sightings=tuple(seen), steps=1, events=1, counts={"requests": 1})

    def run_all(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        return map(self.run, cases)

    def close(self) -> None:
        pass


class Constant(Fake):
    """Shows the same in every case; nothing, unless it is given something."""

    def __init__(self, **shown: Any) -> None:
        super().__init__()
        self.outcome = Outcome(steps=1, **{"events": 1, **shown})

    def run(self, _: Case) -> Outcome:
        return self.outcome


def hunted(target: Fake, most: int = 100) -> Campaign:
    return examined(campaign(target, Reach(), budget=600, seed=3, most=most), None)


def test_each_fault_is_found_once_with_its_smallest_case() -> None:
    found = hunted(Fake())
    leak = next(f for f in found.findings if f.sighting.invariant == "NO-LEAK")
    assert [type(action) for action in leak.case.actions] == [Submit, Abort]
    assert leak.case.setup == Setup(
        gpu_blocks=leak.case.setup.gpu_blocks, cpu_blocks=leak.case.setup.cpu_blocks
    )
    assert leak.times > 1
    assert leak.confirmed
    assert len({finding.key for finding in found.findings}) == len(found.findings)


def test_a_rule_broken_without_harm_is_noted_and_does_not_decide() -> None:
    found = hunted(Fake())
    by_invariant = {finding.sighting.invariant: finding for finding in found.findings}
    assert grounds_of(by_invariant["COUNT"]) == "noted"
    assert grounds_of(by_invariant["NO-LEAK"]) == "fault"
    assert verdict_of(found) == "violated"
    only_noted = msgspec.structs.replace(found, findings=(by_invariant["COUNT"],))
    assert verdict_of(only_noted) == "holds"


def test_nothing_found_holds_unless_something_was_not_looked_at() -> None:
    assert verdict_of(hunted(Constant(), 20)) == "holds"
    assert verdict_of(hunted(Constant(unchecked=("a hook is missing",)), 20)) == "undetermined"


def test_ctrl_c_keeps_what_was_found() -> None:
    found = hunted(Fake(stop_after=80))
    assert found.interrupted
    assert "NO-LEAK" in {finding.sighting.invariant for finding in found.findings}
    assert "Interrupted" in summary(found)
    assert verdict_of(hunted(Fake(stop_after=0))) == "undetermined"


def test_the_same_seed_draws_the_same_cases() -> None:
    class Noting(Constant):
        def __init__(self) -> None:
            super().__init__()
            self.cases: list[Case] = []

        def run(self, case: Case) -> Outcome:
            self.cases.append(case)
            if len(self.cases) == 30:
                raise KeyboardInterrupt
            return super().run(case)

    one, other = Noting(), Noting()
    hunted(one)
    hunted(other)
    assert one.cases == other.cases


def test_a_fault_that_the_engine_has_alone_is_set_apart() -> None:
    found = campaign(Fake(), Reach(), budget=600, seed=3, most=100)
    apart = examined(found, Fake().run)
    assert {grounds_of(f) for f in apart.findings} == {"engine"}
    assert verdict_of(apart) != "violated"


def test_a_broken_rule_follows_the_fault_of_its_invariant_that_did_harm() -> None:
    rule = sighting("STORE-READY", "a store reads unconfirmed blocks", "rule")
    race = sighting("STORE-READY", "nothing orders a write and a read", "race")
    found = hunted(Constant(sightings=(rule, race)), 5)
    assert {f.sighting.evidence: grounds_of(f) for f in found.findings} == {"race": "fault", "rule": "noted"}


def test_the_report_says_what_was_judged_and_what_was_not() -> None:
    judged = Constant(checks={"RANKS": 0, "PIN": 400, "FREEZE": 3})
    text = audit_text(hunted(judged, 5), width=100)
    assert "Checks made: FREEZE 15, PIN 2,000." in text
    assert "Not judged: RANKS." in text


def test_the_report_has_case_story_and_evidence() -> None:
    found = hunted(Fake())
    text = audit_text(found, width=100)
    for words in (
        "NO-LEAK: an abort leaks",
        "the shortest case:",
        "abort request=0",
        "event 1: x",
        "a fake: violated",
    ):
        assert words in text
    assert text.index("Found:") < text.index("Noted:")


def test_the_table_says_where_each_fault_was_found() -> None:
    faulty, sound = hunted(Fake()), hunted(Constant(), 20)
    broken = msgspec.structs.replace(sound, broke="it could not be driven")
    assert [row[2:] for row in rows([faulty, sound, broken])] == [("found", "-", "?")]
    text = table_text(["1.0", "2.0", "3.0"], [faulty, sound, broken], width=100)
    assert "NO-LEAK: an abort leaks" in text


def test_files_of_two_causes_have_two_names() -> None:
    found = hunted(Fake())
    assert len({slug(finding) for finding in found.findings}) == len(found.findings)


def test_harm_that_has_a_cause_of_its_own_is_not_a_consequence_of_a_broken_rule() -> None:
    rule = sighting("ONCE", "a rule is broken", "rule")
    own = sighting("FAIL-CLOSED", "a copy that fails ends the thread", "stall")
    found = {f.sighting.invariant: f for f in hunted(Constant(sightings=(rule, own)), most=5).findings}
    assert grounds_of(found["ONCE"]) == "noted"
    assert grounds_of(found["FAIL-CLOSED"]) == "fault"
