"""The answers to the questions of docs/maintainer-questions.md are where the page says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "maintainer-questions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+\?|.+ Where\?) \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)


def test_there_are_twenty() -> None:
    assert len(ROWS) == 20


@pytest.mark.parametrize(("file", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_file_holds_the_answer(file: str, text: str) -> None:
    assert text in (ROOT / file).read_text(encoding="utf-8")
