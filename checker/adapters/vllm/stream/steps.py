"""Model steps as events: dispatched, processed, and many that are alike emitted as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from kvfence.checker.adapters.vllm.stream.stream import Stream
from kvfence.spec import events as ev


class StepStream(Stream):
    """A stream that follows the steps of a scheduler."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: deque[tuple[int, int, dict[str, int]]] = deque()
        """Of each step in flight: its number, the id of its output, its tokens by request."""
        self.next_step = 0
        self.repeats = 0
        """Further steps like it that were dispatched and processed, and not emitted yet."""
        self.loaded_whole: set[str] = set()
        """Requests all of whose tokens a tier that is not observed loads, before their first step."""

    def dispatched(self, output: int, tokens: dict[str, int], uneven: Sequence[str] = ()) -> None:
        """Take in that a step was handed to the workers: the id of its output, its tokens by request.

        Of the tokens of ``uneven`` requests some may be rejected.

        Steps that follow each other with the same tokens and no event between them are emitted as one: most
        of them are the decode steps of a batch. It has all of their tokens.
        """
        if not tokens or not self.tiers:
            return  # Without a tier only steps use the GPU's slots, and they do so one after the other.
        if self.still is not None:
            if tokens == self.still and not uneven:
                self.steps.append((-1, output, tokens))
                return
            self.emit_repeats()
        if self.loaded_whole:
            self.loaded_whole.difference_update(tokens)
        self.steps.append((self._dispatch(tokens), output, tokens))
        for id_ in uneven:
            self.request(id_).uneven = True

    def processed(self, wanted: int) -> None:
        """Take in that the output ``wanted`` of a step arrived."""
        steps = self.steps
        if not steps:
            return
        if steps[0][1] != wanted and any(known == wanted for _, known, _ in steps):
            while steps[0][1] != wanted:
                self.over()
        self.over()  # Of this output, or of one of which this is a copy, as from another process.

    def over(self) -> None:
        """End the oldest step in flight."""
        number, _, tokens = self.steps.popleft()
        if number < 0:
            self.repeats += 1
            return
        self.emit(ev.Process(number))
        if not self.steps:
            self.still = tokens

    def emit_repeats(self) -> None:
        """Emit the steps that were put off."""
        tokens, repeats = self.still, self.repeats
        self.still, self.repeats = None, 0
        if tokens is not None and repeats:
            self.emit(ev.Process(self._dispatch(tokens, repeats)))
        if self.steps and self.steps[0][0] < 0:
            _, output, running = self.steps.popleft()
            self.steps.append((self.next_step, output, running))
            self._dispatch(running)

    def _dispatch(self, tokens: dict[str, int], times: int = 1) -> int:
        """Emit a dispatched step, or ``times`` that are alike as one; returns its number."""
        number = self.next_step
        self.next_step = number + 1
        self.emit(ev.Dispatch(number, list(tokens), [times * count for count in tokens.values()]))
        return number

    def in_flight(self, id_: str) -> int:
        """Tokens of a request in steps that are dispatched and not processed."""
        return sum(tokens.get(id_, 0) for _, _, tokens in self.steps)
