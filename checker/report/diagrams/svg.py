"""A small SVG renderer: shapes and text for light, dark and print, with nothing loaded from outside."""

from __future__ import annotations

from html import escape

CHARACTER = 7.3
"""Width of a character of the pictures' text, in pixels; the font has characters of one width."""
LINE = 17
"""Height of a line of text."""

PALETTE = {
    # name: (light, dark)
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#1b1f24", "#e4e8ee"),
    "faint": ("#65707d", "#9aa5b3"),
    "rule": ("#c9d1da", "#3a434f"),
    "band": ("#f3f6f9", "#1c2129"),
    "blue": ("#0b62c4", "#6db3ff"),
    "red": ("#c62828", "#ff7b72"),
    "redpaper": ("#fdeaea", "#3a1d1f"),
    "green": ("#1f7a3a", "#6fdd8b"),
    "amber": ("#a15c00", "#f0b429"),
    "free": ("#eef1f4", "#222831"),
    "held": ("#a9cdf4", "#245a94"),
    "cached": ("#bfe6c8", "#255f38"),
    "both": ("#c9bdf0", "#54439b"),
    "moving": ("#f6d38b", "#8a5f10"),
    "null": ("#d3d6da", "#4a4f57"),
}


def palette() -> str:
    """The colours as CSS variables: light, dark where the reader prefers it, light again on paper."""
    light = ";".join(f"--{name}:{a}" for name, (a, _) in PALETTE.items())
    dark = ";".join(f"--{name}:{b}" for name, (_, b) in PALETTE.items())
    return f".kv{{{light}}}@media (prefers-color-scheme:dark){{.kv{{{dark}}}}}@media print{{.kv{{{light}}}}}"


FONT = "12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_FILLS = ("free", "held", "cached", "both", "moving", "null", "paper", "band")
_STROKES = {"rule": "rule", "ink": "ink", "blue": "blue", "red": "red", "grey": "faint", "amber": "amber"}
STYLE = "".join(
    (
        f".kv text{{font:{FONT};fill:var(--ink)}}",
        ".kv .faint{fill:var(--faint)}.kv .bad{fill:var(--red)}.kv .good{fill:var(--green)}",
        ".kv .strong{font-weight:700}.kv .small{font-size:11px}",
        ".kv .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}",
        *(f".kv .{name}{{fill:var(--{name})}}" for name in _FILLS),
        *(f".kv .{name}{{stroke:var(--{colour});fill:none}}" for name, colour in _STROKES.items()),
        *(f".kv .tip-{name}{{fill:var(--{colour})}}" for name, colour in _STROKES.items()),
        ".kv .dotted{stroke-dasharray:2 4}.kv .dashed{stroke-dasharray:6 4}.kv .thick{stroke-width:2.4}",
        ".kv .box{stroke:var(--rule);fill:var(--band)}.kv .cell{stroke:var(--rule)}",
        ".kv .boxred{stroke:var(--red);fill:var(--redpaper);stroke-width:2}",
        ".kv .barbase{fill:var(--faint)}.kv .barchange{fill:var(--blue)}",
    )
)
"""What the classes of the shapes look like."""


class Canvas:
    """Collects shapes; :meth:`svg` gives the picture as text. Coordinates are pixels from the upper left."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        *,
        round_: float = 0,
        title: str = "",
    ) -> None:
        """A rectangle of a class of STYLE; ``title`` shows when it is pointed at."""
        self._reach(x + width, y + height)
        rx = f' rx="{_n(round_)}"' if round_ else ""
        inside = f"<title>{escape(title)}</title>" if title else ""
        at = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self.parts.append(f'<rect {at}{rx} class="{kind}"' + (f">{inside}</rect>" if inside else "/>"))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> None:
        """A straight line."""
        self._reach(max(x1, x2), max(y1, y2))
        at = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self.parts.append(f'<line {at} class="{kind}"/>')

    def text(
        self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", title: str = ""
    ) -> None:
        """Text with its baseline at ``y``."""
        size = len(text) * CHARACTER
        self._reach(x + (size if anchor == "start" else size / 2 if anchor == "middle" else 0), y + 4)
        cls = f' class="{kind}"' if kind else ""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        inside = f"<title>{escape(title)}</title>" if title and title != text else ""
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{cls}{where}>{inside}{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = "ink", extra: str = "") -> None:
        """A straight line with a tip at its end."""
        self.line(x1, y1, x2, y2, f"{colour} {extra}".strip())
        self._tip(x1, y1, x2, y2, colour)

    def curve(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "", *, bend: float = 0
    ) -> None:
        """A curve that leaves and arrives upright, with a tip at its end; ``bend`` moves its middle aside."""
        self._reach(max(x1, x2), max(y1, y2))
        middle = (y1 + y2) / 2
        a, b = (x1 + bend, middle), (x2 + bend, middle)
        path = f"M{_n(x1)} {_n(y1)}C{_n(a[0])} {_n(a[1])} {_n(b[0])} {_n(b[1])} {_n(x2)} {_n(y2)}"
        self.parts.append(f'<path d="{path}" class="{f"{colour} {extra}".strip()}"/>')
        self._tip(b[0], b[1], x2, y2, colour)

    def _tip(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 0.01)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        points = [
            (x2, y2),
            (x2 - 8 * ux - 4 * uy, y2 - 8 * uy + 4 * ux),
            (x2 - 8 * ux + 4 * uy, y2 - 8 * uy - 4 * ux),
        ]
        at = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polygon points="{at}" class="tip-{colour}"/>')

    def svg(self, title: str, *, margin: float = 14) -> str:
        """The picture, complete in itself."""
        width, height = self.width + margin, self.height + margin
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" class="kv" role="img" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}">'
            f"<title>{escape(title)}</title>"
            f"<style>{picture_style()}</style>"
            f'<rect width="100%" height="100%" class="paper"/>{"".join(self.parts)}</svg>'
        )


def picture_style() -> str:
    """The style sheet that every picture brings along."""
    return f"{palette()}{STYLE}"


def cut(text: str, width: float) -> str:
    """``text``, cut so that it is no wider than ``width`` pixels."""
    most = max(int(width / CHARACTER), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _n(x: float) -> str:
    return f"{x:.1f}".rstrip("0").rstrip(".")
