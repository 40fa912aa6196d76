"""The user's cache: its folders, which no one else may write to, and files that carry their digest."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DIGEST = hashlib.sha256().digest_size
_LARGEST = 1 << 30  # bytes of a kept file
_DAY = 86400.0  # seconds
PART = ".part-"  # what the names of files and folders begin with that are there for a moment


class NotOurs(Exception):  # noqa: N818 (a reason to keep away)
    """A folder cannot be made, or others may change what is in it: one line that says which, and why."""


def cache_base() -> Path:
    """The user's cache folder. NotOurs where the user has no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    try:
        return Path("~/.cache").expanduser()
    except RuntimeError:
        raise NotOurs("there is no home folder for a cache") from None


def made(name: str) -> Path:
    """The folder ``kvfence/name`` of the user's cache, made if it is missing. NotOurs."""
    base = cache_base()
    folder = base / "kvfence" / name
    within = [
        base,
        *(base / part for part in reversed([p for p in folder.relative_to(base).parents if p.name])),
    ]
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for each in (*within[1:], folder):
            each.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise NotOurs(f"{folder}: cannot be made ({error.strerror})") from None
    for each in (*within, folder):
        _check(each, sticky=each == base)
    return folder


def check_tree(folder: Path) -> None:
    """Raises NotOurs if others own the folder or anything in it, or may change it: it will be executed."""
    base = cache_base()
    above = [p for p in (folder, *folder.parents) if p.is_relative_to(base)]
    closed = any(not p.stat().st_mode & 0o077 for p in above if p.exists())  # others do not get inside
    _check(folder, modes=not closed)
    for at, names, files in os.walk(folder, onerror=_raise):
        for name in (*names, *files):
            with suppress(FileNotFoundError):  # another process has just replaced it
                _check(Path(at) / name, modes=not closed)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise NotOurs(f"{error.filename}: cannot be read ({error.strerror})") from None


def _check(path: Path, *, modes: bool = True, sticky: bool = False) -> None:
    """Raises NotOurs for what another user owns or may write to; root may. Links and what they lead to count.

    A ``sticky`` folder may be written to by all: no one but the owner can replace what is in it. Without
    ``modes`` it does not matter who may write: no one else gets there. FileNotFoundError.
    """
    try:
        found = [path.lstat()]
        if stat.S_ISLNK(found[0].st_mode):
            with suppress(FileNotFoundError):
                found.append(path.stat())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotOurs(f"{path}: cannot be read ({error.strerror})") from None
    for each in found:
        if each.st_uid not in (os.getuid(), 0):
            raise NotOurs(f"{path}: belongs to another user")
        if not modes or stat.S_ISLNK(each.st_mode) or (sticky and each.st_mode & stat.S_ISVTX):
            continue
        if each.st_mode & stat.S_IWOTH or (each.st_mode & stat.S_IWGRP and not _private_group(each.st_gid)):
            raise NotOurs(f"{path}: other users may write to it")


def _private_group(gid: int) -> bool:
    """Whether the group is the user's own, with no one else in it, as many systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


class Folder:
    """The folder ``kvfence/name`` of the cache; a temporary one where that cannot be used. OSError."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        with suppress(NotOurs, OSError):
            folder = made(self._name)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        self._temporary = tempfile.TemporaryDirectory(prefix="kvfence")
        return Path(self._temporary.name)

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def keep(path: Path, key: bytes, content: bytes) -> None:
    """Write a file that ``kept`` finds under the same key: all of it or nothing. OSError."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=PART, delete=False) as out:
            temporary = Path(out.name)
            out.write(content)
            out.write(_seal(key, content))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        temporary = None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def kept(path: Path, key: bytes) -> bytes | None:
    """What was kept there under this key; None for anything else, or less. Marks it as used."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(file, "rb") as source:  # noqa: PTH123
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not _DIGEST <= found.st_size <= _LARGEST:
            return None
        try:
            data = source.read(_LARGEST)
            os.utime(file)
        except OSError:
            return None
    content, seal = data[:-_DIGEST], data[-_DIGEST:]
    return content if seal == _seal(key, content) else None


def _seal(key: bytes, content: bytes) -> bytes:
    """SHA-256 over sizes and contents: of what it was made from, too, so that no other file can stand in."""
    sizes = f"{len(key)} {len(content)} ".encode()
    return hashlib.sha256(sizes + key + content).digest()


def forget(folder: Path, pattern: str, most: int) -> None:
    """Remove all but the ``most`` files used last, and what killed runs left half made."""
    for _, path in sorted(_by_age(folder, pattern))[:-most]:
        with suppress(OSError):
            path.unlink()
    for age, path in _by_age(folder, f"{PART}*"):
        if age < time.time() - _DAY:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _by_age(folder: Path, pattern: str) -> Iterator[tuple[float, Path]]:
    for path in folder.glob(pattern):
        with suppress(OSError):
            yield path.lstat().st_mtime, path
