"""Names that others chose, as they may be shown: what could command a terminal becomes an escape.

Escape sequences move the cursor and rewrite what was printed, and bidirectional overrides show a line in
another order than it has.
"""

from __future__ import annotations

import re
from typing import Final

_COMMANDING: Final = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 without tab and line feed, DEL, C1
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # marks, embeddings, overrides and isolates
    "\\u2028\\u2029\\ud800-\\udfff"  # separators of lines and paragraphs, surrogates without their other half
)
_IN_LINES: Final = re.compile(f"[{_COMMANDING}]")
_IN_A_LINE: Final = re.compile(f"[{_COMMANDING}\\t\\n]")
LONGEST_VALUE: Final = 1000  # characters of a name or a number in a report for people
_NAMED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def visible(text: str) -> str:
    """``text`` of any number of lines, with what could command a terminal as escapes: ``\\x1b``, ``\\u202e``.

    Bytes of a file name that are no UTF-8 become ``\\xff`` and the like.
    """
    return _IN_LINES.sub(_escape, text)


def visible_line(text: str) -> str:
    """As :func:`visible`, for a name that has to stay within its line."""
    return _IN_A_LINE.sub(_escape, text)


def json_visible(text: str) -> str:
    """JSON with the same value as the JSON ``text``, without characters that could command a terminal."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] in _NAMED:
        return _NAMED[found[0]]
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte of a file name that is no UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shortened(text: str, most: int = LONGEST_VALUE) -> str:
    """``text``, or its beginning, its end and its length where it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}[... {len(text):,} characters ...]{text[-most // 4 :]}"
