"""The scheduling machine: safe at any size, everybody gets on, and each design with its story."""

import pytest
from stories import assert_holds_and_does_all, assert_proof_needs_lemmas, faulty_designs

from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.base import Path, Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import scheduling
from kvfence.spec.numbering import Numbering

TWO = {"Request": 2}
DONE = "every_request_that_arrives_is_done"
RUNS = "a_holder_whose_load_has_landed_runs"
COPIED = "a_wanted_copy_is_made_or_given_up"

STUCK = {
    "head_blocks_holder": ({DONE, RUNS}, ("submit", "submit", "park", "land")),
    "blockless_head": ({DONE, RUNS}, ("submit", "submit", "defer", "park", "answer", "land")),
    "placeholder_not_rolled_back": (
        {DONE},
        ("submit", "park", "land", "promote", "dispatch", "process_failed_load", "dispatch", "process"),
    ),
    "mirror_pins_starve": (
        {COPIED},
        (
            "submit",
            "admit",
            "dispatch",
            "process",
            "dispatch",
            "process",
            "finish",
            "backup",
            "acknowledge",
        ),
    ),
}
"""Designs in which a run comes to a halt: the promises that break, and the fewest steps to the halt."""

SPINNING = {
    "fenced_victim_spin": {"preempt", "process"},
    "preempt_beside_parked": {"preempt", "park", "land"},
}
"""Designs in which a run goes round for ever, and steps that it takes again and again."""


def promised(faults: set[str], fair: bool = True) -> Result:
    return Liveness(fair=fair).run(scheduling.build(frozenset(faults)), TWO)


def broken(found: Result) -> set[str]:
    return {path.name for path in found.violated}


def steps(path: Path) -> tuple[str, ...]:
    return tuple(step.action for step in path.steps)


def test_there_is_a_story_for_every_design() -> None:
    assert faulty_designs("scheduling") == {*STUCK, *SPINNING, "free_fenced_victim"}


def test_the_sound_design_is_safe_and_everybody_gets_on() -> None:
    assert_holds_and_does_all(scheduling.build(), TWO)
    kept = promised(set())
    assert (kept.verdict, kept.vacuous) == (Verdict.holds, ())


def test_nobody_gets_on_when_nothing_has_to_happen() -> None:
    assert broken(promised(set(), fair=False)) == {DONE, RUNS, COPIED}


@pytest.mark.parametrize("design", STUCK)
def test_a_run_comes_to_a_halt_by_its_story_and_no_shorter_one(design: str) -> None:
    expected, story = STUCK[design]
    assert DESIGNS[design].breaks == "PROGRESS"
    found = promised({design})
    assert broken(found) == expected
    path = min(found.violated, key=len)
    assert path.loop == len(path), "nothing more happens"
    assert sorted(steps(path)) == sorted(story)


@pytest.mark.parametrize("design", STUCK)
def test_where_the_faulty_design_halts_the_sound_one_must_go_on(design: str) -> None:
    """The same steps are possible in it, or a step before is refused; at the end a fair step is due."""
    machine = scheduling.build()
    run = Interpreter(machine, TWO)
    path = min(promised({design}).violated, key=len)
    state = run.initial()
    for step in path.steps:
        instance = run.find(step.action, **step.args)
        if instance not in run.enabled(state):
            return
        state, failed = run.step(state, instance)
        assert not failed
    assert [i for i in run.enabled(state) if machine.actions[i.name].fair]


@pytest.mark.parametrize("design", SPINNING)
def test_a_run_goes_round_for_ever_and_no_state_in_it_is_wrong(design: str) -> None:
    found = promised({design})
    assert broken(found) == {DONE}
    (path,) = found.violated
    assert path.loop is not None
    assert path.loop < len(path)
    assert set(steps(path)[path.loop :]) >= SPINNING[design]
    assert Explore().run(scheduling.build(frozenset({design})), TWO).verdict is Verdict.holds


@pytest.mark.parametrize("design", sorted({*STUCK, *SPINNING} - {"placeholder_not_rolled_back"}))
def test_a_design_that_is_stuck_is_safe(design: str) -> None:
    safe = Explore().run(scheduling.build(frozenset({design})), TWO)
    assert not safe.violated


def test_what_is_not_rolled_back_is_counted_wrongly_long_before_the_halt() -> None:
    found = Explore().run(scheduling.build(frozenset({"placeholder_not_rolled_back"})), TWO, until="first")
    assert [(path.id, len(path)) for path in found.violated] == [("COUNT", 6)]


def test_a_request_that_can_never_fit_is_not_taken_on() -> None:
    one_block = {"Request": 2, "Block": 1}
    run = Interpreter(scheduling.build(), one_block)
    taken = {i.args["need"] for i in run.enabled(run.initial()) if i.name == "submit"}
    assert taken == {"short"}
    kept = Liveness().run(scheduling.build(), one_block)
    assert (kept.violated, kept.stopped) == ((), None), "everybody who is taken on gets on"


