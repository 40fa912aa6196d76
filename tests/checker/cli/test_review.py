"""`kvfence review` and `kvfence explain`: exit codes, files, and bad input in one line."""

import json
from pathlib import Path

import pytest

from kvfence.checker.cli.app import run

SMALL = ["--size", "Request=1", "--size", "Block=1", "--pairs", "500"]


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["review", "sound", "unpinned_lookup", *SMALL]) == 1
    assert "Worse: PIN is violated by the change in lookup." in capsys.readouterr().out
    assert run(["review", "sound", "sound"]) == 0
    assert "no difference" in capsys.readouterr().out
    assert run(["review", "sound", "unpinned_lookp"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "did you mean unpinned_lookup" in error


def test_every_format_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["html", "markdown", "junit", "sarif", "json"]
    options = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    assert run(["review", "sound", "unpinned_lookup", *SMALL, *options, "--github"]) == 1
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    assert "::error file=spec/machines/lookup.py,line=" in capsys.readouterr().out
    assert json.loads((tmp_path / "json").read_text())["verdict"] == "worse"


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["review", "sound", "sound", "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html: cannot be created" in capsys.readouterr().err


@pytest.mark.parametrize("design", ["free_on_abort", "barrier_with_any"])
def test_a_recorded_violation_is_explained(
    design: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page, folder = tmp_path / "t.jsonl", tmp_path / "page.html", tmp_path / "pictures"
    run(["verify", "--design", design, "--record", str(trace)])
    capsys.readouterr()
    assert run(["explain", str(trace), "--html", str(page), "--svg", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "violated" in out
    drawn = {path.name for path in folder.iterdir()}
    assert drawn == (
        {"timeline.svg", "sequence.svg"} if "barrier" in design else {"sequence.svg", "slots.svg"}
    )
    assert page.read_text().count("<svg") == 2


def test_a_trace_without_violation_has_nothing_to_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    run(["verify", "--design", "free_on_abort", "--record", str(trace)])
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:5]))
    capsys.readouterr()
    assert run(["explain", str(trace)]) == 0
    assert "holds" in capsys.readouterr().out


def test_the_events_told_are_those_of_the_slots_involved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    run(["verify", "--design", "free_on_abort", "--record", str(trace)])
    capsys.readouterr()
    run(["explain", str(trace)])
    out = capsys.readouterr().out.partition("The events that led to it")[2]
    assert "gpu 0: nobody" in out
    told = [line.split()[1] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert told[-1] == "free"
    assert "dispatch" not in told


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["explain", "nowhere.jsonl"], "nowhere.jsonl"),
        (["review", "sound"], "Missing argument"),
        (["review", "nowhere.py:build", "sound"], "no file nowhere.py"),
        (["review", "sound", "unpinned_lookup", "--size", "Blok=2"], "did you mean Block"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


def test_a_violation_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    run(["verify", "--design", "barrier_with_any", "--record", str(trace)])
    capsys.readouterr()
    assert run(["explain", str(trace), "--which", "9"]) == 2
    assert "has no race 9: there is 1 race" in capsys.readouterr().err


def test_an_invariant_that_the_change_drops_is_not_called_violated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Path(__file__).parents[2] / "machines" / "verdicts.py"
    code = run(["review", f"{file}:kept", f"{file}:promised"])
    told = capsys.readouterr().out
    assert code == 1
    assert "PIN is no longer stated in promised." in told
    assert "PIN is violated" not in told
