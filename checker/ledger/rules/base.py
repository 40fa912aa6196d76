"""What all rules have: the ledger state, and a table of which method judges which kind of event."""

from __future__ import annotations

from types import FunctionType
from typing import ClassVar

from kvfence.checker.ledger.state.declared import DECLARED, Rule
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.spec import events as ev


class Rules:
    """Rules of some kinds of events: the methods that are marked with :func:`declared.judges`.

    A method that overrides such a method in a subclass judges by the same invariants.
    """

    _marked: ClassVar[dict[type[ev.Event], str]] = {}

    def __init__(self, state: LedgerState) -> None:
        self.state = state
        self.pools = state.pools
        self.extra = state.extra
        self.fail = state.fail
        self.all_ranks = (1 << state.header.ranks) - 1
        """A bit for each rank."""

    def __init_subclass__(cls) -> None:
        methods = {name: f for name, f in vars(cls).items() if isinstance(f, FunctionType)}
        own = {DECLARED[f].kind: name for name, f in methods.items() if f in DECLARED}
        cls._marked = {**cls._marked, **own}

    def rules(self) -> dict[type[ev.Event], Rule]:
        """The rule of each kind of event."""
        return {kind: getattr(self, name) for kind, name in self._marked.items()}

    def ranks_in(self, bits: int) -> list[int]:
        """The ranks whose bit is set."""
        return [rank for rank in range(self.state.header.ranks) if bits >> rank & 1]
