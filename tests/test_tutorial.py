"""The tutorial's files and commands work as they are written, from an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("z3")

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def written(folder: Path, where: str, text: str) -> None:
    """Writes a file of the page, or puts a piece of one in front of a line."""
    name, _, line = where.partition(" before ")
    file = folder / name
    if line:
        whole = file.read_text()
        assert whole.count(line.strip('"')) == 1
        text = whole.replace(line.strip('"'), f"{text}{line.strip(chr(34))}")
    file.write_text(text)


def entered(folder: Path, session: str) -> None:
    """Enters a session's commands one after the other: each prints the lines under it, in this order."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = 0
    for part in session.split("$ ")[1:]:
        command, *shown = part.strip().splitlines()
        done = subprocess.run(
            ["bash", "-c", f"(exit {code}); {command}"],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        code = done.returncode
        rest = done.stdout + done.stderr
        for line in shown:
            assert line in rest, f"{command} does not print {line!r}, but:\n{done.stdout}\n{done.stderr}"
            rest = rest.partition(line)[2]


def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _, _ in blocks].count("console") >= 6
    for kind, where, text in blocks:
        if kind == "python":
            written(tmp_path, where, text)
        else:
            entered(tmp_path, text)


def test_its_specification_has_under_100_lines() -> None:
    files = [text for kind, where, text in BLOCK.findall(PAGE.read_text()) if where == "two_tier.py"]
    assert len(files) == 2
    assert all(len(text.splitlines()) < 100 for text in files)
