"""What the ledger says when an invariant is broken."""

from __future__ import annotations

from typing import Any

import msgspec

from kvfence.spec import events as ev


def fields(source: object, *names: str) -> dict[str, Any]:
    """The attributes ``names`` of ``source`` by name, as values of a violation."""
    return {name: getattr(source, name) for name in names}


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant: which, where, and what was known about the slots involved.

    ``number`` counts events from 0: in a trace file the event is on line ``number + 2``, after the header.

    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> ledger = Ledger(Header(producer="doc", pools=(Pool("gpu", 4),)))
    >>> ledger(Alloc("gpu", "req:1.0", [1, 2], free=2))
    >>> violation = ledger.apply(Evict("gpu", [2]))
    >>> violation.invariant, violation.slots, violation.holders
    ('PIN', (2,), {2: ('req:1.0',)})
    """

    invariant: str
    """Id of the invariant, for instance ``FREEZE``."""
    number: int
    event: ev.Event
    condition: str
    """The sentence that should hold and does not."""
    values: dict[str, object] = {}
    """The parts of the condition with their values."""
    pool: str = ""
    slots: tuple[int, ...] = ()
    """Slots of ``pool`` for which the condition is false (the first few)."""
    holders: dict[int, tuple[str, ...]] = {}
    """Who holds each of ``slots`` at this moment (the first few), before the event takes effect."""
    history: dict[int, tuple[tuple[int, ev.Event], ...]] = {}
    """The last events that concern each of ``slots``, oldest first, each with its number."""
    again: bool = False
    """The same fault was reported before: the same rule, slots, request and transfer. Holders and history,
    which are costly to find out, are left out.
    """

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        shown = f" ({values})" if values else ""
        return f"{self.invariant} violated by event {self.number}: not true that {self.condition}{shown}"


class InvariantViolation(Exception):  # noqa: N818 - an AssertionError in spirit: nothing to handle, something to read
    """Raised by a ledger in ``raise`` mode; ``violation`` says everything that is known.

    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> ledger = Ledger(Header(producer="doc", pools=(Pool("gpu", 4),)))
    >>> ledger(Alloc("gpu", "req:1.0", [1, 2], free=2))
    >>> ledger(Evict("gpu", [2]))
    Traceback (most recent call last):
    kvfence.checker.ledger.state.violation.InvariantViolation: PIN violated by event 1: ...
    """

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation
