"""``kvfence mutate``: its exit codes, and that text and JSON tell the same."""

from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES, lookup


def test_text_and_json_have_the_same_mutants_of_a_machine(kvfence: CommandLine) -> None:
    question = ["--machine", "lookup", "--only", "evict*", "--size", "Block=2", "--accepted"]
    text = kvfence.prints(0, "mutate", *question)
    (found,) = kvfence.json(0, "mutate", *question)
    assert f"{sum(found['tried'].values())} mutants: {sum(found['killed'].values())} noticed" in text
    for survivor in found["survivors"]:
        assert survivor["name"] in text
        assert survivor["why"] in text
    shown = {row["name"] for row in found["rows"]}
    assert "promised_and_loading_blocks_stay_cached" in shown
    assert "promised and loading blocks stay cached" in text


def test_a_survivor_without_a_reason_fails_and_is_named(
    kvfence: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_reasons(faults: frozenset[str]) -> Machine:
        machine = lookup.build(faults)
        machine.accepted = []
        return machine

    monkeypatch.setitem(MACHINES, "lookup", without_reasons)
    question = ["--machine", "lookup", "--only", "evict: first*", "--size", "Block=2"]
    assert "nothing notices evict: first is not released" in kvfence.prints(1, "mutate", *question)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--machine", "lokup"], "did you mean lookup?"),
        (["--size", "Blok=3"], "did you mean Block?"),
        (["--only", "evit: *", "--machine", "lookup"], "no mutant is called"),
        (["--memory", "plenty"], "2GiB"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line_with_the_way_out(
    arguments: list[str], hint: str, kvfence: CommandLine
) -> None:
    assert hint in kvfence.refuses("mutate", *arguments)


@pytest.mark.parametrize(
    ("machine", "broken"), [("bad0", "bad"), ("dead0", "deadlock"), ("stuck0", "one_is_used")]
)
def test_mutants_of_a_machine_that_is_broken_itself_are_not_called_noticed(
    machine: str, broken: str, kvfence: CommandLine
) -> None:
    file = Path(__file__).parents[2] / "machines" / "verdicts.py"
    assert f"the machine itself breaks {broken}" in kvfence.prints(
        3, "mutate", "--machine", f"{file}:{machine}"
    )
