"""``kvfence verify``: its exit codes, and that text and JSON tell the same facts."""

import re
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS


def test_a_sound_machine_holds_and_the_table_has_what_was_explored(kvfence: CommandLine) -> None:
    question = ["verify", "--machine", "block_pool"]
    code, text, _ = kvfence(*question)
    assert code == 0
    machine = kvfence.json(0, *question)["machines"][0]
    lines = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
    assert lines["states"] == f"{machine['states']:,}"
    assert lines["transitions"] == f"{machine['transitions']:,}"
    assert lines["depth"] == str(machine["depth"])
    assert all(lines[condition["invariant"]] == condition["verdict"] for condition in machine["conditions"])
    assert machine["states"] > 1000


def test_a_faulty_design_has_the_same_events_in_text_and_json(kvfence: CommandLine) -> None:
    question = ["verify", "--design", "unpinned_lookup"]
    code, text, _ = kvfence(*question)
    assert code == 1
    found = kvfence.json(1, *question)
    example = found["counterexamples"][0]
    assert (found["verdict"], example["invariant"]) == ("violated", "PIN")
    steps = re.findall(r"^ *(\d+)\. (\w+)\(", text, re.MULTILINE)
    assert steps == [(str(step["number"]), step["action"]) for step in example["steps"]]
    changes = [change for step in example["steps"] for change in step["changes"]]
    assert changes
    assert all(f"{change['name']}: " in text for change in changes)
    assert example["values"]
    assert all(f"{name} = {str(value).lower()}" in text for name, value in example["values"].items())


def test_the_values_printed_are_those_that_make_the_condition_false(kvfence: CommandLine) -> None:
    values = kvfence.json(1, "verify", "--design", "unpinned_lookup")["counterexamples"][0]["values"]
    assert [name for name, value in values.items() if value is True] == ["promise[0, 0]"]
    assert values["pin[0, 0]"] is False


def test_the_steps_name_the_trace_events_that_they_stand_for(kvfence: CommandLine) -> None:
    steps = kvfence.json(1, "verify", "--design", "unpinned_lookup")["counterexamples"][0]["steps"]
    assert [event["e"] for event in steps[-1]["observed"]][-1] == "lookup"


def test_a_search_cut_short_is_undetermined_and_does_not_pass(kvfence: CommandLine) -> None:
    sizes = ["--size", "Block=9", "--size", "Holder=4"]
    text = kvfence.prints(3, "verify", "--machine", "block_pool", *sizes, "--memory", "16MiB")
    assert "stopped early" in text


def test_what_no_machine_states_is_said_not_to_be_checked_yet(kvfence: CommandLine) -> None:
    sizes = ["Block=2", "Request=1", "Slot=1", "Operation=1", "Token=2", "Part=1"]
    small = [word for size in sizes for word in ("--size", size)]
    _, text, _ = kvfence("verify", *small, "--engine", "interpret")
    specified = {row.id for row in INVARIANTS if row.specified}
    for row in INVARIANTS:
        line = next(line for line in text.splitlines() if line.startswith(f"{row.id} "))
        assert ("not yet" in line) == (row.id not in specified)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--machine", "lokup"], "did you mean lookup?"),
        (["--design", "unpined_lookup"], "did you mean unpinned_lookup?"),
        (["--design", "unpinned_lookup", "--machine", "transfer"], "it touches lookup"),
        (["--size", "Blok=3"], "did you mean Block?"),
        (["--size", "Block=0"], "at least one"),
        (["--size", "Block"], "Sort=N"),
        (["--memory", "plenty"], "2GiB"),
        (["--engine", "guess"], "explore, interpret"),
        (["--until", "later"], "'first', 'end'"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line_with_the_way_out(
    arguments: list[str], hint: str, kvfence: CommandLine
) -> None:
    assert hint in kvfence.refuses("verify", *arguments)


def test_the_catalogue_names_the_machines_that_state_each_invariant() -> None:
    from kvfence.spec.machines import MACHINES

    stated: dict[str, set[str]] = {}
    for name, build in MACHINES.items():
        machine = build(frozenset())
        checks = [check.id for action in machine.actions.values() for check in action.checks]
        liveness = [promise.id for promise in machine.liveness.values()]
        for invariant in {*(row.id for row in machine.invariants.values()), *checks, *liveness}:
            stated.setdefault(invariant, set()).add(name)
    assert {row.id: set(row.machines) for row in INVARIANTS if row.machines} == stated


def test_each_design_names_machines_and_an_invariant_that_exist() -> None:
    from kvfence.spec.machines import MACHINES

    ids = {row.id for row in INVARIANTS}
    assert {machine for design in DESIGNS.values() for machine in design.machines} <= set(MACHINES)
    assert {design.breaks for design in DESIGNS.values()} - {""} <= ids


def test_a_counterexample_recorded_as_a_trace_is_rejected_for_the_same_invariant(
    tmp_path: Path, kvfence: CommandLine
) -> None:
    trace = str(tmp_path / "pin.jsonl")
    assert kvfence("verify", "--design", "unpinned_lookup", "--record", trace)[0] == 1
    code, text, _ = kvfence("check", trace)
    assert code == 1
    assert text.splitlines()[text.splitlines().index("") + 1].startswith("PIN is violated")


def test_without_a_counterexample_nothing_is_recorded(tmp_path: Path, kvfence: CommandLine) -> None:
    trace = tmp_path / "none.jsonl"
    code, _, err = kvfence("verify", "--machine", "block_pool", "--record", trace)
    assert (code, err.count("\n"), trace.exists()) == (0, 1, False)


@pytest.mark.parametrize("design", [name for name, row in DESIGNS.items() if row.breaks])
def test_every_named_design_breaks_its_invariant(design: str, kvfence: CommandLine) -> None:
    found = kvfence.json(1, "verify", "--design", design)
    assert found["counterexamples"][0]["invariant"] == DESIGNS[design].breaks
