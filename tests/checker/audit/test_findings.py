"""Each finding of docs/findings: the test made from its files fails on the release that it was found in."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kvfence.checker.audit.releases.fetch import fetch
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.spec.errors import CannotRun

FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
NEWEST = "0.33.0"
FAILURES = {
    "block-twice-in-a-store": "appear twice in one store",
    "failed-copy-ends-the-thread": "AssertionError: no one is",
    "lazy-stores-never-end": "the connector started 40 more stores",
    "parked-requests-fill-the-gpu": "and these still wait",
    "parked-requests-fill-the-gpu-offloading": "and these still wait",
    "reset-forgets-running-requests": "are neither stored nor queued",
    "second-reset-before-a-step": "assert not self._current_batch_jobs_to_flush",
}
"""By finding: words of the failure of its test."""
RUN = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def printed(case: Path) -> subprocess.CompletedProcess[str]:
    """What the command prints for a case."""
    command = [sys.executable, "-m", "kvfence", "audit", "test", str(case)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def generated(name: str, folder: Path) -> Path:
    """The test of a finding, written as a user would write it."""
    done = printed(FINDINGS / name / "case.json")
    assert done.returncode == 0, done.stderr
    file = folder / f"test_{name.replace('-', '_')}.py"
    file.write_text(done.stdout)
    return file


def test_every_page_names_a_finding_that_is_run_here() -> None:
    assert {path.parent.name for path in FINDINGS.glob("*/case.json")} == set(FAILURES)
    assert {path.parent.name for path in FINDINGS.glob("*/trace.jsonl")} == set(FAILURES)
    for page in FINDINGS.glob("*.md"):
        if page.name != "README.md":
            assert any(f"`{name}/`" in page.read_text() for name in FAILURES), page.name


@pytest.mark.parametrize("name", FAILURES)
def test_the_test_of_a_finding_stands_alone(name: str, tmp_path: Path) -> None:
    file = generated(name, tmp_path)
    text = file.read_text()
    compile(text, str(file), "exec")
    assert "import kvfence" not in text
    assert "from kvfence" not in text
    assert f"Seen in vLLM {NEWEST}" in text


def test_what_is_no_finding_has_no_test(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text((FINDINGS / "lazy-stores-never-end" / "case.json").read_text())
    done = printed(tmp_path / "case.json")
    assert done.returncode == 2
    assert "finding.json: cannot be read" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_a_finding_fails_on_its_release(name: str, tmp_path: Path) -> None:
    try:
        release, python = fetch(NEWEST), lab_python()
    except CannotRun as error:
        pytest.skip(f"no vLLM {NEWEST} here: {error}")
    environment = lab_environment(release, tmp_path) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        # pytest is not among what vLLM needs: the one that runs here serves.
        [str(python), "-W", "ignore", "-c", RUN, sysconfig.get_path("purelib"), "-q",
         "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(tmp_path), "-c", "/dev/null",
         str(generated(name, tmp_path))],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert FAILURES[name] in done.stdout
    assert " failed in " in done.stdout
    assert " passed" not in done.stdout