def test_freeing_a_fenced_victim_at_once_buys_progress_with_safety() -> None:
    twin = {"free_fenced_victim"}
    assert promised(twin).verdict is Verdict.holds
    unsafe = Explore().run(scheduling.build(frozenset(twin)), TWO, until="first")
    assert {path.id for path in unsafe.violated} == {"FREEZE"}
    scheduling.build(frozenset(twin)).assert_discovers(
        "a_block_under_a_step_is_held",
        [
            "submit(r=0, need=growing)",
            "submit(r=1, need=short)",
            "admit(r=0, b=0, c=0)",
            "admit(r=1, b=1, c=1)",
            "dispatch(r=1)",
            "dispatch(r=0)",
            "preempt(v=1)",
        ],
        TWO,
    )


def test_the_report_says_that_one_is_bought_with_the_other() -> None:
    found = verify("free_fenced_victim")
    (machine,) = found.machines
    assert (machine.verdict_on("FREEZE"), machine.verdict_on("PROGRESS")) == ("violated", "holds")
    found = verify("fenced_victim_spin")
    (machine,) = found.machines
    assert (machine.verdict_on("FREEZE"), machine.verdict_on("PROGRESS")) == ("holds", "violated")
    assert machine.promised is not None
    assert machine.promised.states == machine.states


def test_the_fence_is_lifted_by_the_last_step_and_not_before() -> None:
    run = Interpreter(scheduling.build(), {"Request": 2, "Block": 2})
    state = run.initial()
    story: list[tuple[str, dict[str, object]]] = [
        ("submit", {"r": 0, "need": "growing"}),
        ("submit", {"r": 1, "need": "short"}),
        ("admit", {"r": 0, "b": 0, "c": 0}),
        ("admit", {"r": 1, "b": 1, "c": 1}),
        ("dispatch", {"r": 0}),
        ("process", {"r": 0}),
        ("dispatch", {"r": 1}),
        ("dispatch", {"r": 1}),
        ("preempt", {"v": 1}),
        ("process", {"r": 1}),
    ]
    for name, args in story:
        instance = run.find(name, **args)  # type: ignore[arg-type]
        assert instance in run.enabled(state), name
        state, failed = run.step(state, instance)
        assert not failed
    assert run.view(state).fence[1, 1]
    assert run.find("grow", r=0, b=1) not in run.enabled(state)
    assert run.find("preempt", v=0) not in run.enabled(state), "its blocks are on their way"
    state, _ = run.step(state, run.find("process", r=1))
    assert run.find("grow", r=0, b=1) in run.enabled(state)


def test_a_run_that_halts_ends_its_trace_with_rounds_that_do_nothing() -> None:
    (example,) = verify("head_blocks_holder").counterexamples
    assert [type(event).__name__ for event in example.idle] == ["Round"] * 3
    ledger, judged = Ledger(example.header), []
    for event in example.trace:
        found = ledger.apply(event)
        judged.append(found.invariant if found else None)
    assert judged[-1] == "PROGRESS"
    assert set(judged[:-1]) == {None}


def test_generations_are_numbered_by_how_often_a_request_was_preempted() -> None:
    run = Interpreter(scheduling.build(), {"Request": 2, "Block": 2})
    path = min(promised({"preempt_beside_parked"}).violated, key=len)
    faulty = Interpreter(scheduling.build(frozenset({"preempt_beside_parked"})), TWO)
    number, events, state = Numbering(), [], run.initial()
    for step in path.steps:
        instance = faulty.find(step.action, **step.args)
        after, _ = faulty.step(state, instance)
        events += list(number(faulty.events(state, instance, after)))  # type: ignore[arg-type]
        state = after
    preempted = [(e.req, e.gen) for e in events if type(e).__name__ == "Preempt"]
    for req in {req for req, _ in preempted}:
        gens = [gen for r, gen in preempted if r == req]
        assert gens == list(range(len(gens)))
    assert max(gen for _, gen in preempted) >= 1


@pytest.mark.slow
def test_the_sound_design_is_proved_safe_for_any_size() -> None:
    pytest.importorskip("z3")
    found = verify(machine="scheduling", engine="smt")
    assert found.verdict == "holds"
    (machine,) = found.machines
    assert machine.proof is not None
    assert not machine.proof.open
    assert set(machine.unjudged) == {DONE, RUNS, COPIED}


def test_without_its_lemmas_the_proof_does_not_go_through() -> None:
    assert_proof_needs_lemmas(scheduling.build(), TWO)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{}, {"Request": 2, "Block": 3}, {"Request": 3, "Host": 2}])
def test_everybody_gets_on_at_larger_sizes_too(sizes: dict[str, int]) -> None:
    found = Liveness().run(scheduling.build(), sizes)
    assert (found.verdict, found.stopped) == (Verdict.holds, None)
