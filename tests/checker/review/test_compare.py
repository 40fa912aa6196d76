"""What a review finds: for each design exactly what it breaks, and in reverse what its repair buys."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import two_tier

from kvfence.checker.analysis.liveness import liveness_sizes
from kvfence.checker.analysis.review import compare
from kvfence.checker.analysis.review.compare import effect_of, review, stopping
from kvfence.checker.analysis.review.facts import Effect, Review
from kvfence.checker.engines.base import Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.native import Native
from kvfence.spec.designs import DESIGNS, Design
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import LEMMA, Machine
from kvfence.spec.machines import MACHINES

SPEC = Path(two_tier.__file__)
QUICK = {  # designs whose fault shows where every sort has one element, or as many as said here
    "over_pop": {"Block": 4, "Holder": 2},
    "unpinned_lookup": {"Block": 2, "Request": 1},
    "late_flush": {},
    "complete_on_first_rank": {"Rank": 2},
    "flush_misses_queued": {},
    "barrier_with_any": {},
}


def sorts_of(design: Design) -> set[str]:
    return {sort for name in design.machines for sort in MACHINES[name](design.faults).sorts}


def affected(found: Review, effect: Effect) -> set[tuple[str, str]]:
    """The machines and invariants on which the change has that effect."""
    return {(m.machine, i.invariant) for m, i in found.of(effect)}


def broken(machine: Machine, sizes: dict[str, int]) -> set[str]:
    """What the machine violates, by another engine and without symmetry."""
    own = {sort: size for sort, size in sizes.items() if sort in machine.sorts}
    return {p.id for p in Explore().run(machine, own).violated}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_review_names_exactly_what_a_design_breaks_and_the_reverse_what_its_repair_buys(name: str) -> None:
    design = DESIGNS[name]
    sizes = {**dict.fromkeys(sorts_of(design), 1), **QUICK[name]}
    found = review("sound", name, sizes=sizes, pairs=0, proving=None)
    expected = {(m, id_) for m in design.machines for id_ in broken(MACHINES[m](design.faults), sizes)}
    assert affected(found, "worse") == expected
    assert {id_ for _, id_ in expected} >= {design.breaks}
    assert found.verdict == "worse"
    assert not found.better
    for m, i in found.of("worse"):
        assert i.story is not None
        run = Interpreter(MACHINES[m.machine](design.faults), m.sizes)
        state = run.initial()
        for step in i.story.steps:
            state, failures = run.step(state, run.find(step.action, **step.arguments))
        wrong = {f.id for f in failures} | {p.id for p in run.violated(state)}
        assert i.invariant in wrong
    back = review(name, "sound", sizes=sizes, pairs=0, proving=None)
    assert affected(back, "better") == expected
    assert not affected(back, "worse")
    assert back.verdict == ("undetermined" if back.open else "better")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DESIGNS) - {"sound"}))
def test_every_design_breaks_in_a_review_what_it_is_known_for_and_nothing_that_it_does_not(name: str) -> None:
    design = DESIGNS[name]
    found = review("sound", name, threads=2, pairs=200_000, proving=None)
    assert found.verdict in ("worse", "mixed")
    for m in found.machines:
        own = Native(threads=2, symmetry=False).run(MACHINES[m.machine](design.faults), m.sizes)
        named = {i.invariant for i in m.invariants if i.effect == "worse" and i.kind == "safety"}
        assert named == {p.id for p in own.violated} - {LEMMA}
    first = {i.invariant for _, i in found.of("worse") if i.first}
    assert design.breaks in first
    lengths = [len(i.story.steps) for _, i in found.of("worse") if i.story and i.invariant == design.breaks]
    assert lengths
    back = review(name, "sound", threads=2, pairs=0, proving=None)
    assert design.breaks in {i.invariant for _, i in back.of("better")}
    assert not back.of("worse")
    assert not back.of("open")


@pytest.mark.parametrize("side", ["sound", "evict_pinned", f"{SPEC}:build"])
def test_two_equal_sides_have_no_difference(side: str) -> None:
    found = review(side, side)
    assert (found.verdict, found.machines, found.worse, found.better, found.open) == ("same", (), (), (), ())


def test_a_design_that_trades_safety_for_progress_is_better_and_worse() -> None:
    found = review("free_fenced_victim", "fenced_victim_spin", pairs=0, proving=None)
    assert found.verdict == "mixed"
    assert {(i.invariant, i.kind) for _, i in found.of("better")} == {("FREEZE", "safety")}
    assert {(i.invariant, i.kind) for _, i in found.of("worse")} == {("PROGRESS", "progress")}
    ((_, promise),) = found.of("worse")
    assert promise.story is not None
    assert promise.story.loop is not None


def test_a_change_that_makes_a_goal_unreachable_is_worse() -> None:
    found = review(f"{SPEC}:build", f"{SPEC}:build+no_pin", pairs=1000, proving=None)
    (m,) = found.machines
    assert m.goals_lost == ("two_readers_pin_one_block",)
    assert any("two readers pin one block" in s for s in found.worse)
    back = review(f"{SPEC}:build+no_pin", f"{SPEC}:build", pairs=1000, proving=None)
    assert back.machines[0].goals_gained == ("two_readers_pin_one_block",)


def test_an_action_that_is_never_taken_any_more_is_worse() -> None:
    found = review(f"{SPEC}:build", f"{SPEC}:build+no_evict", pairs=1000, proving=None)
    assert found.machines[0].actions_lost == ("evict",)
    assert found.verdict == "worse"


def test_what_breaks_only_after_something_else_is_distinguished() -> None:
    found = review(f"{SPEC}:build", f"{SPEC}:build+no_pin", pairs=0, proving=None)
    assert {(i.invariant, i.first) for _, i in found.of("worse")} == {("PIN", True), ("USE-READY", False)}


def test_a_machine_that_stops_at_its_first_violation_breaks_the_same_first() -> None:
    machine = two_tier.build(frozenset({"no_pin"}))
    whole, stopped = Explore().run(machine), Explore().run(stopping(machine))
    assert {p.id for p in whole.violated} == {"PIN", "USE-READY"}
    assert {p.id for p in stopped.violated} == {"PIN"}
    assert len(stopped.violated[0]) == len(whole.violated[0])
    sound = two_tier.build()
    assert Explore().run(stopping(sound)).states == Explore().run(sound).states


def test_the_story_says_what_the_other_side_does_instead() -> None:
    found = review("sound", "unpinned_lookup", sizes={"Request": 1, "Block": 1}, pairs=0, proving=None)
    pin = next(i for _, i in found.of("worse") if i.invariant == "PIN")
    assert pin.story is not None
    assert [d.name for p in pin.story.diagnosis.prevented for d in p.updates] == ["pin[0, 0]", "ref[0]"]


def test_a_search_that_is_cut_short_is_undetermined_and_never_a_pass() -> None:
    found = review("no_flush_on_finish", "sound", memory=16 << 20, pairs=0, symmetry=False, proving=None)
    assert found.verdict == "undetermined"
    assert any("memory limit" in s for s in found.open)


def test_ctrl_c_keeps_what_was_found_and_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Interrupted(Native):
        def run(self, machine: Machine, *args: Any, **named: Any) -> Result:
            asked.append(machine.name)
            found = super().run(machine, *args, **named)
            return replace(found, stopped="interrupted") if len(asked) == 2 else found

    monkeypatch.setattr(compare, "Native", Interrupted)
    found = review("sound", "evict_pinned", sizes={"Block": 2, "Request": 1, "Holder": 1}, proving=None)
    assert asked == ["block_pool", "block_pool"]
    assert found.interrupted
    assert found.verdict in ("worse", "undetermined")
    assert any("not begun: interrupted" in s for s in found.open)


@pytest.mark.parametrize(
    ("base", "change", "effect"),
    [
        (Verdict.holds, Verdict.holds, "same"),
        (Verdict.violated, Verdict.violated, "same"),
        (Verdict.holds, Verdict.violated, "worse"),
        (Verdict.undetermined, Verdict.violated, "worse"),
        (None, Verdict.violated, "worse"),
        (Verdict.holds, None, "worse"),
        (Verdict.violated, Verdict.holds, "better"),
        (Verdict.holds, Verdict.undetermined, "open"),
        (Verdict.violated, Verdict.undetermined, "open"),
        (Verdict.undetermined, Verdict.undetermined, "open"),
        (None, Verdict.holds, "same"),
    ],
)
def test_what_a_change_of_a_verdict_means(base: Verdict | None, change: Verdict | None, effect: str) -> None:
    assert effect_of(base, change) == effect


def test_promises_are_judged_no_larger_than_the_machine_allows() -> None:
    machine = MACHINES["scheduling"](frozenset())
    sizes = {name: sort.default for name, sort in machine.sorts.items()}
    assert all(liveness_sizes(machine, sizes)[sort] <= size for sort, size in sizes.items())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"machine": "transfer"}, "no machine in these designs 'transfer'"),
        ({"sizes": {"Blok": 2}}, "did you mean Block"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], part: str) -> None:
    with pytest.raises(CannotRun, match=part):
        review("unpinned_lookup", "evict_pinned", **arguments)  # type: ignore[arg-type]


def test_a_file_is_compared_with_a_design_by_the_name_of_its_machine() -> None:
    with pytest.raises(CannotRun, match="is machine two_tier"):
        review(f"{SPEC}:build", "sound")
