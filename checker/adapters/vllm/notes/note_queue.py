"""Notes of hooks, kept until another thread judges them, or judged at once by the same thread.

A note is a tuple: a function that takes in what happened, and its arguments. Arguments are copies: whatever
vLLM changes later has no part in them. Hooks note in the engine's thread, so that a note costs as little as
appending to a list does; compiled ones write it, word by word, into rows of their own (``compiled_notes.c``).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

Note: TypeAlias = tuple[Any, ...]

FULL: Final = 256
"""Notes after which a new row is begun."""
MOST_ROWS: Final = 128
"""Full rows that may wait. An engine that leaves no time is not slowed down: it is not judged further."""
MOST_SPARE: Final = 16
"""Rows that are kept to be used again: fresh memory would cost the engine's thread."""
LIVELY: Final = 3
"""Steps during which store cursors may still move on behalf of what last happened to a pool."""


class Row(Protocol):
    """Notes in their order. Only the engine's thread adds to a row, and only one other takes from it."""

    full: int
    """The length after which a new row is begun."""

    @property
    def at(self) -> int:
        """Up to there all is taken."""

    def __len__(self) -> int:
        """Grows with each note; the place at which the next one will be."""

    def append(self, note: Note, /) -> None:
        """Add a note."""

    def insert(self, mark: Any, note: Note, /) -> None:
        """Add one in front of the note at ``mark``."""

    def since(self, mark: int, /) -> list[Note]:
        """The notes from ``mark`` on."""

    def take(self) -> Note | None:
        """The next note, which is not kept alive."""

    def reset(self) -> bool:
        """Make it as good as new, once all is taken; False if it is not worth being kept for that."""


class NotedInPython(list[Any]):
    """A row of tuples."""

    full = FULL

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def since(self, mark: int) -> list[Note]:
        """See :meth:`Row.since`."""
        return list(self[max(mark, self.at) :])

    def take(self) -> Note | None:
        """See :meth:`Row.take`."""
        note: Note | None = self[self.at]
        self[self.at] = None
        self.at += 1
        return note

    def reset(self) -> bool:
        """See :meth:`Row.reset`."""
        return False


class NoteQueue:
    """What both kinds have in common. ``stream`` makes events of the notes: see :class:`Stream`."""

    append: Callable[[Note], None]
    """Note something."""
    begin: Callable[[], int]
    """A call of vLLM begins whose end says on whose behalf it changed the pools. Returns a mark."""
    size: Callable[[], int]
    """Equal to the mark if nothing was noted since: then the call need not be ended."""
    full: int = 1 << 62
    done: int = 0
    """The engine's thread sets it to :attr:`size` where no call is under way: up to there may be judged."""
    lively: int = 0
    on: bool = True
    """Notes are taken."""
    kvfence_in_flight: int = 0
    """Steps of the scheduler whose output it has not processed."""
    storing: bool = False
    """A call is under way that touches blocks in order to store them: their hashes are noted, too."""

    def __init__(self, stream: Any) -> None:
        self._stream = weakref.ref(stream)

    def end(self, mark: int, note: Note) -> None:
        """The call that began with ``mark`` is over; ``note`` says what it was."""
        raise NotImplementedError

    def since(self, mark: int) -> list[Note] | None:
        """Notes made since ``mark``, if they are still there."""
        raise NotImplementedError

    def turn(self) -> None:
        """The row is full."""

    def finish(self) -> None:
        """Return when everything is judged; what comes from here on is not noted."""

    def trouble(self, error: Exception) -> None:
        """A hook could not see what it should have seen. An InvariantViolation is raised again."""
        stream = self._stream()
        if stream is not None:
            stream.trouble(error)

    def stop(self) -> None:
        """Note nothing from here on."""
        self.append = _ignore
        self.begin = self.size = _nothing
        self.full = 1 << 62
        self.on = False


def _ignore(note: Note) -> None:
    """Drop ``note``: the queue is stopped."""


def _nothing() -> int:
    return 0


class ImmediateNoteQueue(NoteQueue):
    """Gives each note to the stream at once."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.append = stream.follow
        self.begin = self._gather
        self.size = _nothing

    def _gather(self) -> int:
        stream = self._stream()
        if stream is not None:
            self.append((stream.gather,))
        return -1

    def end(self, mark: int, note: Note) -> None:
        """See :meth:`NoteQueue.end`."""
        if mark < 0:
            self.append(note)

    def since(self, mark: int) -> list[Note] | None:  # noqa: ARG002 - they are judged already
        """See :meth:`NoteQueue.since`."""
        return None

    def finish(self) -> None:
        """See :meth:`NoteQueue.finish`."""
        self.stop()


class DeferredNoteQueue(NoteQueue):
    """Keeps notes until another thread judges them, with :meth:`play`, up to :attr:`done`."""

    new_row: Callable[[], Row] = NotedInPython
    row: Row

    def __init__(self, stream: Any, judge: Any) -> None:
        super().__init__(stream)
        self.judge = judge
        self.rows: deque[Row] = deque()
        self.spare: list[Row] = []
        self.thread = threading.get_ident()
        self.lost = False
        self._bind()

    def _bind(self) -> None:
        self.done = 0
        self.row = row = self.spare.pop() if self.spare else self.new_row()
        self.rows.append(row)
        self.append = row.append
        self.begin = self.size = row.__len__
        self.full = row.full
        self.on = True

    @property
    def at(self) -> int:
        """Of the oldest row: up to there all is judged."""
        return self.rows[0].at

    def end(self, mark: int, note: Note) -> None:
        """See :meth:`NoteQueue.end`."""
        if not self.on:
            return
        row = self.row
        stream = self._stream()
        if stream is not None:
            # Nothing past `mark` is judged yet, unless the engine stood still in the call for long.
            row.insert(max(mark, row.at), (stream.gather,))
            row.append(note)

    def since(self, mark: int) -> list[Note] | None:
        """See :meth:`NoteQueue.since`."""
        return self.row.since(mark)

    def turn(self) -> None:
        """Begin a new row; the judge thread is started where it does not run, as after a fork."""
        self.thread = threading.get_ident()
        self.judge.wanted()
        if len(self.rows) > MOST_ROWS:
            self.lost = True
            self.stop()
            self.trouble(RuntimeError(f"the engine left no time to judge {MOST_ROWS * FULL} calls"))
            return
        self._bind()

    def play(self, seconds: float = inf) -> bool:
        """Judge what may be judged, for about ``seconds``; whether more is left. By one thread at a time."""
        rows, until = self.rows, monotonic() + seconds
        while True:
            row = rows[0]
            over = len(rows) > 1
            limit = len(row) if over or not self.on else min(self.done, len(row))
            while row.at < limit:
                note = row.take()
                if note is not None:
                    try:
                        note[0](*note[1:])
                    except Exception as error:
                        self.trouble(error)
                if monotonic() > until:
                    return True
            if not over:
                return False
            rows.popleft()
            if row.reset() and len(self.spare) < MOST_SPARE:
                self.spare.append(row)

    def allow(self) -> None:
        """Allow all that is noted to be judged: no call is under way."""
        self.done = len(self.row)

    @property
    def gone(self) -> bool:
        """Whether the engine is gone, and all is judged."""
        return self._stream() is None and len(self.rows) == 1 and self.at >= len(self.row)

    def finish(self) -> None:
        """See :meth:`NoteQueue.finish`."""
        self.allow()
        self.judge.flush(self)
        self.stop()
