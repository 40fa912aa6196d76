"""CUDA events, used again instead of made anew."""

from __future__ import annotations

from collections import deque

import torch


class EventPool:
    """Events that nobody waits for. Threads may share it.

    Give an event back only when what was recorded in it is complete, and so is all that waits for it: a
    wait binds when it is called, but a query or an elapsed time is about the last record.
    """

    def __init__(self, timing: bool) -> None:
        self._timing = timing
        self._idle: deque[torch.cuda.Event] = deque()
        self.made = 0

    def take(self) -> torch.cuda.Event:
        """An event for one use."""
        try:
            return self._idle.popleft()
        except IndexError:
            self.made += 1
            return torch.cuda.Event(enable_timing=self._timing)

    def give_back(self, event: torch.cuda.Event) -> None:
        """The event may be used again."""
        self._idle.append(event)
