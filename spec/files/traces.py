"""Trace files: JSON lines, one header and then one event a line; compressed if the name ends in ``.zst``.

Writing keeps the file private to its owner. Reading streams: memory does not grow with the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import msgspec
import numpy as np

from kvfence.spec import events as ev
from kvfence.spec import order as od
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import Output, OutputError
from kvfence.spec.files.packing import LONGEST_HEADER, LONGEST_LINE, packed
from kvfence.spec.files.wellformed import problem_of_event, problem_of_header
from kvfence.spec.files.zstd_frames import MAGIC, DamagedError, EndsEarlyError, unpacked

if TYPE_CHECKING:
    from typing import Self

STANDARD_INPUT: Final = Path("-")
_CHUNK: Final = 2**16  # bytes read, decoded and judged at a time: few enough to stay in the cache
_BUFFER: Final = 2**17  # bytes kept before they are written
_JUDGES: Final = {
    ev.FORMAT: ("the trace of a connector", "kvfence check"),
    od.FORMAT: ("an order trace", "kvfence races"),
}
"""What each format is, and the command that judges it."""

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


class OtherFormatError(TraceError):
    """The file is a trace, of another ``format`` than the one asked for."""

    def __init__(self, message: str, format_: str) -> None:
        super().__init__(message)
        self.format = format_


class TraceCutError(TraceError):
    """The file ends too early: in the middle of a line, or of compressed data. It is right up to there."""


class _Start(msgspec.Struct):
    """What the first line has to have to be a header of ours, in any version."""

    format: str
    version: int


class _Request(msgspec.Struct):
    """What a line of a workload has to have."""

    input_length: int
    output_length: int


# Writing.


class LineWriter(Generic[_H, _E]):
    """Records events in a file; an observer: call it with each event.

    ``max_bytes`` caps the text before compression: from the first event that does not fit on nothing is
    recorded and ``full`` is true; what was recorded is a valid trace of the beginning.

    Events go to ``NAME.part`` in the same folder, which takes the name ``path`` when the writer is closed; if
    the process is killed it stays there. A compressed trace carries a checksum. Raises TraceError if the file
    cannot be written, or if ``path`` is one of the ``inputs``.
    """

    form: ClassVar[Format[Any, Any]]

    def __init__(
        self, path: str | Path, header: _H, *, max_bytes: int | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
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
        self._output, self._out = _create(self.path, inputs)
        try:
            self._append(header, LONGEST_HEADER)
        except BaseException:
            self.discard()
            raise

    def __call__(self, event: _E) -> None:
        """Record ``event``."""
        if self.closed:
            raise TraceError(f"{self.path}: the trace is closed; record into a new file")
        if not self.full and self._append(event if self._packed is None else self._packed(event)):
            self.events += 1

    def _append(self, item: _E | _H, longest: int = LONGEST_LINE) -> bool:
        buffer = self._buffer
        before = len(buffer)
        self._encode(item, buffer, -1)
        size = len(buffer) - before
        if size > longest:
            self.discard()
            raise TraceError(f"{self.path}: a line of {size} bytes is more than readers take; record less")
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
        # a new buffer: the frames of a write that fails still look into the old one, which cannot be cleared
        full, self._buffer = self._buffer, bytearray()
        try:
            self._out.write(full)
        except OSError as error:
            self.discard()
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> TraceError:
        return TraceError(f"{self.path}: cannot be written ({error.strerror}); free some space")

    def close(self) -> None:
        """Write what is left, and give the file its name. Closing twice is allowed."""
        if self.closed:
            return
        self._write_out()
        self.closed = True
        try:
            if self._out is not self._output.file:
                self._out.close()  # the end of the compressed data
            self._output.keep()
        except OSError as error:
            raise self._not_written(error) from error
        except OutputError as error:
            raise TraceError(str(error)) from error
        finally:
            self._output.discard()

    def discard(self) -> None:
        """Leave nothing of what was recorded; what had the name before still has it."""
        self.closed = True
        self._output.discard()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what was recorded, also after an error, but nothing of what was refused (CannotRun)."""
        if isinstance(error, CannotRun):
            self.discard()
        else:
            self.close()


