"""The recorder: what it writes can be judged, stays small and private, and never harms its host."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest
from twins import header

from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.guard import recorder
from kvfence.checker.ledger.guard.guard import Guard
from kvfence.checker.ledger.guard.recorder import Recorder
from kvfence.spec import events as ev

HEADER = header(ev.Group("gpu", 16), gpu=64, cpu=64, tier="cpu")
LONG = ev.Header(producer="test", pools=(ev.Pool("gpu", 100_000), ev.Pool("cpu", 64)))
FAULT = ev.Alloc("gpu", "req:2.0", [1])
BEGIN: list[ev.Event] = [
    ev.Submit("1", 0, 32),
    ev.Alloc("gpu", "req:1.0", [1, 2]),
    ev.Admit("1", 0, 0, 0, 32, 32),
    ev.Label("gpu", [1], [7]),
]


def steps(count: int, first: int = 0) -> list[ev.Event]:
    """Model steps that change nothing else."""
    return [
        event for n in range(first, first + count) for event in (ev.Dispatch(n, ["1"], [0]), ev.Process(n))
    ]


def only(folder: Path) -> Path:
    """The one recording in ``folder``."""
    (path,) = folder.iterdir()
    return path


def written(guard: Guard) -> Path:
    """The recording that ``guard`` writes now."""
    path = guard.record()
    assert path is not None
    return path


def test_a_violation_writes_what_came_before_it(tmp_path: Path) -> None:
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path))
    guard.batch([*BEGIN, *steps(5), FAULT])
    guard.close()
    path = only(tmp_path)
    assert path.name == f"kvfence-{os.getpid()}-0000-CONSERVE.jsonl"
    report = check_trace(path)
    assert [(v.invariant, v.event) for v in report.violations] == [("CONSERVE", FAULT)]
    assert report.events == len(BEGIN) + 11


def test_a_recording_from_the_middle_of_a_run_gives_no_false_alarm_and_finds_the_fault(
    tmp_path: Path,
) -> None:
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path, last=50))
    guard.batch([*BEGIN, *steps(500)])
    sound = guard.record()
    guard(FAULT)
    guard.close()
    assert sound is not None
    report = check_trace(sound)
    assert report.verdict == "holds"
    assert 50 <= report.events <= 102
    assert report.notes[0].startswith("begins with a snapshot: 9")
    (faulty,) = tmp_path.glob("*CONSERVE*")
    (violation,) = check_trace(faulty).violations
    assert violation.event == FAULT
    assert violation.holders == {1: ("req:1.0",)}


@pytest.mark.parametrize("last", [1, 2, 3, 7, 100])
def test_every_recording_of_a_run_holds_wherever_it_begins(tmp_path: Path, last: int) -> None:
    guard = Guard("raise", HEADER, recorder=Recorder(tmp_path, last=last, max_files=1))
    events = [*BEGIN, *steps(20), ev.Free("gpu", "req:1.0", [2]), *steps(3, 20)]
    for event in events:
        guard(event)
        report = check_trace(written(guard))
        assert report.verdict == "holds", report.violations
        assert report.events >= min(last, guard.events)


def test_a_rule_that_is_broken_again_and_again_is_recorded_once(tmp_path: Path) -> None:
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path))
    guard.batch(ev.Evict("gpu", [slot]) for slot in range(1, 10))
    guard.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_recordings_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    guard = Guard("count", HEADER, recorder=Recorder(folder))
    guard(FAULT)
    path = written(guard)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_oldest_recordings_go_first_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    old = tmp_path / "kvfence-1-0000-PIN.jsonl"
    old.write_text("an earlier process")
    os.utime(old, (1, 1))
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path, max_files=3))
    paths = []
    for _ in range(5):
        paths.append(guard.record())
        time.sleep(0.01)
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        *(path.name for path in paths[-3:] if path is not None),
    }


def test_a_recording_is_no_longer_than_allowed(tmp_path: Path) -> None:
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path, max_bytes=1 << 14))
    guard.batch([*BEGIN, *steps(5000)])
    path = written(guard)
    assert path.stat().st_size <= 1 << 14
    assert check_trace(path).events > 10


def test_events_with_many_slots_count_for_more(tmp_path: Path) -> None:
    guard = Guard("count", LONG, recorder=Recorder(tmp_path, max_bytes=1 << 20))
    for number in range(30):
        slots = list(range(number * 1000, number * 1000 + 20_000))
        guard(ev.Alloc("gpu", f"req:{number}.0", slots))
        guard(ev.Free("gpu", f"req:{number}.0", slots))
    path = written(guard)
    assert path.stat().st_size <= 1 << 20
    assert check_trace(path).verdict == "holds"


def test_what_does_not_fit_at_all_is_a_failure_and_leaves_no_file(tmp_path: Path) -> None:
    guard = Guard("count", LONG, recorder=Recorder(tmp_path, max_bytes=1 << 12))
    guard(ev.Alloc("gpu", "req:1.0", list(range(50_000))))
    assert guard.record() is None
    assert guard.facts().recording_failures == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError(), ValueError()]
)
def test_a_full_disk_does_not_reach_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(recorder.os, "write", fail)
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path))
    guard.batch([*BEGIN, FAULT])
    guard.close()
    assert guard.record() is None
    facts = guard.facts()
    assert (facts.recording_failures, facts.recordings, facts.internal_errors) == (2, 0, 0)
    assert facts.violations == {"CONSERVE": 1}
    assert len(caplog.records) == 1
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_does_not_reach_the_engine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path / "file"))
    guard.batch([*BEGIN, FAULT])
    assert guard.record() is None
    assert guard.verdict == "violated"


def test_a_link_put_in_the_way_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f"kvfence-{os.getpid()}-0000-asked.jsonl.part").symlink_to(mine)
    guard = Guard("count", HEADER, recorder=Recorder(folder))
    guard.batch(BEGIN)
    assert guard.record() is not None
    assert mine.read_text() == "precious"


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="needs SIGUSR2")
def test_a_signal_writes_the_last_events(tmp_path: Path) -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: called.append(number))
    try:
        guard = Guard("count", HEADER, recorder=Recorder(tmp_path))
        guard.batch(BEGIN)
        assert guard.record_on()
        os.kill(os.getpid(), signal.SIGUSR2)
        deadline = time.monotonic() + 10
        while not guard.facts().recordings and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGUSR2, before)
    guard.close()
    assert check_trace(only(tmp_path)).events == len(BEGIN)
    assert called == [signal.SIGUSR2]


def test_without_a_recorder_nothing_is_written() -> None:
    guard = Guard("count", HEADER)
    guard(FAULT)
    assert guard.record() is None
    assert not guard.record_on()


def test_impossible_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one event"):
        Recorder(tmp_path, last=0)


def test_the_snapshot_is_in_the_header(tmp_path: Path) -> None:
    guard = Guard("count", HEADER, recorder=Recorder(tmp_path, last=10))
    guard.batch([*BEGIN, *steps(50)])
    path = written(guard)
    header = json.loads(path.read_text().partition("\n")[0])
    gpu = header["snapshot"]["pools"][0]
    assert gpu["holders"] == [{"name": "req:1.0", "slots": [1, 2]}]
    assert (gpu["labelled"], gpu["tags"]) == ([1], [7])
