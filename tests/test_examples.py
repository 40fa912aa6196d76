"""The examples run, each as a program of its own, and are short."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples_and_each_is_short() -> None:
    assert len(EXAMPLES) >= 4
    for path in EXAMPLES:
        code = [line for line in path.read_text().splitlines() if line.strip()]
        assert len(code) < 60, path.name
