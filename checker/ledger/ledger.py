"""The ledger: judges each event of a connector against everything that happened before it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final, Literal, TypeAlias

from kvfence.checker.ledger.fast_paths.native_fast_paths import NativePoolFastPaths, NativeTransferFastPaths
from kvfence.checker.ledger.fast_paths.pool_fast_paths import PoolFastPaths
from kvfence.checker.ledger.fast_paths.transfer_fast_paths import TransferFastPaths
from kvfence.checker.ledger.kernels.kernels import kernels
from kvfence.checker.ledger.restore import restore
from kvfence.checker.ledger.rules.geometry import GeometryRules
from kvfence.checker.ledger.rules.host_memory import HostMemoryRules
from kvfence.checker.ledger.rules.load import LoadRules
from kvfence.checker.ledger.rules.pool import PoolRules
from kvfence.checker.ledger.rules.progress import ProgressRules
from kvfence.checker.ledger.rules.rank import RankRules
from kvfence.checker.ledger.rules.request import RequestRules
from kvfence.checker.ledger.rules.residency import ResidencyRules
from kvfence.checker.ledger.rules.step import StepRules
from kvfence.checker.ledger.rules.transfer import TransferRules
from kvfence.checker.ledger.state.declared import RULES, Rule
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.checker.ledger.state.violation import InvariantViolation, Violation
from kvfence.spec import events as ev
from kvfence.spec.files.wellformed import problem_of_header

Mode: TypeAlias = Literal["raise", "log", "count"]

_Kinds: TypeAlias = tuple[type[PoolRules], type[TransferRules]]

_RARER: Final = (GeometryRules, HostMemoryRules, LoadRules, ProgressRules, RankRules, ResidencyRules)
"""Rules of events that many traces do not have."""

KEPT_VIOLATIONS: Final = 1000
LONG_FROM: Final = 64  # slots; measured: from about here on numpy is faster than a loop


class Ledger:
    """The runtime form of the invariants.

    Call it with each event (it is an observer), or use :meth:`apply` to get the violation back. Cost depends
    on the slots that an event names, not on the size of the pools. After a violation the ledger takes the
    event for what happened, and goes on.

    ``mode`` says what a call does about a violation: ``raise`` raises :class:`InvariantViolation`, ``log``
    logs it and keeps it in ``violations`` (the first 1000), ``count`` only counts.

    >>> from kvfence.events import Alloc, Free, Header, Pool
    >>> ledger = Ledger(Header(producer="doc", pools=(Pool("gpu", 4, null=0),)))
    >>> ledger.apply(Alloc("gpu", "req:1.0", [1, 2], free=1))
    >>> ledger.apply(Free("gpu", "req:1.0", [2, 2])).invariant
    'CONSERVE'

    ``fast_paths``: whether ordinary events are recognised as such; ``compiled``: by compiled code, where
    there is a C compiler; ``long_from``: number of slots from which numpy does it otherwise. None of these
    changes a verdict.

    A rule that raises an invariant which it does not declare is an error, UndeclaredError; with ``strict``
    false, as in a serving process, the violation is reported like any other.

    Raises ``ValueError`` for a header with impossible sizes.
    """

    def __init__(
        self,
        header: ev.Header,
        mode: Mode = "raise",
        *,
        fast_paths: bool = True,
        compiled: bool = True,
        long_from: int = LONG_FROM,
        strict: bool = True,
    ) -> None:
        problem = problem_of_header(header)
        if problem is not None:
            raise ValueError(problem)
        self.header = header
        self.mode: Mode = mode
        self.violations: list[Violation] = []
        self.violation_counts: Counter[str] = Counter()
        found = kernels() if fast_paths and compiled else None
        self._kinds: _Kinds = (
            (NativePoolFastPaths, NativeTransferFastPaths)
            if found is not None
            else (
                PoolFastPaths if fast_paths else PoolRules,
                TransferFastPaths if fast_paths else TransferRules,
            )
        )
        state = LedgerState(header, long_from, found)
        state.strict = strict
        if header.snapshot is not None:
            restore(state, header.snapshot)
        self._take_over(state)
        self._counts: dict[type[ev.Event], int] = dict.fromkeys(self._rules, 0)

    def _take_over(self, state: LedgerState) -> None:
        self.state = state
        self._rules: dict[type[ev.Event], Rule] = {}
        pools, transfers = self._kinds
        for part in (pools(state), RequestRules(state), transfers(state), StepRules(state)):
            self._rules.update(part.rules())
        for kind in _RARER:
            self._rules.update(kind(state).rules())
        self._remember = state.ring.append

    def remember(self, events: int, slots: int) -> None:
        """Keep the last ``events`` for reports and recordings, with ``slots`` numbers in the long ones."""
        self.state.remember(events, slots)
        self._remember = self.state.ring.append

    def apply(self, event: ev.Event) -> Violation | None:
        """Judge ``event``; the first thing that is wrong with it, or None.

        Raises ``KeyError`` for a pool that the header does not name, ``TypeError`` for what is no event.
        """
        kind = type(event)
        try:
            rule = self._rules[kind]
        except KeyError:
            raise TypeError(f"not an event: {event!r}") from None
        self._remember(event)
        self.state.events += 1
        violation = rule(event)
        self._counts[kind] += 1  # an event that the rule refuses as nonsense is not judged
        if violation is not None:
            self._violated(kind, violation.invariant)
        return violation

    def apply_until_violation(self, events: Iterator[ev.Event]) -> Violation | None:
        """Judge ``events`` up to and including the first that violates something; None if none does.

        The same as :meth:`apply` in a loop, and faster. Raises what it raises.
        """
        state, rules, counts, remember = self.state, self._rules, self._counts, self._remember
        # The loop counts the events in the ledger state as it goes: a violation tells its number.
        for state.events, event in enumerate(events, state.events + 1):  # noqa: B020
            kind = type(event)
            rule = rules[kind]
            remember(event)
            violation = rule(event)
            counts[kind] += 1
            if violation is not None:
                self._violated(kind, violation.invariant)
                return violation
        return None

    def _violated(self, kind: type[ev.Event], invariant: str) -> None:
        """Count a violation. The rule may have stopped there, so the event counts for that invariant alone,
        and for those that the rule itself counted it for.
        """
        self.violation_counts[invariant] += 1
        declared = RULES[kind]
        self.state.not_judged(*(other for other in declared.each if other != invariant))
        if invariant not in declared.ids:
            self.state.judge(invariant)

    def __call__(self, event: ev.Event) -> None:
        """Judge ``event`` as the mode says."""
        violation = self.apply(event)
        if violation is None or self.mode == "count":
            return
        if self.mode == "raise":
            raise InvariantViolation(violation)
        if len(self.violations) < KEPT_VIOLATIONS:
            self.violations.append(violation)
        logging.getLogger("kvfence.ledger").error("%s", violation)

    def copy(self) -> Ledger:
        """An independent ledger in the same state. Costs as much as there is state: for small pools."""
        other = Ledger.__new__(Ledger)
        other.header, other.mode = self.header, self.mode
        other._kinds = self._kinds
        other.violations = list(self.violations)
        other.violation_counts = self.violation_counts.copy()
        other._take_over(self.state.copy())
        other._counts = dict(self._counts)
        return other

    @property
    def kinds(self) -> Collection[type[ev.Event]]:
        """The kinds of events that it judges."""
        return self._rules.keys()

    @property
    def events(self) -> int:
        """Events judged so far."""
        return self.state.events

    @property
    def slot_transitions(self) -> int:
        """Slots named by the events judged so far."""
        return self.state.slots

    @property
    def checks(self) -> int:
        """Judgements made so far; see :meth:`checks_by_invariant`."""
        return sum(self.checks_by_invariant().values())

    def checks_by_invariant(self) -> dict[str, int]:
        """For each invariant, the events that were judged by it; see :func:`declared.judges`.

        An event that names nothing an invariant is about is not counted for it, and one that breaks an
        invariant not for what the rule would have asked next.
        """
        checks = dict(self.state.judged)
        for kind, count in self._counts.items():
            for invariant in RULES[kind].each:
                checks[invariant] += count
        return checks

    def held(self) -> dict[str, int]:
        """Slots of each pool that somebody holds."""
        return {
            pool.name: pool.total - pool.free - (pool.null is not None) for pool in self.state.pools.values()
        }
