"""Wheels: those of their files that an audit needs, wherever the wheel lies, each checked against RECORD.

Of a wheel on an index only pieces are fetched, where the index serves pieces of files: the directory at its
end, and then what the files occupy.
"""

from __future__ import annotations

import base64
import bisect
import csv
import hashlib
import http.client
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from kvfence.checker.audit.releases.index import File, Index, NotServed, shown
from kvfence.spec.errors import CannotRun

NEEDED: Final = (".py", ".json", ".jinja", ".yaml", ".yml", ".txt", ".typed")
"""Python files, and what they read."""
LARGEST_FILE: Final = 64 << 20
LARGEST_TREE: Final = 512 << 20
"""Bytes of all files that are unpacked; those of vLLM are a tenth of it."""
MOST_FILES: Final = 100_000
_DIRECTORY: Final = 1 << 20
"""Bytes at the end of a wheel that are fetched at once; vLLM's directory has six tenths of it."""
_GAP: Final = 1 << 17
"""Two pieces that lie no further apart are fetched as one."""
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    csv.Error,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    OverflowError,
)
"""What reading a damaged archive raises."""


class TooLarge(Exception):  # noqa: N818 - what is true of the wheel
    """The index serves no pieces of files, and the whole wheel is larger than what is fetched unasked."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was unpacked."""

    files: int
    record: str
    """SHA-256 of the wheel's RECORD."""


def needed(name: str) -> bool:
    """Whether an audit needs the file ``name`` of a wheel."""
    return name.endswith(NEEDED) or ".dist-info/" in name


def unpack(
    archive: IO[bytes] | Pieces,
    into: Path,
    name: str,
    *,
    ahead: Callable[[list[tuple[int, int]]], None] | None = None,
) -> Unpacked:
    """Writes the files of a wheel that are needed into the folder ``into``.

    Each has the size and CRC-32 of the archive's directory and the SHA-256 of RECORD. ``ahead`` gets the
    bytes that will be read: beginnings and ends. CannotRun if anything is otherwise; ``name`` is the wheel's.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            names = [entry.filename for entry in entries]
            if len(names) > MOST_FILES or len(set(names)) != len(names):
                raise ValueError("it has too many files, or one of them twice")
            wanted = [entry for entry in entries if not entry.is_dir() and needed(entry.filename)]
            if any(entry.file_size > LARGEST_FILE for entry in wanted):
                raise ValueError("it has a file of more than 64 MiB")
            if sum(entry.file_size for entry in wanted) > LARGEST_TREE:
                raise ValueError("its files have more than 512 MiB")
            if ahead is not None:
                ahead(_pieces(entries, wanted, opened.start_dir))
            own = f"{'-'.join(name.split('-')[:2])}.dist-info/RECORD"
            record = next((entry for entry in wanted if entry.filename == own), None)
            if record is None:
                raise ValueError("it has no RECORD of its files")
            record_text = _content(opened, record)
            stated = read_record(record_text)
            missing = {path for path in stated if needed(path)} - set(names)
            if missing:
                raise ValueError(f"it lacks {len(missing)} files of its RECORD, {min(missing)} for one")
            for entry in wanted:
                content = record_text if entry is record else _content(opened, entry)
                if entry is not record:
                    _compare(entry.filename, content, stated)
                path = into / _inside(entry.filename)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except _BROKEN as error:
        raise CannotRun(f"{name}: the wheel is broken ({_first_line(error)}): fetch it again") from error
    return Unpacked(len(wanted), hashlib.sha256(record_text).hexdigest())


def intact(folder: Path, record: str, beside: Iterable[str]) -> bool:
    """Whether ``folder`` has what was unpacked from a wheel whose RECORD has the SHA-256 ``record``, no more.

    ``beside``: names of files that are in it, too.
    """
    try:
        (path,) = folder.glob("*.dist-info/RECORD")
        record_text = path.read_bytes()
        if hashlib.sha256(record_text).hexdigest() != record:
            return False
        stated = read_record(record_text)
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        if there - set(beside) != {name for name in stated if needed(name)}:
            return False
        for name in there - set(beside) - {path.relative_to(folder).as_posix()}:
            _compare(name, (folder / name).read_bytes(), stated)
    except (OSError, *_BROKEN):
        return False
    return True


def read_record(record_text: bytes) -> dict[str, tuple[str, str]]:
    """By file: the hash and the size that the text of a RECORD states. ValueError if it is none."""
    rows = list(csv.reader(io.StringIO(record_text.decode())))
    if any(len(row) != 3 for row in rows):
        raise ValueError("its RECORD is no list of files, hashes and sizes")
    return {path: (stated, size) for path, stated, size in rows}


def _compare(name: str, content: bytes, stated: dict[str, tuple[str, str]]) -> None:
    if name not in stated:
        raise ValueError(f"{name} is not in its RECORD")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    if stated[name] != (f"sha256={digest}", str(len(content))):
        raise ValueError(f"{name} is not what its RECORD says")


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Reads a file, whose CRC-32 the archive compares at its end."""
    content = archive.read(entry)
    if len(content) != entry.file_size:
        raise ValueError(f"{entry.filename} has another size than the directory says")
    return content


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        raise ValueError(f"{name!r} leads out of its folder")
    return path


