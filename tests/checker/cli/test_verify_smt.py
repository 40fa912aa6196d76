"""``kvfence verify --engine smt``: the table for any size, its options, and their errors."""

import json
import re
from pathlib import Path

import pytest

from kvfence.checker.cli import app as cli

pytest.importorskip("z3", reason="needs the extra smt")


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_sound_machine_holds_for_any_size_with_the_seconds_of_each_invariant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text, _ = answer(["verify", "--engine", "smt", "--machine", "block_pool"], capsys)
    assert code == 0
    assert re.search(r"^CONSERVE +holds \d+\.\d s ", text, re.MULTILINE)
    assert re.search(r"^DEADLOCK +holds \d+\.\d s ", text, re.MULTILINE)
    assert "block_pool: any sizes; engine smt." in text
    assert "proved for sorts of any size and runs of any length" in " ".join(text.split())
    questions = re.search(r"^questions +(\d+) ", text, re.MULTILINE)
    rechecked = re.search(r"^rechecked +(\d+) ", text, re.MULTILINE)
    assert questions is not None
    assert rechecked is not None
    assert questions[1] == rechecked[1]


def test_a_faulty_design_is_violated_with_its_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", "--engine", "smt", "--design", "double_release", "--format", "json"]
    code, printed, _ = answer(arguments, capsys)
    assert code == 1
    found = json.loads(printed)
    assert found["counterexamples"][0]["invariant"] == "CONSERVE"
    assert len(found["counterexamples"][0]["steps"]) == 2
    machine = found["machines"][0]
    assert machine["proof"]["questions"] > 10
    assert "LEMMA" not in {c["invariant"] for c in machine["conditions"]}


def test_a_proof_is_written_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", "--engine", "smt", "--machine", "block_pool", "--export", str(tmp_path)]
    code, text, _ = answer(arguments, capsys)
    assert code == 0
    assert "the proof is in" in text
    assert len(list((tmp_path / "block_pool").glob("*.smt2"))) > 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "explore", "--export", "x"], "engine explore has no --export: use --engine smt"),
        (
            ["--engine", "bmc", "--second-solver", "cvc5"],
            "engine bmc has no --second-solver: use --engine smt",
        ),
        (["--infer-lemmas"], "has no --infer-lemmas: use --engine smt"),
        (["--engine", "smt", "--second-solver", "yices"], "there is no second solver 'yices': there is cvc5"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(["verify", "--machine", "block_pool", *arguments], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_bounded_search_is_undetermined_on_a_sound_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = answer(
        ["verify", "--engine", "bmc", "--machine", "block_pool", "--size", "Block=2", "--size", "Holder=1"],
        capsys,
    )
    assert code == 3
    assert "runs of more than 12 steps were not searched" in text
