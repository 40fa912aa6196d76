"""Compiles C once: shared libraries are kept in the user's cache folder, by what they were made from.

What is kept is checked in memory against its SHA-256, and a private copy of it is loaded, whose name is gone
a moment later: a library that a process works with cannot be cut short under it, which would kill it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kvfence.checker.core.user_cache import PART, Folder, forget, keep, kept

FLAGS = ("-std=gnu11", "-O2", "-fwrapv", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-pthread")
NATIVE = "-march=native"
COMPILERS = ("cc", "gcc", "clang")
KEPT = 500  # libraries in the cache folder; the ones longest unused go first
PATIENCE = 120.0  # seconds that a compiler may take for a machine,
PATIENCE_SERVING = 30.0  # for what a process in service waits for,
PATIENCE_VERSION = 10.0  # and to tell its version
Command = tuple[str, ...]

_log = logging.getLogger("kvfence.compile")
_hung: set[Command] = set()


class CannotCompile(Exception):  # noqa: N818 (a reason to explore in numpy)
    """There is no working C compiler; the text says what is wrong, in one line."""


class Ended(NamedTuple):
    """How a compiler ended, and what it printed."""

    code: int
    printed: str
    errors: str


def library(source: str, *more_flags: str, patience: float = PATIENCE) -> ctypes.CDLL:
    """The source as a loaded library, compiled unless the cache has it. CannotCompile says why not.

    The compilers are tried in turn, each for ``patience`` seconds.
    """
    reasons = []
    try:
        with Folder("native") as folder:
            for command, version in working("CC", COMPILERS):
                try:
                    return _library(command, version, source, more_flags, folder, patience)
                except CannotCompile as why:
                    reasons.append(str(why))
    except OSError as error:
        raise CannotCompile(f"there is no room to compile in ({error.strerror})") from None
    raise CannotCompile(reasons[0] if reasons else none_found("C", "CC", COMPILERS))


def _library(
    command: Command, version: str, source: str, more_flags: tuple[str, ...], folder: Path, patience: float
) -> ctypes.CDLL:
    key = "\n".join([version, NATIVE, *FLAGS, *more_flags, _processor(), source]).encode()
    path = folder / f"{hashlib.sha256(key).hexdigest()[:32]}.so"
    content = kept(path, key)
    if content is not None:
        with suppress(OSError):  # one that does not load is compiled anew
            return loaded(content, folder)
    first = ("-x", "c", "-", NATIVE, *FLAGS, *more_flags)
    second = ("-x", "c", "-", *FLAGS, *more_flags)
    content = compiled(command, source, first, folder, patience, otherwise=second)
    with suppress(OSError):  # it serves this process even where it cannot be kept
        keep(path, key, content)
        forget(folder, "*.so", KEPT)
    try:
        return loaded(content, folder)
    except OSError as error:
        raise CannotCompile(f"the compiled machine cannot be loaded: {error}") from None


def loaded(content: bytes, folder: Path | None) -> ctypes.CDLL:
    """The library, from a file that only this call knows. It stays loaded without its file. OSError."""
    try:
        return _loaded_from(content, folder)
    except OSError:  # the cache may be full, or nothing there may be executed
        return _loaded_from(content, None)


def _loaded_from(content: bytes, folder: Path | None) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(dir=folder, prefix=PART) as private:
        # a name of its own: the loader takes two files of one name for the same library
        path = Path(private) / f"{Path(private).name}.so"
        path.write_bytes(content)
        path.chmod(0o700)
        return ctypes.CDLL(str(path))


def compiled(
    command: Command,
    source: str,
    options: tuple[str, ...],
    folder: Path | None,
    patience: float,
    otherwise: tuple[str, ...] = (),
) -> bytes:
    """What a compiler makes of the source with these options, or with the others. CannotCompile, OSError."""
    errors = ""
    with tempfile.TemporaryDirectory(dir=folder, prefix=PART) as private:
        out = Path(private) / "made.so"
        for each in (options, otherwise) if otherwise else (options,):
            ended = run_compiler(command, [*each, "-o", str(out)], source, patience)
            if ended.code == 0:
                with suppress(FileNotFoundError):
                    if content := out.read_bytes():
                        return content
            errors = errors or ended.errors
    first = next((line for line in errors.splitlines() if "error" in line), errors.strip()[:200])
    raise CannotCompile(f"{command[0]} does not compile the machine: {first or 'no reason given'}")


def working(variable: str, names: tuple[str, ...]) -> Iterator[tuple[Command, str]]:
    """Commands of the compilers that answer, and their versions: of the variable, then of the names."""
    tried: set[Command] = set()
    for words in _wanted(variable, names):
        path = shutil.which(words[0])
        if path is None:
            continue
        command, same = (path, *words[1:]), (str(Path(path).resolve()), *words[1:])
        version = None if same in tried or command in _hung else _version(command)
        if version is not None:
            tried.add(same)
            yield command, "\n".join([*command, version])


def none_found(language: str, variable: str, names: tuple[str, ...]) -> str:
    """Says which compilers were looked for in vain."""
    wanted = ", ".join(words[0] for words in _wanted(variable, names))
    return f"no {language} compiler was found ({wanted})"


def _wanted(variable: str, names: tuple[str, ...]) -> list[list[str]]:
    text = os.environ.get(variable, "")
    try:
        words = shlex.split(text)
    except ValueError:  # quotes that do not end
        words = text.split()
    return [*([words] if words else []), *([name] for name in names if [name] != words)]


@cache
def _version(command: Command) -> str | None:
    """What a compiler says of itself; None when it does not work."""
    try:
        ended = run_compiler(command, ["--version"], "", PATIENCE_VERSION)
    except CannotCompile:
        return None
    return ended.printed if ended.code == 0 else None


def run_compiler(command: Command, options: list[str], source: str, patience: float) -> Ended:
    """Runs a compiler, and ends it with all that it began if it takes too long or Ctrl-C is pressed.

    CannotCompile when it takes too long: it is not tried again. Or when it cannot be run.
    """
    try:
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise CannotCompile(f"{command[0]} cannot be run ({error.strerror})") from None
    try:
        printed, errors = process.communicate(source, timeout=patience)
    except subprocess.TimeoutExpired:
        _end(process)
        _hung.add(command)
        why = f"{shlex.join(command)} did not end within {patience:g} s"
        with suppress(Exception):  # handlers of logs may raise, and this runs in processes in service
            _log.warning("kvfence: %s and is not used", why)
        raise CannotCompile(why) from None
    except BaseException:
        _end(process)
        raise
    return Ended(process.returncode, printed, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a compiler and what it began, which may hold the pipes that would else be waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_VERSION)


@cache
def _processor() -> str:
    """What the code is compiled for: a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
