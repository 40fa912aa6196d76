"""Stream timelines: calls of threads, work of streams, what happens before what, and the missing edge."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.order.races import OrderChecker, Race
from kvfence.checker.report.diagrams.messages import OrderSpeaker, tag_of, thread_lane
from kvfence.checker.report.diagrams.svg import CHARACTER, Canvas, cut
from kvfence.spec import order as od

TRACK = 64
LEFT = 120
BOX = 26
GAP = 18
LONGEST = 36
"""Characters of a box."""
EDGES = {
    "launch": ("grey", "call launches work"),
    "event": ("blue", "record before wait"),
    "queue": ("amber", "put before get"),
    "synchronise": ("ink", "work before the call that waits for it"),
    "default stream": ("ink dashed", "order with the default stream"),
    "start": ("amber", ""),
    "join": ("amber", ""),
}
"""Style of each kind of edge, and its text in the legend if it is there."""
Place = tuple[float, float, float]
"""Left end, middle and width of a box."""


@dataclass(frozen=True)
class Step:
    """One box: on the track of a thread or a stream, at its time; the two sides of an edge name boxes."""

    track: str
    column: int
    text: str
    red: bool = False
    small: bool = False


@dataclass(frozen=True)
class Edge:
    """What makes one box come before another: a launch, an event, a queue and so on, as in the legend."""

    first: int
    then: int
    why: str


class _Builder:
    """Boxes and edges of some order events: calls on the threads' tracks, work on the streams'."""

    def __init__(self, header: od.Header) -> None:
        self.speak = OrderSpeaker(header)
        self.boxes: list[Step] = []
        self.edges: list[Edge] = []
        self.last: dict[str, int] = {}
        self.records: dict[int, int] = {}
        self.items: dict[tuple[int, int], int] = {}
        self.kinds = {s.id: s.kind for s in header.streams}
        self.of_event: dict[int, list[int]] = {}
        self.column = 0

    def box(self, track: str, text: str, *, red: bool, number: int, small: bool = False) -> int:
        self.boxes.append(Step(track, self.column, text, red, small))
        at = len(self.boxes) - 1
        self.last[track] = at
        self.of_event.setdefault(number, []).append(at)
        return at

    def call(self, track: str, text: str, number: int) -> int:
        """A box that accesses no memory."""
        return self.box(track, text, red=False, number=number, small=True)

    def edge(self, first: int | None, then: int, why: str) -> None:
        if first is not None and first != then:
            self.edges.append(Edge(first, then, why))

    def add(self, number: int, e: od.OrderEvent, red: bool) -> None:
        """The boxes of an event, a column to the right of those before."""
        self.column += 1
        thread = thread_lane(getattr(e, "thread", 0))
        match e:
            case od.Declare() | od.Own():
                self.speak(e)
                if isinstance(e, od.Declare):
                    self.kinds.update({s.id: s.kind for s in e.streams})
                self.column -= 1
            case od.Kernel() | od.Copy():
                track = self.speak.stream(e.stream)
                call = self.call(thread, f"launch {e.name or tag_of(e)}", number)
                words = self.speak(e)[0].text
                before = dict(self.last)
                work = self.box(track, words, red=red, number=number)
                self.edge(call, work, "launch")
                self._default_stream(e.stream, work, before)
            case od.Record():
                self.records[e.event] = self.call(self.speak.stream(e.stream), f"record {e.event}", number)
            case od.Wait():
                at = self.call(self.speak.stream(e.stream), f"wait {e.event}", number)
                self.edge(self.records.get(e.event), at, "event")
            case od.Put():
                self.items[e.queue, e.item] = self.call(thread, f"put item {e.item}", number)
            case od.Get():
                at = self.call(thread, f"get item {e.item}", number)
                self.edge(self.items.pop((e.queue, e.item), None), at, "queue")
            case od.SyncEvent() | od.Query():
                done = not isinstance(e, od.Query) or e.done
                at = self.call(thread, f"event {e.event} {'done' if done else 'open'}", number)
                if done:
                    self.edge(self.records.get(e.event), at, "synchronise")
            case od.SyncStream():
                track = self.speak.stream(e.stream)
                at = self.call(thread, f"wait for {track}", number)
                self.edge(self.last.get(track), at, "synchronise")
            case od.SyncDevice():
                at = self.call(thread, "wait for the device", number)
                for name in self.speak.streams.values():
                    self.edge(self.last.get(name), at, "synchronise")
            case od.Host():
                self.box(thread, f"{e.name or 'host'} {self.speak.accessed(e)}", red=red, number=number)
            case od.Release():
                self.box(thread, f"release region {e.region}", red=red, number=number)
            case od.Spawn():
                at = self.call(thread, f"start thread {e.child}", number)
                child = self.call(thread_lane(e.child), "begin", number)
                self.edge(at, child, "start")
            case od.Join():
                at = self.call(thread, f"join thread {e.child}", number)
                self.edge(self.last.get(thread_lane(e.child)), at, "join")

    def _default_stream(self, stream: int, work: int, before: dict[str, int]) -> None:
        """The edges between the default stream and the streams that it blocks."""
        against = {"legacy": "blocking", "blocking": "legacy"}.get(self.kinds.get(stream, ""))
        for other in (other for other, kind in self.kinds.items() if kind == against):
            self.edge(before.get(self.speak.stream(other)), work, "default stream")


def timeline(
    header: od.Header,
    events: Sequence[od.OrderEvent],
    *,
    offset: int = 0,
    race: Race | None = None,
    title: str = "stream timeline",
) -> str:
    """The timeline of ``events`` as SVG; the first has the number ``offset``. A race's accesses are red.

    The edges drawn are those that an event makes; the order of calls within a thread, and that of work within
    a stream, is the track itself.
    """
    b = _Builder(header)
    accesses = (race.first.number, race.second.number) if race else ()
    for number, e in enumerate(events, offset):
        b.add(number, e, number in accesses)
    tracks = [lane for lane in b.speak.lanes if any(box.track == lane for box in b.boxes)]
    tracks += [t for t in dict.fromkeys(box.track for box in b.boxes) if t not in tracks]
    c = Canvas()
    places = _place(b.boxes, tracks, b.edges)
    right = max((x + w for x, _, w in places), default=LEFT) + 20
    top = 14
    if race is not None:
        text = f"nothing orders the two accesses to {race.region}: {race.missing}"
        lines = textwrap.wrap(text, max(int(right / CHARACTER) - 4, 60))
        for k, line in enumerate(lines):
            c.text(14, 20 + k * 16, line, "bad strong")
        top = 20 + 16 * len(lines) + 10
    for k, track in enumerate(tracks):
        y = top + k * TRACK + TRACK / 2
        c.line(LEFT, y, right, y, "rule")
        c.text(14, y + 4, cut(track, LEFT - 20), "strong")
    shifted = [(x, y + top, w) for x, y, w in places]
    for edge in b.edges:
        _edge(c, shifted[edge.first], shifted[edge.then], edge.why)
    for box, (x, y, w) in zip(b.boxes, shifted, strict=True):
        c.rect(x, y - BOX / 2, w, BOX, "boxred" if box.red else "box", round_=5, title=box.text)
        kind = "bad strong" if box.red else "faint" if box.small else ""
        c.text(x + w / 2, y + 4, cut(box.text, w), kind, anchor="middle")
    ends = [at for n in accesses for at in b.of_event.get(n, ())[-1:]]
    if len(ends) == 2:
        _missing(c, shifted[ends[0]], shifted[ends[1]])
    _legend(c, top + len(tracks) * TRACK + 12, {e.why for e in b.edges}, race is not None)
    c.width = max(c.width, right)
    return c.svg(title)


def _place(boxes: Sequence[Step], tracks: Sequence[str], edges: Sequence[Edge]) -> list[Place]:
    """The place of each box: in the order of the calls, right of all that it waits for."""
    out: list[Place] = []
    free = dict.fromkeys(tracks, float(LEFT + 10))
    column, start = -1, float(LEFT + 10)
    waits: dict[int, list[Edge]] = {}
    for e in edges:
        waits.setdefault(e.then, []).append(e)
    for k, box in enumerate(boxes):
        width = min(len(box.text), LONGEST) * CHARACTER + 14
        if box.column != column:
            column, start = box.column, start + GAP
        x = max(free[box.track], start)
        for e in waits.get(k, ()):
            left, _, size = out[e.first]
            x = max(x, left if e.why == "launch" else left + size)
        free[box.track] = x + width + GAP
        start = max(start, x)
        out.append((x, tracks.index(box.track) * TRACK + TRACK / 2, width))
    return out


def _heights(one: Place, other: Place) -> tuple[float, float]:
    """Where an edge leaves the first box and arrives at the other: at the sides that face each other."""
    half = BOX / 2 if other[1] >= one[1] else -BOX / 2
    return one[1] + half, other[1] - half


def _edge(c: Canvas, one: Place, other: Place, why: str) -> None:
    if one[1] == other[1]:
        return
    y1, y2 = _heights(one, other)
    x1 = one[0] + one[2] / 2 if why == "launch" else one[0] + one[2] - 6
    x2 = other[0] + (other[2] / 2 if why == "launch" else 6)
    colour, _, extra = EDGES[why][0].partition(" ")
    c.curve(x1, y1, x2, y2, colour, extra)


def _missing(c: Canvas, one: Place, other: Place) -> None:
    """The edge that is not there."""
    level = one[1] == other[1]
    y1, y2 = (one[1] - BOX / 2,) * 2 if level else _heights(one, other)
    x1, x2 = one[0] + one[2] / 2, other[0] + other[2] / 2
    c.curve(x1, y1, x2, y2, "red", "dashed thick", bend=0.1 if level else 0)
    c.text((x1 + x2) / 2 + 8, (y1 + y2) / 2 + 4, "missing", "bad strong halo")


def _legend(c: Canvas, y: float, kinds: set[str], race: bool) -> None:
    x = 14.0
    shown = [(style, text) for kind, (style, text) in EDGES.items() if text and kind in kinds]
    if race:
        shown.append(("red dashed thick", "order that is missing"))
    for style, text in shown:
        c.line(x, y, x + 24, y, style)
        c.text(x + 30, y + 4, text, "faint small")
        x += 30 + len(text) * CHARACTER + 18


def of_counterexample(example: Counterexample) -> str | None:
    """The timeline of a counterexample that has order events; None for another. Its first race is drawn."""
    header: object = example.header  # of a trace or of an order trace
    if not isinstance(header, od.Header):
        return None
    events: list[Any] = [e for step in example.steps for e in step.observed]
    checker = OrderChecker(header)
    checker.apply_all(events)
    race = checker.races[0] if checker.races else None
    title = f"{example.invariant} in machine {example.machine}: stream timeline"
    return timeline(header, events, race=race, title=title)
