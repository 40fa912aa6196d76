"""Trace files: what is written is read again, and whatever is wrong with a file is told in one line."""

import os
import stat
import subprocess
import sys
import time
import tracemalloc
from array import array
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvfence.checker.ledger.check import check_trace
from kvfence.spec import events as ev
from kvfence.spec.errors import CannotRun
from kvfence.spec.files import traces
from kvfence.spec.files.traces import TraceCutError, TraceError, TraceReader, TraceWriter, read_trace
from kvfence.spec.packed import WIDE, Numbers, ints, pack

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0),))
EVENTS: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1, 2], free=5),
    ev.Free("gpu", "req:1.0", [2, 1]),
    ev.Quiesce(),
]
FIRST = b'{"format":"kvfence-trace","version":1,"producer":"x","pools":[{"name":"gpu","slots":8}]}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a trace goes."""
    return tmp_path / "trace.jsonl"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Where a compressed trace goes."""
    pytest.importorskip("zstandard")
    return tmp_path / "trace.zst"


def write(path: Path, events: list[ev.Event]) -> Path:
    """A trace file of ``events``."""
    with TraceWriter(path, HEADER) as record:
        for event in events:
            record(event)
    return path


def read(path: Path) -> list[tuple[int, ev.Event]]:
    """The numbered events of a trace file."""
    return list(read_trace(path)[1])


# Writing and reading.


LONG = list(range(2**32 - 100, 2**32))
KEYS = [2**64 - 1 - place for place in range(100)]


@pytest.mark.parametrize(
    "event",
    [
        ev.Evict("gpu", LONG),
        ev.Alloc("gpu", "req:1.0", np.array(LONG)),
        ev.Evict("gpu", pack(LONG)),
        ev.Evict("gpu", np.array(LONG)),
        ev.Evict("gpu", np.array([LONG, LONG]).T.reshape(-1)[::2]),
        ev.Label("gpu", array("L", LONG), np.array(KEYS, np.uint64)),
        ev.Label("gpu", tuple(LONG), pack(KEYS, WIDE)),
    ],
)
def test_long_lists_are_written_packed_and_read_again(path: Path, event: ev.Event) -> None:
    write(path, [event])
    assert b"[" not in path.read_bytes().splitlines()[1]
    ((read_again,),) = TraceReader(path).batches()
    assert ev.listed(read_again) == msgspec.convert(msgspec.to_builtins(ev.listed(event)), type(event))


@pytest.mark.parametrize(
    "slots", [[1, 2], np.array([1, 2]), pack([1, 2]), [-1] * 20, np.array([2**32] * 20), [2**70] * 20, []]
)
def test_short_lists_and_what_cannot_be_packed_stay_readable(path: Path, slots: Numbers) -> None:
    write(path, [ev.Evict("gpu", slots)])
    assert msgspec.json.decode(path.read_bytes().splitlines()[1])["slots"] == list(ints(slots))


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    if name.endswith(".zst"):
        pytest.importorskip("zstandard")
    header, events = read_trace(write(tmp_path / name, EVENTS))
    assert header == HEADER
    assert list(events) == list(enumerate(EVENTS))


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
def test_a_long_trace_comes_in_order(tmp_path: Path, name: str) -> None:
    if name.endswith(".zst"):
        pytest.importorskip("zstandard")
    events: list[ev.Event] = [ev.Alloc("gpu", f"req:{number}.0", [1]) for number in range(20_000)]
    assert read(write(tmp_path / name, events)) == list(enumerate(events))


def test_compressed_data_may_be_appended(packed: Path) -> None:
    import zstandard

    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    packed.write_bytes(compress(FIRST) + compress(b'{"e":"quiesce"}\n'))
    assert read(packed) == [(0, ev.Quiesce())]


def test_a_trace_is_private(path: Path) -> None:
    path.write_text("old")
    path.chmod(0o644)
    write(path, EVENTS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read(path)) == 3


def test_a_trace_is_kept_after_an_error(path: Path) -> None:

    def serve() -> None:
        with TraceWriter(path, HEADER) as record:
            record(ev.Quiesce())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve()
    assert read(path) == [(0, ev.Quiesce())]


def test_a_capped_trace_is_a_whole_trace_of_the_beginning(path: Path) -> None:
    with TraceWriter(path, HEADER, max_bytes=500) as record:
        for _ in range(100):
            record(EVENTS[0])
    assert record.full
    assert path.stat().st_size <= 500
    assert len(read(path)) == record.events > 0


def test_a_closed_trace_takes_no_events(path: Path) -> None:
    with TraceWriter(path, HEADER) as record:
        pass
    record.close()
    with pytest.raises(TraceError, match="is closed"):
        record(ev.Quiesce())


def test_a_header_with_impossible_sizes_is_not_written(path: Path) -> None:
    with pytest.raises(TraceError, match="0 slots"):
        TraceWriter(path, ev.Header(producer="test", pools=(ev.Pool("gpu", 0),)))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be created"):
        TraceWriter(tmp_path / "no" / "trace.jsonl", HEADER)


def test_memory_does_not_grow_with_the_file(path: Path) -> None:
    def peak(count: int) -> int:
        write(path, EVENTS * count)
        tracemalloc.start()
        try:
            for _ in read_trace(path)[1]:
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8_000) < 1.5 * peak(2_000)


# Files that are no traces.


WRONG_HEADERS = [
    (b":1,", b":3,", "trace format 3, and this kvfence reads 1 to 2"),
    (b'"producer":"x",', b"", "line 1: is no header: .*producer"),
    (b'"producer"', b'"produced"', "line 1: is no header"),
    (b":8", b":0", "pool 'gpu' has 0 slots"),
    (b":8", b":99999999999999", "99999999999999 slots"),
    (b":8", b':8,"null":8', "null block 8 of pool 'gpu'"),
    (b":8}", b':8},{"name":"gpu","slots":3}', "'gpu' is named twice"),
    (b'[{"name":"gpu","slots":8}]', b"[]", "names no pools"),
    (b"]}", b'],"ranks":0}', "0 ranks"),
    (b"]}", b'],"depth":0}', "depth 0"),
    (b"]}", b'],"groups":[{"pool":"cpu","block_size":16}]}', "group 0 is in pool 'cpu'"),
    (b"]}", b'],"groups":[{"pool":"gpu","block_size":0}]}', "block size 0"),
    (b"]}", b'],"groups":[{"pool":"gpu","block_size":1,"window":0}]}', "window of 0"),
]
"""Changes of a header, and what is wrong then."""
WRONG_LINES = [
    (b'{"e":"quiesce"}\n{"e":"elope"}\n', "line 3: is no event: .*elope"),
    (b'{"e":"quiesce"}\n{"e":"issue","op":"a","gen":0}\n', r"line 3: is no event: .*\$.op"),
    (b'{"e":"issue","op":1}\n', "line 2: is no event: .*gen"),
    (b'{"e":"quiesce","x":1}\n', "line 2: is no event: .*x"),
    (b'{"e":"evict","pool":"gpu","slots":[1.5]}\n', "line 2: is no event"),
    (b'{"e":"quiesce"}\n\n{"e":"quiesce"}\n', "line 3: is blank"),
    (b'{"e":"quiesce"} {"e":"quiesce"}\n', "line 2: is no event"),
    (b"\xff\xfe\x00\n", "line 2: is no event"),
    (b'{"e":"evict","pool":"gpu","slots":[8]}\n', "line 2: makes no sense: slot 8"),
    (b'{"e":"evict","pool":"cpu","slots":[1]}\n', "line 2: makes no sense: pool 'cpu'"),
]
"""Lines after a header, and what is wrong with them."""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n", "line 1: is not the header of a trace"),
        (b"timestamp,input_length\n1,2\n", "line 1: is not the header of a trace"),
        (b'{"format":"other","version":1}\n', "line 1: is not the header of a trace"),
        (b'{"e":"quiesce"}\n', "line 1: is not the header of a trace"),
        (b"[" * 100_000 + b"\n", "line 1: is not the header of a trace"),
        (b'{"format":' + b"[" * 100_000 + b"\n", "line 1: is not the header of a trace"),
        (FIRST.replace(b"}\n", b',"meta":' + b'{"a":' * 100_000 + b"\n"), "line 1: is no"),
        (b'{"format":"kvfence-order","version":1,"producer":"x"}\n', "is an order trace; use kvfence races"),
        (b'{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}\n', "use kvfence replay"),
        (os.urandom(3000).replace(b"\n", b" ") + b"\n", "line 1: is not the header of a trace"),
        (b"\x1f\x8b\x08\x00garbage\n", "line 1: is not the header of a trace"),
        (FIRST + b"[" * 100_000 + b"\n", "line 2: is no event"),
        *((FIRST.replace(old, new), says) for old, new, says in WRONG_HEADERS),
        *((FIRST + lines, says) for lines, says in WRONG_LINES),
    ],
)
def test_what_is_wrong_is_told_in_one_line(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as raised:
        read(path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "; " in str(raised.value)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path, path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(path)
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)


@pytest.mark.parametrize("cut", [3, 10, 40])
def test_a_cut_line_is_told_after_the_events_before_it(path: Path, cut: int) -> None:
    write(path, EVENTS[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    _, events = read_trace(path)
    assert next(events) == (0, EVENTS[0])
    with pytest.raises(TraceCutError, match="line 3: is cut off"):
        next(events)


def test_a_last_line_without_its_end_is_read(path: Path) -> None:
    path.write_bytes(FIRST + b'{"e":"quiesce"}')
    assert read(path) == [(0, ev.Quiesce())]


def test_a_cut_compressed_file_is_told(packed: Path) -> None:
    write(packed, [ev.Alloc("gpu", f"req:{n * n}.0", [n % 7]) for n in range(50_000)])
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceCutError, match=r"line [0-9]{4,}: is cut off"):
        read(packed)
    packed.write_bytes(whole[:20])
    with pytest.raises(TraceCutError, match="line 1: is cut off"):
        read_trace(packed)


def test_damaged_compressed_data_is_told(packed: Path) -> None:
    write(packed, EVENTS * 1000)
    damaged = bytearray(packed.read_bytes())
    damaged[30:60] = bytes(30)
    packed.write_bytes(damaged)
    with pytest.raises(TraceError):
        read(packed)


def test_a_huge_line_is_told_before_it_fills_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "LONGEST_LINE", 2**20)
    monkeypatch.setattr(traces, "LONGEST_HEADER", 2**20)
    path.write_bytes(FIRST + b'{"e":"quiesce"}\n' + b" " * 2**22 + b"\n")
    with pytest.raises(TraceError, match="line 3: is longer than 1 MiB"):
        read(path)
    path.write_bytes(FIRST[:-1] + b" " * 2**22)
    with pytest.raises(TraceError, match="line 1: is longer than 1 MiB"):
        read(path)


def test_a_line_that_unpacks_enormously_is_told(packed: Path) -> None:
    import zstandard

    packed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(FIRST + b" " * 2**28))
    assert packed.stat().st_size < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="line 2: is longer than 20 MiB"):
            read(packed)
        assert tracemalloc.get_traced_memory()[1] < 2**28 + 2**26
    finally:
        tracemalloc.stop()


def test_without_zstandard_the_way_out_is_told(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(packed, EVENTS)
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(TraceError, match=r"pip install 'kvfence\[zstd\]'"):
        read(packed)
    with pytest.raises(TraceError, match=r"pip install 'kvfence\[zstd\]'"):
        TraceWriter(packed, HEADER)


def test_a_group_of_a_known_pool_is_read(path: Path) -> None:
    header = ev.Header(producer="test", pools=(ev.Pool("gpu", 8),), groups=(ev.Group("gpu", 16, window=32),))
    with TraceWriter(path, header):
        pass
    assert read_trace(path)[0] == header


def test_a_last_long_line_takes_time_in_proportion_to_its_length(path: Path) -> None:
    """62 MB in one line took 22 s, as each piece that was read was copied with all before it."""
    path.write_bytes(FIRST + b'{"e":"quiesce","x":"' + b"x" * 62_000_000)
    started = time.process_time()
    with pytest.raises(TraceError, match="line 2: is longer than 20 MiB"):
        read(path)
    path.write_bytes(FIRST[:-2] + b"x" * 62_000_000)
    with pytest.raises(TraceError, match="line 1: is not the header"):
        read(path)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_that_never_ends_a_line_is_refused_at_once(device: str) -> None:
    started = time.process_time()
    with pytest.raises(TraceError, match="is not the header of a trace"):
        read_trace(device)
    assert time.process_time() - started < 1


def test_what_no_reader_takes_is_not_written(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TraceWriter._append, "__defaults__", (500,))
    with (
        pytest.raises(TraceError, match="is more than readers take"),
        TraceWriter(path, HEADER) as record,
    ):
        record(ev.Alloc("gpu", "req:" + "7" * 500, [1]))
    assert not list(tmp_path.iterdir())


# Compressed files are what was written, or refused.


def test_compressed_data_carries_a_checksum_that_is_compared(packed: Path) -> None:
    import zstandard

    write(packed, EVENTS * 10)
    whole = packed.read_bytes()
    assert zstandard.get_frame_parameters(whole).has_checksum
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TraceError, match="is damaged"):
        read(packed)
    without = bytearray(whole[:-4])
    without[4] &= ~0x04
    packed.write_bytes(without)
    with pytest.raises(TraceError, match=r"without a checksum.*unpack it with zstd -d"):
        read(packed)


@pytest.mark.parametrize("more", [b"x", b"(\xb5/\xfd", b"garbage", b"P*M\x18\x04\0\0\0abcd", b"\0" * 9])
def test_what_follows_a_frame_is_a_frame_or_refused(packed: Path, more: bytes) -> None:
    write(packed, EVENTS)
    packed.write_bytes(packed.read_bytes() + more)
    with pytest.raises(TraceError):
        read(packed)


def test_a_violation_is_told_of_undamaged_data_only(packed: Path) -> None:
    """The violation comes first and the checksum last: it is compared all the same."""
    twice = [ev.Alloc("gpu", "req:1.0", [1])] * 2
    write(packed, twice * 5000)
    assert check_trace(packed).verdict == "violated"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TraceError, match="is damaged"):
        check_trace(packed)
    packed.write_bytes(whole[:-3])
    with pytest.raises(TraceCutError, match="is cut off"):
        check_trace(packed)
    with pytest.raises(TraceCutError, match=r"violation.*damage may have made"):
        check_trace(packed, limit=None)


# Writing replaces a file when the new one is whole.


def test_a_trace_has_its_name_when_it_is_whole(tmp_path: Path, path: Path) -> None:
    write(path, EVENTS[:1])
    record = TraceWriter(path, HEADER)
    for event in EVENTS * 2000:
        record(event)
    part = tmp_path / "trace.jsonl.part"
    assert part.stat().st_size > 2**17
    assert len(read(path)) == 1
    record.close()
    assert len(read(path)) == 2000 * len(EVENTS)
    assert not part.exists()


def test_a_refused_recording_leaves_what_was_there(tmp_path: Path, path: Path) -> None:
    write(path, EVENTS[:1])

    def serve() -> None:
        with TraceWriter(path, HEADER) as record:
            record(ev.Quiesce())
            raise CannotRun("refused")

    with pytest.raises(CannotRun):
        serve()
    assert len(read(path)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_while_recording_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from kvfence.spec.files.traces import TraceError, TraceWriter; "
        "from kvfence.spec.events import Alloc, Header, Pool; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); "
        "record = TraceWriter(sys.argv[1], Header(producer='x', pools=(Pool('gpu', 4),)))\n"
        "try:\n    for _ in range(9999): record(Alloc('gpu', 'req:1.0', [1]))\n"
        "except TraceError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run.jsonl")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cannot be written (File too large); free some space" in printed
    assert not list(tmp_path.iterdir())
