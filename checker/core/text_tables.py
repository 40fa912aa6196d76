"""Tables and paragraphs in plain text that fit the width of the reader's terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from kvfence.spec.files.visible import visible, visible_line

NARROWEST = 20
WITHOUT_TERMINAL = 100


def terminal_width() -> int:
    """Columns of the terminal (or what COLUMNS says), at most 120; 100 when the output goes elsewhere."""
    return min(120, shutil.get_terminal_size((WITHOUT_TERMINAL, 24)).columns)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, right: frozenset[str] = frozenset()
) -> str:
    """A table with two blanks between columns.

    The last column is wrapped to fit into ``width``; the columns named in ``right`` are set flush right.
    """
    headers = [visible_line(header) for header in headers]
    rows = [[*map(visible_line, row[:-1]), visible(row[-1])] for row in rows]
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    before_last = sum(widths[:-1]) + 2 * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(NARROWEST, width - before_last))

    def line(cells: Sequence[str]) -> str:
        last = textwrap.wrap(cells[-1], widths[-1], break_long_words=False) or [""]
        first = [
            cell.rjust(size) if header in right else cell.ljust(size)
            for cell, size, header in zip([*cells[:-1], last[0]], widths, headers, strict=True)
        ]
        below = [" " * before_last + rest for rest in last[1:]]
        return "\n".join(part.rstrip() for part in ("  ".join(first), *below))

    return "\n".join(line(cells) for cells in (headers, *rows))


def paragraph(text: str, *, width: int, indent: str = "", hanging: str | None = None) -> str:
    """``text`` wrapped to ``width``; lines after the first start with ``hanging`` (default: ``indent``)."""
    return textwrap.fill(
        " ".join(visible(text).split()),
        width=max(NARROWEST, width),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def item(text: str, width: int, indent: int = 0, hanging: int | None = None) -> str:
    """A paragraph whose lines after the first are indented by ``hanging``, four more if it is not given."""
    after = indent + 4 if hanging is None else hanging
    return paragraph(text, width=width, indent=" " * indent, hanging=" " * after)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of sorts as a report prints them: ``Block 2, Request 1``."""
    return ", ".join(f"{sort} {size}" for sort, size in sizes.items())
