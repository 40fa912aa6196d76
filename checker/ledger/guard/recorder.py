"""The recorder: keeps the last events of a guard, and writes them as a trace when something is wrong."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from kvfence.checker.ledger.snapshots import snapshot_of
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.spec import events as ev
from kvfence.spec.files.packing import LONGEST_LINE, packed

if TYPE_CHECKING:
    from kvfence.checker.ledger.ledger import Ledger

LAST: Final = 1 << 16
MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 8
EVENT_BYTES: Final = 150  # of a short event; measured, rounded up
SLOT_BYTES: Final = 24  # of a number in a long event, with its key; measured, rounded up
MOST_SLOTS: Final = 1 << 19
LONGEST: Final = 1 << 16  # slots of an event that is long even among long ones

NAME: Final = re.compile(r"kvfence-\d+-\d+-[A-Za-z0-9_-]+\.jsonl(\.part)?")
_PIECE: Final = 1 << 16  # bytes written at a time; then the engine's threads may run
_PAUSE: Final = 0.0005

LOG: Final = logging.getLogger("kvfence.recorder")


class _Job(NamedTuple):
    """A recording to be written: the events, and the ledger state from before the first of them."""

    header: ev.Header
    starts: tuple[tuple[LedgerState | None, int], ...]
    """Where it may begin, the best first: the ledger state there, and how many of the events come before."""
    events: list[ev.Event]
    why: str


class TooLongError(Exception):
    """A recording does not fit into ``max_bytes``."""


class Recorder:
    """Writes the last ``last`` events, up to twice as many, into a new file of the folder ``path``.

    If the run is longer than that, the trace begins with a snapshot of what was known, so that ``kvfence
    check`` judges it as it would the whole. Events that name many slots count for more than one.

    The folder never holds more than ``max_files`` recordings, of ``max_bytes`` each at most: the oldest go
    first. Only their owner can read them. They are written by a thread in the background, slowly. If that
    fails, because the disk is full for instance, it is counted in ``failures``, logged once, and nothing else
    happens.

    Raises ``ValueError`` for limits that leave room for nothing.

    >>> import tempfile
    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> folder = tempfile.TemporaryDirectory()
    >>> recorder = Recorder(folder.name)
    >>> guard = Guard("count", Header(producer="doc", pools=(Pool("gpu", 4),)), recorder=recorder)
    >>> guard.batch([Alloc("gpu", "req:1.0", [1, 2], free=2), Evict("gpu", [2])])
    >>> guard.close()
    >>> recorder.written, check_trace(guard.record()).verdict
    (1, 'violated')
    """

    def __init__(
        self, path: str | Path, last: int = LAST, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        if last < 1 or max_files < 1 or max_bytes < 1 << 12:
            raise ValueError("a recorder keeps at least one event, and one file of 4096 bytes")
        self.path = Path(path)
        self.max_bytes, self.max_files = max_bytes, max_files
        self.last = max(1, min(last, max_bytes // (4 * EVENT_BYTES)))
        """Events between two snapshots."""
        self.slots = min(MOST_SLOTS, max_bytes // (4 * SLOT_BYTES))
        """Slots named between two snapshots, if that comes sooner."""
        self.written = 0
        self.failures = 0
        self.skipped = 0
        """Recordings that were asked for while two were waiting to be written."""
        self.bytes = 0
        self._starts: tuple[tuple[LedgerState | None, int], ...] = ()
        self.next_event = self.next_slot = 0
        self._queue: SimpleQueue[_Job | Callable[[], object] | None] = SimpleQueue()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._logged = False

    # What is remembered. All of this is called with the guard's lock held.

    def begin(self, ledger: Ledger) -> None:
        """Remember the events that ``ledger`` judges from here on."""
        state = ledger.state
        ledger.remember(2 * self.last + 2, 2 * self.slots + LONGEST)
        self._starts = ((None, state.events),)
        self._plan(state)

    def _plan(self, state: LedgerState) -> None:
        self.next_event = state.events + self.last
        self.next_slot = state.slots + self.slots

    def know(self, state: LedgerState) -> None:
        """It is time to remember what is known: events ``next_event`` or slots ``next_slot`` were reached."""
        self._starts = (self._starts[-1], (state.copy(history=False), state.events))
        self._plan(state)

    def job(self, ledger: Ledger, why: str) -> _Job:
        """What has to be written to tell of the last events."""
        ring, events = ledger.state.ring, ledger.state.events
        starts = tuple(start for start in self._starts if events - start[1] <= len(ring))
        first = min((number for _, number in starts), default=events)
        kept = list(islice(ring, len(ring) - (events - first), None))
        return _Job(ledger.header, tuple((state, number - first) for state, number in starts), kept, why)

    # Writing.

    def later(self, job: _Job) -> None:
        """Write ``job`` in the background."""
        if self._waiting >= 2:
            self.skipped += 1
            return
        self._waiting += 1
        self._start()
        self._queue.put(job)

    def write(self, job: _Job) -> Path | None:
        """Write ``job`` now: the path of the new file, None if that was not possible."""
        with self._lock:
            try:
                return self._write(job, pause=False)
            except Exception as error:
                self._failed(error)
                return None

    def on_signal(self, number: int, record: Callable[[], object]) -> bool:
        """Call ``record`` in the background whenever signal ``number`` arrives.

        Whether that could be arranged: only the main thread can. A handler that was there before is called
        as well.
        """
        before = signal.getsignal(number)

        def handler(signum: int, frame: object) -> None:
            self._queue.put(record)
            if callable(before):
                before(signum, frame)  # type: ignore[arg-type]

        try:
            signal.signal(number, handler)
        except (ValueError, OSError):
            return False
        self._start()
        return True

    def close(self, seconds: float = 10.0) -> None:
        """Wait, that long at most, for what is being written. The recorder may be used further."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._queue.put(None)
            thread.join(seconds)

    def _start(self) -> None:
        """There is a thread that writes: also in a child process, which has none of its parent's."""
        if self._pid != os.getpid():
            self._pid, self._thread = os.getpid(), None
            self._lock, self._queue, self._waiting = threading.Lock(), SimpleQueue(), 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kvfence-recorder", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def _work(self) -> None:
        queue = self._queue
        while (task := queue.get()) is not None:
            try:
                if not isinstance(task, _Job):
                    task()
                    continue
                with self._lock:
                    self._write(task, pause=True)
            except Exception as error:
                self._failed(error)
            finally:
                if isinstance(task, _Job):
                    self._waiting -= 1

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if not self._logged:
            self._logged = True
            reason = getattr(error, "strerror", None) or error
            LOG.warning(
                "%s: the last events could not be recorded (%s); this is logged once", self.path, reason
            )

    def _write(self, job: _Job, *, pause: bool) -> Path:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room()
        word = re.sub("[^A-Za-z0-9-]", "_", job.why)[:40]
        while True:
            path = self.path / f"kvfence-{os.getpid()}-{self.written:04}-{word}.jsonl"
            part = path.with_name(f"{path.name}.part")
            self.written += 1
            if path.exists():
                continue
            try:
                file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue
            break
        try:
            try:
                size = self._fill(file, job, pause=pause)
            finally:
                os.close(file)
            part.rename(path)
        except BaseException:
            self.written -= 1
            part.unlink(missing_ok=True)
            raise
        self.bytes += size
        return path

    def _make_room(self) -> None:
        """Remove the oldest recordings, so that one more is not too many."""
        found: list[tuple[float, Path]] = []
        for path in self.path.iterdir():
            if NAME.fullmatch(path.name):
                try:
                    found.append((path.stat().st_mtime, path))
                except FileNotFoundError:
                    continue
        found.sort()
        for _, path in found[: max(0, len(found) - self.max_files + 1)]:
            path.unlink(missing_ok=True)

    def _fill(self, file: int, job: _Job, *, pause: bool) -> int:
        """Write the events into ``file``, from the first start with which they fit; how many bytes."""
        for state, skipped in job.starts:
            snapshot = job.header.snapshot if state is None else snapshot_of(state)
            header = msgspec.structs.replace(job.header, snapshot=snapshot)
            try:
                return self._pieces(file, header, islice(job.events, skipped, None), pause=pause)
            except TooLongError:
                os.ftruncate(file, 0)
                os.lseek(file, 0, os.SEEK_SET)
        raise TooLongError(f"the last events do not fit into {self.max_bytes} bytes")

    def _pieces(self, file: int, header: ev.Header, events: Iterable[ev.Event], *, pause: bool) -> int:
        size = 0
        for piece in _pieces(header, events):
            size += len(piece)
            if size > self.max_bytes:
                raise TooLongError
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(file, rest) :]
            if pause:
                sleep(_PAUSE)
        return size


def _pieces(header: ev.Header, events: Iterable[ev.Event]) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode_into
    buffer = bytearray()
    encode(header, buffer)
    buffer += b"\n"
    for event in events:
        if len(buffer) >= _PIECE:
            yield bytes(buffer)
            buffer.clear()
        before = len(buffer)
        encode(packed(event), buffer, -1)
        if len(buffer) - before > LONGEST_LINE:
            raise TooLongError(f"an event of {len(buffer) - before} bytes is more than readers take")
        buffer += b"\n"
    yield bytes(buffer)
