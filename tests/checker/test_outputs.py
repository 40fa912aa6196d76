"""What kvfence writes is whole or not there, replaces no input, follows no link, and reaches pipes."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.cli import app as cli
from kvfence.spec import events as ev
from kvfence.spec.files import outputs
from kvfence.spec.files.outputs import Output, OutputError, check_outputs, files_of, write_text
from kvfence.spec.files.traces import TraceReader, TraceWriter

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 8),))
SAMPLE = Path(cli.__file__).parents[2] / "reference" / "samples" / "mooncake_conversation_300.jsonl"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """The beginning of a production trace, to be replayed."""
    pytest.importorskip("torch")
    path = tmp_path / "workload"
    path.write_bytes(SAMPLE.read_bytes()[:20_000].rpartition(b"\n")[0] + b"\n")
    return path


def test_a_report_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    umask = os.umask(0o027)
    try:
        write_text(path, "new ≠ old")
    finally:
        os.umask(umask)
    assert path.read_text() == "new ≠ old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("how", ["same", "hard link", "other spelling"])
def test_an_input_is_never_replaced(tmp_path: Path, how: str) -> None:
    source = tmp_path / "source"
    source.write_text("kept")
    path = source if how == "same" else tmp_path / "link"
    if how == "hard link":
        path.hardlink_to(source)
    if how == "other spelling":
        path = tmp_path / ".." / tmp_path.name / "source"
    for attempt in (
        lambda: write_text(path, "lost", inputs=[source]),
        lambda: check_outputs({"--html": path}, inputs=[source]),
        lambda: Output(path, inputs=[str(source)]),
    ):
        with pytest.raises(OutputError, match="is read by this run"):
            attempt()
    assert source.read_text() == "kept"


def test_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    for name, to in (("link", target), ("dangling", tmp_path / "nowhere")):
        link = tmp_path / name
        link.symlink_to(to)
        with pytest.raises(OutputError, match="is a symbolic link, which is not followed"):
            write_text(link, "lost")
        with pytest.raises(OutputError, match="is a symbolic link"):
            check_outputs({"--record": link})
    assert target.read_text() == "kept"
    assert not (tmp_path / "nowhere").exists()


def test_a_module_that_runs_is_never_replaced() -> None:
    with pytest.raises(OutputError, match="is read by this run"):
        check_outputs({"--record": Path(outputs.__file__)})


@pytest.mark.parametrize(
    ("path", "says"),
    [("no/file", "cannot be created"), (".", "is a folder"), ("file/below", "cannot be created")],
)
def test_a_place_that_cannot_be_is_refused_before_the_work(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=says):
        check_outputs({"--html": tmp_path / path})


def test_two_outputs_need_two_places(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is given for --html and for --json"):
        check_outputs({"--html": tmp_path / "a", "--json": tmp_path / "." / "a"})
    check_outputs({"--html": Path("/dev/null"), "--json": Path("/dev/null"), "--sarif": None})


def test_files_in_names_of_machines() -> None:
    assert files_of("a/b.py:build+fault") == [Path("a/b.py")]
    assert files_of("HEAD~1:b.py+fault") == [Path("b.py")]
    assert files_of("sound") == files_of(None) == []


def test_devices_and_pipes_are_written_to_as_they_are(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    with TraceWriter(fifo, HEADER) as record:
        record(ev.Quiesce())
    reader.join(10)
    assert got[0].endswith(b'{"e":"quiesce"}\n')
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    write_text(Path("/dev/null"), "nothing")
    with pytest.raises(OutputError, match="No space left"):
        write_text(Path("/dev/full"), "much")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116


def test_standard_output_is_written_to_where_it_goes(tmp_path: Path) -> None:
    code = "from pathlib import Path; from kvfence.spec.files.outputs import write_text\n"
    code += "print('first'); write_text(Path('/dev/stdout'), 'second\\n'); print('third')"
    out = tmp_path / "out"
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert out.read_text() == "first\nsecond\nthird\n"


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report"
    path.write_text("old")

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_an_earlier_run_left_is_not_touched(tmp_path: Path) -> None:
    left = tmp_path / "report.part"
    left.write_text("all there is")
    write_text(tmp_path / "report", "new")
    assert left.read_text() == "all there is"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "report.part"]


def test_a_long_name_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_text(path, "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_recording_leaves_its_part(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    code = (
        "import sys, time\nfrom kvfence.spec.files.traces import TraceWriter\n"
        "from kvfence.spec.events import Alloc, Header, Pool\n"
        "record = TraceWriter(sys.argv[1], Header(producer='t', pools=(Pool('gpu', 8),)))\n"
        "for number in range(20_000): record(Alloc('gpu', f'req:{number}.0', [1]))\n"
        "print(flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    assert not path.exists()
    batches = TraceReader(tmp_path / "trace.jsonl.part").batches()
    assert isinstance(next(batches)[0], ev.Alloc)


@pytest.mark.parametrize("how", ["same", "hard link", "symbolic link"])
@pytest.mark.parametrize("option", ["--record", "--record-order", "--metrics"])
def test_a_replay_never_writes_over_its_workload(
    workload: Path, how: str, option: str, kvfence: CommandLine
) -> None:
    path, before = workload, workload.read_bytes()
    if how != "same":
        path = workload.with_name("link")
        (path.hardlink_to if how == "hard link" else path.symlink_to)(workload)
    kvfence.refuses("replay", workload, option, path, "--requests", 1)
    assert workload.read_bytes() == before


@pytest.mark.parametrize(
    "more", [["--design", "unpinned_lookups"], ["--design", "lost_store"], ["--block-size", "0"], []]
)
def test_a_refused_replay_leaves_no_file(workload: Path, more: list[str], kvfence: CommandLine) -> None:
    if not more:
        workload.write_bytes(workload.read_bytes() + b"nonsense\n")
    made = {name: workload.with_name(name) for name in ("record", "record-order", "metrics")}
    options = [word for name, path in made.items() for word in (f"--{name}", str(path))]
    code = kvfence("replay", workload, *more, *options).code
    if code == 2:
        assert list(workload.parent.iterdir()) == [workload]
    assert code == 2 or more == ["--design", "lost_store"]


def test_an_explanation_never_writes_over_its_trace(tmp_path: Path, kvfence: CommandLine) -> None:
    trace = tmp_path / "slots.svg"
    with TraceWriter(trace, HEADER) as record:
        for request in (1, 2):
            record(ev.Alloc("gpu", f"req:{request}.0", [1]))
    before = trace.read_bytes()
    assert "is read by this run" in kvfence.refuses("explain", trace, "--html", trace)
    kvfence("explain", trace, "--svg", tmp_path)
    for picture in tmp_path.glob("*.svg"):
        if picture != trace:
            picture.unlink()
            picture.hardlink_to(trace)
    kvfence("explain", trace, "--svg", tmp_path)
    assert trace.read_bytes() == before


def test_a_new_specification_goes_through_no_link(tmp_path: Path, kvfence: CommandLine) -> None:
    (tmp_path / "two_tier.py").symlink_to(tmp_path / "elsewhere")
    assert "already there" in kvfence.refuses("new", tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_writing_a_trace_takes_no_longer_than_its_bytes(tmp_path: Path) -> None:
    """Closing asks for the loaded modules once, not for each event."""
    started = time.process_time()
    for number in range(20):
        with TraceWriter(tmp_path / f"{number}.jsonl", HEADER) as record:
            record(ev.Quiesce())
    assert time.process_time() - started < 5
