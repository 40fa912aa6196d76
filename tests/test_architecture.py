"""ARCHITECTURE.md has one line per file, and names no file that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTED = re.findall(r"^\* `([^`]+)`:", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_source_file_has_its_line() -> None:
    sources = {
        str(path.relative_to(ROOT))
        for part in ("spec", "reference", "checker", "bench")
        for path in (ROOT / part).rglob("*.py")
        if path.name != "__init__.py"
    }
    missing = sorted(sources - set(LISTED))
    assert not missing, "run: .venv/bin/python docs/generate_file_list.py"


def test_every_line_names_a_file_that_exists_once() -> None:
    assert [name for name in LISTED if not (ROOT / name).exists()] == []
    assert len(LISTED) == len(set(LISTED))
