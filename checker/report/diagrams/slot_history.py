"""Slot histories: one row for each block, one column for each step, coloured by the state of the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvfence.checker.analysis.recorded.slot_holders import Holding, Look, Slot, slots_named
from kvfence.checker.analysis.results import Counterexample
from kvfence.checker.report.diagrams.svg import CHARACTER, Canvas, cut
from kvfence.checker.report.text.verdicts import call, shown
from kvfence.spec import events as ev

ROW = 26
LEFT = 90
COLUMN = 66
MOST_ROWS = 40
MOST_VALUES = 16
WORDS: dict[Look, str] = {
    "free": "free",
    "held": "held",
    "cached": "free, in the prefix index",
    "both": "held, in the prefix index",
    "moving": "under a copy",
    "null": "null block",
}


@dataclass(frozen=True)
class Cell:
    """What a row looks like after a step."""

    look: Look
    text: str
    title: str = ""


def grid(
    rows: Mapping[str, Sequence[Cell]],
    columns: Sequence[str],
    *,
    broken: int | None,
    title: str,
    legend: bool = True,
) -> str:
    """Rows by name and columns by the title of their step, as SVG. The column ``broken`` is framed in red."""
    c = Canvas()
    widest = max((len(cell.text) for cells in rows.values() for cell in cells), default=0)
    left = max(LEFT, max(map(len, rows), default=0) * CHARACTER + 28)
    titled = min(max(map(len, columns), default=0), 16)
    width = min(max(COLUMN, max(widest, titled) * CHARACTER + 14), 190)
    top = 30
    for k, name in enumerate(columns):
        x = left + k * width
        c.text(x + width / 2, top - 10, cut(name, width - 6), "faint small", anchor="middle", title=name)
    for n, (name, cells) in enumerate(rows.items()):
        y = top + n * ROW
        c.text(14, y + ROW / 2 + 4, cut(name, left - 20), "strong")
        for k, cell in enumerate(cells):
            x = left + k * width
            shown_at = x + width / 2, y + ROW / 2 + 4
            kind, pointed = f"cell {cell.look}", cell.title or cell.text
            c.rect(x + 1, y + 1, width - 2, ROW - 2, kind, round_=3, title=pointed)
            c.text(*shown_at, cut(cell.text, width - 6), "small", anchor="middle", title=cell.title)
    bottom = top + len(rows) * ROW
    if broken is not None and rows:
        c.rect(left + broken * width - 1, top - 24, width + 2, len(rows) * ROW + 28, "red thick", round_=4)
    if legend:
        _legend(c, bottom + 22, {cell.look for cells in rows.values() for cell in cells})
    return c.svg(title)


def _legend(c: Canvas, y: float, looks: set[Look]) -> None:
    x = 14.0
    for look, words in WORDS.items():
        if look in looks:
            c.rect(x, y - 10, 16, 14, f"cell {look}", round_=3)
            c.text(x + 22, y + 1, words, "faint small")
            x += 22 + len(words) * CHARACTER + 18


def of_counterexample(example: Counterexample) -> str:
    """The slot history of a counterexample; of one without events on pools, the values that it changes."""
    title = f"{example.invariant} in machine {example.machine}: slot history"
    columns = ["start", *(f"{s.number}. {s.action}" for s in example.steps)]
    broken = len(example.steps) if example.loop is None else None
    if isinstance(example.header, ev.Header) and any(True for _ in slots_named(example.trace)):
        steps = [list(s.observed) for s in example.steps]
        return _pools(example.header, [[], *steps], columns, broken=broken, title=title)
    return _values(example, columns, broken=broken)


def of_events(
    header: ev.Header,
    before: Holding,
    events: Sequence[tuple[int, ev.Event]],
    slots: Sequence[Slot],
    *,
    broken: int | None,
    title: str,
) -> str:
    """The history of ``slots`` from the state ``before`` on, through numbered events."""
    columns = ["before", *(f"event {n}" for n, _ in events)]
    last = next((k + 1 for k, (n, _) in enumerate(events) if n == broken), None)
    return _pools(
        header, [[], *([e] for _, e in events)], columns, broken=last, title=title, holding=before, only=slots
    )


def _pools(
    header: ev.Header,
    steps: Sequence[Sequence[ev.Event]],
    columns: Sequence[str],
    *,
    broken: int | None,
    title: str,
    holding: Holding | None = None,
    only: Sequence[Slot] = (),
) -> str:
    every = [(pool.name, s) for pool in header.pools for s in range(pool.slots)]
    if only or len(every) > MOST_ROWS:
        named = set(only) or {slot for step in steps for slot in slots_named(step)}
        every = [slot for slot in every if slot in named][:MOST_ROWS]
    state = holding or Holding(header)
    rows: dict[str, list[Cell]] = {f"{pool} {slot}": [] for pool, slot in every}
    for step in steps:
        for event in step:
            state(event)
        for pool, slot in every:
            holders = state.holders.get((pool, slot), [])
            text = holders[0] if len(holders) == 1 else f"{len(holders)} holders" if holders else ""
            if not text and state.look((pool, slot)) == "moving":
                text = "nobody"
            rows[f"{pool} {slot}"].append(Cell(state.look((pool, slot)), text, state.described((pool, slot))))
    used = {name: cells for name, cells in rows.items() if any(c.look not in ("free", "null") for c in cells)}
    return grid(used or rows, columns, broken=broken, title=title)


def _values(example: Counterexample, columns: Sequence[str], *, broken: int | None) -> str:
    changed = [c.name for s in example.steps for c in s.changes]
    # first the values that make the condition false, then the others as far as there is room
    changing = dict.fromkeys((*(name for name in example.values if name in changed), *changed))
    values = dict(example.start)
    rows: dict[str, list[Cell]] = {name: [Cell("free", shown(values.get(name, "")))] for name in changing}
    for step in example.steps:
        now = {c.name: c.after for c in step.changes}
        for name, cells in rows.items():
            title = f"{name} after {call(step.action, step.arguments)}"
            before = Cell("free", cells[-1].text, title)
            cells.append(Cell("held", shown(now[name]), title) if name in now else before)
    kept = dict(list(rows.items())[:MOST_VALUES])
    title = f"{example.invariant} in machine {example.machine}: values"
    return grid(kept, columns, broken=broken, legend=False, title=title)
