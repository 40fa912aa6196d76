"""Hypothesis profiles: ``dev`` is quick, ``ci`` tries more.

Both derive every example from the test's code, so a run that failed fails again, here and elsewhere.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kvfence.checker.monitor.books import Books
from kvfence.checker.monitor.declared import RULES
from kvfence.checker.monitor.ledger import Ledger
from kvfence.spec.events import Event

settings.register_profile(
    "dev",
    derandomize=True,
    deadline=None,
    max_examples=50,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=200, stateful_step_count=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True, scope="session")
def _what_is_raised_is_counted() -> Iterator[None]:
    """In every test: an event that breaks an invariant was counted for it, and not taken back from any."""
    judge, not_judged, violated = Books.judge, Books.not_judged, Ledger._violated
    counted: dict[int, tuple[int, list[str]]] = {}
    """By the identity of the books, of which there is one pair at a time: the last event, what it counted."""

    def noted(books: Books, *ids: str) -> None:
        event, names = counted.get(id(books), (-1, []))
        counted.clear()
        counted[id(books)] = books.events, [*(names if event == books.events else []), *ids]

    def judge_and_note(books: Books, *ids: str) -> None:
        noted(books, *ids)
        judge(books, *ids)

    def not_judged_and_note(books: Books, *ids: str) -> None:
        noted(books, *(f"not {id_}" for id_ in ids))
        not_judged(books, *ids)

    def look(ledger: Ledger, kind: type[Event], invariant: str) -> None:
        event, names = counted.get(id(ledger.books), (-1, []))
        names = names if event == ledger.books.events else []
        assert not any(name.startswith("not ") for name in names), (kind, invariant, names)
        assert invariant in {*RULES[kind].each, *names} or invariant not in RULES[kind].ids, (kind, invariant)
        violated(ledger, kind, invariant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Books, "judge", judge_and_note)
        patch.setattr(Books, "not_judged", not_judged_and_note)
        patch.setattr(Ledger, "_violated", look)
        yield