def _pieces(entries: list[zipfile.ZipInfo], wanted: list[zipfile.ZipInfo], end: int) -> list[tuple[int, int]]:
    """Which bytes the wanted files occupy: each reaches from its head to the next one's."""
    heads = sorted({entry.header_offset for entry in entries} | {end})
    pieces: list[tuple[int, int]] = []
    for entry in sorted(wanted, key=lambda entry: entry.header_offset):
        first = entry.header_offset
        last = heads[min(bisect.bisect_right(heads, first), len(heads) - 1)]
        if not 0 <= first < last <= end:
            raise ValueError(f"{entry.filename} lies outside of the archive")
        if pieces and first - pieces[-1][1] <= _GAP:
            pieces[-1] = pieces[-1][0], last
        else:
            pieces.append((first, last))
    return pieces


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Pieces(io.RawIOBase):
    """A file on an index, of which only what is read is fetched.

    NotServed if the index serves no pieces of it. CannotRun when what comes is not what was asked for.
    """

    def __init__(self, index: Index, file: File) -> None:
        self._index, self._file, self._at = index, file, 0
        self._starts: list[int] = []
        self._kept: list[bytes] = []
        self.size = self._ask_size()
        self._keep(max(0, self.size - _DIRECTORY), self.size)

    def _ask_size(self) -> int:
        def ask() -> int:
            with self._index.opened(self._file.url, {"Range": "bytes=0-0"}) as answer:
                if answer.status != http.client.PARTIAL_CONTENT:
                    raise NotServed("no pieces")
                found = re.fullmatch(r"bytes 0-0/(\d+)", answer.headers.get("Content-Range", ""))
                if found is None:
                    raise self._otherwise()
                self._index.body(answer, 1)
            return int(found[1])

        size = int(self._index.tried(ask))
        if self._file.size not in {None, size}:
            states = f"the package index states {self._file.size} bytes, and serves {size}"
            raise CannotRun(f"{self._file.name}: {states}: try again, or another index")
        return size

    def _otherwise(self) -> CannotRun:
        return CannotRun(
            f"{shown(self._file.url)}: the package index sends another piece of the file than it was asked "
            "for: try again, or another index"
        )

    def ahead(self, pieces: list[tuple[int, int]]) -> None:
        """Fetches the bytes from each beginning to its end."""
        if sum(last - first for first, last in pieces) > LARGEST_TREE:
            raise ValueError("its files have more than 512 MiB")
        for first, last in pieces:
            self._keep(first, last)

    def _keep(self, first: int, last: int) -> bytes:
        def ask() -> bytes:
            with self._index.opened(self._file.url, {"Range": f"bytes={first}-{last - 1}"}) as answer:
                stated = answer.status, answer.headers.get("Content-Range", "")
                if stated != (http.client.PARTIAL_CONTENT, f"bytes {first}-{last - 1}/{self.size}"):
                    raise self._otherwise()
                content = self._index.body(answer, last - first)
            if len(content) != last - first:
                raise http.client.IncompleteRead(content, last - first - len(content))
            return content

        content = bytes(self._index.tried(ask))
        place = bisect.bisect_left(self._starts, first)
        self._starts.insert(place, first)
        self._kept.insert(place, content)
        return content

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As files do."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise ValueError("it is shorter than its directory says")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        """As files do: what is there, or is fetched now."""
        last = self.size if size is None or size < 0 else min(self.size, self._at + size)
        if last <= self._at:
            return b""
        place = bisect.bisect_right(self._starts, self._at) - 1
        if place >= 0 and last <= self._starts[place] + len(self._kept[place]):
            start, kept = self._starts[place], self._kept[place]
        else:
            if last - self._at > LARGEST_FILE:
                raise ValueError("its directory has more than 64 MiB")
            start, kept = self._at, self._keep(self._at, last)
        content = kept[self._at - start : last - start]
        self._at = last
        return content


def whole(index: Index, file: File, into: Path, most: int) -> str:
    """Fetches ``file`` into the file ``into``; its SHA-256. TooLarge for more than ``most`` bytes.

    CannotRun if the index states another SHA-256.
    """

    def ask() -> str:
        digest = hashlib.sha256()
        with into.open("wb") as out, index.opened(file.url, {}) as answer:
            length = answer.headers.get("Content-Length", "")
            if int(length) > most if length.isdigit() else (file.size or 0) > most:
                raise TooLarge(length or str(file.size))

            def part(piece: bytes) -> None:
                digest.update(piece)
                try:
                    out.write(piece)
                except OSError as error:
                    problem = f"{into}: cannot be written ({error.strerror}): make room there"
                    raise CannotRun(problem) from error

            index.body(answer, most, part)
        return digest.hexdigest()

    return same(file, str(index.tried(ask)))


def same(file: File, digest: str) -> str:
    """``digest``, the SHA-256 of the whole ``file``. CannotRun if the index states another one."""
    if file.sha256 and digest != file.sha256:
        differs = f"its SHA-256 is {digest}, and the package index states {file.sha256}"
        raise CannotRun(f"{file.name}: {differs}: try again, or another index")
    return digest
