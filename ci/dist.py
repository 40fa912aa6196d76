"""Builds the sdist and the wheel, and tests them in a clean environment of each supported Python.

``python ci/dist.py [--out dist]``. What is tested, away from the checkout: the wheel with its dependencies,
the command, each program of examples/, and an installation from the unpacked sdist without git. A Python that
this machine lacks is skipped, with a line that says so. Exit code 0 if everything that ran passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EXTRA = "audit"  # brings Hypothesis, which the example of a lockstep test needs
VIOLATED = 1
LONGEST = 1200  # seconds of one command
PATHS_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def say(line: str) -> None:
    """Print a progress line at once."""
    print(f"dist: {line}", flush=True)


def run(command: Sequence[str | Path], folder: Path, *, code: int = 0, path: str | None = None) -> None:
    """Run a command in ``folder`` without this Python's settings; SystemExit for another exit code."""
    environment = {name: value for name, value in os.environ.items() if name not in PATHS_HIDDEN}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | ({"PATH": path} if path is not None else {})
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if done.returncode != code:
        output = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        line = " ".join(map(str, command))
        raise SystemExit(f"dist: FAILED with exit code {done.returncode}: {line}\n{output}")


def candidates(version: str) -> Iterator[Path]:
    """Interpreters that may be of this version: on PATH, those of pyenv, and those of uv."""
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    yield from sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}*/bin/python"))
    if uv := shutil.which("uv"):
        command = [uv, "python", "find", "--no-python-downloads", version]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        yield from map(Path, listed.stdout.split())


def python_of(version: str) -> Path | None:
    """An interpreter of this version that can make virtual environments; None if there is none."""
    probe = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return path
    return None


def environment(python: Path, folder: Path) -> Path:
    """A new virtual environment; its interpreter."""
    run([python, "-m", "venv", folder], folder.parent)
    return folder / "bin" / "python"


def build(out: Path, work: Path) -> tuple[Path, Path]:
    """Build the sdist from the checkout, and the wheel from the sdist; both paths."""
    python = environment(Path(sys.executable), work / "builder")
    run([python, "-m", "pip", "install", "--quiet", "build"], work)
    run([python, "-m", "build", "--outdir", out, ROOT], work)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_wheel(python: Path, wheel: Path, work: Path) -> None:
    """Install the wheel into a clean environment; run the command and each example there."""
    own = environment(python, work / "wheel")
    run([own, "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRA}]"], work)
    command = own.parent / "kvfence"
    trace = work / "trace.jsonl"
    faulty = ["--machine", "lookup", "--design", "unpinned_lookup", "--record", trace]
    run([command, "--version"], work)
    run([command, "verify", "--machine", "block_pool"], work)
    run([command, "verify", *faulty], work, code=VIOLATED)
    run([command, "check", trace], work, code=VIOLATED)
    for example in sorted((ROOT / "examples").glob("*.py")):
        copied = Path(shutil.copy(example, work))
        run([own, copied], work)


def check_sdist(python: Path, sdist: Path, work: Path) -> None:
    """Install from the unpacked sdist, in a folder without git and with no git on PATH."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = (path for path in work.glob("kvfence-*") if path.is_dir())
    own = environment(python, work / "sdist")
    run([own, "-m", "pip", "install", "--quiet", "."], source, path=str(own.parent))
    run([own.parent / "kvfence", "verify", "--machine", "block_pool"], work)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the sdist and the wheel")
    out = parser.parse_args().out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="kvfence-dist-") as folder:
        work = Path(folder)
        say("build the sdist, and the wheel from it")
        sdist, wheel = build(out, work)
        say(f"built {sdist.name} and {wheel.name}")
        tested = 0
        for version in VERSIONS:
            python = python_of(version)
            if python is None:
                say(f"Python {version}: skipped, none is on PATH, in ~/.pyenv/versions, or known to uv")
                continue
            here = work / version
            here.mkdir()
            check_wheel(python, wheel, here)
            say(f"Python {version}: the wheel installs, the command runs, and each example")
            check_sdist(python, sdist, here)
            say(f"Python {version}: the unpacked sdist installs without git")
            tested += 1
    if not tested:
        raise SystemExit("dist: FAILED: no supported Python was found, so nothing was tested")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
