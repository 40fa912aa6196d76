"""What is reported of a counterexample: what is false, which step made it so, what would prevent it."""

import pytest

from kvfence.checker.analysis.counterexamples import counterexample
from kvfence.checker.analysis.diagnosis import implication
from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.minimise import ends_in, shorten
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Instance, Machine
from kvfence.spec.language.pinned_path import parsed
from kvfence.spec.machines import MACHINES

SMALL = {"Request": 2, "Block": 2}
LEAK = "a_request_that_is_gone_holds_nothing"
DETOUR = [
    "submit(r=1)",
    "find_no_room(r=1)",
    "begin_store(b=1, first=true)",
    "submit(r=0)",
    "begin_store(b=0, first=false)",
    "end_store(b=1)",
    "lookup(r=1, local=1)",
    "lookup(r=0, local=0)",
    "lookup(r=0, local=0)",
    "abort(r=1)",
    "abort(r=0)",
]


def faulty(design: str) -> Machine:
    (name,) = DESIGNS[design].machines
    return MACHINES[name](frozenset({design}))


def steps_of(run: Interpreter, calls: list[str]) -> list[Instance]:
    return [run.find(name, **args) for name, args in map(parsed, calls)]  # type: ignore[arg-type]


def verified(design: str, machine: str) -> Counterexample:
    return next(e for e in verify(design, machine=machine).counterexamples if e.machine == machine)


@pytest.fixture(scope="module")
def leak() -> tuple[Interpreter, list[Instance]]:
    """A machine that leaks a pin, and the detour to its leak without the steps that do not matter."""
    run = Interpreter(faulty("pin_leak_on_abort"), SMALL)
    return run, shorten(run, steps_of(run, DETOUR), LEAK)


def test_steps_that_do_not_matter_are_left_out(leak: tuple[Interpreter, list[Instance]]) -> None:
    run, short = leak
    assert [i.name for i in short] == ["begin_store", "submit", "end_store", "lookup", "abort"]
    assert ends_in(run, short, LEAK) == len(short)


def test_no_step_of_a_shortened_path_can_be_left_out(leak: tuple[Interpreter, list[Instance]]) -> None:
    run, short = leak
    for k in range(len(short)):
        assert ends_in(run, [*short[:k], *short[k + 1 :]], LEAK) is None


def test_the_shortest_path_of_a_search_is_not_shortened_further() -> None:
    machine = faulty("pin_leak_on_abort")
    run = Interpreter(machine, SMALL)
    (path,) = (p for p in Explore().run(machine, SMALL, until="first").violated if p.name == LEAK)
    steps = [run.find(s.action, **s.args) for s in path.steps]
    assert shorten(run, steps, LEAK) == steps
    assert counterexample(machine, SMALL, path).left_out == 0


def test_steps_after_the_violation_are_left_out() -> None:
    run = Interpreter(faulty("pin_leak_on_abort"), SMALL)
    longer = steps_of(run, [*DETOUR, "end_store(b=0)"])
    assert ends_in(run, longer, LEAK) == len(DETOUR)
    assert shorten(run, longer, LEAK)[-1].name == "abort"


def test_steps_that_violate_nothing_are_refused() -> None:
    run = Interpreter(MACHINES["lookup"](frozenset()), SMALL)
    with pytest.raises(ValueError, match="11 steps do not violate"):
        shorten(run, steps_of(run, DETOUR), LEAK)


def test_a_longer_path_is_explained_without_its_detours() -> None:
    machine = faulty("pin_leak_on_abort")
    run = Interpreter(machine, SMALL)
    path = run.path(steps_of(run, DETOUR), "NO-LEAK", LEAK)
    example = counterexample(machine, SMALL, path)
    assert example.left_out == len(DETOUR) - len(example.steps) > 0
    assert example.steps[-1].action == "abort"


def test_the_false_conjunct_has_its_variables_filled_in_and_the_values_of_its_parts() -> None:
    found = verified("unpinned_lookup", "lookup").diagnosis
    assert found.conjunct.startswith("promise[0, 0] implies not all(Request r:")
    assert {p.text: p.value for p in found.parts}["promise[0, 0]"] is True


def test_the_step_that_made_a_check_false_may_be_an_earlier_one() -> None:
    example = verified("evict_pinned", "block_pool")
    assert example.name == "evict.PIN"
    assert example.diagnosis.made_by is not None
    made = example.steps[example.diagnosis.made_by - 1]
    assert "holds[0, 0]" in {change.name for change in made.changes}
    assert example.diagnosis.made_by < len(example.steps)


def test_a_guard_that_would_have_prevented_it_is_named_with_its_line() -> None:
    (prevented,) = verified("evict_pinned", "lookup").diagnosis.prevented
    assert (prevented.action, prevented.step) == ("evict", 5)
    (guard,) = prevented.guards
    assert guard.text == "all(Request r: not pin[r, 0])"
    assert "lookup.py:" in guard.where


def test_an_update_that_would_have_prevented_it_is_reported_with_both_values() -> None:
    (prevented,) = verified("unpinned_lookup", "lookup").diagnosis.prevented
    assert {d.name: (d.here, d.sound) for d in prevented.updates}["pin[0, 0]"] == (False, True)


def test_an_action_that_the_sound_design_lacks_is_said_so() -> None:
    prevented = verified("lost_completion", "transfer").diagnosis.prevented
    assert any(p.no_such_action and p.action == "ignore_report" for p in prevented)


WRONG_FORMULA = {"aligned_window_bound"}
"""Designs that reckon wrongly, and do nothing else."""


@pytest.mark.parametrize(
    ("design", "machine"),
    [(d.name, m) for d in DESIGNS.values() if d.breaks for m in d.machines if m != "transfer"],
)
def test_for_every_design_the_sound_one_does_something_else_on_the_way(design: str, machine: str) -> None:
    example = verified(design, machine)
    assert example.diagnosis.conjunct
    assert example.diagnosis.made_by is not None
    if design in WRONG_FORMULA:  # the same steps, and another formula in what is stated of them
        stated, sound = (
            MACHINES[machine](f).invariants[example.name] for f in (frozenset({design}), frozenset[str]())
        )
        assert stated.expr is not sound.expr
        return
    assert example.diagnosis.prevented or example.diagnosis.due


def test_where_nothing_more_happens_the_steps_are_named_that_the_sound_design_would_take() -> None:
    example = verified("head_blocks_holder", "scheduling")
    assert example.loop == len(example.steps)
    assert example.diagnosis.due == ("promote(r=0)",)
    assert not example.diagnosis.prevented


def test_of_a_broken_promise_it_is_reported_what_never_comes_true_and_for_whom() -> None:
    example = verified("mirror_pins_starve", "scheduling")
    assert example.name == "a_wanted_copy_is_made_or_given_up"
    (wanted,) = [name for name, value in example.values.items() if value is True]
    assert wanted.startswith("wanted[")
    assert {p.text for p in example.diagnosis.parts} == {wanted}
    assert example.steps[(example.diagnosis.made_by or 0) - 1].action == "finish"


def test_an_or_is_printed_as_the_implication_it_was_written_as() -> None:
    expr = MACHINES["transfer"](frozenset()).invariants["the_cursor_passes_only_what_is_accounted_for"].expr
    assert implication(expr.args[0], {}) == "cursor[r] implies covered[r]"
