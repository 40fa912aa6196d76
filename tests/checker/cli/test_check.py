"""``kvfence check``: exit codes, what a violation tells, and one line for a file that is no trace."""

from pathlib import Path

import msgspec
import pytest
from command_line import CommandLine

from kvfence.spec import events as ev

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 4, null=0),))


def trace(folder: Path, *events: ev.Event) -> str:
    path = folder / "run.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (HEADER, *events)))
    return str(path)


def test_a_sound_trace_holds(tmp_path: Path, kvfence: CommandLine) -> None:
    path = trace(tmp_path, ev.Alloc("gpu", "req:1.0", [1]), ev.Free("gpu", "req:1.0", [1]), ev.Quiesce())
    assert "holds. 3 events" in kvfence.prints(0, "check", path)


def test_a_violation_has_its_event_and_those_of_the_slots(tmp_path: Path, kvfence: CommandLine) -> None:
    free = ev.Free("gpu", "req:1.0", [1])
    path = trace(tmp_path, ev.Alloc("gpu", "req:1.0", [1]), free, free)
    code, text, _ = kvfence("check", path)
    assert code == 1
    assert "CONSERVE is violated by event 2" in text
    assert "0: alloc pool=gpu holder=req:1.0 slots=[1]" in text
    found = kvfence.json(1, "check", path)
    assert (found["violations"][0]["invariant"], found["violations"][0]["number"]) == ("CONSERVE", 2)


def test_a_trace_without_events_is_undetermined(tmp_path: Path, kvfence: CommandLine) -> None:
    assert "no events" in kvfence.prints(3, "check", trace(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b'{"format":"kvfence-trace","version":99}\n', b"\x00\xff" * 99]
)
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path, kvfence: CommandLine) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert str(path) in kvfence.refuses("check", path)


def test_a_missing_file_is_one_line(tmp_path: Path, kvfence: CommandLine) -> None:
    kvfence.refuses("check", tmp_path / "none.jsonl")
