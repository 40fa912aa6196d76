"""What every command promises: exit codes, one line per error, and the same facts in text and JSON."""

import json

import pytest

from kvfence.checker.cli import app as cli
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
def test_a_wrong_command_line_is_one_line_and_cannot_run(
    arguments: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvfence: ")
    assert err.count("\n") == 1
    assert names in err


def test_no_command_prints_the_help_and_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert "Exit codes" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvfence 0.")


def test_designs_are_listed_alike_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["designs", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == list(DESIGNS)
    assert cli.run(["designs"]) == 0
    heads = [line.split() for line in capsys.readouterr().out.splitlines()[1:] if not line.startswith(" ")]
    assert [head[:2] for head in heads] == [[row["name"], row["breaks"] or "nothing"] for row in listed]


def test_invariants_are_listed_alike_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["invariants", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in listed] == [row.id for row in INVARIANTS]
    assert cli.run(["invariants"]) == 0
    heads = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if not line.startswith(" ")]
    assert heads == [row["id"] for row in listed]
