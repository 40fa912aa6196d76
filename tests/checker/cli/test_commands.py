"""What every command promises: exit codes, one line per error, and the same facts in text and JSON."""

import pytest
from command_line import CommandLine

from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["designs", "--format", "yaml"], "yaml"),
        (["designs", "surplus"], "surplus"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], names: str, kvfence: CommandLine) -> None:
    line = kvfence.refuses(*arguments)
    assert line.startswith("kvfence: ")
    assert names in line


def test_no_command_prints_the_help_and_cannot_run(kvfence: CommandLine) -> None:
    assert "Exit codes" in kvfence.prints(2)


def test_the_version_is_that_of_the_package(kvfence: CommandLine) -> None:
    assert kvfence.prints(0, "--version").startswith("kvfence 0.")


def heads(kvfence: CommandLine, command: str) -> list[list[str]]:
    """The first lines of the entries of a listing, as words."""
    code, text, _ = kvfence(command)
    assert code == 0
    return [line.split() for line in text.splitlines()[1:] if not line.startswith(" ")]


def test_designs_are_listed_alike_in_text_and_json(kvfence: CommandLine) -> None:
    listed = kvfence.json(0, "designs")
    assert [row["name"] for row in listed] == list(DESIGNS)
    assert [head[:2] for head in heads(kvfence, "designs")] == [
        [row["name"], row["breaks"] or "nothing"] for row in listed
    ]


def test_invariants_are_listed_alike_in_text_and_json(kvfence: CommandLine) -> None:
    listed = kvfence.json(0, "invariants")
    assert [row["id"] for row in listed] == [row.id for row in INVARIANTS]
    assert [head[0] for head in heads(kvfence, "invariants")] == [row["id"] for row in listed]
