"""Explains a recorded violation: finds it in a trace or an order trace, and the events that matter for it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from kvfence.checker.analysis.recorded.slot_holders import Holding, Slot, about, slots_named
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.state.violation import Violation
from kvfence.checker.order.race_check import check_order_trace
from kvfence.checker.order.races import Race
from kvfence.spec import events as ev
from kvfence.spec import order as od
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.order_traces import OrderTraceReader
from kvfence.spec.files.traces import OtherFormatError, TraceReader, read_again

MOST_EVENTS = 28
"""Events that are described and drawn, at most: the last ones before the violation."""
_MOST_ORDER_EVENTS = 48
"""Events of an order trace that are drawn, at most."""
Verdict = Literal["holds", "violated", "undetermined"]


@dataclass(frozen=True)
class Story:
    """A violation of a trace: the events that it is about, and the slots before the first of them."""

    header: ev.Header
    violation: Violation
    before: Holding
    events: tuple[tuple[int, ev.Event], ...]
    slots: tuple[Slot, ...]
    left_out: int
    """Events of the same slots, requests and operations before these."""


@dataclass(frozen=True)
class OrderStory:
    """A race of an order trace: the events around it; ``header`` knows all that is declared before them."""

    header: od.Header
    race: Race
    first: int
    events: tuple[od.OrderEvent, ...]


@dataclass(frozen=True)
class Explained:
    """A trace explained: its verdict, how many violations or races were found, and the story of one."""

    path: str
    verdict: Verdict
    found: int
    story: Story | OrderStory | None
    notes: tuple[str, ...]


def explain_trace(path: Path, which: int = 1) -> Explained:
    """Explains the violation number ``which`` (from 1) of a trace, or the race of an order trace.

    CannotRun for a file that is neither, or when there is no such violation but there are others.
    """
    read_again(path, "kvfence explain")
    if is_order_trace(path):
        return _race(path, which)
    report = check_trace(path, limit=which)
    story = None
    if report.violations:
        _exists(which, len(report.violations), "violation", path)
        story = _story(path, report.violations[which - 1])
    return Explained(str(path), report.verdict, len(report.violations), story, report.notes)


def is_order_trace(path: Path) -> bool:
    """Whether the file begins like an order trace. TraceError for one that is no trace at all."""
    try:
        TraceReader(path).close()
    except OtherFormatError as error:
        return error.format == od.FORMAT
    return False


def _exists(which: int, found: int, what: str, path: Path) -> None:
    if which > found:
        are = f"is {found} {what}" if found == 1 else f"are {found} {what}s"
        raise CannotRun(f"{path} has no {what} {which}: there {are}; give --which {found} or less")


def _story(path: Path, violation: Violation) -> Story:
    """The events of the trace that concern what the violation concerns, the last of them."""
    named = tuple((violation.pool, s) for s in violation.slots)
    if not named:
        named = tuple(dict.fromkeys(slots_named([violation.event])))[:MOST_EVENTS]
    subjects = about(violation.event)
    kept: deque[tuple[int, ev.Event]] = deque(maxlen=MOST_EVENTS)
    concerned = 0
    copies: set[tuple[int, int]] = set()  # transfers of these slots
    for number, event in _up_to(path, violation.number):
        ours = number == violation.number or _concerns(event, named, subjects)
        transfer = (getattr(event, "op", -1), getattr(event, "gen", -1))
        if ours and isinstance(event, ev.Queue):
            copies.add(transfer)
        if ours or transfer in copies:
            concerned += 1
            kept.append((number, event))
    header = _header(path)
    holding = Holding(header)
    for number, event in _up_to(path, violation.number):
        if number == kept[0][0]:
            break
        holding(event)
    return Story(header, violation, holding, tuple(kept), named, concerned - len(kept))


def _header(path: Path) -> ev.Header:
    with closing(TraceReader(path)) as reader:
        header: ev.Header = reader.header
        return header


def _up_to(path: Path, last: int) -> Iterator[tuple[int, ev.Event]]:
    """The events of a trace up to a number, that one included."""
    with closing(TraceReader(path)) as reader:
        for number, event in enumerate(itertools.chain.from_iterable(reader.batches())):
            if number > last:
                return
            yield number, event


def _concerns(event: ev.Event, slots: tuple[Slot, ...], subjects: set[str]) -> bool:
    concerned = about(event)
    return bool(
        subjects & concerned
        or {s.rpartition(".")[0] for s in subjects} & concerned
        or any(slot in slots for slot in slots_named([event]))
    )


# Order traces.


def _race(path: Path, which: int) -> Explained:
    report = check_order_trace(path, limit=which)
    if not report.races:
        return Explained(str(path), report.verdict, 0, None, report.notes)
    _exists(which, len(report.races), "race", path)
    race = report.races[which - 1]
    reader = OrderTraceReader(path)
    header: od.Header = reader.header
    kept: deque[od.OrderEvent] = deque(maxlen=2000)
    streams = {s.id: s for s in header.streams}
    regions = {r.id: r for r in header.regions}
    number = 0
    with closing(reader):
        for event in itertools.chain.from_iterable(reader.batches()):
            if number > race.second.number:
                break
            if isinstance(event, od.Declare):
                streams |= {s.id: s for s in event.streams}
                regions |= {r.id: r for r in event.regions}
            kept.append(event)
            number += 1
    whole = msgspec.structs.replace(header, streams=tuple(streams.values()), regions=tuple(regions.values()))
    first, events = _excerpt(list(kept), race, number - len(kept))
    story = OrderStory(whole, race, first, tuple(events))
    return Explained(str(path), report.verdict, len(report.races), story, report.notes)


def _excerpt(events: Sequence[od.OrderEvent], race: Race, offset: int) -> tuple[int, list[od.OrderEvent]]:
    """The events around a race that are worth drawing: the number of the first one, and the events.

    Of a long stretch, the last ones up to the second access are kept, and those of the first access on.
    """
    end = race.second.number - offset + 1
    start = max(race.first.number - offset - 8, 0)
    if end - start > _MOST_ORDER_EVENTS:
        start = max(end - _MOST_ORDER_EVENTS, 0)
    return start + offset, list(events[start:end])
