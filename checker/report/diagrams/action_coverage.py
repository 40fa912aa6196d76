"""Action coverage as a picture: how often each action was taken, on one side or on both."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvfence.checker.report.diagrams.svg import CHARACTER, Canvas

ROW = 30
BARS = 420


def coverage(base: Mapping[str, int], change: Mapping[str, int] | None = None, *, title: str) -> str:
    """Bars on a logarithmic scale; an action that is never taken says so in red."""
    names = list(dict.fromkeys((*base, *(change or {}))))
    c = Canvas()
    left = max((len(n) for n in names), default=0) * CHARACTER + 30
    most = max([1, *base.values(), *(change or {}).values()])
    scale = BARS / math.log10(most + 1)
    c.text(14, 18, title, "strong")
    for k, name in enumerate(names):
        y = 34 + k * ROW
        c.text(14, y + 14, name)
        sides = [(base.get(name), "barbase")]
        sides += [(change.get(name), "barchange")] if change is not None else []
        height = 18 / len(sides)
        for n, (times, kind) in enumerate(sides):
            top = y + 2 + n * height
            width = 0.0 if not times else max(math.log10(times + 1) * scale, 2)
            if width:
                c.rect(left, top, width, height - 1, kind, title=f"{name}: taken {times:,} times")
        counts = " / ".join("no such action" if t is None else f"{t:,}" if t else "never" for t, _ in sides)
        c.text(left + BARS + 12, y + 14, counts, "bad strong small" if "never" in counts else "faint small")
    if change is not None:
        y = 34 + len(names) * ROW + 16
        for x, kind, text in ((14, "barbase", "base"), (90, "barchange", "change")):
            c.rect(x, y - 9, 14, 10, kind)
            c.text(x + 20, y, text, "faint small")
    return c.svg(title)
