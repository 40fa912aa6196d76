"""The adapter on real releases: slow, and only where they are in the cache or can be fetched."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kvfence.checker.audit.releases.fetch import fetch
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.checker.audit.releases.release_cache import cache_folder
from kvfence.spec.errors import CannotRun

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RELEASES = ("0.19.1", "0.21.0", "0.24.0", "0.28.0", "0.32.0", "0.33.0")
KNOWN = {
    # What is publicly known of these releases, as far as the scheduler side shows it.
    "0.19.1": {"PIN", "UNIQUE", "STORE-READY", "FREEZE", "FLUSH"},
    "0.21.0": {"PIN", "UNIQUE", "STORE-READY", "FREEZE", "FLUSH", "CONSERVE"},
    "0.24.0": {"FLUSH"},
    "0.28.0": {"FLUSH"},
    "0.32.0": set(),
    "0.33.0": set(),
}
OFFLOADED = ("0.28.0", "0.30.0", "0.32.0", "0.33.0")
"""Releases whose OffloadingConnector is driven, and its worker side observed."""
SOUND = (
    "offloading",
    "offloading ahead",
    "offloading hybrid",
    "offloading twice",
    "offloading no wait in step",
    "offloading again",
)
TRAFFIC = (
    "ordinary",
    "lazily",
    "preempting",
    "ahead",
    "drafted",
    "drafted_ahead",
    "full_tier",
    "loads",
    "failed_loads",
    "resets",
    "hybrid",
    "own_module",
)
TWICE = ("two_connectors", "two_hits")
UNBOUND = "SimpleCPUOffloadConnector: not checked: it was not told of the GPU's pool, so it is not judged"
TIER = "OffloadingConnector: not checked: its own tier is not judged: lookups, transfers and FLUSH"


@functools.lru_cache(maxsize=32)
def result_of(script: str, version: str, compiled: bool = True) -> dict[str, Any]:
    """What a script prints on a release; ``compiled``: with the compiled hooks."""
    try:
        release = fetch(version)
        python = lab_python()
    except CannotRun as error:
        pytest.skip(f"no vLLM {version} here: {error}")
    with tempfile.TemporaryDirectory(prefix="kvfence-") as scratch:
        environment = lab_environment(release, Path(scratch)) | {
            "KVFENCE_SCRATCH": scratch,
            "KVFENCE_COMPILE": str(int(compiled)),
            "PYTHONHASHSEED": "0",  # vLLM's hashes of blocks depend on it.
            "VLLM_CACHE_ROOT": str(cache_folder("vllm") / version),
        }
        done = subprocess.run(
            [str(python), "-W", "ignore", str(HERE / script)],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    pytest.fail(f"{script} on vLLM {version} did not come to an end: {done.stderr[-2000:]}")


def assert_known(found: dict[str, Any], version: str) -> None:
    """A scenario came to its end, and showed nothing but what is known of the release."""
    assert "failed" not in found, found["failed"]
    assert set(found["violations"]) <= KNOWN[version], found["faults"]


def assert_busy(found: dict[str, Any]) -> None:
    """Enough happened on a worker side for silence to mean something."""
    assert found["events"] > 50
    assert found["counts"]["stores"]
    assert found["counts"]["loads"]


@pytest.fixture(params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def emitted(version: str) -> dict[str, Any]:
    return result_of("release_checks.py", version)


@pytest.fixture
def workers(version: str) -> dict[str, Any]:
    return result_of("worker_checks.py", version)


@pytest.mark.parametrize("scenario", TRAFFIC)
def test_traffic_shows_what_is_known_of_the_release_and_nothing_else(
    version: str, emitted: dict[str, Any], scenario: str
) -> None:
    found = emitted[scenario]
    assert_known(found, version)
    assert found["not_checked"] == []
    assert not found["undetermined"]
    assert found["events"] > 50


@pytest.mark.parametrize("release", ["0.19.1", "0.28.0", "0.33.0"])
@pytest.mark.parametrize("scenario", TRAFFIC)
def test_compiled_hooks_emit_the_events_that_the_hooks_in_python_emit(release: str, scenario: str) -> None:
    found = result_of("release_checks.py", release)[scenario]
    plain = result_of("release_checks.py", release, compiled=False)[scenario]
    if not found["compiled"]:
        pytest.skip("no compiled hooks: there is no C compiler, or no header files of Python")
    assert not plain["compiled"]
    assert found["events"] > 20
    assert (found["events"], found["digest"]) == (plain["events"], plain["digest"])


@pytest.mark.parametrize("scenario", TWICE)
def test_two_connectors_are_judged_where_vllm_tells_them_of_the_pool(
    version: str, emitted: dict[str, Any], scenario: str
) -> None:
    found = emitted[scenario]
    assert_known(found, version)
    assert found["not_checked"] == ([UNBOUND] if version in ("0.19.1", "0.21.0") else [])
    assert bool(found["undetermined"]) == bool(found["not_checked"])


def test_every_hook_is_checked_or_said_not_to_be(emitted: dict[str, Any]) -> None:
    for scenario in TRAFFIC:
        coverage = emitted[scenario]["coverage"]
        wrong = {hook: state for hook, state in coverage.items() if state != "checked"}
        assert not wrong
        assert {"BlockPool.touch", "Scheduler.schedule", "SimpleCPUOffloadWorker.wait_for_save"} <= set(
            coverage
        )


def test_known_faults_of_old_releases_are_seen_beside_sound_traffic(
    version: str, emitted: dict[str, Any]
) -> None:
    found = {name for scenario in TRAFFIC for name in emitted[scenario]["violations"]}
    assert found >= (KNOWN[version] & {"PIN", "FLUSH"})


def test_loads_and_failed_loads_took_place(emitted: dict[str, Any]) -> None:
    assert emitted["loads"]["figures"]["loads"] == 1
    assert emitted["failed_loads"]["figures"]["loads"] >= 1


def test_resets_are_answered_as_without_kvfence(emitted: dict[str, Any]) -> None:
    answers = emitted["resets"]["figures"]["answers"]
    assert answers[-1] is True
    assert len(answers) == 7


@pytest.mark.parametrize("scenario", ["two_connectors", "offloading", "example", "own_module"])
def test_hybrid_groups_are_supported_iff_the_wrapped_connector_does(
    emitted: dict[str, Any], scenario: str
) -> None:
    found = emitted[scenario]["figures"]
    assert found["hma"] == found["inner"]
    assert found["fenced"] == ("FencedConnector" if found["inner"] else "FencedConnectorWithoutHMA")


def test_every_method_is_passed_on(emitted: dict[str, Any]) -> None:
    assert emitted["every_method"]["figures"]["missing"] == []
    assert emitted["own_module"]["figures"]["said"] == "said it"
    assert emitted["own_module"]["figures"]["role"] == "SCHEDULER"


def test_vllm_finds_the_wrapped_connector_by_its_name(emitted: dict[str, Any]) -> None:
    assert emitted["names"]["figures"]["asked"] in (None, [True, True, False])


def test_a_tier_that_no_hook_knows_is_said_not_to_be_judged(emitted: dict[str, Any]) -> None:
    assert emitted["offloading"]["not_checked"] == [TIER]
    assert emitted["offloading"]["undetermined"] == 1
    assert emitted["ordinary"]["undetermined"] == 0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "'kvfence_connector', for instance"),
        ("unknown", "cannot find the connector 'NoSuchConnector'"),
        ("no module", "cannot find the connector 'Own' in 'no.such.module'"),
        ("no class", "cannot find the connector 'Own' in 'json'"),
        ("itself", "names FencedConnector itself"),
        ("hma", "name FencedConnectorWithoutHMA as kv_connector"),
        ("mode", "use one of raise, log, count, off"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(emitted: dict[str, Any], what: str, words: str) -> None:
    error = emitted["misconfigured"]["figures"][what]
    assert error.startswith("FenceConfigError: ")
    assert words in error


def test_it_is_put_in_once_however_often_it_is_asked_for(emitted: dict[str, Any]) -> None:
    found = emitted["twice"]
    assert found["figures"] == {"same": True, "mode": "count", "second is undetermined": True}
    assert found["not_checked"] == []
    assert found["events"] > 50


def test_vllm_loads_the_plugin_in_each_process(emitted: dict[str, Any]) -> None:
    found = emitted["plugin"]["figures"]
    assert found["processes"] == [["count", [], 0]] * 2, found["errors"]


def test_figures_of_both_sides_come_through_a_process_boundary(emitted: dict[str, Any]) -> None:
    figures = emitted["figures"]["figures"]
    assert figures["violations"]["STORE-READY"] >= 2
    assert figures["sides"] == ["scheduler", "worker"]
    assert figures["events"]
    assert figures["line"]["kvfence violations"] >= 2


@pytest.mark.parametrize("scenario", ["plain", "ahead", "disk", "twice", "no wait", "again"])
def test_hooks_find_the_races_that_the_virtual_device_has(workers: dict[str, Any], scenario: str) -> None:
    found = workers[scenario]
    if found["refused"]:
        pytest.skip(found["refused"])
    assert found["unchecked"] == []
    if scenario == "twice" and found["coverage"]:
        pytest.skip("its connectors are not told of the GPU's pool, and copy nothing")
    assert found["coverage"] == {}
    assert found["online"] == found["told"]
    assert sorted({invariant for invariant, _, _ in found["online"]}) == found["device"]
    assert_busy(found)


def test_a_store_that_does_not_wait_for_its_step_is_reported_and_its_sound_twin_is_not(
    version: str, workers: dict[str, Any]
) -> None:
    assert workers["no wait"]["online"] == [["STORE-READY", "step", "store"]]
    assert "no path from the write of kernel 'step'" in workers["no wait"]["first"]
    assert "to the read of copy 'store'" in workers["no wait"]["first"]
    sound = [] if KNOWN[version] <= {"FLUSH"} else [["STORE-READY", "step", "store"]]
    assert workers["again"]["online"] == sound


@pytest.mark.parametrize("release", OFFLOADED)
@pytest.mark.parametrize("scenario", SOUND)
def test_the_worker_side_of_offloading_connector_is_judged_and_silent(release: str, scenario: str) -> None:
    found = result_of("worker_checks.py", release)[scenario]
    assert found["refused"] == ""
    assert found["unchecked"] == []
    assert found["online"] == found["told"] == found["device"] == found["content"] == []
    assert_busy(found)


@pytest.mark.parametrize("release", OFFLOADED)
def test_a_store_of_offloading_connector_that_does_not_wait_for_a_step_in_flight_is_reported(
    release: str,
) -> None:
    found = result_of("worker_checks.py", release)["offloading no wait"]
    assert found["online"] == found["told"] == [["STORE-READY", "step", "store"]]
    assert found["device"] == ["STORE-READY"]
    assert "no path from the write of kernel 'step'" in found["first"]
    assert found["unchecked"] == []


@pytest.mark.parametrize("release", OFFLOADED)
def test_what_one_of_two_connectors_does_to_the_other_is_reported(release: str) -> None:
    """Up to 0.32.0 a connector may load into blocks that the other one still stores."""
    found = result_of("worker_checks.py", release)["offloading crowded"]
    wrong = [] if release == "0.33.0" else [["FREEZE", "store", "load"]]
    assert found["online"] == found["told"] == wrong
    assert found["device"] == sorted({invariant for invariant, _, _ in wrong})
    assert found["unchecked"] == []
    assert found["counts"]["loads"]


@pytest.mark.parametrize("release", sorted(set(RELEASES) - set(OFFLOADED)))
def test_offloading_connector_of_releases_in_which_it_is_built_otherwise_is_not_driven(release: str) -> None:
    assert result_of("worker_checks.py", release)["offloading"]["refused"]
