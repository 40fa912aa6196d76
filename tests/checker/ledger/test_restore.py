"""Going on from a snapshot: as judged before, wherever it is taken; and snapshots that make no sense."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from kvfence.checker.cli import app as cli
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.snapshots import snapshot_of
from kvfence.checker.ledger.state.extra_state import Extra
from kvfence.checker.ledger.state.ledger_state import Op
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import Request
from kvfence.spec import events as ev
from kvfence.spec.snapshot import KnownHolder, KnownPool, KnownRequest, KnownTransfer, Rarer

PAGE = (Path(__file__).parents[3] / "docs" / "trace-format.md").read_text(encoding="utf-8")
EXAMPLES = {
    section.split(":", 1)[0]: re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
    for section in PAGE.split("## What breaks each invariant")[1].split("\n### ")[1:]
}


def relayed(ledger: Ledger) -> Ledger:
    """A ledger that goes on from a snapshot of ``ledger``, which was written and read."""
    header = msgspec.structs.replace(ledger.header, snapshot=snapshot_of(ledger.state))
    return Ledger(msgspec.json.decode(msgspec.json.encode(header), type=ev.Header))


@pytest.mark.parametrize("invariant", EXAMPLES)
def test_a_trace_is_judged_alike_wherever_a_snapshot_is_taken(invariant: str) -> None:
    right, wrong = EXAMPLES[invariant]
    lines = right.splitlines()
    header = msgspec.json.decode(lines[0], type=ev.Header)
    events = [msgspec.json.decode(line, type=ev.Event) for line in [*lines[1:-1], wrong]]  # type: ignore[arg-type]
    for split in range(len(events)):
        ledger = Ledger(header)
        for event in events[:split]:
            assert ledger.apply(event) is None
        other = relayed(ledger)
        for event in events[split:]:
            one, two = ledger.apply(event), other.apply(event)
            assert (one and (one.invariant, one.condition)) == (two and (two.invariant, two.condition)), split
        assert one is not None


def test_a_promise_by_groups_is_known_after_a_snapshot() -> None:
    """Of 32 promised tokens 16 are accepted, behind which a block is read that was not promised."""
    groups = (ev.Group("gpu", 16), ev.Group("gpu", 16, 17, "sliding"))
    header = ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 8)), groups=groups)
    ledger = Ledger(header)
    promised: list[ev.Event] = [
        ev.Alloc("cpu", "op:9.0", [0, 1]),
        ev.Label("cpu", [0, 1], [11, 12]),
        ev.Alloc("cpu", "op:8.0", [2]),
        ev.Label("cpu", [2], [12], group=1),
        ev.Submit("7", 0, 48),
        ev.Touch("cpu", "hit:7.0", [0, 1, 2]),
        ev.Lookup("7", 0, 0, 32, "cpu", [0, 1, 2], counts=[2, 1]),
    ]
    assert [ledger.apply(event) for event in promised] == [None] * len(promised)
    other = relayed(ledger)
    assert other.state.extra.promised == ledger.state.extra.promised == {"7.0": (0, 32, (2, 1))}
    for external, broken in ((32, None), (16, "GEOMETRY")):
        for judge in (ledger.copy(), other.copy()):
            found = judge.apply(ev.Admit("7", 0, 0, external, 48 - external, 48))
            assert (found and found.invariant) == broken


UNEQUAL = {"op": 1, "gen": 0, "kind": "store", "keys": []}
UNEQUAL |= {"src_pool": "gpu", "src": [1], "dst_pool": "gpu", "dst": []}
WRONG = {
    "a pool that is not there": {"pools": [{"name": "disk"}]},
    "a slot that is not there": {"pools": [{"name": "gpu", "holders": [{"name": "op:1.0", "slots": [9]}]}]},
    "a slot twice": {"pools": [{"name": "gpu", "holders": [{"name": "op:1.0", "slots": [2, 2]}]}]},
    "labels without tags": {"pools": [{"name": "gpu", "labelled": [1]}]},
    "a step of nobody": {"steps": [{"step": 1, "reqs": [["7", 0]], "tokens": [1]}]},
    "a transfer of unequal sides": {"transfers": [UNEQUAL]},
    "packed numbers of an odd length": {"pools": [{"name": "gpu", "bad": "AAA="}]},
}


@pytest.mark.parametrize("snapshot", WRONG.values(), ids=WRONG.keys())
def test_a_snapshot_that_makes_no_sense_is_one_clear_error(
    snapshot: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = {
        "format": "kvfence-trace",
        "version": 2,
        "producer": "x",
        "pools": [{"name": "gpu", "slots": 8}],
        "snapshot": snapshot,
    }
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(header) + "\n" + '{"e":"quiesce"}\n', encoding="utf-8")
    assert cli.run(["check", str(trace)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "trace.jsonl: line 1: " in told


DERIVED = {
    Request: {"id", "key", "progress", "loads", "stores", "_fresh", "_fresh_after"},
    Op: {"id", "event", "request", "load", "destinations", "named_src", "named_dst", "stored", "plain"},
    Holder: {"kind", "request", "own", "parts", "in_parts", "reaching"},
    PoolState: {"words", "free", "array", "layout", "counts", "null", "total", "tag_words", "native"}
    | {"marks", "long_from", "kernels"},
    Extra: {"round"},
}
"""What follows from the fields of a snapshot, or from the header, or is scratch space."""
FORGOTTEN = {
    Holder: {"again"},  # only so that the consequence of a violation is not told
    PoolState: {"disputed"},  # likewise
}


@pytest.mark.parametrize(
    ("state", "known"),
    [*zip(DERIVED, (KnownRequest, KnownTransfer, KnownHolder, KnownPool, Rarer), strict=True)],
)
def test_whatever_the_ledger_state_has_is_in_a_snapshot_or_follows_from_it(
    state: type, known: type[msgspec.Struct]
) -> None:
    has = set(state.__slots__)  # type: ignore[attr-defined]
    assert has - set(known.__struct_fields__) == DERIVED[state] | FORGOTTEN.get(state, set())
