"""The check of a trace file: its verdict, and what it says about traces that end early."""

from pathlib import Path

import msgspec
import pytest

from kvfence.checker.ledger.check import check_trace
from kvfence.spec import events as ev
from kvfence.spec.files.traces import TraceCutError, TraceError, TraceWriter
from kvfence.spec.packed import WIDE, pack

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 4)))
SOUND: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1, 2], free=5),
    ev.Free("gpu", "req:1.0", [2, 1], free=7),
    ev.Quiesce(),
]


def write(path: Path, events: list[ev.Event]) -> Path:
    """A trace file of ``events``."""
    with TraceWriter(path, HEADER) as record:
        for event in events:
            record(event)
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
def test_a_sound_trace_holds(tmp_path: Path, name: str) -> None:
    if name.endswith(".zst"):
        pytest.importorskip("zstandard")
    report = check_trace(write(tmp_path / name, SOUND))
    assert report.verdict == "holds"
    assert (report.events, report.slot_transitions, report.quiesced) == (3, 4, True)
    assert report.verdicts["NO-LEAK"] == "holds"
    assert report.verdicts["RANKS"] == "undetermined"
    assert report.notes == ()


def test_the_first_violation_ends_the_check(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", [*SOUND, ev.Evict("gpu", [1]), ev.Evict("gpu", [2])])
    report = check_trace(path)
    assert report.verdict == "violated"
    assert [violation.number for violation in report.violations] == [3]
    assert report.events == 4


def test_all_violations_are_found_if_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", [*SOUND, ev.Evict("gpu", [1]), ev.Evict("gpu", [2]), ev.Quiesce()])
    report = check_trace(path, limit=None)
    assert [violation.number for violation in report.violations] == [3, 4]
    assert report.violation_counts == {"CONSERVE": 2}
    assert report.verdicts["CONSERVE"] == "violated"
    assert report.verdicts["NO-LEAK"] == "holds"


def test_a_trace_without_events_is_undetermined(tmp_path: Path) -> None:
    assert check_trace(write(tmp_path / "trace.jsonl", [])).verdict == "undetermined"


def test_leaks_are_undetermined_until_it_is_quiet(tmp_path: Path) -> None:
    report = check_trace(write(tmp_path / "trace.jsonl", SOUND[:1]))
    assert report.verdict == "holds"
    assert report.verdicts["NO-LEAK"] == "undetermined"
    assert report.held == {"gpu": 2, "cpu": 0}
    assert "2 slots are held" in report.notes[0]


def test_a_cut_trace_is_no_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", SOUND)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TraceCutError, match=r"line 4: is cut off.*2 events before it were judged"):
        check_trace(path)


def test_a_cut_trace_still_tells_its_violations(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", [ev.Evict("gpu", [1]), *SOUND])
    path.write_bytes(path.read_bytes()[:-5])
    report = check_trace(path, limit=None)
    assert report.verdict == "violated"
    assert not report.quiesced
    assert any("cut off" in note for note in report.notes)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (ev.Alloc("disk", "req:1.0", [1]), "pool 'disk'"),
        (ev.Alloc("gpu", "req:1.0", [8]), "slot 8"),
        (ev.Alloc("gpu", "req:1.0", [-1]), "slot -1"),
        (ev.Evict("gpu", [2**70]), "slot 1180591620717411303424"),
        (ev.Evict("gpu", pack([*range(1, 8), 2**31] * 3)), "slot 2147483648"),
        (ev.Label("gpu", pack([1] * 20), pack([1] * 19, WIDE)), "19 keys for 20 slots"),
        (ev.Admit("1", 0, 2**70, 0, 0, 2**70), "1180591620717411303424 (tokens"),
        (ev.Dispatch(0, ["1"], [2**70]), "1180591620717411303424 (tokens"),
        (ev.Label("gpu", [1], [11, 12]), "2 keys for 1 slots"),
        (ev.Queue(0, 0, "store", "gpu", [1], "cpu", [1, 2], [11]), "1 sources, 2 destinations"),
        (ev.Dispatch(0, ["1"], []), "0 token counts for 1 requests"),
        (ev.Drop("1", 0, 0, 10**12, "lazy"), "1000000000000"),
    ],
)
def test_an_event_that_makes_no_sense_is_a_fault_of_the_trace(
    tmp_path: Path, event: ev.Event, told: str
) -> None:
    path = write(tmp_path / "trace.jsonl", [ev.Alloc("gpu", "req:1.0", [1]), event])
    with pytest.raises(TraceError) as raised:
        check_trace(path)
    assert str(raised.value).startswith(f"{path}: line 3: makes no sense: ")
    assert told in str(raised.value)


def test_packed_numbers_that_are_cut_are_a_fault_of_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", [])
    with path.open("ab") as file:
        file.write(b'{"e":"evict","pool":"gpu","slots":"AQAAAAI="}\n')
    with pytest.raises(TraceError, match=r"line 2: makes no sense: 5 bytes of packed numbers"):
        check_trace(path)


def test_a_violation_tells_packed_numbers_as_lists(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.jsonl", [ev.Alloc("cpu", "op:1.0", pack([1, 2])), ev.Evict("cpu", pack([2]))]
    )
    (violation,) = check_trace(path).violations
    told = msgspec.json.decode(msgspec.json.encode(violation))
    assert told["event"]["slots"] == [2]
    assert told["history"]["2"][0][1]["slots"] == [1, 2]


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    path = write(tmp_path / "trace.jsonl", [ev.Evict("gpu", [1]), *SOUND])
    report = check_trace(path, limit=None, progress=interrupt)
    assert report.interrupted
    assert report.verdict == "violated"
    sound = check_trace(write(tmp_path / "sound.jsonl", SOUND), progress=interrupt)
    assert sound.verdict == "undetermined"


def test_events_that_nothing_judges_are_no_verdict(tmp_path: Path) -> None:
    """There are events, and no rule found anything in them to compare."""
    report = check_trace(
        write(tmp_path / "empty.jsonl", [ev.Alloc("gpu", "req:1.0", []), ev.Evict("gpu", [])])
    )
    assert (report.verdict, sum(report.checks.values())) == ("undetermined", 0)
    assert "no event of the trace was judged by an invariant" in report.notes
    assert set(report.verdicts.values()) == {"undetermined"}
