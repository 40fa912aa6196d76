"""`kvfence audit` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kvfence.checker.audit.cases.case import read_case
from kvfence.checker.cli.app import run


def test_a_faulty_design_is_reported_with_its_case_and_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    faulty = ["audit", "reference", "--design", "no_flush_on_finish"]
    assert run([*faulty, "--budget", "8", "--out", str(out)]) == 1
    text = capsys.readouterr().out
    assert "FLUSH: the last full blocks of a finished request are neither stored nor queued" in text
    assert "the shortest case:" in text
    case = next(out.rglob("case.json"))
    assert len(read_case(case).actions) <= 3
    trace = next(out.rglob("trace.jsonl"))
    assert run(["check", str(trace)]) == 1
    assert "FLUSH" in capsys.readouterr().out
    assert run([*faulty, "--replay", str(case), "--out", str(out)]) == 1
    assert "FLUSH" in capsys.readouterr().out
    assert run(["audit", "reference", "--replay", str(case), "--out", str(out)]) == 0


def test_a_rule_broken_without_harm_is_a_fault_of_the_reference_which_tells_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", "reference", "--design", "complete_on_first_rank", "--budget", "6"]
    assert run([*command, "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "RANKS" in text
    assert "Noted:" not in text


def test_json_has_findings_and_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["audit", "reference", "--design", "over_pop", "--budget", "4", "--format", "json"]
    assert run([*command, "--out", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "violated"
    assert "CONSERVE" in {finding["sighting"]["invariant"] for finding in found["findings"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["reference", "--design", "over_pip"], "did you mean over_pop"),
        (["reference", "--replay", "missing.json"], "missing.json: cannot be read"),
        (["vllm"], "name what to audit"),
        (["vllm", "--release", "latest"], "is not a version of vLLM"),
        (["vllm", "--path", "."], "no vLLM there"),
        (["reference", "--budget", "0"], "budget"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["audit", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
