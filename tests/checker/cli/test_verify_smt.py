"""``kvfence verify --engine smt``: the table for any size, its options, and their errors."""

import re
from pathlib import Path

import pytest
from command_line import CommandLine

pytest.importorskip("z3", reason="needs the extra smt")


def test_a_sound_machine_holds_for_any_size_with_seconds_by_invariant(kvfence: CommandLine) -> None:
    code, text, _ = kvfence("verify", "--engine", "smt", "--machine", "block_pool")
    assert code == 0
    assert re.search(r"^CONSERVE +holds \d+\.\d s ", text, re.MULTILINE)
    assert re.search(r"^DEADLOCK +holds \d+\.\d s ", text, re.MULTILINE)
    assert "block_pool: any sizes; engine smt." in text
    assert "proved for sorts of any size and runs of any length" in " ".join(text.split())
    (questions,), (rechecked,) = (
        re.findall(rf"(?m)^{row} +(\d+) ", text) for row in ("questions", "rechecked")
    )
    assert questions == rechecked


def test_a_faulty_design_is_violated_with_its_counterexample(kvfence: CommandLine) -> None:
    arguments = ["verify", "--engine", "smt", "--design", "double_release"]
    found = kvfence.json(1, *arguments)
    assert found["counterexamples"][0]["invariant"] == "CONSERVE"
    assert len(found["counterexamples"][0]["steps"]) == 2
    machine = found["machines"][0]
    assert machine["proof"]["questions"] > 10
    assert "LEMMA" not in {c["invariant"] for c in machine["conditions"]}


def test_a_proof_is_written_where_asked(tmp_path: Path, kvfence: CommandLine) -> None:
    arguments = ["verify", "--engine", "smt", "--machine", "block_pool", "--export", str(tmp_path)]
    assert "the proof is in" in kvfence.prints(0, *arguments)
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
    arguments: list[str], message: str, kvfence: CommandLine
) -> None:
    assert message in kvfence.refuses("verify", "--machine", "block_pool", *arguments)


def test_bounded_search_is_undetermined_on_a_sound_machine(kvfence: CommandLine) -> None:
    code, text, _ = kvfence(
        "verify", "--engine", "bmc", "--machine", "block_pool", "--size", "Block=2", "--size", "Holder=1"
    )
    assert code == 3
    assert "runs of more than 12 steps were not searched" in text
