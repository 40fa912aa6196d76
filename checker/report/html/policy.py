"""Content security policies: a page of kvfence may use the styles and scripts in it, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'"


def page_policy(styles: Sequence[str], scripts: Sequence[str] = (), *more: str) -> str:
    """The policy of a page with these texts in ``style`` and ``script`` elements, and ``more`` directives."""
    parts = [_NOTHING, f"style-src {_hashes(styles)}"]
    if scripts:
        parts.append(f"script-src {_hashes(scripts)}")
    return "; ".join([*parts, *more])


def inline(page: str, element: str) -> list[str]:
    """The texts of a page's elements of that name. Only for a page that no one else writes into."""
    return re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)


def _hashes(texts: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(f"'sha256-{_digest(text)}'" for text in texts))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
