"""``kvfence check``: exit codes, what a violation tells, and one line for a file that is no trace."""

import json
from pathlib import Path

import msgspec
import pytest

from kvfence.checker.cli import app as cli
from kvfence.spec import events as ev

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 4, null=0),))


def trace(folder: Path, *events: ev.Event) -> str:
    path = folder / "run.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (HEADER, *events)))
    return str(path)


def test_a_sound_trace_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, ev.Alloc("gpu", "req:1.0", [1]), ev.Free("gpu", "req:1.0", [1]), ev.Quiesce())
    assert cli.run(["check", path]) == 0
    assert "holds. 3 events" in capsys.readouterr().out


def test_a_violation_is_told_with_its_event_and_the_slots_last_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(
        tmp_path,
        ev.Alloc("gpu", "req:1.0", [1]),
        ev.Free("gpu", "req:1.0", [1]),
        ev.Free("gpu", "req:1.0", [1]),
    )
    assert cli.run(["check", path]) == 1
    text = capsys.readouterr().out
    assert "CONSERVE is violated by event 2" in text
    assert "0: alloc pool=gpu holder=req:1.0 slots=[1]" in text
    assert cli.run(["check", path, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["violations"][0]["invariant"], found["violations"][0]["number"]) == ("CONSERVE", 2)


def test_a_trace_without_events_is_undetermined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", trace(tmp_path)]) == 3
    assert "no events" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b'{"format":"kvfence-trace","version":99}\n', b"\x00\xff" * 99]
)
def test_a_file_that_is_no_trace_cannot_be_judged(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert cli.run(["check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(path) in err


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
