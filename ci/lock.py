"""Writes the locks: every package that kvfence installs, with the SHA-256 of each file that pip may take.

    python ci/lock.py        # needs uv, which finds the files on the package index

ARCHITECTURE.md says when. What is wanted is in ``ci/constraints.txt`` and ``pyproject.toml``, and for audits
in ``checker/audit/releases/lab_pins.in``. torch has locks of its own: ``torch_cuda_lock.txt`` with the build
of the index, and ``torch_cpu_lock.txt``, kept by hand, with one that is on no index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
CONSTRAINTS: Final = ROOT / "ci" / "constraints.txt"
LAB: Final = ROOT / "checker" / "audit" / "releases" / "lab_pins.in"
CUDA: Final = ROOT / "checker" / "audit" / "releases" / "torch_cuda_lock.txt"
PYTHONS: Final = ("cp311", "cp312", "cp313", "cp314")
TORCH: Final = "torch"
ENGINE: Final = "compressed-tensors==0.20.0\nloguru==0.7.3\n"
"""What a whole vLLM imports beside what audits need: `ci/with_vllm.py --whole`."""
BUILD: Final = "setuptools"
"""What builds kvfence itself; installed first, as nothing is built in an environment of its own."""
_HEAD: Final = "# {what}\n# Written by ci/lock.py: change what it reads, and run it again.\n"
_FOR: Final = re.compile(r"any|macosx_\d+_\d+_(arm64|universal2|x86_64)|manylinux.*_(x86_64|aarch64)")

Package = dict[str, Any]
"""A package of a ``pylock.toml``: name, version, wheels, perhaps a marker."""


def main() -> int:
    """Writes all locks; the exit status."""
    extra = {name: resolved("pyproject.toml", "--extra", name) for name in ("reference", "dev")}
    ours = {name for name, _ in pins(CONSTRAINTS)}
    for name, packages in extra.items():
        listed = [package for package in packages if normal(package["name"]) in ours - {TORCH}]
        write(ROOT / "ci" / f"lock-{name}.txt", f"kvfence[{name}] and what it needs.", listed)
    build = [package for package in resolved(str(CONSTRAINTS), "--no-deps") if package["name"] == BUILD]
    write(ROOT / "ci" / "lock-build.txt", "What builds kvfence.", build)
    write(LAB.with_name("lab_lock.txt"), "What vLLM's Python files import.", resolved(str(LAB), "--no-deps"))
    always = {name for name, _ in pins(LAB)}
    torch = next(f"{name}=={version}" for name, version in pins(CONSTRAINTS) if name == TORCH)
    cuda = [package for package in resolved("-", given=torch) if normal(package["name"]) not in always]
    write(CUDA, "torch as the index has it, and what it needs beside it where it was built for CUDA.", cuda)
    write(
        ROOT / "ci" / "lock-engine.txt",
        "What a whole vLLM imports beside it.",
        resolved("-", "--no-deps", given=ENGINE),
    )
    return 0


def resolved(*what: str, given: str | None = None) -> list[Package]:
    """What uv finds for ``what`` at the versions of ``ci/constraints.txt``, for any machine.

    ``given``: what uv reads where ``what`` says ``-``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / "pylock.toml"
        command = ["uv", "pip", "compile", *what, "--universal", "--python-version", "3.11", "--quiet"]
        if "--no-deps" not in what:
            command += ["--constraint", str(CONSTRAINTS)]
        subprocess.run([*command, "--output-file", str(lock)], cwd=ROOT, check=True, input=given, text=True)
        found = tomllib.loads(lock.read_text())["packages"]
    # Nothing is installed on Windows, where a few packages more would be needed.
    return [package for package in found if package.get("marker") != "sys_platform == 'win32'"]


def pins(path: Path) -> list[tuple[str, str]]:
    """The packages that a file of requirements pins: names as indexes spell them, versions."""
    return [
        (normal(name), version)
        for name, version in re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", path.read_text())
    ]


def normal(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes(package: Package) -> list[str]:
    """SHA-256 of the wheels for the Pythons and machines that we install on."""
    listed = [wheel["hashes"]["sha256"] for wheel in package.get("wheels", ()) if fits(wheel["url"])]
    return sorted(listed)


def fits(url: str) -> bool:
    """Whether the wheel at ``url`` can be installed on one of our Pythons and machines."""
    python, abi, platform = url.rsplit("/", 1)[1].removesuffix(".whl").rsplit("-", 3)[1:]
    pythons = python.split(".")
    stable = abi in {"abi3", "none"}
    right = any(tag in PYTHONS or (stable and re.fullmatch(r"py3|cp3\d?|cp31[0-4]", tag)) for tag in pythons)
    return right and not abi.endswith("t") and any(_FOR.fullmatch(tag) for tag in platform.split("."))


def write(path: Path, what: str, packages: list[Package]) -> None:
    """Writes ``packages`` as requirements with hashes."""
    lines = [_HEAD.format(what=what)]
    for package in sorted(packages, key=lambda package: normal(package["name"])):
        allowed = hashes(package)
        if not allowed:
            raise SystemExit(f"{package['name']}=={package['version']} has no wheel for any machine of ours")
        marker = f" ; {package['marker']}" if "marker" in package else ""
        options = "".join(f" \\\n    --hash=sha256:{value}" for value in allowed)
        lines.append(f"{package['name']}=={package['version']}{marker}{options}\n")
    path.write_text("".join(lines))
    print(f"{path.relative_to(ROOT)}: {len(packages)} packages", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
