"""One event from the file to its violation leads through few source files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import kvfence
from kvfence.checker.ledger import ledger
from kvfence.checker.ledger.check import check_trace
from kvfence.spec import events as ev
from kvfence.spec.files.traces import TraceWriter

ROOT = Path(kvfence.__file__).resolve().parents[1]
SHARED = {
    "spec/files/traces.py",
    "checker/ledger/ledger.py",
    "checker/ledger/rules/pool.py",
    "checker/ledger/state/ledger_state.py",
}


@pytest.mark.parametrize(
    ("compiled", "fast_path"), [(True, "native_fast_paths.py"), (False, "pool_fast_paths.py")]
)
@pytest.mark.parametrize("holder", ["req:1.0", "req:2.0"])
def test_five_files_lie_between_an_event_and_its_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, fast_path: str, holder: str
) -> None:
    """An ``Alloc`` of a used slot, by a holder and by a new one: each file with a line that is executed."""
    if not compiled:
        monkeypatch.setattr(ledger, "kernels", lambda: None)
    elif ledger.kernels() is None:
        pytest.skip("no C compiler")
    trace = tmp_path / "trace.jsonl"
    with TraceWriter(trace, ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0),))) as write:
        write(ev.Alloc("gpu", "req:1.0", [1], free=6))
        write(ev.Alloc("gpu", "req:9.0", [2, 3], free=4))
        write(ev.Alloc("gpu", holder, [4, 2], free=3))
    files: set[str] = set()
    reading: set[str] = set()
    allocated = 0

    def note_file(frame: FrameType, what: str, _: object) -> object:
        """Events of a batch are read together, then judged one by one: count both for the last one."""
        nonlocal allocated
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if not path.is_absolute() or not path.resolve().is_relative_to(ROOT) or ".venv" in path.parts:
            return None
        allocates = path.name == fast_path and name == "alloc"
        if what == "call" and name == "_decode":
            files.clear()
        elif what == "call" and allocates:
            allocated += 1
            reading.update(files if allocated == 1 else ())
        files.add(path.resolve().relative_to(ROOT).as_posix())
        if what == "return" and allocates and allocated == 2:
            files.clear()
        if what == "return" and name == "fail":
            sys.settrace(None)
            return None
        return note_file

    sys.settrace(note_file)
    try:
        report = check_trace(trace)
    finally:
        sys.settrace(None)
    (violation,) = report.violations
    assert (violation.number, violation.values["slot"]) == (2, 2)
    assert files | reading == {*SHARED, f"checker/ledger/fast_paths/{fast_path}"}
    assert len(files | reading) <= 5
