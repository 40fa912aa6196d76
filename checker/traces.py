"""Trace files: JSON lines, one header and then one event a line; compressed if the name ends in ``.zst``.

Writing keeps the file private to its owner. Reading streams: memory does not grow with the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import msgspec
import numpy as np

from kvfence.checker.errors import CannotRun
from kvfence.checker.monitor.wellformed import problem_of_event, problem_of_header
from kvfence.checker.packing import packed
from kvfence.spec.events import FORMAT, OLDEST, VERSION, Event, Header, listed

if TYPE_CHECKING:
    from typing import Self

LONGEST_LINE: Final = 64 * 2**20  # bytes
_CHUNK: Final = 2**16  # bytes read, decoded and judged at a time: few enough to stay in the cache
_COMPRESSED_CHUNK: Final = 2**11  # a zstd block grows up to 32768-fold: 2 KiB stay below 64 MiB
_BUFFER: Final = 2**17  # bytes kept before they are written
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_H = TypeVar("_H", bound=msgspec.Struct)
_E = TypeVar("_E", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Format(Generic[_H, _E]):
    """What the lines of a trace file are."""

    name: str
    version: int
    header: msgspec.json.Decoder[_H]
    event: msgspec.json.Decoder[_E]
    problem: Callable[[_H], str | None]
    """What is wrong with a header."""
    packed: Callable[[_E], _E] | None = None
    """The form in which an event is written."""
    oldest: int | None = None
    """The oldest version that is read; None: only ``version``."""


class TraceError(CannotRun):
    """A trace file cannot be read or written: one line that names the file, the place and the way out."""


class TraceCutError(TraceError):
    """The file ends too early: in the middle of a line, or of compressed data. It is right up to there."""


class _Start(msgspec.Struct):
    """What the first line has to have to be a header of ours, in any version."""

    format: str
    version: int


class _EndsEarlyError(Exception):
    """The file ends in the middle of a line or of a compressed frame."""


# Writing.


class LineWriter(Generic[_H, _E]):
    """Records events in a file; an observer: call it with each event.

    ``max_bytes`` caps the text before compression: from the first event that does not fit on nothing is
    recorded and ``full`` is true; what was recorded is a valid trace of the beginning. Raises TraceError if
    the file cannot be written.
    """

    form: ClassVar[Format[Any, Any]]

    def __init__(self, path: str | Path, header: _H, *, max_bytes: int | None = None) -> None:
        problem = self.form.problem(header)
        if problem is not None:
            raise TraceError(f"{path}: a trace cannot begin like this: {problem}; correct the header")
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.events = 0
        self.bytes = 0
        self.full = False
        self.closed = False
        self._encode = msgspec.json.Encoder().encode_into
        self._packed = self.form.packed
        self._buffer = bytearray()
        self._out = _create(self.path)
        self._append(header)

    def __call__(self, event: _E) -> None:
        """Record ``event``."""
        if self.closed:
            raise TraceError(f"{self.path}: the trace is closed; record into a new file")
        if not self.full and self._append(event if self._packed is None else self._packed(event)):
            self.events += 1

    def _append(self, item: _E | _H) -> bool:
        buffer = self._buffer
        before = len(buffer)
        self._encode(item, buffer, -1)
        buffer += b"\n"
        self.bytes += len(buffer) - before
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            self.bytes -= len(buffer) - before
            del buffer[before:]
            self.full = True
            return False
        if len(buffer) >= _BUFFER:
            self._write_out()
        return True

    def _write_out(self) -> None:
        try:
            self._out.write(self._buffer)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written ({error.strerror}); free some space") from error
        finally:
            self._buffer.clear()

    def close(self) -> None:
        """Write what is left and close the file. Closing twice is allowed."""
        if self.closed:
            return
        self.closed = True
        try:
            self._write_out()
        finally:
            try:
                self._out.close()
            except OSError as error:
                raise TraceError(
                    f"{self.path}: cannot be written ({error.strerror}); free some space"
                ) from error

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what was recorded, also after an error."""
        self.close()


