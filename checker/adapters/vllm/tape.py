"""What the hooks noted, to be told later by another thread or at once by the same.

A note is a tuple: a function that tells what happened, and its arguments. Notes of compiled hooks are of
a type of their own, which the garbage collector does not count; called, they do the same. Arguments are
copies: whatever vLLM changes later has no part in them. Hooks note in the engine's thread, so that a note
costs as little as appending to a list does.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, TypeAlias

Note: TypeAlias = tuple[Any, ...] | Callable[[], Any]

FULL: Final = 256
"""Notes after which a new row is begun."""
MOST_ROWS: Final = 128
"""Full rows that may wait. An engine that leaves no time is not slowed down: it is not judged further."""
LIVELY: Final = 3
"""Steps during which store cursors may still move on behalf of what last happened to a pool."""


class Tape:
    """What both kinds have in common. ``stream`` is what tells: see :class:`Stream`."""

    append: Callable[[Note], None]
    """Note something."""
    begin: Callable[[], int]
    """A call of vLLM begins whose end says on whose behalf it changed the pools. Returns a mark."""
    size: Callable[[], int]
    """Equal to the mark if nothing was noted since: then the call need not be ended."""
    full: int = 1 << 62
    done: int = 0
    """The engine's thread sets it to :attr:`size` where no call is under way: up to there may be told."""
    lively: int = 0
    on: bool = True
    """Notes are taken."""
    storing: bool = False
    """A call is under way that touches blocks in order to store them: their hashes are noted, too."""

    def __init__(self, stream: Any) -> None:
        self._stream = weakref.ref(stream)

    def end(self, mark: int, note: Note) -> None:
        """The call that began with ``mark`` is over; ``note`` tells what it was."""
        raise NotImplementedError

    def since(self, mark: int) -> list[Note] | None:
        """Notes made since ``mark``, if they are still there."""
        raise NotImplementedError

    def turn(self) -> None:
        """The row is full."""

    def finish(self) -> None:
        """Return when everything is told; what comes from here on is not noted."""

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
    """Nobody wants to know."""


def _nothing() -> int:
    return 0


class Now(Tape):
    """Tells each note at once."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.append = self._tell
        self.begin = self._gather
        self.size = _nothing

    def _tell(self, note: Note) -> None:
        try:
            if type(note) is tuple:
                note[0](*note[1:])
            else:
                note()  # type: ignore[operator]  # a compiled hook made it
        except Exception as error:
            self.trouble(error)

    def _gather(self) -> int:
        stream = self._stream()
        if stream is not None:
            self._tell((stream.gather,))
        return -1

    def end(self, mark: int, note: Note) -> None:
        """See :meth:`Tape.end`."""
        if mark < 0 and self.on:
            self._tell(note)

    def since(self, mark: int) -> list[Note] | None:  # noqa: ARG002 - they are told already
        """See :meth:`Tape.since`."""
        return None

    def finish(self) -> None:
        """See :meth:`Tape.finish`."""
        self.stop()


class Later(Tape):
    """Keeps notes until another thread tells them, with :meth:`play`.

    Only the engine's thread adds to a row, and only the other one takes from it, up to :attr:`done`.
    """

    def __init__(self, stream: Any, judge: Any) -> None:
        super().__init__(stream)
        self.judge = judge
        self.rows: deque[list[Note | None]] = deque()
        self.row: list[Note | None] = []
        self.at = 0
        """Of the oldest row: notes that are told."""
        self.alone = True
        """No older row waits to be told."""
        self.thread = threading.get_ident()
        self.lost = False
        self._bind()

    def _bind(self) -> None:
        self.done = 0
        self.row = []
        self.alone = not self.rows
        self.rows.append(self.row)
        self.append = self.row.append
        self.begin = self.size = self.row.__len__
        self.full = FULL
        self.on = True

    def end(self, mark: int, note: Note) -> None:
        """See :meth:`Tape.end`."""
        if not self.on:
            return
        row = self.row
        stream = self._stream()
        if stream is not None:
            # Nothing past `mark` is told yet, unless the engine stood still in the call for long.
            row.insert(mark if mark >= self.at or not self.alone else self.at, (stream.gather,))
            row.append(note)

    def since(self, mark: int) -> list[Note] | None:
        """See :meth:`Tape.since`."""
        return self.row[mark:]  # type: ignore[return-value]  # not told before the call is over

    def turn(self) -> None:
        """A new row; the thread that tells is started where it does not run, as after a fork."""
        self.thread = threading.get_ident()
        self.judge.wanted()
        if len(self.rows) > MOST_ROWS:
            self.lost = True
            self.stop()
            self.trouble(RuntimeError(f"the engine left no time to judge {MOST_ROWS * FULL} calls"))
            return
        self._bind()

    def play(self, seconds: float = inf) -> bool:
        """Tell what may be told, for about ``seconds``; whether more is left. By one thread at a time."""
        rows, until = self.rows, monotonic() + seconds
        while True:
            row = rows[0]
            over = len(rows) > 1
            limit = len(row) if over or not self.on else min(self.done, len(row))
            while self.at < limit:
                note = row[self.at]
                row[self.at] = None  # What was told is not kept alive.
                self.at += 1
                if note is not None:
                    self._tell(note)
                if monotonic() > until:
                    return True
            if not over:
                return False
            self.at = 0
            rows.popleft()
            self.alone = len(rows) == 1

    def _tell(self, note: Note) -> None:
        try:
            if type(note) is tuple:
                note[0](*note[1:])
            else:
                note()  # type: ignore[operator]  # a compiled hook made it
        except Exception as error:
            self.trouble(error)

    def allow(self) -> None:
        """All that is noted may be told: no call is under way."""
        self.done = len(self.row)

    @property
    def gone(self) -> bool:
        """Whether the engine is gone, and all is told."""
        return self._stream() is None and len(self.rows) == 1 and self.at >= len(self.row)

    def finish(self) -> None:
        """See :meth:`Tape.finish`."""
        self.allow()
        self.judge.flush(self)
        self.stop()
