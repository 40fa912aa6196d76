"""Real releases under audit: slow, and only where they are in the cache or can be fetched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvfence.checker.audit.campaign import campaign
from kvfence.checker.audit.cases.case import Abort, Case, Fail, Hold, Reset, Setup, Step, Submit
from kvfence.checker.audit.findings import examined, grounds_of, write
from kvfence.checker.audit.releases.fetch import fetch
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.checker.audit.targets import VLLM, Vllm
from kvfence.spec.errors import CannotRun

pytestmark = pytest.mark.slow

SIMPLE = "SimpleCPUOffloadConnector"
OLD, NEW = "0.20.2", "0.32.0"
ORDINARY = Case(
    Setup(gpu_blocks=24, cpu_blocks=16),
    (Submit(20, 8, 0, 16), Step(5), Submit(24, 5, 0, 16), Step(3), Submit(10, 3, after=0), Hold(4), Abort(1),
     Submit(30, 4, 1, 30), Step(9), Reset(True), Submit(30, 4, 1, 30)),
)  # fmt: skip


@contextmanager
def opened(version: str, connector: str = SIMPLE) -> Iterator[Vllm]:
    try:
        target = Vllm(fetch(version), connector, 2)
    except CannotRun as error:
        pytest.skip(f"no vLLM {version} here: {error}")
    with closing(target):
        target.start()
        yield target


@pytest.fixture(scope="module")
def old() -> Iterator[Vllm]:
    with opened(OLD) as target:
        yield target


@pytest.fixture(scope="module")
def new() -> Iterator[Vllm]:
    with opened(NEW) as target:
        yield target


def test_ordinary_traffic_on_a_newer_release_shows_nothing(new: Vllm) -> None:
    outcome = new.run(ORDINARY)
    assert outcome.sightings == ()
    assert outcome.unchecked == ()
    assert outcome.counts["stores"]
    assert outcome.events
    assert outcome.accesses


@pytest.mark.parametrize(
    "setup",
    [
        Setup(gpu_blocks=40, cpu_blocks=16, drafts=3),
        Setup(gpu_blocks=40, cpu_blocks=16, drafts=1, depth=2),
        Setup(gpu_blocks=40, cpu_blocks=16, ranks=2, stages=2),
        Setup(gpu_blocks=24, cpu_blocks=16, priority=True, depth=2),
        Setup(gpu_blocks=24, cpu_blocks=16, tier="disk"),
        Setup(gpu_blocks=24, cpu_blocks=16, second_connector=True),
        Setup(gpu_blocks=90, cpu_blocks=16, chunked=False, windows=(0, 8, 16)),
        Setup(gpu_blocks=24, cpu_blocks=16, lazy=True, launch_delay=4),
    ],
    ids=lambda setup: "-".join(
        n for n in Setup.__struct_fields__ if getattr(setup, n) != getattr(Setup(), n)
    ),
)
def test_what_production_runs_can_be_driven_and_looked_at(new: Vllm, setup: Setup) -> None:
    outcome = new.run(Case(setup, ORDINARY.actions))
    assert outcome.refused == ""
    assert outcome.unchecked == ()
    assert not {seen.evidence for seen in outcome.sightings} & {"content", "exception", "race"}
    assert outcome.accesses
    assert bool(outcome.counts.get("drafts")) == bool(setup.drafts)


def test_what_a_last_store_pushes_out_of_the_tier_was_there_when_the_connector_looked(new: Vllm) -> None:
    """The last block of the last request is in the tier for one group, which the store for another evicts."""
    setup = Setup(block_size=2, gpu_blocks=14, cpu_blocks=12, windows=(0, 9, 18), depth=2, max_running=1)
    numbers = ((1, 1), (2, 1, 2, 2), (1, 2), (2, 2, 0, 2), (2, 1, 1, 2), (2, 1, 2, 2))
    actions = tuple(Submit(*each) for each in numbers)
    outcome = new.run(Case(setup, actions))
    assert outcome.sightings == ()
    assert outcome.counts["stores"]


def test_a_reset_gives_up_the_promises_of_requests_that_begin_alike_each_as_its_own(new: Vllm) -> None:
    """Two requests wait with promises whose first slots are the same."""
    setup = Setup(
        block_size=4,
        gpu_blocks=19,
        cpu_blocks=68,
        windows=(0, 17),
        lazy=True,
        depth=2,
        token_budget=16,
        priority=True,
        delay=36,
        seed=13061,
    )
    actions = (
        Submit(19, 2, 1, 4),
        Submit(20, 2),
        Submit(2, 1, after=0, priority=2),
        Step(2),
        Reset(True),
        Step(8),
        Submit(15, 2, 1, 15, priority=1),
        Step(3),
        Reset(),
    )
    outcome = new.run(Case(setup, actions))
    assert outcome.sightings == ()
    assert outcome.counts["resets refused"]


def test_a_case_runs_alike_twice(old: Vllm) -> None:
    first, second = old.run(ORDINARY), old.run(ORDINARY)
    assert first.sightings
    assert first == second


def test_the_control_has_no_connector(old: Vllm) -> None:
    outcome = old.control(ORDINARY)
    assert outcome.sightings == ()
    assert "stores" not in outcome.counts


def test_faults_of_an_old_release_are_found_each_with_a_test_that_fails_there(
    old: Vllm, tmp_path: Path
) -> None:
    found = examined(campaign(old, VLLM, budget=90, seed=1), old.control)
    faults = {f.sighting.invariant: f for f in found.findings if grounds_of(f) == "fault"}
    assert {"PIN", "UNIQUE", "STORE-READY", "FLUSH"} <= set(faults)
    assert faults["PIN"].report == "vllm#39702"

    files = write(faults["PIN"], tmp_path, old.run, (OLD, SIMPLE))
    file = next(path for path in files if path.name.startswith("test_"))
    assert "kvfence." not in file.read_text()
    environment = lab_environment(old.release, tmp_path)
    done = subprocess.run(
        [lab_python(), str(file)], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "have no holder" in done.stderr


def test_an_unknown_connector_is_reported() -> None:
    match = "Unsupported connector type: NoSuchConnector"
    with pytest.raises(CannotRun, match=match), opened(NEW, "NoSuchConnector"):
        pass


@pytest.mark.parametrize("second", [False, True])
def test_a_connector_of_ones_own_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: bool
) -> None:
    module = "vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector"
    (tmp_path / "own.py").write_text(f"from {module} import {SIMPLE}\n\n\nclass Mine({SIMPLE}):\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with opened(NEW, "Mine@own") as target:
        outcome = target.run(Case(Setup(second_connector=second), ORDINARY.actions))
    assert not outcome.refused
    assert outcome.unchecked == ()
    # Within MultiConnector the ends of stores are reported in another form, which is not counted.
    assert outcome.accesses if second else outcome.counts["stores"]


def test_what_is_imported_is_the_release_that_was_asked_for(old: Vllm, tmp_path: Path) -> None:
    printed = subprocess.run(
        [lab_python(), "-c", "import vllm, kvfence.spec; print(vllm.__file__)"],
        env=lab_environment(old.release, tmp_path), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert str(old.release.path) in printed
    assert sys.executable != str(lab_python())


RETURNING = Case(
    Setup(gpu_blocks=12, cpu_blocks=40),
    (Submit(20, 2, 0, 20), Step(20), Submit(24, 2, 1, 24), Step(20), Submit(24, 2, 2, 24), Step(30),
     Submit(20, 2, 0, 20), Step(20), Submit(24, 6, 1, 24), Step(20), Submit(28, 6, 0, 20)),
)  # fmt: skip
"""Prompts come back when the GPU has forgotten them."""


@pytest.mark.parametrize("both", [f"OffloadingConnector+{SIMPLE}", f"{SIMPLE}+OffloadingConnector"])
def test_what_a_tier_loads_that_is_not_observed_is_held_against_no_one(both: str) -> None:
    with opened("0.33.0", both) as target:
        outcome = target.run(RETURNING)
    assert outcome.sightings == ()
    assert outcome.counts["loads"]
    assert outcome.counts["stores"]
    assert [why for why in outcome.unchecked if "OffloadingConnector" not in why] == []


def test_a_transfer_of_offloading_connector_that_should_fail_is_reported_as_not_looked_at() -> None:
    with opened("0.33.0", "OffloadingConnector") as target:
        outcome = target.run(Case(Setup(), (Submit(20, 3), Fail(), Step(9), Submit(9, 2), Step(9))))
    assert outcome.sightings == ()
    assert "copies that fail: OffloadingConnector has no way to report one" in outcome.unchecked
