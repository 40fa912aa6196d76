"""Files that kvfence writes: whole or not at all, never over what the run reads, never through a link.

What is written goes to ``NAME.part`` beside it, which takes the name when it is whole: an ordinary file of
that name is replaced. Devices, pipes and ``/dev/stdout`` are written to as they are.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any, Final

from kvfence.spec.errors import CannotRun
from kvfence.spec.files.visible import visible

_DESCRIPTOR: Final = re.compile(r"/dev/(?P<name>stdout|stderr)|(/dev|/proc/self)/fd/(?P<number>\d{1,9})")
_STANDARD: Final = {"stdout": 1, "stderr": 2}
_LONGEST_NAME: Final = 255  # bytes


class OutputError(CannotRun):
    """A file cannot be written, or must not be: one line that names it and the way out."""


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[str | Path] = ()) -> None:
    """Refuses, before any work is done, outputs that could not be written at the end.

    ``outputs`` by what names them, an option for instance; ``inputs``: files that the run reads. OutputError
    for one that is an input, a link, no file, in no folder, or the same as another.
    """
    inputs = list(inputs)
    places: dict[tuple[int, int, str], str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if not _is_ordinary(path, inputs):
            continue
        folder = path.parent
        try:
            known = folder.stat()
        except OSError as error:
            raise _cannot("created", path, error, "choose another place") from error
        if not stat.S_ISDIR(known.st_mode):
            raise OutputError(f"{path}: cannot be created ({folder} is no folder); choose another place")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"{path}: cannot be created (Permission denied); choose another place")
        place = known.st_dev, known.st_ino, path.name
        if place in places:
            raise OutputError(f"{path}: is given for {places[place]} and for {option}; give each its own")
        places[place] = option


def files_of(machine: str | None) -> list[Path]:
    """The files in the name of a machine or a side of a review: ``FILE.py:NAME``, ``REV:FILE.py``."""
    parts = (part.partition("+")[0] for part in (machine or "").split(":"))
    return [Path(part) for part in parts if part.endswith(".py")]


def write_text(path: Path, text: str, inputs: Iterable[str | Path] = ()) -> None:
    """Writes ``text`` to the file ``path``, readable as the umask allows.

    OutputError where that fails, or if ``path`` is one of the ``inputs``: then nothing is changed.
    """
    output = Output(path, inputs=inputs)
    try:
        output.file.write(visible(text).encode())
        output.keep()
    except OSError as error:
        raise _cannot("written", path, error, "free some space, or choose another place") from error
    finally:
        output.discard()


class Output:
    """A file that is being written, through ``file``: :meth:`keep` gives it its name.

    ``private``: only its owner may read it. ``inputs`` are never replaced. OutputError for a path that
    cannot be written to.
    """

    def __init__(self, path: Path, *, private: bool = False, inputs: Iterable[str | Path] = ()) -> None:
        self.path = path
        self._inputs = list(inputs)
        self._part: Path | None = None
        number = _descriptor_of(path)
        try:
            if not _is_ordinary(path, self._inputs):
                if number is None:
                    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NOFOLLOW)
                else:
                    _flush()
                    descriptor = os.dup(number)
            else:
                self._part, descriptor = _part_of(path, 0o600 if private else 0o666)
        except OSError as error:
            raise _cannot("created", path, error, "choose another place") from error
        self.file = _File(descriptor, "wb")

    def keep(self) -> None:
        """The file is whole: it takes its name, and what had the name before is gone.

        OSError and OutputError where that fails: then the part is removed, and the name is as it was.
        """
        try:
            if self._part is None:
                self.file.close()
                return
            os.fsync(self.file.fileno())
            self.file.close()
            _is_ordinary(self.path, self._inputs)
            self._part.replace(self.path)
            self._part = None
        finally:
            self.discard()
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some file systems cannot; the file itself is safe
                os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Remove what was written, unless it was kept. Allowed at any time, and more than once."""
        with suppress(OSError):
            self.file.close()
        part, self._part = self._part, None
        if part is not None:
            with suppress(OSError):
                part.unlink()


class _File(FileIO):
    """A file that takes all that it is given: the system may take less at a time."""

    def write(self, data: Any) -> int:  # anything with the buffer protocol
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[super().write(rest) or 0 :]
        return size


def _part_of(path: Path, mode: int) -> tuple[Path, int]:
    """A new file beside ``path``. What an earlier run left there stays: it may be all there is of it."""
    for number in count():
        suffix = f".{number}.part" if number else ".part"
        name = os.fsdecode(os.fsencode(path.name)[: _LONGEST_NAME - len(suffix)])
        part = path.with_name(name + suffix)
        with suppress(FileExistsError):
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            return part, descriptor
    raise AssertionError


def _is_ordinary(path: Path, inputs: list[str | Path]) -> bool:
    """Whether ``path`` is, or would become, an ordinary file; no for devices, pipes and descriptors.

    OutputError if it must not be written to.
    """
    number = _descriptor_of(path)
    try:
        found = path.lstat() if number is None else os.fstat(number)
    except FileNotFoundError:
        return True
    except (OSError, ValueError) as error:
        raise _cannot("created", path, error, "choose another place") from error
    if stat.S_ISLNK(found.st_mode):
        raise OutputError(f"{path}: is a symbolic link, which is not followed; name the file itself")
    if stat.S_ISDIR(found.st_mode):
        raise OutputError(f"{path}: is a folder; name a file")
    if stat.S_ISBLK(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        raise OutputError(f"{path}: is neither a file nor a pipe; name a file")
    if not stat.S_ISREG(found.st_mode):
        return False
    if (found.st_dev, found.st_ino) in _identities(inputs):
        raise OutputError(f"{path}: is read by this run and would be lost; choose another place")
    if number is None and not os.access(path, os.W_OK):
        raise OutputError(f"{path}: cannot be created (it is there and is read-only); choose another place")
    return number is None


def _descriptor_of(path: Path) -> int | None:
    """The open descriptor that a path like ``/dev/stdout`` stands for."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return None
    return _STANDARD[found["name"]] if found["name"] else int(found["number"])


def _identities(inputs: list[str | Path]) -> set[tuple[int, int]]:
    """Device and inode of each of ``inputs``, and of all Python files that this process runs."""
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = set()
    for path in (*inputs, *modules):
        if isinstance(path, str | Path):
            with suppress(OSError, ValueError):
                known = os.stat(path)  # noqa: PTH116 - a thousand of them, each time
                found.add((known.st_dev, known.st_ino))
    return found


def _flush() -> None:
    """What was printed comes before what is written to the same place now."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _cannot(what: str, path: Path, error: OSError | ValueError, way_out: str) -> OutputError:
    reason = getattr(error, "strerror", None) or error
    return OutputError(f"{path}: cannot be {what} ({reason}); {way_out}")
