"""Judges an order trace: reads it as a stream, feeds the race checker, and sums up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from kvfence.checker.ledger.check import CUT, NOT_COMPARED, Progress, Verdict, cut_error, uncollected
from kvfence.checker.ledger.state.violation import fields
from kvfence.checker.order.clocks import OrderTraceError
from kvfence.checker.order.happens_before import AROUND, Explanation, FarApart, excerpt, explain
from kvfence.checker.order.races import MOST_PIECES, OrderChecker, Race
from kvfence.spec import order as od
from kvfence.spec.files.order_traces import OrderTraceReader
from kvfence.spec.files.traces import TraceCutError

Execute: TypeAlias = Callable[[od.Header, Sequence[od.OrderEvent], Sequence[str]], list[str]]
LONGEST_EXCERPT: Final = 4000
"""Events of a trace that an explanation looks at, at most."""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Why a race is one, and what executing its witness on the virtual device gave."""

    race: int
    """Index of the race in the report."""
    explanation: Explanation
    corrupt: tuple[str, ...] = ()
    """Contents that were not as the trace's order would have them, under a witness; empty: not executed, or
    none.
    """
    witness: tuple[str, ...] = ()
    """The schedule that did so."""


class RaceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an order trace says: whether all conflicting accesses in it have an order.

    >>> import json, pathlib, tempfile
    >>> header = {"format": "kvfence-order", "version": 1, "producer": "doc"}
    >>> header["streams"] = [{"id": 0}, {"id": 1}]
    >>> header["regions"] = [{"id": 0, "at": 4096, "bytes": 512, "name": "gpu"}]
    >>> write = {"e": "kernel", "thread": 0, "stream": 0, "writes": [[0, 0, 64]], "name": "fill"}
    >>> copy = {"e": "copy", "thread": 0, "stream": 1, "src": [[0, 0, 64]], "dst": [[0, 256, 64]]}
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "order.jsonl")
    >>> _ = path.write_text("\\n".join(map(json.dumps, [header, write, copy])))
    >>> report = check_order_trace(path)
    >>> report.found, report.races[0].region
    (1, 'gpu')
    """

    path: str
    verdict: Verdict
    events: int
    accesses: int
    """Ranges that were judged."""
    seconds: float
    races: tuple[Race, ...]
    times: tuple[int, ...]
    """How often each of ``races`` was found: the same operations, streams and stacks in the same region."""
    found: int
    """All pairs without order, also those that were not kept."""
    checks: dict[str, int] = {}
    """For each invariant, the pairs of accesses that were compared, and break it if they have no order;
    under "", pairs without a copy, which break none.
    """
    violation_counts: dict[str, int] = {}
    """Those of them that have no order."""
    verdicts: dict[str, Verdict] = {}
    """For each invariant; ``undetermined`` if no two accesses were compared, or some were forgotten."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    explained: tuple[Explained, ...] = ()
    """Of the first races, if that was asked for."""


