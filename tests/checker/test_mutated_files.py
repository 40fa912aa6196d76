"""Files with a few wrong bytes: judged or refused in one line, never a traceback or another exit code."""

import os
import random
import resource
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from check_speed import serving_trace

from kvfence.checker.analysis.recorded.explain import explain_trace
from kvfence.checker.audit.cases.case import Case, Setup, Step, Submit, as_json, read_case
from kvfence.checker.cli import app as cli
from kvfence.checker.core.exit_codes import EXIT_CODES
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.order.race_check import check_order_trace
from kvfence.spec import events as ev
from kvfence.spec import order
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.order_traces import OrderTraceWriter
from kvfence.spec.files.traces import TraceReader, TraceWriter

PIECES = (b"9" * 19, b"-", b"\n", b"{", b"}", b'"', b"\0", b"\\u0000", b"1e999", b"null", b"[[[[", b"\x1b[2J")
JUDGES: dict[str, Callable[[Path], Any]] = {
    "explain": explain_trace, "check": check_trace, "races": check_order_trace
}  # fmt: skip
FEW, MANY = 100, 900

Capture: TypeAlias = pytest.CaptureFixture[str]
many = pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def mutated(data: bytes, draw: random.Random) -> bytes:
    """``data`` with one to eight changes: bytes set, removed and put in, bits flipped, and words of JSON."""
    text = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(text)) if draw.random() < 0.7 else draw.randrange(min(400, len(text)))
        match draw.randrange(5):
            case 0:
                text[at] = draw.randrange(256)
            case 1:
                del text[at : at + draw.randrange(1, 40)]
            case 2:
                text[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
            case 3:
                text[at] ^= 1 << draw.randrange(8)
            case _:
                text[at:at] = draw.choice(PIECES)
    return bytes(text)


@cache
def events() -> tuple[ev.Header, tuple[ev.Event, ...]]:
    """A sound trace of a made-up connector, by the benchmark that makes them."""
    header, made = serving_trace(8, 1, gpu=64, cpu=32, longest=400)
    return header, tuple(made)


def trace(path: Path, *, broken: bool = False) -> bytes:
    """The bytes of a trace file; compressed if the name says so."""
    header, made = events()
    with TraceWriter(path, header) as record:
        for event in (*made, *([ev.Alloc("gpu", "req:x.0", [1])] * 2 if broken else [])):
            record(event)
    return path.read_bytes()


def order_trace(path: Path) -> bytes:
    """The bytes of an order trace with a race in it."""
    regions = (order.Region(1, 0, 4096, name="gpu", slot=64),)
    streams = (order.Stream(1), order.Stream(2))
    header = order.Header(producer="test", threads=(0, 1), streams=streams, regions=regions)
    with OrderTraceWriter(path, header) as record:
        for step in range(20):
            record(order.Kernel(0, 1, writes=[(1, 64 * step, 64)], name="compute", by="req:0.0"))
            record(order.Record(0, 1, step + 1))
            if step != 15:
                record(order.Wait(0, 2, step + 1))
            record(order.Kernel(0, 2, reads=[(1, 64 * step, 64)], name="store", by="op:0.0"))
    return path.read_bytes()


def judged(command: str, path: Path, number: int, capsys: Capture) -> int:
    """The exit code. The command line takes most of the time, and is tried each tenth time only."""
    if number % 10 == 0:
        return exit_code([command, str(path)], capsys)
    try:
        return EXIT_CODES[JUDGES[command](path).verdict]
    except CannotRun:
        return 2


def exit_code(arguments: list[str], capsys: Capture) -> int:
    """The exit code; what was refused took one line."""
    code = cli.run(arguments)
    printed = capsys.readouterr()
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in printed.out + printed.err
    assert not [c for c in printed.out + printed.err if c != "\n" and not c.isprintable()]
    if code == 2:
        assert printed.err.startswith("kvfence: ")
        assert printed.err.count("\n") == 1
        assert not printed.out
    return code


@many
@pytest.mark.parametrize(
    ("command", "kind", "expected"),
    [
        ("check", "trace", {0, 2}),
        ("explain", "trace", {1, 2}),
        ("races", "order trace", {1, 2}),
        ("explain", "order trace", {1, 2}),
    ],
)
def test_a_mutated_trace_is_judged_or_refused(
    command: str, kind: str, expected: set[int], count: int, tmp_path: Path, capsys: Capture
) -> None:
    draw = random.Random(7 if kind == "trace" else 8)
    path, codes = tmp_path / "mutated.jsonl", set()
    data = trace(path, broken=command == "explain") if kind == "trace" else order_trace(path)
    for number in range(count):
        path.write_bytes(mutated(data, draw))
        codes.add(judged(command, path, number, capsys))
    assert expected <= codes


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("broken", [False, True])
def test_a_mutated_compressed_trace_is_what_was_written_or_refused(
    count: int, broken: bool, tmp_path: Path, capsys: Capture
) -> None:
    """Whatever is judged, as sound or as violated, unpacks to the bytes that were written."""
    zstandard = pytest.importorskip("zstandard")
    draw = random.Random(9)
    data = trace(tmp_path / "trace.zst", broken=broken)
    plain = trace(tmp_path / "trace.jsonl", broken=broken)
    assert zstandard.ZstdDecompressor().stream_reader(data).read() == plain
    path = tmp_path / "mutated.zst"
    refused = 0
    for number in range(count):
        path.write_bytes(mutated(data, draw))
        if judged("check", path, number, capsys) == 2:
            refused += 1
        else:
            assert zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read() == plain
    assert refused > 0.9 * count
    path.write_bytes(data)
    assert exit_code(["check", str(path)], capsys) == int(broken)


@many
@pytest.mark.parametrize("what", ["workload", "case"])
def test_a_mutated_workload_or_case(what: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from kvfence.reference.blocks.errors import WorkloadError
    from kvfence.reference.blocks.workload import read_mooncake

    case = Case(Setup(), (Submit(8, 4), Step(3), Submit(16, 4, family=1)))
    line = b'{"timestamp":0,"input_length":700,"output_length":9,"hash_ids":[1,2]}\n'
    data = line * 20 if what == "workload" else as_json(case).encode()
    read: Callable[[Path], object] = read_case
    if what == "workload":
        read = lambda path: list(read_mooncake(path))  # noqa: E731 - as one of two
    draw, refusals = random.Random(10), list[str]()
    deep = (b"[" * 100_000, b'{"setup":' * 100_000, b'{"timestamp":' + b"[" * 100_000)
    for text in (*deep, *(mutated(data, draw) for _ in range(count))):
        (tmp_path / "file").write_bytes(text)
        try:
            read(tmp_path / "file")
        except (CannotRun, WorkloadError) as error:
            refusals.append(str(error))
    assert len(refusals) > count // 2
    assert all(one.startswith(f"{tmp_path}/file") for one in refusals)


@pytest.mark.parametrize("command", ["check", "races", "explain"])
@pytest.mark.parametrize("where", ["header", "event"])
def test_deep_nesting_is_refused(command: str, where: str, tmp_path: Path, capsys: Capture) -> None:
    write = order_trace if command == "races" else trace
    head, _, rest = write(tmp_path / "trace").partition(b"\n")
    nested = b'{"a":' * 100_000
    if where == "header":
        head = head[:-1] + b',"meta":' + nested
    else:
        rest = b'{"e":"quiesce","x":' + nested + b"\n" + rest
    (tmp_path / "deep").write_bytes(head + b"\n" + rest)
    assert exit_code([command, str(tmp_path / "deep")], capsys) == 2


@pytest.mark.parametrize(
    ("command", "says"), [("check", "use kvfence races"), ("races", "use kvfence check")]
)
def test_each_kind_of_trace_names_its_command(
    command: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    (order_trace if command == "check" else trace)(tmp_path / "other")
    assert cli.run([command, str(tmp_path / "other")]) == 2
    assert says in capsys.readouterr().err


def test_standard_input_is_judged(tmp_path: Path, capsys: Capture) -> None:
    trace(tmp_path / "trace")
    with (tmp_path / "trace").open("rb") as file:
        before = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert cli.run(["check", "-"]) == 0
            assert cli.run(["explain", "-"]) == 2
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert "can be read only once" in capsys.readouterr().err


@pytest.mark.slow
def test_an_event_of_sixteen_megabytes_is_judged(tmp_path: Path) -> None:
    """Within 5 s and 1 GB: eight million numbers of two bytes are the most that fit."""
    path = tmp_path / "trace.jsonl"
    header = b'{"format":"kvfence-trace","version":2,"producer":"x","pools":[{"name":"gpu","slots":64}]}\n'
    ones = b",".join([b"1"] * (8 * 2**20 - 40))
    for kind in (b'"alloc","holder":"req:0.0"', b'"free","holder":"req:0.0"', b'"evict"'):
        path.write_bytes(header + b'{"e":' + kind + b',"pool":"gpu","slots":[' + ones + b"]}\n")
        assert path.stat().st_size > 16 * 2**20 - 2**10
        started = time.process_time()
        assert cli.run(["check", str(path)]) == 1
        assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20
    assert TraceReader(path).header.producer == "x"
