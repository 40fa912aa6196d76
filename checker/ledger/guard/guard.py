"""The guard: the ledger inside a serving process, where it must do no harm."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Final, Literal, TypeAlias

import msgspec

from kvfence.checker.ledger.guard.recorder import Recorder
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import InvariantViolation, Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.files.wellformed import problem_of_event

GuardMode: TypeAlias = Literal["raise", "log", "count", "off"]
Verdict: TypeAlias = Literal["holds", "violated", "undetermined"]
OnViolation: TypeAlias = Callable[[Violation], None]

MOST_ERRORS: Final = 10  # internal errors after which a guard switches itself off
KEPT: Final = 64  # different faults that are kept with everything that is known about them
BURST: Final = 20  # reports that may come at once; then one every REFILL seconds
REFILL: Final = 30.0
GAPS: Final = 32  # reasons kept for what was not checked

LOG: Final = logging.getLogger("kvfence.guard")


class GuardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard knows at one moment, for metrics and summaries."""

    mode: GuardMode
    on: bool
    """Whether it still judges: not in mode ``off``, and not switched off by its own errors."""
    verdict: Verdict
    events: int
    slots: int
    """Slots named by the events, each time they were."""
    checks: dict[str, int]
    """For each invariant, the events that were judged by it; see :meth:`Ledger.checks_by_invariant`."""
    violations: dict[str, int]
    """How many of each invariant, repetitions included."""
    faults: dict[str, int]
    """How many different ones of each invariant."""
    unreported: int
    """Different faults that were not logged, because there were too many at a time."""
    internal_errors: int
    gaps: tuple[str, ...]
    """What was not checked, and why."""
    held: dict[str, int]
    """Slots of each pool that somebody holds."""
    open_transfers: dict[str, int]
    """Transfers that are not complete, by kind."""
    requests: int
    recordings: int
    recording_failures: int
    recorded_bytes: int


