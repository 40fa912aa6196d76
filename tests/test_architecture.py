"""ARCHITECTURE.md names no file that does not exist, and the list of files describes each source file."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TOPS = ("spec/", "reference/", "checker/", "tests/", "bench/", "docs/", "ci/", "kvfence/")


def test_the_list_of_files_has_a_description_of_every_source_file() -> None:
    generator = ROOT / "docs" / "generate_file_list.py"
    printed = subprocess.run([sys.executable, generator], capture_output=True, text=True, check=True).stdout
    lines = dict(re.findall(r"^\* `([^`]+)`: (.*)$", printed, re.MULTILINE))
    assert not [f"{file}: {line}" for file, line in lines.items() if len(line) < 12]
    listed = {file for file in lines if file.endswith(".py")}
    assert not [
        p
        for part in ("spec", "reference", "checker")
        for p in (ROOT / part).rglob("*.py")
        if p.name != "__init__.py" and str(p.relative_to(ROOT)) not in listed
    ]


def test_the_page_names_no_file_that_does_not_exist() -> None:
    named = {name for name in re.findall(r"`([\w./-]+)`", PAGE) if name.startswith(TOPS)}
    assert len(named) > 40
    built = {"docs/files.md"}
    assert not [name for name in sorted(named - built) if not (ROOT / name).exists()]