def check_order_trace(
    path: str | Path,
    *,
    limit: int | None = None,
    most_pieces: int = MOST_PIECES,
    progress: Progress | None = None,
) -> RaceReport:
    """Judge the order trace ``path``, up to ``limit`` different races (None: to the end of the trace).

    Ctrl-C ends the check and keeps what was found. Raises TraceError if the file cannot be read as an order
    trace, or contradicts itself.

    >>> import json, pathlib, tempfile
    >>> header = {"format": "kvfence-order", "version": 1, "producer": "doc"}
    >>> header["streams"] = [{"id": 0}, {"id": 1}]
    >>> header["regions"] = [{"id": 0, "at": 4096, "bytes": 512, "name": "gpu"}]
    >>> write = {"e": "kernel", "thread": 0, "stream": 0, "writes": [[0, 0, 64]], "name": "fill"}
    >>> copy = {"e": "copy", "thread": 0, "stream": 1, "src": [[0, 0, 64]], "dst": [[0, 256, 64]]}
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "order.jsonl")
    >>> _ = path.write_text("\\n".join(map(json.dumps, [header, write, copy])))
    >>> check_order_trace(path).verdict
    'violated'
    """
    reader = OrderTraceReader(path)
    notes: list[str] = []
    interrupted = False
    checker = OrderChecker(reader.header, most_pieces=most_pieces)
    started = time.perf_counter()
    with uncollected(), closing(reader):
        try:
            batches = reader.batches()
            for batch in batches:
                checker.apply_all(batch)
                if limit is not None and len(checker.races) >= limit:
                    reader.verify_rest()
                    notes.append(f"stopped after {len(checker.races)} race(s)")
                    break
                if progress is not None:
                    progress(checker.events)
        except OrderTraceError as error:
            raise reader.event_error(checker.events - 1, str(error)) from error
        except KeyboardInterrupt:
            interrupted = True
            notes.append(f"interrupted after {checker.events} events")
            if checker.found and reader.compressed:
                notes.append(NOT_COMPARED)
        except TraceCutError as error:
            if not checker.found or reader.compressed:
                raise cut_error(error, checker.found, "race", checker.events) from error
            notes.append(CUT)
    verdict: Verdict = "violated" if checker.found else "holds"
    if not checker.complete:
        notes.append(
            f"{checker.shadow.forgotten} accesses, {checker.clocks.guessed} clocks were forgotten for want "
            "of memory: races with them were not looked for"
        )
    checks = checker.checks()
    if not checker.accesses:
        notes.append("the trace has no accesses to memory")
    elif not any(checks.values()):
        notes.append("no two accesses are to the same bytes, one of them a write: no order was judged")
    if not checker.found and (interrupted or not any(checks.values()) or not checker.complete):
        verdict = "undetermined"
    return RaceReport(
        path=str(path),
        verdict=verdict,
        **fields(checker, "events", "accesses", "found"),
        seconds=time.perf_counter() - started,
        races=tuple(checker.races),
        times=tuple(checker.times()),
        checks=checks,
        violation_counts=dict(checker.violation_counts),
        verdicts={name: _verdict(checker, name, count) for name, count in checks.items()},
        notes=tuple(notes),
        interrupted=interrupted,
    )


def _verdict(checker: OrderChecker, invariant: str, compared: int) -> Verdict:
    if checker.violation_counts[invariant]:
        return "violated"
    return "holds" if compared and checker.complete else "undetermined"


def explained(report: RaceReport, races: int, execute: Execute) -> RaceReport:
    """``report`` with explanations of its first ``races`` races.

    ``execute`` runs a schedule of a program and says what was read wrongly. A race whose accesses are too far
    apart gets a note instead. CannotRun if networkx is missing.
    """
    done: list[Explained] = []
    notes = list(report.notes)
    for index, race in enumerate(report.races[:races]):
        try:
            why = explain_race(report.path, race)
        except FarApart as error:
            notes.append(f"race {index + 1} is not explained: {error}")
            continue
        corrupt, witness = _executed(why, execute)
        done.append(Explained(race=index, explanation=why, corrupt=corrupt, witness=witness))
    return msgspec.structs.replace(report, explained=tuple(done), notes=tuple(notes))


def _executed(why: Explanation, execute: Execute) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the first witness that corrupts does, and the witness; both empty if there is none."""
    for steps in why.witnesses:
        corrupt = tuple(execute(why.header, why.program, steps))
        if corrupt:
            return corrupt, steps
    return (), ()


def explain_race(path: str | Path, race: Race) -> Explanation:
    """Explain ``race``, which was found in the order trace ``path``.

    Looks at the events from a little before the first access up to the second, at most LONGEST_EXCERPT before
    it. FarApart if they are further apart, CannotRun if networkx is missing.
    """
    last = race.second.number
    begin = max(0, race.first.number - AROUND, last - LONGEST_EXCERPT)
    header, events = _between(path, begin, last + 1)
    return explain(header, events, race, begin)


def _between(path: str | Path, begin: int, end: int) -> tuple[od.Header, list[od.OrderEvent]]:
    """The events ``begin`` up to, not including, ``end``; what was declared before is in the header."""
    reader = OrderTraceReader(path)
    earlier: list[od.OrderEvent] = []
    kept: list[od.OrderEvent] = []
    number = 0
    for batch in reader.batches():
        if number + len(batch) > begin:
            kept += batch[max(0, begin - number) : end - number]
        earlier += [event for event in batch[: max(0, begin - number)] if isinstance(event, od.Declare)]
        number += len(batch)
        if number >= end:
            break
    reader.close()
    return excerpt(reader.header, earlier)[0], kept
