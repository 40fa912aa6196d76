"""Judging in a thread of its own, so that the engine's thread only has to note what happened.

The engine's thread waits for the device in every step; that is when the other thread gets its turn. Nothing
wakes it, since that would cost the engine: it looks a few times a second whether there is something to do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from time import monotonic, sleep
from typing import Any, Final

from kvfence.checker.adapters.vllm.notes.compiled_hooks import deferred_note_queue
from kvfence.checker.adapters.vllm.notes.note_queue import DeferredNoteQueue
from kvfence.checker.ledger.guard.guard import Guard
from kvfence.spec import events as ev

LOOK: Final = 0.1
"""Seconds between two looks while the engine works."""
LONGEST: Final = 0.4
"""Seconds between two looks at an engine that does nothing."""
SLICE: Final = 0.0003
"""Seconds after which the interpreter is left to the engine's thread, if that wants it."""
PAUSE: Final = 0.00005
"""Seconds for which it is."""
STILL: Final = 5.0
"""Seconds without a further note after which no call of the engine is taken to be under way."""
TOGETHER: Final = 64
"""Events that are judged at once."""


class Batch:
    """A sink that hands events to a guard, many at once."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._events: list[ev.Event] = []

    def __call__(self, event: ev.Event) -> None:
        """Remember ``event``."""
        self._events.append(event)
        if len(self._events) >= TOGETHER:
            self.hand_over()

    def hand_over(self) -> None:
        """Let the guard judge what was remembered."""
        events = self._events
        if events:
            self._events = []
            try:
                self.guard.batch(events)
            except Exception as error:
                self.guard.not_checked(f"judging failed: {type(error).__name__}: {error}")

    def not_checked(self, why: str) -> None:
        """See :meth:`Guard.not_checked`."""
        self.guard.not_checked(why)


class Judge:
    """Has the notes in the note queues of a process judged, in a thread of its own."""

    def __init__(self) -> None:
        self._note_queues: list[DeferredNoteQueue] = []
        self._batches: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._pid = -1
        _ALL.add(self)

    def note_queue(self, stream: Any) -> DeferredNoteQueue:
        """A note queue for the hooks of an engine."""
        note_queue = deferred_note_queue(stream, self)
        with self._lock:
            self._note_queues.append(note_queue)
        self.wanted()
        return note_queue

    def sink(self, guard: Guard) -> Batch:
        """What gets the events of an engine."""
        batch = Batch(guard)
        self._batches.add(batch)
        return batch

    def wanted(self) -> None:
        """Start the thread where it does not run: in the process that needs it, and after a fork there."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=_run, args=(weakref.ref(self),), name="kvfence", daemon=True).start()

    def flush(self, note_queue: DeferredNoteQueue | None = None) -> None:
        """Have everything judged that was noted so far, in the calling thread."""
        with self._lock:
            here = threading.get_ident()
            for each in list(self._note_queues) if note_queue is None else [note_queue]:
                if each.thread == here:
                    each.allow()
                each.play()
            self.hand_over()

    def hand_over(self) -> None:
        """Let the guards judge the events that the streams emitted."""
        for batch in list(self._batches):
            batch.hand_over()

    def work(self) -> bool:
        """A slice of work; whether there was any."""
        busy = False
        with self._lock:
            for note_queue in list(self._note_queues):
                at, row = note_queue.at, note_queue.rows[0]
                more = note_queue.play(SLICE)
                busy = busy or more or note_queue.at != at or note_queue.rows[0] is not row
                if note_queue.gone:
                    self._note_queues.remove(note_queue)
            if busy:
                self.hand_over()
        return busy

    def stand_still(self, seen: dict[int, tuple[int, float]]) -> None:
        """Judge the notes of idle engines; ``seen``: by note queue, its notes and since when."""
        now = monotonic()
        with self._lock:
            for note_queue in self._note_queues:
                count = len(note_queue.row)
                known = seen.get(id(note_queue))
                if known is None or known[0] != count:
                    seen[id(note_queue)] = (count, now)
                elif now - known[1] > STILL and note_queue.done < count:
                    note_queue.done = count

    def after_fork(self) -> None:
        """In a child process: no thread holds the lock, and the judge thread does not run."""
        self._lock = threading.RLock()
        for note_queue in self._note_queues:
            note_queue.full = 0


def _run(ref: weakref.ReferenceType[Judge]) -> None:
    """Work while there is some, and look ever more rarely while there is none."""
    pause = LOOK
    seen: dict[int, tuple[int, float]] = {}
    while True:
        judge = ref()
        if judge is None:
            return
        if judge.work():
            pause = LOOK
            del judge
            sleep(PAUSE)
            continue
        if pause >= LONGEST:
            judge.stand_still(seen)
        del judge
        sleep(pause)
        pause = min(pause * 2, LONGEST)


_ALL: Final[weakref.WeakSet[Judge]] = weakref.WeakSet()


def flush_all() -> None:
    """Have everything judged that was noted in this process."""
    for judge in list(_ALL):
        judge.flush()


def _after_fork() -> None:
    for judge in list(_ALL):
        with contextlib.suppress(Exception):
            judge.after_fork()


atexit.register(flush_all)
os.register_at_fork(after_in_child=_after_fork)