def _create(path: Path, inputs: Iterable[str | Path]) -> tuple[Output, IO[bytes]]:
    """A new file that only its owner can read, and what to write to: it, or what compresses into it."""
    zstandard = _zstandard(path) if path.suffix == ".zst" else None
    try:
        output = Output(path, private=True, inputs=inputs)
    except OutputError as error:
        raise TraceError(str(error)) from error
    if zstandard is None:
        return output, output.file
    compress = zstandard.ZstdCompressor(level=3, write_checksum=True)
    stream: IO[bytes] = compress.stream_writer(output.file, closefd=False)
    return output, stream


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
        self.compressed = False
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

    def verify_rest(self) -> None:
        """Read a compressed file to its end, so that what was read of it is known to be undamaged.

        For those who stop before the end, while the iterator of :meth:`batches` still exists. TraceError if
        the file is damaged or cut off; a file that is not compressed has nothing to compare.
        """
        if not self.compressed:
            return
        try:
            for _ in self._blocks:
                pass
        except EndsEarlyError:
            way_out = "the recording was not closed: unpack what is there with zstd -dc, and give that"
            raise TraceCutError(f"{self.path}: is cut off; {way_out}") from None

    def _text(self) -> Iterator[bytes]:
        """The file's text in pieces, decompressed; EndsEarlyError if a compressed frame is not whole."""
        start = self._read()
        while len(start) < len(MAGIC) and (more := self._read()):  # pipes give what they have
            start += more
        if not start.startswith(MAGIC):
            while start:
                yield start
                start = self._read()
            return
        self.compressed = True
        try:
            yield from unpacked(chain((start,), iter(self._read, b"")), _zstandard(self.path))
        except DamagedError as error:
            raise TraceError(f"{self.path}: {error}") from error

    def _read(self) -> bytes:
        try:
            return self._file.read(_CHUNK)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror}); copy it elsewhere") from error

    def _read_header(self) -> _H:
        line = self._first_line()
        try:
            start = msgspec.json.decode(line, type=_Start)
        except (ValueError, RecursionError):
            raise self._foreign(line) from None
        if start.format != self.form.name:
            raise self._foreign(line)
        newest = self.form.version
        oldest = newest if self.form.oldest is None else self.form.oldest
        if not oldest <= start.version <= newest:
            reads = f"{newest}" if oldest == newest else f"{oldest} to {newest}"
            what = f"is trace format {start.version}, and this kvfence reads {reads}"
            raise self.error(1, what, "use a kvfence that reads it")
        try:
            header: _H = self.form.header.decode(line)
        except (ValueError, RecursionError) as error:
            raise self.error(1, f"is no header: {_one_line(error)}", "record the trace again") from error
        problem = self.form.problem(header)
        if problem is not None:
            raise self.error(1, problem, "correct what records the trace")
        return header

    def _first_line(self) -> bytes:
        """The first line; the text behind it that was read already goes to ``_rest``."""
        pieces: list[bytes] = []
        size = 0
        try:
            for block in self._blocks:
                if not size and not block.lstrip().startswith(b"{"):
                    raise self._foreign(b"")  # before a device that never ends a line is read for long
                end = block.find(b"\n")
                pieces.append(block if end < 0 else block[:end])
                size += len(pieces[-1])
                self._check_length(1, size, LONGEST_HEADER)
                if end >= 0:
                    self._rest = block[end + 1 :]
                    break
        except EndsEarlyError:
            raise self._cut(1) from None
        if not size:
            raise TraceError(f"{self.path}: is empty; give a file that a recorder wrote")
        return b"".join(pieces)

    def _foreign(self, line: bytes) -> TraceError:
        """The error for a file that begins with ``line``, which is no header of this format."""
        found = _either(_Start, line)
        if found is not None and found.format in _JUDGES:
            what, command = _JUDGES[found.format]
            return OtherFormatError(f"{self.path}: is {what}; use {command}", found.format)
        if _either(_Request, line) is not None:
            return TraceError(f"{self.path}: is a workload of requests; use kvfence replay")
        what = f'is not the header of a trace ({{"format": "{self.form.name}", …}})'
        return self.error(1, what, "give a file that a recorder wrote")

    def _cut(self, line: int) -> TraceCutError:
        way_out = "the recording was not closed: record again, or remove this line"
        return TraceCutError(f"{self.path}: line {line}: is cut off; {way_out}")

    def _check_length(self, line: int, length: int, longest: int) -> None:
        if length > longest:
            raise self.error(line, f"is longer than {longest >> 20} MiB", "give a file that a recorder wrote")

    def batches(self) -> Iterator[list[_E]]:
        """The events, some thousands at a time.

        Only the form of each line is checked. Whether slots and pools exist is for the judge of the events.
        """
        begun, size, line = [b""], 0, 2  # the pieces of a line whose end is not read yet, and their length
        try:
            for block in chain((self._rest,), self._blocks):
                text, end, rest = block.rpartition(b"\n")
                if end:
                    begun.append(text)
                    batch = self._decode(b"".join(begun), line)
                    line += len(batch)
                    yield batch
                    begun, size = [], 0
                begun.append(rest)
                size += len(rest)
                self._check_length(line, size, LONGEST_LINE)
            if size:
                yield self._decode_last(b"".join(begun), line)
        except EndsEarlyError:
            raise self._cut(line) from None
        finally:
            self._file.close()

    def _decode(self, text: bytes, line: int) -> list[_E]:
        """The events of whole lines, the first of which is ``line``."""
        if len(text) > LONGEST_LINE:
            for number, one in enumerate(text.split(b"\n"), line):
                self._check_length(number, len(one), LONGEST_LINE)
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
            if not one.strip():
                raise self.error(number, "is blank", "remove it")
            try:
                batch.append(self.form.event.decode(one))
            except (ValueError, RecursionError) as error:
                raise self._no_event(number, error) from error
        return batch

    def _no_event(self, line: int, error: Exception) -> TraceError:
        return self.error(line, f"is no event: {_one_line(error)}", "record the trace again")

    def _decode_last(self, text: bytes, line: int) -> list[_E]:
        """The last line, if its end was not written: whole all the same, or cut off."""
        try:
            return [self.form.event.decode(text)]
        except msgspec.ValidationError as error:
            raise self._no_event(line, error) from error
        except (ValueError, RecursionError):
            raise self._cut(line) from None


