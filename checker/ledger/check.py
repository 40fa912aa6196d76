"""Judges a recorded trace: reads it as a stream, feeds the ledger, and sums up."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from kvfence.checker.ledger.ledger import KEPT_VIOLATIONS, Ledger
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.files.traces import TraceCutError, TraceReader
from kvfence.spec.files.wellformed import problem_of_event

Verdict: TypeAlias = Literal["holds", "violated", "undetermined"]
Progress: TypeAlias = Callable[[int], None]
"""Called now and then with the number of events judged so far."""

NOT_COMPARED: Final = "the compressed file was not read to its end, so its checksum was not compared"
CUT: Final = "the trace is cut off: what comes after the last whole line was not judged"


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says about each invariant.

    >>> import pathlib, tempfile
    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "run.jsonl")
    >>> with TraceWriter(path, Header(producer="doc", pools=(Pool("gpu", 4),))) as write:
    ...     write(Alloc("gpu", "req:1.0", [1, 2], free=2))
    ...     write(Evict("gpu", [2]))
    >>> report = check_trace(path)
    >>> report.verdicts["PIN"], report.violation_counts, report.held
    ('violated', {'PIN': 1}, {'gpu': 2})
    """

    path: str
    header: ev.Header
    verdict: Verdict
    """``holds`` is for the events that were judged; without any, or if interrupted, ``undetermined``."""
    events: int
    slot_transitions: int
    """Slots named by the events, each time they were."""
    seconds: float
    violations: tuple[Violation, ...]
    violation_counts: dict[str, int]
    """How many violations of each invariant there were, also those that were not kept."""
    checks: dict[str, int]
    """Judgements made for each invariant."""
    verdicts: dict[str, Verdict]
    """The verdict for each invariant that events are judged by; ``undetermined`` if none of these came."""
    quiesced: bool
    """Whether the trace ended quiet: its last event says that nothing is left."""
    held: dict[str, int]
    """Slots that somebody holds at the end, by pool."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for reference cycles: judging makes none, and looking takes a tenth of its time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def cut_error(error: TraceCutError, count: int, what: str, events: int) -> TraceCutError:
    """``error`` with what was found before it: ``count`` times ``what`` in ``events`` events."""
    found = f"{count} {what}(s), which damage may have made, as the checksum is missing"
    return TraceCutError(
        f"{error} ({events} events before it were judged: {found if count else f'no {what}'})"
    )


def check_trace(path: str | Path, *, limit: int | None = 1, progress: Progress | None = None) -> CheckReport:
    """Judge the trace file ``path``, up to ``limit`` violations (None: all of them; the first 1000 are kept).

    Ctrl-C ends the check and keeps what was found. Raises TraceError if the file cannot be read as a trace;
    if it is cut off, and nothing was wrong up to there, the message says how far that is.

    >>> import pathlib, tempfile
    >>> from kvfence.events import Alloc, Evict, Header, Pool
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "run.jsonl")
    >>> with TraceWriter(path, Header(producer="doc", pools=(Pool("gpu", 4),))) as write:
    ...     write(Alloc("gpu", "req:1.0", [1, 2], free=2))
    ...     write(Evict("gpu", [2]))
    >>> report = check_trace(path)
    >>> report.verdict, [(v.number, v.invariant) for v in report.violations]
    ('violated', [(1, 'PIN')])
    """
    reader = TraceReader(path)
    try:
        ledger = Ledger(reader.header, "count")
    except ValueError as error:
        raise reader.error(1, str(error), "correct what records the trace") from error
    except MemoryError as error:
        slots = sum(pool.slots for pool in reader.header.pools)
        raise reader.error(1, f"pools of {slots} slots do not fit into memory", "give it more") from error
    violations: list[Violation] = []
    notes: list[str] = []
    interrupted = False
    started = time.perf_counter()
    with uncollected(), closing(reader):
        try:
            batches = reader.batches()
            events = chain.from_iterable(batches if progress is None else _watched(batches, ledger, progress))
            while (violation := _next_violation(reader, ledger, events)) is not None:
                if len(violations) < KEPT_VIOLATIONS:
                    violations.append(violation)
                if limit is not None and ledger.violation_counts.total() >= limit:
                    reader.verify_rest()
                    notes.append(f"stopped after {ledger.violation_counts.total()} violation(s)")
                    break
        except KeyboardInterrupt:
            interrupted = True
            notes.append(f"interrupted after {ledger.events} events")
            if violations and reader.compressed:
                notes.append(NOT_COMPARED)
        except TraceCutError as error:
            if not violations or reader.compressed:
                raise cut_error(error, len(violations), "violation", ledger.events) from error
            notes.append(CUT)
    seconds = time.perf_counter() - started
    quiesced = ledger.events > 0 and type(ledger.state.ring[-1]) is ev.Quiesce and not notes
    return _report(reader, ledger, violations, notes, seconds, quiesced=quiesced, interrupted=interrupted)


def _watched(
    batches: Iterator[list[ev.Event]], ledger: Ledger, progress: Progress
) -> Iterator[list[ev.Event]]:
    """``batches``, with ``progress`` called when one of them is judged."""
    for batch in batches:
        yield batch
        progress(ledger.events)


def _next_violation(reader: TraceReader, ledger: Ledger, events: Iterator[ev.Event]) -> Violation | None:
    """Judge ``events`` up to the next violation; None if there is no further one.

    The reader feeds the ledger, without anything in between: an event takes a short way to its violation.
    """
    try:
        violation = ledger.apply_until_violation(events)
    except (KeyError, ValueError, IndexError, OverflowError, TypeError):
        _refuse_nonsense(reader, ledger)
        raise
    if violation is not None:
        _refuse_nonsense(reader, ledger)
    return violation


def _refuse_nonsense(reader: TraceReader, ledger: Ledger) -> None:
    """An event that names what does not exist is a fault of the trace, not of what it tells about."""
    last = ledger.state.ring
    problem = problem_of_event(reader.header, last[-1]) if last else None
    if problem is not None:
        raise reader.event_error(ledger.events - 1, problem)


def _report(
    reader: TraceReader,
    ledger: Ledger,
    violations: list[Violation],
    notes: list[str],
    seconds: float,
    *,
    quiesced: bool,
    interrupted: bool,
) -> CheckReport:
    checks = ledger.checks_by_invariant()
    verdicts: dict[str, Verdict] = {}
    for invariant, count in sorted(checks.items()):
        if ledger.violation_counts[invariant]:
            verdicts[invariant] = "violated"
        else:
            verdicts[invariant] = "holds" if count else "undetermined"
    header = reader.header
    if header.snapshot is not None:
        before = header.snapshot.events
        notes.append(f"begins with a snapshot: {before} events before it are not in the trace")
        header = msgspec.structs.replace(header, snapshot=None)
    held = ledger.held()
    if not quiesced and verdicts["NO-LEAK"] != "violated":
        verdicts["NO-LEAK"] = "undetermined"
        count = sum(held.values())
        notes.append(
            f"NO-LEAK: undetermined at the end, where {count} slots are held and the trace is not quiet"
        )
    verdict: Verdict = "violated" if violations else "holds"
    if not violations and (interrupted or not any(checks.values())):
        verdict = "undetermined"
        if not ledger.events:
            notes.append("the trace has no events")
        elif not interrupted:
            notes.append("no event of the trace was judged by an invariant")
    return CheckReport(
        path=str(reader.path),
        header=header,
        verdict=verdict,
        **fields(ledger, "events", "slot_transitions"),
        seconds=seconds,
        violations=tuple(violations),
        violation_counts=dict(ledger.violation_counts),
        checks=checks,
        verdicts=verdicts,
        quiesced=quiesced,
        held=held,
        notes=tuple(notes),
        interrupted=interrupted,
    )
