"""ARCHITECTURE.md names no file that does not exist, and docs/files.md has a line for each source file."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TOPS = ("spec/", "reference/", "checker/", "tests/", "bench/", "docs/", "ci/", "kvfence/")


def test_every_source_file_has_its_line() -> None:
    generator = ROOT / "docs" / "generate_file_list.py"
    printed = subprocess.run([sys.executable, generator], capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    assert printed == page, "run: .venv/bin/python docs/generate_file_list.py > docs/files.md"


def test_every_file_has_a_description() -> None:
    lines = re.findall(r"^\* `[^`]+`: (.*)$", (ROOT / "docs" / "files.md").read_text(), re.MULTILINE)
    assert not [line for line in lines if len(line) < 12]


def test_the_page_names_no_file_that_does_not_exist() -> None:
    named = {name for name in re.findall(r"`([\w./-]+)`", PAGE) if name.startswith(TOPS)}
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