# The connector's trace.


_TRACE: Final = Format(
    ev.FORMAT,
    ev.VERSION,
    msgspec.json.Decoder(ev.Header),
    msgspec.json.Decoder(ev.Event),
    problem_of_header,
    packed,
    ev.OLDEST,
)


class TraceWriter(LineWriter[ev.Header, ev.Event]):
    """Records a connector's events in a trace file; long lists of numbers are packed.

    >>> import pathlib, tempfile
    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "run.jsonl")
    >>> with TraceWriter(path, Header(producer="doc", pools=(Pool("gpu", 4),))) as write:
    ...     write(Alloc("gpu", "req:1.0", [1, 2], free=2))
    ...     write(Evict("gpu", [2]))
    >>> write.events, path.stat().st_size == write.bytes
    (2, True)
    """

    form = _TRACE


class TraceReader(LineReader[ev.Header, ev.Event]):
    """A connector's trace that is being read; ``header`` is known at once, :meth:`batches` gives the events.

    >>> import pathlib, tempfile
    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "run.jsonl")
    >>> with TraceWriter(path, Header(producer="doc", pools=(Pool("gpu", 4),))) as write:
    ...     write(Alloc("gpu", "req:1.0", [1, 2], free=2))
    ...     write(Evict("gpu", [2]))
    >>> reader = TraceReader(path)
    >>> reader.header.producer, [event.slots for batch in reader.batches() for event in batch]
    ('doc', [[1, 2], [2]])
    """

    form = _TRACE


def read_trace(path: str | Path) -> tuple[ev.Header, Iterator[tuple[int, ev.Event]]]:
    """The header of a trace file and its events, each with its number (from 0; it is on line number + 2).

    Packed numbers come as lists.

    Raises TraceError, also while the events are read, for anything that is wrong with the file: also for an
    event that names a pool or slot that the header does not have.
    """
    reader = TraceReader(path)
    return reader.header, _numbered(reader)


def _numbered(reader: TraceReader) -> Iterator[tuple[int, ev.Event]]:
    number = 0
    for batch in reader.batches():
        for event in batch:
            problem = problem_of_event(reader.header, event)
            if problem is not None:
                raise reader.event_error(number, problem)
            yield number, ev.listed(event)
            number += 1


_T = TypeVar("_T")


def _either(kind: type[_T], line: bytes) -> _T | None:
    """``line`` as JSON of that kind, if it is."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError):
        return None


def read_again(path: str | Path, who: str) -> None:
    """For those who read a file more than once: TraceError for a pipe, which cannot be."""
    path = Path(path)
    if path == STANDARD_INPUT or (path.exists() and not (path.is_file() or path.is_dir())):
        raise TraceError(f"{path}: can be read only once, and {who} reads it again; save it to a file first")


def _open(path: Path) -> IO[bytes]:
    if path == STANDARD_INPUT:
        return os.fdopen(os.dup(0), "rb", buffering=0)
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
