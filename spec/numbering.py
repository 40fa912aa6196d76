"""Numbers that a machine does not count: steps, and generations of requests and transfers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kvfence.spec import events as ev

NOW: Final = ev.UNNUMBERED
"""Generation of an event that is about the present one; in the name of a holder, ``req:7.now``."""
BEFORE: Final = -2
"""The generation before the present one; in the name of a holder, ``req:7.before``."""

_WORDS: Final = {"now": 0, "before": 1}


class Numbering(ev.StepNumbers):
    """Numbers the events of a path: steps in order, and generations from 0.

    That of a request grows after its ``preempt``, that of a transfer after its ``complete``. Numbers that an
    event has already stay.
    """

    def __init__(
        self, dispatched: int = 0, processed: int = 0, generations: dict[str, int] | None = None
    ) -> None:
        super().__init__(dispatched, processed)
        self.generations = dict(generations or {})

    def copy(self) -> Numbering:
        """The same count, to go on from independently."""
        return Numbering(self.dispatched, self.processed, self.generations)

    def __call__(self, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        """The events, with the numbers filled in where they are missing."""
        for event in super().__call__(events):
            yield self._with_generations(event)
            match event:
                case ev.Preempt(gen=gen) if gen == NOW:
                    self._grow(f"req:{event.req}")
                case ev.Complete(gen=gen) if gen == NOW:
                    self._grow(f"op:{event.op}")

    def _grow(self, whose: str) -> None:
        self.generations[whose] = self.generations.get(whose, 0) + 1

    def _with_generations(self, event: ev.Event) -> ev.Event:
        of_op, of_req = f"op:{getattr(event, 'op', '')}", f"req:{getattr(event, 'req', '')}"
        owners = {"rgen": of_req, "gen": of_op if hasattr(event, "op") else of_req}
        changes: dict[str, Any] = {}
        for field, owner in owners.items():
            number = getattr(event, field, 0)
            if number in (NOW, BEFORE):
                changes[field] = self.generations.get(owner, 0) - (number == BEFORE)
        whose, dot, when = getattr(event, "holder", "").rpartition(".")
        if dot and when in _WORDS:
            kind, _, name = whose.partition(":")
            owner = f"op:{name}" if kind == "op" else f"req:{name}"
            changes["holder"] = f"{whose}.{self.generations.get(owner, 0) - _WORDS[when]}"
        return msgspec.structs.replace(event, **changes) if changes else event