class Guard:
    """Judges the events of a running connector: call it with the header first, and then with each event.

    ``mode`` says what happens when an invariant is broken:

    * ``raise``: :class:`InvariantViolation` leaves the call, once the event is taken over. For tests.
    * ``log``: each fault is logged once, to ``kvfence.guard``; later ones like it are counted. For staging.
    * ``count``: nothing is logged; ``facts()`` tells, and ``on_violation`` is called for each fault, once.
    * ``off``: a call does nothing.

    In ``log`` and ``count`` no exception leaves a call. One in the guard itself is an internal error: it is
    counted, the verdict is ``undetermined`` from there on, and after ``most_errors`` of them the guard
    switches itself off, which it logs.

    After a violation the guard takes the event for what happened and goes on. Any thread may call.

    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> guard = Guard("count", Header(producer="doc", pools=(Pool("gpu", 4, null=0),)))
    >>> guard(Alloc("gpu", "req:1.0", [1, 2], free=1))
    >>> guard(Evict("gpu", [2]))
    >>> guard.verdict, guard.facts().violations
    ('violated', {'PIN': 1})

    ``recorder`` keeps the last events, and writes them to a file when a fault is found. Raises ``ValueError``
    for a header with impossible sizes, in any mode but ``off``.
    """

    def __init__(
        self,
        mode: GuardMode = "count",
        header: ev.Header | None = None,
        *,
        recorder: Recorder | None = None,
        on_violation: OnViolation | None = None,
        most_errors: int = MOST_ERRORS,
    ) -> None:
        if mode not in ("raise", "log", "count", "off"):
            raise ValueError(f"mode {mode!r} is none of raise, log, count, off")
        self.mode: GuardMode = mode
        self.recorder = recorder
        self.on_violation = on_violation
        self.most_errors = most_errors
        self.faults: deque[Violation] = deque(maxlen=KEPT)
        """The last different faults, oldest first."""
        self.internal_errors = 0
        self.unreported = 0
        self._off = mode == "off"
        self._lock = threading.RLock()
        self._busy = False
        self._late: deque[ev.Event | ev.Header] = deque()
        self._ledger: Ledger | None = None
        self._before: Counter[str] = Counter()
        self._checks_before: Counter[str] = Counter()
        self._events_before = self._slots_before = 0
        self._fault_counts: Counter[str] = Counter()
        self._recorded: set[tuple[str, str]] = set()
        self._gaps: dict[str, None] = {}
        self._sound_until: int | None = None
        """Violations counted when the first internal error happened: later ones may be its consequences."""
        self._reports = float(BURST)
        self._reported_at = monotonic()
        _GUARDS.add(self)
        if header is not None and not self._off:
            self._begin(header)

    # Events.

    def __call__(self, event: ev.Event | ev.Header) -> None:
        """Judge ``event``. A header begins a new ledger."""
        if self._off:
            return
        with self._lock:
            if self._busy:  # a finaliser or a log handler ran connector code in the middle of a judgement
                self._late.append(event)
                return
            self._busy = True
            try:
                found = self._judge(event)
                while self._late:
                    found = self._judge(self._late.popleft()) or found
            finally:
                self._busy = False
        if found is not None and self.mode == "raise":
            raise InvariantViolation(found)

    def batch(self, events: Iterable[ev.Event | ev.Header]) -> None:
        """Judge ``events`` in their order. In mode ``raise`` all of them are judged before the first
        violation is raised.
        """
        if self._off:
            return
        first: Violation | None = None
        with self._lock:
            if self._busy:
                self._late.extend(events)
                return
            self._busy = True
            try:
                for event in events:
                    found = self._judge(event)
                    first = first or found
                while self._late:
                    found = self._judge(self._late.popleft())
                    first = first or found
            finally:
                self._busy = False
        if first is not None and self.mode == "raise":
            raise InvariantViolation(first)

    def _judge(self, event: ev.Event | ev.Header) -> Violation | None:
        """Judge one event, with the lock held."""
        try:
            ledger = self._ledger
            if type(event) is ev.Header:
                self._begin(event)
                return None
            if ledger is None:
                raise ValueError("an event came before the header")
            violation = ledger.apply(event)  # type: ignore[arg-type]
            recorder = self.recorder
            if recorder is not None:
                state = ledger.state
                if state.events >= recorder.next_event or state.slots >= recorder.next_slot:
                    recorder.know(state)
            if violation is not None:
                self._found(violation)
            return violation
        except Exception as error:
            if self.mode == "raise":
                raise self._named(event, error) from error
            self._failed(event, error)
            return None

    def _named(self, event: ev.Event | ev.Header, error: Exception) -> Exception:
        """``error`` in words of the event, if the event makes no sense by itself."""
        ledger = self._ledger
        if ledger is None or isinstance(event, ev.Header) or type(event) not in ledger.kinds:
            return error
        problem = problem_of_event(ledger.header, event)
        return error if problem is None else ValueError(f"{event} makes no sense: {problem}")

    def _begin(self, header: ev.Header) -> None:
        """A ledger for what ``header`` describes; what was counted before stays counted."""
        if self._ledger is not None:
            self._add_up(self._ledger)
        self._ledger = Ledger(header, "count", strict=False)
        if self.recorder is not None:
            self.recorder.begin(self._ledger)

    # Violations.

    def _found(self, violation: Violation) -> None:
        """Report a fault that was not reported before."""
        if violation.again:
            return
        self._fault_counts[violation.invariant] += 1
        self.faults.append(violation)
        if self._may_report():
            if self.mode == "log":
                LOG.error("%s", violation)
            self._record(violation)
        else:
            self.unreported += 1
        if self.on_violation is not None:
            self.on_violation(violation)

    def _record(self, violation: Violation) -> None:
        """Write the last events to a file, unless there is one for such a violation already."""
        recorder, ledger = self.recorder, self._ledger
        rule = (violation.invariant, violation.condition)
        if recorder is None or ledger is None or rule in self._recorded:
            return
        self._recorded.add(rule)
        job = recorder.job(ledger, violation.invariant)
        if self.mode == "raise":
            recorder.write(job)
        else:
            recorder.later(job)

    def _may_report(self) -> bool:
        """Whether there were few enough reports lately for one more."""
        now = monotonic()
        self._reports = min(float(BURST), self._reports + (now - self._reported_at) / REFILL)
        self._reported_at = now
        if self._reports < 1:
            return False
        self._reports -= 1
        return True

    # The guard's own errors.

    def _failed(self, event: object, error: Exception) -> None:
        """An internal error: counted, and too many of them end it. Nothing may leave from here either."""
        self.internal_errors += 1
        if self._sound_until is None:
            self._sound_until = self._total()
        if self.internal_errors >= self.most_errors and not self._off:
            self._off = True
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                self._add_up(ledger)
        try:
            kind = type(event).__name__
            if self._off:
                LOG.error(
                    "kvfence switches itself off after %d internal errors: nothing is judged from here on, "
                    "and the verdict is undetermined. The last one: %s in %s",
                    self.internal_errors,
                    _words(error),
                    kind,
                    exc_info=error,
                )
            elif self.mode == "log":
                LOG.warning("kvfence could not judge %s: %s", kind, _words(error), exc_info=error)
        except Exception:
            self.internal_errors += 1

    def _add_up(self, ledger: Ledger) -> None:
        """``ledger`` is over; what it counted stays counted."""
        self._before += ledger.violation_counts
        self._checks_before.update(ledger.checks_by_invariant())
        self._events_before += ledger.events
        self._slots_before += ledger.slot_transitions

    def failed(self, error: Exception, where: str) -> None:
        """Whoever feeds the guard could not tell what happened: an internal error as well.

        In mode ``raise`` the error is raised.
        """
        if self.mode == "raise":
            raise error
        with self._lock:
            self._failed(where, error)

    def not_checked(self, why: str) -> None:
        """Something was not checked, or not seen: the verdict cannot be ``holds`` any more."""
        with self._lock:
            if len(self._gaps) < GAPS:
                self._gaps[why] = None

    # What is known.

    @property
    def on(self) -> bool:
        """Whether events are judged."""
        return not self._off

    @property
    def verdict(self) -> Verdict:
        """``violated`` once an invariant was broken; else ``undetermined`` if anything was not judged."""
        total = self._total()
        sound = total if self._sound_until is None else self._sound_until
        if sound:
            return "violated"
        if self._off or self._gaps or self.internal_errors or not any(self._checks().values()):
            return "undetermined"
        return "holds"

    @property
    def events(self) -> int:
        """Events judged so far."""
        return self._events_before + (0 if self._ledger is None else self._ledger.events)

    def _total(self) -> int:
        return sum(self._violations().values())

    def _violations(self) -> Counter[str]:
        now: Counter[str] = Counter() if self._ledger is None else self._ledger.violation_counts
        return self._before + now

    def _checks(self) -> Counter[str]:
        checks = self._checks_before.copy()
        checks.update({} if self._ledger is None else self._ledger.checks_by_invariant())
        return checks

    def facts(self) -> GuardFacts:
        """What is known now."""
        with self._lock:
            ledger, recorder = self._ledger, self.recorder
            kinds: Counter[str] = Counter({"store": 0, "load": 0})
            if ledger is not None:
                kinds.update(op.event.kind for op in ledger.state.ops.values())
            return GuardFacts(
                **fields(self, "mode", "on", "verdict", "events", "unreported", "internal_errors"),
                slots=self._slots_before + (0 if ledger is None else ledger.slot_transitions),
                checks=dict(self._checks()),
                violations=dict(self._violations()),
                faults=dict(self._fault_counts),
                gaps=tuple(self._gaps),
                held={} if ledger is None else ledger.held(),
                open_transfers=dict(kinds),
                requests=0 if ledger is None else len(ledger.state.requests),
                recordings=0 if recorder is None else recorder.written,
                recording_failures=0 if recorder is None else recorder.failures,
                recorded_bytes=0 if recorder is None else recorder.bytes,
            )

    def record(self, why: str = "asked") -> Path | None:
        """Write the last events to a file now; its path, None if there is no recorder or that failed."""
        with self._lock:
            if self.recorder is None or self._ledger is None:
                return None
            job = self.recorder.job(self._ledger, why)
        return self.recorder.write(job)

    def record_on(self, number: int = signal.SIGUSR2) -> bool:
        """Write the last events to a file whenever signal ``number`` arrives; whether that could be arranged.

        It can be by the main thread, if there is a recorder.
        """
        return self.recorder is not None and self.recorder.on_signal(number, lambda: self.record("signal"))

    def close(self) -> None:
        """Wait for what is being written. The guard may be used further."""
        if self.recorder is not None:
            self.recorder.close()


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


_GUARDS: Final[weakref.WeakSet[Guard]] = weakref.WeakSet()


def _after_fork() -> None:
    """A child process must not wait for a thread that it does not have."""
    for guard in _GUARDS:
        guard._lock = threading.RLock()
        guard._busy = False


os.register_at_fork(after_in_child=_after_fork)
