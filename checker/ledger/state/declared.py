"""What each rule says about itself: the kind of event that it judges, and the invariants that it can raise.

The tables of checks made, in every report, are derived from these declarations; there is no other list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev

Rule: TypeAlias = Callable[[Any], Violation | None]
"""Judges one event and takes it over into the ledger state."""

R = TypeVar("R", bound=Callable[..., Any])


class Declared(NamedTuple):
    """What a rule says about itself."""

    kind: type[ev.Event]
    each: tuple[str, ...]
    """Invariants that each event of the kind is counted for, unless the rule says ``not_judged`` of it."""
    ids: frozenset[str]
    """All that the rule can raise: these, and those for which it counts an event itself, with ``judge``."""


RULES: Final[dict[type[ev.Event], Declared]] = {}
"""The declaration of the rule of each kind of event, once the modules with the rules are imported."""

DECLARED: Final[dict[Callable[..., Any], Declared]] = {}
"""The declaration of each marked function."""


class UndeclaredError(AssertionError):
    """A rule raised an invariant that it does not declare: what is counted as checked would be wrong."""


def judges(kind: type[ev.Event], *each: str, also: tuple[str, ...] = ()) -> Callable[[R], R]:
    """Marks the rule of ``kind``, which judges each event by ``each`` and some events by ``also``.

    The rule counts the latter with ``LedgerState.judge``, before it can raise one. It reports with
    ``LedgerState.not_judged`` an event that it does not judge by one of ``each``.
    Raises ``ValueError`` for a kind that has a rule.
    """

    def mark(rule: R) -> R:
        if kind in RULES:
            raise ValueError(f"{kind.__name__} has a rule already")
        DECLARED[rule] = RULES[kind] = Declared(kind, each, frozenset((*each, *also)))
        return rule

    return mark
