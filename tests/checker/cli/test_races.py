"""``kvfence races``: exit codes, what it prints, and what it refuses."""

from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.order.race_check import check_order_trace
from kvfence.reference.order_programs.order_rules import RULES, Twins, gpu
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import in_order
from kvfence.spec import order as od
from kvfence.spec.files.order_traces import OrderTraceWriter

ANY = next(twins for twins in RULES if "order ANY" in twins.rule)


def record(path: Path, program: Program, first: list[od.OrderEvent] | None = None) -> Path:
    with OrderTraceWriter(path, program.header) as write:
        for event in (*(first or []), *in_order(program).trace):
            write(event)
    return path


@pytest.fixture
def racy(tmp_path: Path) -> Path:
    frames = ["worker.py:31 start_store", "step.py:7 step"]
    first: list[od.OrderEvent] = [od.Declare(stacks=[od.Stack(1, frames)]), od.Own("req:9.0", [gpu(1)])]
    return record(tmp_path / "racy.jsonl", ANY.broken, first)


def test_a_race_is_printed_with_both_accesses_and_what_is_missing(racy: Path, kvfence: CommandLine) -> None:
    printed = kvfence.prints(1, "races", racy)
    assert "race 1: STORE-READY: nothing orders two accesses to 16 bytes of gpu" in printed
    assert "(slot 1), owned by req:9.0" in printed
    assert "event 2: write of kernel 'compute'" in printed
    assert "event 5: read of copy 'store'" in printed
    assert "missing: the write of kernel 'compute'" in printed
    assert "witness" not in printed


def test_an_explanation_has_a_schedule_that_corrupts(racy: Path, kvfence: CommandLine) -> None:
    printed = kvfence.prints(1, "races", racy, "--explain", "1")
    assert "witness: t0.0 t0.1 t0.2 t0.3 t0.3:read0 t0.0:run t0.3:write0" in printed
    assert "step t0.3:read0 (store) reads a content that it should not" in printed


def test_json_has_the_same_facts(racy: Path, kvfence: CommandLine) -> None:
    found = kvfence.json(1, "races", racy, "--explain", "1")
    assert found["verdict"] == "violated"
    assert found["races"][0]["second"]["order"] == "any"
    assert found["explained"][0]["witness"][4] == "t0.3:read0"


def test_an_ordered_trace_holds(tmp_path: Path, kvfence: CommandLine) -> None:
    assert "holds" in kvfence.prints(0, "races", str(record(tmp_path / "kept.jsonl", ANY.kept)))


def test_a_trace_without_accesses_is_undetermined(tmp_path: Path, kvfence: CommandLine) -> None:
    empty = record(tmp_path / "empty.jsonl", Program(ANY.broken.header, []))
    assert "has no accesses to memory" in kvfence.prints(3, "races", empty)


def test_forgotten_accesses_make_it_undetermined(tmp_path: Path) -> None:
    """Nobody ever waits for anything, so every access still matters."""
    header = od.Header(producer="test", streams=(od.Stream(0),), regions=(od.Region(0, 0, 1 << 20),))
    events: list[od.OrderEvent] = [
        od.Kernel(0, 0, (), ((0, 2 * number % 1998, 1),)) for number in range(1000)
    ]
    path = record(tmp_path / "long.jsonl", Program(header, events))
    found = check_order_trace(path, most_pieces=100)
    assert found.verdict == "undetermined"
    assert "forgotten for want of memory" in found.notes[0]
    assert check_order_trace(path).verdict == "holds"


def test_the_table_counts_the_pairs_that_were_compared(tmp_path: Path, kvfence: CommandLine) -> None:
    """A kernel writes, then a store reads the same bytes on one stream: STORE-READY was judged, no more."""
    header = od.Header(
        producer="test",
        streams=(od.Stream(0),),
        regions=(od.Region(0, 0, 64, kind="device"), od.Region(1, 4096, 64, kind="pinned")),
    )
    events: list[od.OrderEvent] = [
        od.Kernel(0, 0, (), ((0, 0, 8),)),
        od.Copy(0, 0, ((0, 0, 8),), ((1, 0, 8),)),
    ]
    path = record(tmp_path / "store.jsonl", Program(header, events))
    found = check_order_trace(path)
    assert found.checks == {"FREEZE": 0, "LOAD-ORDER": 0, "STORE-READY": 1, "USE-READY": 0, "": 0}
    assert found.verdicts["STORE-READY"] == "holds"
    assert {found.verdicts[name] for name in ("FREEZE", "LOAD-ORDER", "USE-READY", "")} == {"undetermined"}
    code, text, _ = kvfence("races", path)
    assert code == 0
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert lines["STORE-READY"][1:] == ["holds", "1", "0"]
    assert lines["FREEZE"][1:] == ["undetermined", "0", "0"]


def test_without_shared_bytes_nothing_is_judged(tmp_path: Path, kvfence: CommandLine) -> None:
    header = od.Header(producer="test", streams=(od.Stream(0),), regions=(od.Region(0, 0, 64),))
    events: list[od.OrderEvent] = [od.Kernel(0, 0, (), ((0, 8 * number, 8),)) for number in range(4)]
    assert "no order was judged" in kvfence.prints(
        3, "races", str(record(tmp_path / "apart.jsonl", Program(header, events)))
    )


