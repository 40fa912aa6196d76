"""`kvfence review` and `kvfence explain`: exit codes, files, and bad input in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine

SMALL = ["--size", "Request=1", "--size", "Block=1", "--pairs", "500"]


def test_exit_codes(kvfence: CommandLine) -> None:
    assert "Worse: PIN is violated by the change in lookup." in kvfence.prints(
        1, "review", "sound", "unpinned_lookup", *SMALL
    )
    assert "no difference" in kvfence.prints(0, "review", "sound", "sound")
    assert "did you mean unpinned_lookup" in kvfence.refuses("review", "sound", "unpinned_lookp")


def test_every_format_is_written(tmp_path: Path, kvfence: CommandLine) -> None:
    names = ["html", "markdown", "junit", "sarif", "json"]
    options = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    text = kvfence.prints(1, "review", "sound", "unpinned_lookup", *SMALL, *options, "--github")
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    assert "::error file=spec/machines/lookup.py,line=" in text
    assert json.loads((tmp_path / "json").read_text())["verdict"] == "worse"


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path, kvfence: CommandLine) -> None:
    assert "page.html: cannot be created" in kvfence.refuses(
        "review", "sound", "sound", "--html", tmp_path / "no" / "page.html"
    )


Recorded = Callable[[str], Path]


@pytest.fixture
def recorded(tmp_path: Path, kvfence: CommandLine) -> Recorded:
    """Records the counterexample of a design."""

    def record(design: str) -> Path:
        kvfence("verify", "--design", design, "--record", tmp_path / "t.jsonl")
        return tmp_path / "t.jsonl"

    return record


@pytest.mark.parametrize("design", ["free_on_abort", "barrier_with_any"])
def test_a_recorded_violation_is_explained(
    design: str, recorded: Recorded, tmp_path: Path, kvfence: CommandLine
) -> None:
    trace, page, folder = recorded(design), tmp_path / "page.html", tmp_path / "pictures"
    assert "violated" in kvfence.prints(1, "explain", trace, "--html", page, "--svg", folder)
    drawn = {path.name for path in folder.iterdir()}
    assert drawn == (
        {"timeline.svg", "sequence.svg"} if "barrier" in design else {"sequence.svg", "slots.svg"}
    )
    assert page.read_text().count("<svg") == 2


def test_a_trace_without_violation_has_nothing_to_explain(recorded: Recorded, kvfence: CommandLine) -> None:
    trace = recorded("free_on_abort")
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:5]))
    assert "holds" in kvfence.prints(0, "explain", trace)


def test_the_events_printed_are_those_of_the_slots_involved(recorded: Recorded, kvfence: CommandLine) -> None:
    trace = recorded("free_on_abort")
    out = kvfence("explain", trace).out.partition("The events that led to it")[2]
    assert "gpu 0: nobody" in out
    names = [line.split()[1] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert names[-1] == "free"
    assert "dispatch" not in names


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["explain", "nowhere.jsonl"], "nowhere.jsonl"),
        (["review", "sound"], "Missing argument"),
        (["review", "nowhere.py:build", "sound"], "no file nowhere.py"),
        (["review", "sound", "unpinned_lookup", "--size", "Blok=2"], "did you mean Block"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], part: str, kvfence: CommandLine) -> None:
    assert part in kvfence.refuses(*arguments)


def test_a_violation_that_is_not_there_is_named(recorded: Recorded, kvfence: CommandLine) -> None:
    trace = recorded("barrier_with_any")
    assert "has no race 9: there is 1 race" in kvfence.refuses("explain", trace, "--which", "9")


def test_an_invariant_that_the_change_drops_is_not_called_violated(kvfence: CommandLine) -> None:
    file = Path(__file__).parents[2] / "machines" / "verdicts.py"
    text = kvfence.prints(1, "review", f"{file}:kept", f"{file}:promised")
    assert "PIN is no longer stated in promised." in text
    assert "PIN is violated" not in text
