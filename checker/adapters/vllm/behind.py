"""Judging in a thread of its own, so that the engine's thread only has to say what happened.

The engine's thread waits for the device in every step; that is when the other thread gets its turn.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any, Final

from kvfence.checker.monitor.guard import Guard
from kvfence.spec.events import Event

MOST_BEHIND: Final = 100_000
"""Events that may wait. An engine that leaves no time at all is not slowed down: it is not judged further."""
TOGETHER: Final = 32
"""Events that are handed over at once, if the step does not end before."""
PATIENCE: Final = 10.0
"""Seconds that whoever wants to know everything waits at most."""


class Behind:
    """Hands events to a guard later, in their order."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._row: list[Event] = []
        self._queue: SimpleQueue[list[Event] | threading.Event | None] = SimpleQueue()
        self._waiting = 0
        self._done: deque[int] = deque([0], maxlen=1)
        self._lost = False
        self._pid = -1
        _ALL.add(self)

    def __call__(self, event: Event) -> None:
        """Remember ``event``; a step's events go on together."""
        row = self._row
        row.append(event)
        if len(row) >= TOGETHER:
            self.step_over()

    def step_over(self) -> None:
        """Hand over what was remembered."""
        row = self._row
        if not row or self._lost:
            return
        if self._pid != os.getpid():
            self._start()
        self._row = []
        self._waiting += len(row)
        if self._waiting - self._done[0] > MOST_BEHIND:
            self._lost = True
            self.guard.not_checked(f"the engine left no time to judge {MOST_BEHIND} events: judging ended")
            return
        self._queue.put(row)

    def not_checked(self, why: str) -> None:
        """See :meth:`Guard.not_checked`."""
        self.guard.not_checked(why)

    def flush(self) -> None:
        """Wait until everything that was told so far is judged."""
        self.step_over()
        if self._pid != os.getpid() or self._lost:
            return
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait(PATIENCE)

    def _start(self) -> None:
        """Start the thread: in the process that needs it, since a fork does not take it along."""
        self._queue = SimpleQueue()
        self._pid = os.getpid()
        thread = threading.Thread(
            target=_judge, args=(self.guard, self._queue, self._done), name="kvfence", daemon=True
        )
        thread.start()


def _judge(guard: Guard, queue: SimpleQueue[Any], done: deque[int]) -> None:
    judged = done[0]
    while True:
        row = queue.get()
        if row is None:
            return
        if isinstance(row, threading.Event):
            row.set()
            continue
        try:
            guard.batch(row)
        except Exception as error:
            guard.not_checked(f"judging failed: {type(error).__name__}: {error}")
        judged += len(row)
        done.append(judged)


_ALL: Final[weakref.WeakSet[Behind]] = weakref.WeakSet()


def flush_all() -> None:
    """Wait until everything that was told in this process is judged."""
    for behind in list(_ALL):
        behind.flush()


atexit.register(flush_all)