def test_a_race_is_counted_for_its_invariant_also_if_it_is_not_kept(tmp_path: Path) -> None:
    path = record(tmp_path / "broken.jsonl", ANY.broken)
    found = check_order_trace(path)
    assert found.verdict == "violated"
    assert sum(found.violation_counts.values()) == found.found
    for invariant, count in found.violation_counts.items():
        assert found.verdicts[invariant] == "violated"
        assert 0 < count <= found.checks[invariant]


def test_a_limit_ends_the_check_with_that_race(tmp_path: Path) -> None:
    """Two races, far apart: the first ends a check for one, the second a check for two."""
    header = od.Header(
        producer="test", streams=(od.Stream(0), od.Stream(1)), regions=(od.Region(0, 0, 1 << 20),)
    )

    def races(name: str) -> list[od.OrderEvent]:
        return [od.Kernel(0, stream, (), ((0, 0, 8),), name=f"{name}{stream}") for stream in (0, 1)]

    quiet: list[od.OrderEvent] = [od.Kernel(0, 0, ((0, 64, 8),), ()) for _ in range(3000)]
    calm: list[od.OrderEvent] = [od.SyncDevice(0, 0), *quiet]
    order = [*races("early"), *calm, *races("late"), *calm]
    path = record(tmp_path / "two.jsonl", Program(header, order))
    found = {limit: check_order_trace(path, limit=limit) for limit in (1, 2, 3, None)}
    assert [len(one.races) for one in found.values()] == [1, 2, 2, 2]
    assert found[1].notes == ("stopped after 1 race(s)",)
    assert found[2].notes == ("stopped after 2 race(s)",)
    assert found[1].events < found[2].events < len(order)
    assert [(one.events, one.notes) for one in (found[3], found[None])] == [(len(order), ())] * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"e":"kernel","thread":0,"stream":9}', "line 2: makes no sense: stream 9 was not declared"),
        ('{"e":"record","thread":7,"stream":0,"event":1}', "thread 7 was never started"),
        ('{"e":"get","thread":0,"queue":1,"item":4}', "item 4 was got from queue 1"),
        ('{"e":"host","thread":0,"reads":[[0,120,16]]}', "16 bytes from 120 on are not in region 0"),
        ('{"e":"host","thread":0,"writes":[[5,0,1]]}', "region 5 was not declared"),
        ('{"e":"release","thread":0,"region":5}', "region 5 was not declared"),
        ('{"e":"copy","thread":0,"stream":0,"src":[[0,0,4]],"dst":[[0,8,2]]}', "reads 4 bytes into 2"),
        ('{"e":"copy","thread":0,"stream":0,"src":[[0,0,4]],"dst":[]}', "1 sources and 0 destinations"),
        ('{"e":"spawn","thread":0,"child":0}', "thread 0 was started twice"),
        ('{"e":"join","thread":0,"child":0}', "waits for its own end"),
        ('{"e":"sync_stream","thread":0,"stream":9}', "stream 9 was not declared"),
        ('{"e":"declare","streams":[{"id":0,"device":3}]}', "declared before, and differently"),
        ('{"e":"sleep","thread":0}', "line 2: is no event"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused_in_one_line(
    line: str, says: str, tmp_path: Path, kvfence: CommandLine
) -> None:
    path = record(tmp_path / "bad.jsonl", Program(ANY.broken.header, []))
    with path.open("a") as file:
        file.write(line + "\n")
    assert says in kvfence.refuses("races", path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"threads":[0]', '"threads":[]'), "names no threads"),
        (('"threads":[0]', '"threads":[0,0]'), "thread 0 is named twice"),
        (('"version":1', '"version":7'), "is trace format 7"),
        (("kvfence-order", "kvfence-trace"), "use kvfence check"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(
    change: tuple[str, str], says: str, racy: Path, kvfence: CommandLine
) -> None:
    racy.write_text(racy.read_text().replace(*change))
    assert says in kvfence.refuses("races", racy)


def test_a_cut_trace_says_how_far_it_was_judged(tmp_path: Path, kvfence: CommandLine) -> None:
    path = record(tmp_path / "cut.jsonl", ANY.kept)
    path.write_bytes(path.read_bytes()[:-20])
    assert "is cut off" in kvfence.refuses("races", path)


def test_the_limit_stops_early(racy: Path, kvfence: CommandLine) -> None:
    assert "stopped after 1 race(s)" in kvfence.prints(1, "races", racy, "--limit", "1")


@pytest.mark.parametrize("twins", RULES, ids=lambda twins: twins.rule)
def test_a_trace_file_gives_what_the_online_checker_gives(twins: Twins, tmp_path: Path) -> None:
    found = check_order_trace(record(tmp_path / "run.jsonl", twins.broken))
    assert [race.invariant for race in found.races] == [twins.invariant]
    assert found.times == (1,)
