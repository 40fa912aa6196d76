"""CUDA events, used again instead of made anew."""

from collections import deque
from collections.abc import Iterator

import torch


class EventPool:
    """Events that are not waited for. Threads may share it.

    Give an event back only when what was recorded in it is complete, and so is all that waits for it: a
    wait binds when it is called, but a query or an elapsed time is about the last record.
    """

    def __init__(self, timing: bool, numbers: Iterator[int]) -> None:
        self._timing = timing
        self._numbers = numbers
        self._number: dict[int, int] = {}
        self._idle: deque[torch.cuda.Event] = deque()
        self.made = 0

    def take(self) -> torch.cuda.Event:
        """An event for one use."""
        try:
            return self._idle.popleft()
        except IndexError:
            self.made += 1
            event = torch.cuda.Event(enable_timing=self._timing)
            self._number[id(event)] = next(self._numbers)
            return event

    def number(self, event: torch.cuda.Event) -> int:
        """What order events call an event of this pool. The pool's events live as long as it does."""
        return self._number[id(event)]

    def give_back(self, event: torch.cuda.Event) -> None:
        """The event may be used again."""
        self._idle.append(event)
