"""Each test in docs/findings fails on the release that it was found in: slow, and only where that is."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from kvfence.checker.audit.releases.fetch import fetch
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.spec.errors import CannotRun

pytestmark = pytest.mark.slow

PAGES = Path(__file__).parents[3] / "docs" / "findings"
NEWEST = "0.33.0"
TOLD = {
    "test_block_twice_in_a_store.py": "appear twice in one store",
    "test_failed_copy_ends_the_thread.py": "AssertionError: nobody is",
    "test_lazy_stores_never_end.py": "the connector started 40 more stores",
    "test_parked_requests_fill_the_gpu.py": "and these still wait",
    "test_parked_requests_fill_the_gpu_offloading.py": "and these still wait",
    "test_reset_forgets_running_requests.py": "are neither stored nor queued",
    "test_second_reset_before_a_step.py": "assert not self._current_batch_jobs_to_flush",
}
"""By file: words of its failure."""
RUN = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_every_page_has_a_test_that_is_run_here() -> None:
    assert {path.name for path in PAGES.glob("test_*.py")} == set(TOLD)
    for page in PAGES.glob("*.md"):
        if page.name != "README.md":
            assert any(f"`{name}`" in page.read_text() for name in TOLD), page.name


@pytest.mark.parametrize("name", TOLD)
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
         str(PAGES / name)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert TOLD[name] in done.stdout
    assert " failed in " in done.stdout
    assert " passed" not in done.stdout
