"""Sequence diagrams: lanes for scheduler, pools, workers and streams, a row for each step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfence.checker.analysis.recorded.slot_holders import Holding, Slot
from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.report.diagrams.messages import Message, OrderSpeaker, Speaker, speaker_of
from kvfence.checker.report.diagrams.svg import CHARACTER, LINE, Canvas, cut
from kvfence.checker.report.text.verdicts import call, shown
from kvfence.spec import events as ev
from kvfence.spec import order as od

LANE = 170
LEFT = 30
PINS = 34
"""Characters of the column that says who holds what."""
MOST_PINS = 8
HEAD = 26
ONLY_LANE = "machine"
ARROWS = {
    "call": ("blue", ""), "answer": ("ink", "dashed"), "copy": ("amber", "thick"), "note": ("grey", "")
}  # fmt: skip
"""Colour and style of the arrow of each kind of message."""


Held = tuple[tuple[str, bool], ...]
"""Lines on who holds what, each with whether it is new."""


@dataclass(frozen=True)
class Row:
    """One step: its title, what is said in it, and afterwards who holds what (lines; changed ones first)."""

    title: str
    doc: str = ""
    messages: tuple[Message, ...] = ()
    held: Held = ()
    broken: str = ""
    """What is wrong here; marks the row."""
    loop: bool = False
    """Whether the steps from here on are taken again and again."""


@dataclass
class _Layout:
    lanes: Sequence[str]
    pins: bool
    at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = {lane: LEFT + LANE / 2 + k * LANE for k, lane in enumerate(self.lanes)}
        self.right = max(LEFT + LANE * len(self.lanes) + 10, 740)
        self.width = self.right + (PINS * CHARACTER + 20 if self.pins else 0)


def sequence(rows: Sequence[Row], lanes: Sequence[str], *, title: str) -> str:
    """The diagram as SVG. Lanes that no message touches are left out."""
    used = {lane for row in rows for m in row.messages for lane in (m.source, m.to)}
    layout = _Layout([lane for lane in lanes if lane in used] or [ONLY_LANE], any(row.held for row in rows))
    c = Canvas()
    tops = HEAD + 14
    heights = [_height(row, layout) for row in rows]
    bottom = tops + sum(heights)
    for k, row in enumerate(rows):
        top = tops + sum(heights[:k])
        if row.broken or k % 2 == 0:
            kind = "boxred" if row.broken else "band"
            c.rect(6, top, layout.width - 12, heights[k] - 4, kind, round_=5)
    for lane, x in layout.at.items():
        c.line(x, HEAD + 8, x, bottom, "rule dotted")
        c.rect(x - LANE / 2 + 8, 6, LANE - 16, HEAD - 4, "box", round_=6)
        c.text(x, 6 + HEAD / 2 + 3, cut(lane, LANE - 24), "strong", anchor="middle")
    if layout.pins:
        c.text(layout.right + 10, 6 + HEAD / 2 + 3, "held by", "strong")
    for k, row in enumerate(rows):
        _draw(c, layout, row, tops + sum(heights[:k]))
    c.width = max(c.width, layout.width)
    return c.svg(title)


def _height(row: Row, layout: _Layout) -> float:
    wrong = LINE * len(_wrapped(row.broken, layout)) + 2 if row.broken else 0
    left = LINE + (LINE if row.doc else 0) + 22 * len(row.messages) + wrong
    right = LINE * min(len(row.held), MOST_PINS + 1)
    return max(left + (LINE if row.loop else 0), right) + 14


def _wrapped(text: str, layout: _Layout) -> list[str]:
    return textwrap.wrap(text, int((layout.right - 20) / CHARACTER))


def _draw(c: Canvas, layout: _Layout, row: Row, top: float) -> None:
    y = top + LINE - 2
    if row.loop:
        c.text(14, y, "repeated forever from here:", "strong small")
        y += LINE
    c.text(14, y, cut(row.title, layout.right - 20), "strong halo" if not row.broken else "strong bad")
    if row.doc:
        y += LINE
        c.text(14, y, cut(row.doc, layout.right - 20), "faint small", title=row.doc)
    for m in row.messages:
        y += 22
        _message(c, layout, m, y)
    for k, line in enumerate(_wrapped(row.broken, layout)):
        y += LINE + (0 if k else 2)
        c.text(14, y, line, "bad strong small")
    y = top + LINE - 2
    for line, changed in row.held[:MOST_PINS]:
        c.text(
            layout.right + 10, y, cut(line, PINS * CHARACTER), "strong" if changed else "faint", title=line
        )
        y += LINE
    if len(row.held) > MOST_PINS:
        c.text(layout.right + 10, y, f"and {len(row.held) - MOST_PINS} more", "faint")


def _message(c: Canvas, layout: _Layout, m: Message, y: float) -> None:
    start, end = layout.at[m.source], layout.at[m.to]
    if start == end:
        c.rect(start - 4, y - 8, 8, 8, "box", round_=2)
        room = max(layout.right - start - 16, 80)
        c.text(start + 9, y, cut(m.text, room), "halo small", title=m.text)
        return
    c.arrow(start, y, end, y, *ARROWS[m.kind])
    left = min(start, end) + 8
    c.text(left, y - 4, cut(m.text, layout.right - left), "halo small", title=m.text)


# What is drawn.


def of_counterexample(example: Counterexample, *, title: str = "") -> str:
    """The sequence diagram of a counterexample."""
    name = title or f"{example.invariant} in machine {example.machine}"
    header: object = example.header  # of a trace or of an order trace
    holding = Holding(header) if isinstance(header, ev.Header) else None
    speak: Any = speaker_of(header)
    broken = f"{example.invariant} is broken: {example.diagnosis.conjunct or example.condition}"
    last = None if example.loop is not None else len(example.steps) - 1
    rows: list[Row] = []
    held, before = Held(), dict[str, str]()
    for k, step in enumerate(example.steps):
        said = [m for e in step.observed for m in speak(e)]
        if not said:
            changed = ", ".join(f"{c.name} {shown(c.before)} → {shown(c.after)}" for c in step.changes)
            lane = ONLY_LANE if not any(s.observed for s in example.steps) else speak.lanes[0]
            said = [Message(lane, lane, changed or "nothing changes", "note")]
        if holding is not None:
            for e in step.observed:
                holding(e)
            held, before = _holder_lines(holding.held(), before)
        wrong, title = broken if k == last else "", f"{step.number}. {call(step.action, step.arguments)}"
        rows.append(Row(title, step.doc, tuple(said), held, wrong, loop=example.loop == k))
    if not rows:
        start = ", ".join(f"{label} {shown(value)}" for label, value in example.start.items())
        note = Message(ONLY_LANE, ONLY_LANE, start, "note")
        rows.append(Row("the initial state", messages=(note,), broken=broken))
    return sequence(rows, [*speak.lanes, ONLY_LANE], title=name)


def _holder_lines(held: dict[Slot, tuple[str, ...]], before: dict[str, str]) -> tuple[Held, dict[str, str]]:
    """Lines on who holds what, those that differ from ``before`` first; and what to compare with next."""
    now = {f"{pool} {slot}": ", ".join(holders) or "nobody" for (pool, slot), holders in held.items()}
    lines = [(f"{slot}: {by}", before.get(slot) != by) for slot, by in now.items()]
    return tuple(sorted(lines, key=lambda line: not line[1])), now


def of_events(
    header: ev.Header,
    before: Holding,
    events: Sequence[tuple[int, ev.Event]],
    *,
    broken: int,
    why: str,
    title: str,
    slots: Sequence[Slot] = (),
) -> str:
    """The sequence diagram of some events of a trace, each with its number.

    ``slots``: those whose holders are shown; all of them if none is named. ``before``: the slots
    before the first event; it takes the events in.
    """
    speak = Speaker(header)
    out: list[Row] = []
    known: dict[str, str] = {}
    for number, event in events:
        before(event)
        wanted = {s: h for s, h in before.held().items() if not slots or s in slots}
        lines, known = _holder_lines(wanted, known)
        wrong = why if number == broken else ""
        out.append(Row(f"event {number}", messages=tuple(speak(event)), held=lines, broken=wrong))
    return sequence(out, speak.lanes, title=title)


def of_order_events(
    header: od.Header, events: Sequence[tuple[int, od.OrderEvent]], *, wrong: Mapping[int, str], title: str
) -> str:
    """The sequence diagram of some order events; ``wrong`` says by number what is not in order."""
    speak = OrderSpeaker(header)
    rows = [
        Row(f"event {number}", messages=tuple(said), broken=wrong.get(number, ""))
        for number, event in events
        if (said := speak(event))
    ]
    return sequence(rows, speak.lanes, title=title)
