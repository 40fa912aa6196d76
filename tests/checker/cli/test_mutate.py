"""``kvfence mutate``: its exit codes, and that text and JSON tell the same."""

import json
from pathlib import Path

import pytest

from kvfence.checker.cli import app as cli
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES, lookup


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(["mutate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_some_mutants_of_a_machine_are_noticed_alike_in_text_and_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = ["--machine", "lookup", "--only", "evict*", "--size", "Block=2", "--accepted"]
    code, text, _ = answer(question, capsys)
    _, printed, _ = answer([*question, "--format", "json"], capsys)
    (found,) = json.loads(printed)
    assert code == 0
    assert f"{sum(found['tried'].values())} mutants: {sum(found['killed'].values())} noticed" in text
    joined = " ".join(text.split())
    for survivor in found["survivors"]:
        assert survivor["name"] in joined
        assert survivor["why"] in joined
    shown = {row["name"] for row in found["rows"]}
    assert "promised_and_loading_blocks_stay_cached" in shown
    assert "promised and loading blocks stay cached" in joined


def test_a_survivor_without_a_reason_fails_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_reasons(faults: frozenset[str]) -> Machine:
        machine = lookup.build(faults)
        machine.accepted = []
        return machine

    monkeypatch.setitem(MACHINES, "lookup", without_reasons)
    question = ["--machine", "lookup", "--only", "evict: first*", "--size", "Block=2"]
    code, text, _ = answer(question, capsys)
    assert code == 1
    assert "nothing notices evict: first is not released" in " ".join(text.split())


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
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(arguments, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert hint in err


@pytest.mark.parametrize(
    ("machine", "broken"), [("bad0", "bad"), ("dead0", "deadlock"), ("stuck0", "one_is_used")]
)
def test_mutants_of_a_machine_that_is_broken_itself_are_not_called_noticed(
    machine: str, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(__file__).parents[2] / "machines" / "verdicts.py"
    code = cli.run(["mutate", "--machine", f"{file}:{machine}"])
    told = " ".join(capsys.readouterr().out.split())
    assert code == 3, told
    assert f"the machine itself breaks {broken}" in told
