"""The page on the trace format has one example per invariant, and ``kvfence check`` agrees with each."""

import json
import re
from pathlib import Path

import pytest

from kvfence.checker.cli import app as cli
from kvfence.spec.catalog import INVARIANTS

PAGE = (Path(__file__).parents[1] / "docs" / "trace-format.md").read_text(encoding="utf-8")
SECTIONS = {
    section.split(":", 1)[0]: re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
    for section in PAGE.split("## What breaks each invariant")[1].split("\n### ")[1:]
}


def test_each_invariant_has_an_example() -> None:
    assert list(SECTIONS) == [row.id for row in INVARIANTS]


@pytest.mark.parametrize("invariant", SECTIONS)
def test_the_trace_is_accepted_and_the_line_breaks_the_invariant(
    invariant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = SECTIONS[invariant]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(right + "\n", encoding="utf-8")
    assert cli.run(["check", str(trace), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    lines = right.splitlines()
    assert wrong != lines[-1]
    trace.write_text("\n".join([*lines[:-1], wrong]) + "\n", encoding="utf-8")
    assert cli.run(["check", str(trace), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [violation["invariant"] for violation in found["violations"]] == [invariant]
    assert found["violations"][0]["number"] == len(lines) - 2
    assert found["verdicts"][invariant] == "violated"
