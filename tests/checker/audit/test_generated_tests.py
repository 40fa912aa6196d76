"""The tests that go with findings: each can stand alone, for every check and for connectors of both kinds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvfence.checker.audit.cases.case import Case, Setup, Step, Submit, as_json
from kvfence.checker.audit.cases.outcome import Evidence, Sighting
from kvfence.checker.audit.test_file import Recorded, kind_of
from kvfence.checker.audit.test_file import test_of as written_for

SIMPLE, OFFLOADING = "SimpleCPUOffloadConnector", "OffloadingConnector"
CASE = Case(Setup(), (Submit(9, 1), Step(4)))
CALLS: list[list[object]] = [
    ["add", "0", [1, 2, 3], 1, None, 0],
    ["schedule"],
    ["update", {"0": [5]}, [], []],
]
SEEN: tuple[tuple[str, str, Evidence, str], ...] = (
    ("PIN", "a promised hit has no holder", "rule", "pin"),
    ("UNIQUE", "a block with an open store is stored", "rule", "in_flight"),
    ("UNIQUE", "a block twice in a transfer", "rule", "once"),
    ("CONSERVE", "count of free slots", "rule", "free_list"),
    ("FLUSH", "the last full blocks are neither stored nor queued", "lost", "flush"),
    ("NO-LEAK", "blocks of gpu are held though nothing is left", "leak", "leak"),
    ("PROGRESS", "requests wait, and nothing runs any more", "stall", "stall"),
    ("PROGRESS", "copies go on for ever though no request is left", "stall", "restless"),
    ("PROGRESS", "the engine never sleeps though nothing is left to be done", "stall", "sleepless"),
    ("PROGRESS", "the engine breaks down with AssertionError", "exception", "exception"),
)


def written(folder: Path, sighting: Sighting, connector: str) -> str | None:
    """The test made from a folder as an audit writes it."""
    about = Recorded(release="0.33.0", connector=connector, sighting=sighting)
    (folder / "case.json").write_text(as_json(CASE))
    (folder / "finding.json").write_bytes(msgspec.json.encode(about))
    (folder / "calls.json").write_bytes(msgspec.json.encode(CALLS))
    return written_for(folder)


@pytest.mark.parametrize("connector", [SIMPLE, OFFLOADING])
@pytest.mark.parametrize(
    ("invariant", "cause", "evidence", "kind"), SEEN, ids=[kind for _, _, _, kind in SEEN]
)
def test_a_generated_test_stands_alone(
    tmp_path: Path, connector: str, invariant: str, cause: str, evidence: Evidence, kind: str
) -> None:
    seen = Sighting(invariant=invariant, cause=cause, evidence=evidence, detail="told")
    assert kind_of(seen) == kind
    text = written(tmp_path, seen, connector)
    assert text is not None
    compile(text, "generated", "exec")
    assert "import kvfence" not in text
    assert "from kvfence" not in text
    assert ("OffloadingWorkerMetadata(dict(stored))" in text) == (connector == OFFLOADING)
    assert ("cpu_coordinator.find_longest_cache_hit" in text) == (connector == SIMPLE)
    file = tmp_path / "test_it.py"
    file.write_text(text)
    names = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821,F811"]
    done = subprocess.run([*names, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("evidence", ["race", "content"])
def test_what_no_call_of_the_scheduler_shows_has_no_test(tmp_path: Path, evidence: Evidence) -> None:
    seen = Sighting(invariant="STORE-READY", cause="c", evidence=evidence, detail="t")
    assert written(tmp_path, seen, SIMPLE) is None


def test_a_failed_copy_has_a_test_of_its_own_where_its_thread_is_known(tmp_path: Path) -> None:
    seen = Sighting(invariant="FAIL-CLOSED", cause="c", evidence="leak", detail="t")
    text = written(tmp_path, seen, SIMPLE)
    assert text is not None
    assert "copy_backend.DmaCopyBackend()" in text
    assert written(tmp_path, seen, OFFLOADING) is None