def _create(path: Path) -> IO[bytes]:
    """A new, empty file that only its owner can read."""
    compress = _zstandard(path).ZstdCompressor(level=3) if path.suffix == ".zst" else None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise TraceError(f"{path}: cannot be created ({error.strerror}); choose another place") from error
    raw = os.fdopen(descriptor, "wb", buffering=0)
    if compress is None:
        return raw
    stream: IO[bytes] = compress.stream_writer(raw, closefd=True)
    return stream


# Reading.


class LineReader(Generic[_H, _E]):
    """A trace file that is being read. ``header`` is known at once; :meth:`batches` streams the events.

    Raises TraceError for whatever is wrong with the file.
    """

    form: ClassVar[Format[Any, Any]]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = _open(self.path)
        self._blocks = self._text()
        self._rest = b""
        try:
            self.header: _H = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def error(self, line: int, what: str, way_out: str) -> TraceError:
        """The error for ``line`` (the header is line 1)."""
        return TraceError(f"{self.path}: line {line}: {what}; {way_out}")

    def event_error(self, number: int, problem: str) -> TraceError:
        """The error for event ``number``, which makes no sense by itself."""
        return self.error(number + 2, f"makes no sense: {problem}", "correct what records the trace")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _text(self) -> Iterator[bytes]:
        """The file's text in pieces, decompressed; _EndsEarlyError if a compressed frame is not whole."""
        start = self._read()
        if start[:4] != _ZSTD_MAGIC:
            while start:
                yield start
                start = self._read()
            return
        zstandard = _zstandard(self.path)
        frame: Any = None
        pieces: list[bytes] = []
        size = 0
        for piece in self._slices(start):
            more = piece
            while more:
                if frame is None:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                try:
                    pieces.append(frame.decompress(more))
                except zstandard.ZstdError as error:
                    raise TraceError(f"{self.path}: is damaged ({error}); copy it again") from error
                size += len(pieces[-1])
                more, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
                if size >= _CHUNK:
                    yield b"".join(pieces)
                    pieces.clear()
                    size = 0
        if size:
            yield b"".join(pieces)
        if frame is not None:
            raise _EndsEarlyError

    def _slices(self, chunk: bytes) -> Iterator[bytes]:
        """``chunk`` and the rest of the file, in pieces that are safe to decompress."""
        while chunk:
            for start in range(0, len(chunk), _COMPRESSED_CHUNK):
                yield chunk[start : start + _COMPRESSED_CHUNK]
            chunk = self._read()

    def _read(self) -> bytes:
        try:
            return self._file.read(_CHUNK)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror}); copy it elsewhere") from error

    def _read_header(self) -> _H:
        line = b""
        try:
            for block in self._blocks:
                line += block
                if b"\n" in block:
                    break
                self._check_length(1, len(line))
        except _EndsEarlyError:
            if b"\n" not in line:
                raise self._cut(1) from None
        if not line:
            raise TraceError(f"{self.path}: is empty; give a file that a recorder wrote")
        line, _, self._rest = line.partition(b"\n")
        self._check_length(1, len(line))
        try:
            start = msgspec.json.decode(line, type=_Start)
        except ValueError:
            raise self._foreign() from None
        if start.format != self.form.name:
            raise self._foreign()
        newest = self.form.version
        oldest = newest if self.form.oldest is None else self.form.oldest
        if not oldest <= start.version <= newest:
            reads = f"{newest}" if oldest == newest else f"{oldest} to {newest}"
            raise self.error(
                1,
                f"is trace format {start.version}, and this kvfence reads {reads}",
                "use a kvfence that reads it",
            )
        try:
            header: _H = self.form.header.decode(line)
        except ValueError as error:
            raise self.error(1, f"is no header: {_one_line(error)}", "record the trace again") from error
        problem = self.form.problem(header)
        if problem is not None:
            raise self.error(1, problem, "correct what records the trace")
        return header

    def _foreign(self) -> TraceError:
        return self.error(
            1,
            f'is not the header of a trace ({{"format": "{self.form.name}", …}})',
            "give a file that a recorder wrote",
        )

    def _cut(self, line: int) -> TraceCutError:
        way_out = "the recording was not closed: record again, or remove this line"
        return TraceCutError(f"{self.path}: line {line}: is cut off; {way_out}")

    def _check_length(self, line: int, length: int) -> None:
        if length > LONGEST_LINE:
            raise self.error(
                line, f"is longer than {LONGEST_LINE >> 20} MiB", "give a file that a recorder wrote"
            )

    def batches(self) -> Iterator[list[_E]]:
        """The events, some thousands at a time.

        Only the form of each line is checked. That slots and pools exist is seen by whoever judges the
        events.
        """
        rest, line = self._rest, 2
        try:
            for block in chain((b"",), self._blocks):
                text, end, rest = (rest + block).rpartition(b"\n")
                if end:
                    batch = self._decode(text, line)
                    line += len(batch)
                    yield batch
                self._check_length(line, len(rest))
            if rest:
                yield self._decode_last(rest, line)
        except _EndsEarlyError:
            raise self._cut(line) from None
        finally:
            self._file.close()

    def _decode(self, text: bytes, line: int) -> list[_E]:
        """The events of whole lines, the first of which is ``line``."""
        try:
            batch: list[_E] = self.form.event.decode_lines(text)
        except (ValueError, RecursionError):
            batch = []
        # Blank lines are no events. Counting with numpy takes an eighth of the time of bytes.count.
        if len(batch) != np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1:
            return self._decode_slowly(text, line)
        return batch

    def _decode_slowly(self, text: bytes, line: int) -> list[_E]:
        """Decode line by line, to find the one that is wrong."""
        batch: list[_E] = []
        for number, one in enumerate(text.split(b"\n"), line):
            self._check_length(number, len(one))
            if not one.strip():
                raise self.error(number, "is blank", "remove it")
            try:
                batch.append(self.form.event.decode(one))
            except (ValueError, RecursionError) as error:
                raise self.error(
                    number, f"is no event: {_one_line(error)}", "record the trace again"
                ) from error
        return batch

    def _decode_last(self, text: bytes, line: int) -> list[_E]:
        """The last line, if its end was not written: whole all the same, or cut off."""
        try:
            return [self.form.event.decode(text)]
        except msgspec.ValidationError as error:
            raise self.error(line, f"is no event: {_one_line(error)}", "record the trace again") from error
        except (ValueError, RecursionError):
            raise self._cut(line) from None


