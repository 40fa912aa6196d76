"""Compiles C once: shared libraries are kept in the user's cache folder, by what they were made from."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

FLAGS = ("-std=gnu11", "-O2", "-fwrapv", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-pthread")
NATIVE = "-march=native"
COMPILERS = ("cc", "gcc", "clang")
KEPT = 500  # libraries in the cache folder; the ones longest unused go first


class CannotCompile(Exception):  # noqa: N818 (a reason to explore in numpy)
    """There is no working C compiler; the text says what is wrong, in one line."""


def library(source: str, *more_flags: str) -> ctypes.CDLL:
    """The source as a loaded library, compiled unless the cache has it. CannotCompile says why not."""
    compiler, version = _compiler()
    key = "\n".join([version, NATIVE, *FLAGS, *more_flags, _processor(), source])
    name = hashlib.sha256(key.encode()).hexdigest()[:32] + ".so"
    with Folder() as folder:
        path = folder / name
        for _ in range(2):  # another process may have forgotten the library just now
            try:
                os.utime(path)
            except OSError:
                _compile(compiler, source, path, more_flags)
                _forget(folder)
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                reason = str(error)
                path.unlink(missing_ok=True)
    raise CannotCompile(f"the compiled machine cannot be loaded: {reason}")


@cache
def _compiler() -> tuple[str, str]:
    """Path and version text of the C compiler: that of the variable CC, else the first one found."""
    wanted = os.environ.get("CC", "").split()
    for name in [wanted[0]] if wanted else COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            return path, path + "\n" + shown.stdout
    raise CannotCompile(f"no C compiler was found ({', '.join(wanted[:1] or COMPILERS)})")


def _compile(compiler: str, source: str, path: Path, more_flags: tuple[str, ...]) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as made:
        temporary = Path(made.name)
    try:
        errors = ""
        for flags in ((NATIVE, *FLAGS), FLAGS):
            command = [compiler, "-x", "c", "-", *flags, *more_flags, "-o", str(temporary)]
            done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                temporary.chmod(0o700)
                temporary.replace(path)
                return
            errors = errors or done.stderr
        first = next((line for line in errors.splitlines() if "error" in line), errors.strip()[:200])
        raise CannotCompile(f"{compiler} does not compile the machine: {first or 'no reason given'}")
    finally:
        temporary.unlink(missing_ok=True)


@cache
def _processor() -> str:
    """What the code is compiled for: a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"


class Folder:
    """The cache folder; a temporary one where that cannot be written or is not private."""

    def __init__(self) -> None:
        self.temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(base) / "kvfence" / "native"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
            private = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if private and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            pass
        self.temporary = tempfile.TemporaryDirectory(prefix="kvfence")
        return Path(self.temporary.name)

    def __exit__(self, *_: object) -> None:
        if self.temporary is not None:
            self.temporary.cleanup()  # a library stays loaded without its file


def _forget(folder: Path) -> None:
    found = []
    for path in folder.glob("*.so"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-KEPT]:
        path.unlink(missing_ok=True)
