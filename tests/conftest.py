"""Hypothesis profiles: ``dev`` is quick, ``ci`` tries more.

Both derive every example from the test's code, so a run that failed fails again, here and elsewhere.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.declared import RULES
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.spec import events as ev

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what is in its background like that
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
    judge, not_judged, violated = LedgerState.judge, LedgerState.not_judged, Ledger._violated
    last: list[tuple[LedgerState, int, list[str]]] = []
    """The last event that counted something itself: the ledger state, its number, and what it counted."""

    def counted(state: LedgerState) -> list[str]:
        return last[0][2] if last and last[0][0] is state and last[0][1] == state.events else []

    def noted(state: LedgerState, *ids: str) -> None:
        last[:] = [(state, state.events, [*counted(state), *ids])]

    def judge_and_note(state: LedgerState, id_: str) -> None:
        noted(state, id_)
        judge(state, id_)

    def not_judged_and_note(state: LedgerState, *ids: str) -> None:
        noted(state, *(f"not {id_}" for id_ in ids))
        not_judged(state, *ids)

    def look(ledger: Ledger, kind: type[ev.Event], invariant: str) -> None:
        names = counted(ledger.state)
        assert not any(name.startswith("not ") for name in names), (kind, invariant, names)
        assert invariant in {*RULES[kind].each, *names} or invariant not in RULES[kind].ids, (kind, invariant)
        violated(ledger, kind, invariant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerState, "judge", judge_and_note)
        patch.setattr(LedgerState, "not_judged", not_judged_and_note)
        patch.setattr(Ledger, "_violated", look)
        yield
