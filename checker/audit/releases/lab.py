"""The lab: an environment with the libraries that vLLM needs at run time, made once in the user's cache.

vLLM itself is not installed there: a release is put on the path of the process that runs it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

from kvfence.checker.audit.releases.fetch import Release
from kvfence.checker.audit.releases.release_cache import cache_folder, check_ours, locked
from kvfence.spec.errors import CannotRun

_LOCK, _TORCH_CPU, _TORCH_CUDA = "lab_lock.txt", "torch_cpu_lock.txt", "torch_cuda_lock.txt"
"""What is installed, with the SHA-256 of each file that pip may take; torch in one of two builds."""
_READY: Final = ".ready"
_PATIENCE: Final = 3600

Note = Callable[[str], None]


def lab_python(note: Note | None = None) -> Path:
    """The Python of the lab; makes the lab if there is none (minutes, and a gigabyte or more).

    CannotRun if it cannot be made.
    """
    here = files("kvfence.checker.audit.releases")
    locks = {name: here.joinpath(name).read_text() for name in (_LOCK, _TORCH_CPU, _TORCH_CUDA)}
    mark = hashlib.sha256(f"{locks}{sys.version}".encode()).hexdigest()[:12]
    folder = cache_folder("lab") / mark
    with locked(folder):
        if not (folder / _READY).is_file():
            if note is not None:
                note(f"installing the libraries that vLLM needs into {folder} (once)")
            _make(folder, locks)
        check_ours(folder)
    return folder / "bin" / "python"


def _make(folder: Path, locks: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _must("make the environment", _failed(sys.executable, "-m", "venv", str(folder)))
    python = str(folder / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--quiet")

    def install(name: str) -> str:
        (folder / name).write_text(locks[name])
        # Locks name all that is needed, so nothing else comes along; nothing is built.
        allowed = ("--require-hashes", "--only-binary", ":all:", "--no-deps")
        return _failed(*pip, *allowed, "--requirement", str(folder / name))

    _must("install the libraries", install(_LOCK))
    # The CPU build is a tenth of the size, but not on every index, and not for every machine.
    if install(_TORCH_CPU) or _failed(python, "-m", "pip", "--quiet", "show", "torch"):
        _must("install torch", install(_TORCH_CUDA))
    (folder / _READY).touch()


def _failed(*command: str) -> str:
    """Runs ``command``; what it said if it failed, otherwise nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return " ".join(lines[:2]) or done.stderr.strip()[-300:] or f"exit code {done.returncode}"


def _must(what: str, failed: str) -> None:
    if failed:
        raise CannotRun(f"cannot {what} for vLLM: {failed}: see that pip reaches a package index")


def lab_environment(release: Release, folder: Path) -> dict[str, str]:
    """Environment variables for a process of the lab that imports ``release`` and kvfence.

    ``folder`` is a scratch folder; links under which kvfence is found are made there.
    """
    bytecode = cache_folder("bytecode")
    check_ours(bytecode)
    package = folder / "path" / "kvfence"
    package.mkdir(parents=True, exist_ok=True)
    for link in (package / name for name in ("spec", "reference", "checker")):
        if not link.exists():
            link.symlink_to(str(files(f"kvfence.{link.name}")), target_is_directory=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}
    return kept | {
        "PYTHONPATH": os.pathsep.join((str(release.path), str(package.parent))),
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
