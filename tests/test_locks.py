"""The locks: pip installs the versions that are pinned, of files whose SHA-256 is known, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AUDIT = ROOT / "checker" / "audit" / "releases"
AGAIN = "python ci/lock.py writes the locks again"
LOCKS = {
    "dev": ROOT / "ci" / "lock-dev.txt",
    "reference": ROOT / "ci" / "lock-reference.txt",
    "build": ROOT / "ci" / "lock-build.txt",
    "engine": ROOT / "ci" / "lock-engine.txt",
    "lab": AUDIT / "lab_lock.txt",
    "torch, CPU": AUDIT / "torch_cpu_lock.txt",
    "torch, CUDA": AUDIT / "torch_cuda_lock.txt",
}


def pins(path: Path) -> dict[str, str]:
    """By name, as indexes spell it: the pinned version."""
    found = re.findall(r"(?m)^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", path.read_text())
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def required(requirements: list[str]) -> set[str]:
    """The names of requirements, as indexes spell them."""
    names = [re.match(r"[\w.-]+", requirement) for requirement in requirements]
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_hashes_and_an_exact_version(name: str) -> None:
    text = re.sub(r"(?m)^#.*\n", "", LOCKS[name].read_text()).replace("\\\n", " ")
    assert text.strip()
    for line in text.splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.+]+( ; [^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line


@pytest.mark.parametrize("name", ["dev", "reference", "build"])
def test_a_lock_has_the_versions_of_the_constraints(name: str) -> None:
    wanted, locked = pins(ROOT / "ci" / "constraints.txt"), pins(LOCKS[name])
    assert {package: wanted.get(package) for package in locked} == locked, AGAIN


def test_the_lock_for_development_has_all_that_is_pinned_and_torch_has_locks_of_its_own() -> None:
    wanted = pins(ROOT / "ci" / "constraints.txt")
    assert set(wanted) - set(pins(LOCKS["dev"])) == {"torch"}, AGAIN
    assert pins(LOCKS["torch, CUDA"])["torch"] == wanted["torch"], AGAIN
    assert pins(LOCKS["torch, CPU"])["torch"] == f"{wanted['torch']}+cpu"


@pytest.mark.parametrize("extra", ["dev", "reference"])
def test_a_lock_has_what_pyproject_asks_for(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = required(project["dependencies"])
    # The extra for development includes others.
    for name in {extra} if extra == "reference" else {"dev", "order", "reference", "smt", "zstd"}:
        wanted |= required(extras[name])
    assert wanted - set(pins(LOCKS[extra])) - {"kvfence", "torch"} == set(), AGAIN


def test_the_lock_for_audits_has_what_they_list() -> None:
    assert pins(LOCKS["lab"]) == pins(AUDIT / "lab_pins.in"), AGAIN


def test_setup_and_audits_install_from_locks_only() -> None:
    for script in (ROOT / "ci" / "setup.sh", AUDIT / "lab.py"):
        text = script.read_text()
        for option in ("--require-hashes", "--only-binary", ":all:", "--no-deps"):
            assert option in text
    assert "--no-build-isolation" in (ROOT / "ci" / "setup.sh").read_text()