# The connector's trace.


_TRACE: Final = Format(
    FORMAT,
    VERSION,
    msgspec.json.Decoder(Header),
    msgspec.json.Decoder(Event),
    problem_of_header,
    packed,
    OLDEST,
)


class TraceWriter(LineWriter[Header, Event]):
    """Records a connector's events. Long lists of numbers are packed.

    >>> with TraceWriter("run.jsonl", header) as record:   # doctest: +SKIP
    ...     run(observer=record)
    """

    form = _TRACE


class TraceReader(LineReader[Header, Event]):
    """A connector's trace that is being read."""

    form = _TRACE


def read_trace(path: str | Path) -> tuple[Header, Iterator[tuple[int, Event]]]:
    """The header of a trace file and its events, each with its number (from 0; it is on line number + 2).

    Packed numbers come as lists.

    Raises TraceError, also while the events are read, for anything that is wrong with the file: also for an
    event that names a pool or slot that the header does not have.
    """
    reader = TraceReader(path)
    return reader.header, _numbered(reader)


def _numbered(reader: TraceReader) -> Iterator[tuple[int, Event]]:
    number = 0
    for batch in reader.batches():
        for event in batch:
            problem = problem_of_event(reader.header, event)
            if problem is not None:
                raise reader.event_error(number, problem)
            yield number, listed(event)
            number += 1


def _open(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; give a file in it")
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise TraceError(f"{path}: there is no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be opened ({reason}); check its permissions") from error


def _zstandard(path: Path) -> Any:
    """The zstandard module."""
    try:
        import zstandard
    except ImportError as error:
        raise TraceError(
            f"{path}: is compressed, and zstandard is not installed; run: pip install 'kvfence[zstd]'"
        ) from error
    return zstandard


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
