"""Work in several processes: a killed one is reported, and none outlives the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvfence.checker.analysis.mutation import kill
from kvfence.checker.analysis.mutation.matrix import mutate
from kvfence.checker.audit.campaign import campaign
from kvfence.checker.audit.cases.case import Case
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.findings import verdict_of
from kvfence.checker.audit.targets import REFERENCE, Reference
from kvfence.checker.core.processes import ProcessDied, side_by_side

PARENT = """
import os, time
from kvfence.checker.core.processes import side_by_side
def work(_):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(15)
list(side_by_side(work, range(4), 2))
"""


def killed_at(item: int, last: int) -> int:
    """``item``; the process that gets the last one is killed, as for want of memory."""
    if item == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def leaves(item: int) -> int:
    """Raises what ends a process quietly."""
    raise SystemExit(item)


def test_a_killed_process_is_reported() -> None:
    with pytest.raises(ProcessDied, match="memory"):
        list(side_by_side(lambda k: killed_at(k, 7), range(8), 2))


def test_what_would_end_a_process_is_raised_here() -> None:
    with pytest.raises(SystemExit):
        list(side_by_side(leaves, range(4), 2))


def test_processes_end_when_their_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 20
    while any(lives(one) for one in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(process: int) -> bool:
    """Whether it runs; a process that was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_mutation_run_is_undetermined_when_a_process_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "side_by_side", lambda _work, items, _: side_by_side(dies, items, 2))
    (found,) = mutate("lookup", only="abort*")
    assert found.verdict == "undetermined"
    assert "killed" in (found.stopped or "")
    assert found.missing > 0


def dies(_: object) -> None:
    """Work at which every process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_audit_is_undetermined_when_a_process_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvfence.checker.audit.targets._driven", killed_when_driven)
    target = Reference("sound", 2)
    try:
        found = campaign(target, REFERENCE, budget=20, seed=1)
    finally:
        target.close()
    assert verdict_of(found) == "undetermined"
    assert "killed" in found.broke


def killed_when_driven(_design: str, _case: Case, _record: object = None) -> Outcome:
    """Drives nothing: the process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
