"""`kvfence new`: a folder with a small specification, its tests, and a workflow that reviews changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from kvfence.checker.cli.shared.options import with_help
from kvfence.checker.core.terminal_text import print_out
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.outputs import write_text

SKELETON: Final = Path(__file__).parents[1] / "skeleton"
FILES: Final = {
    "two_tier.py.txt": "two_tier.py",
    "test_two_tier.py.txt": "test_two_tier.py",
    "README.md": "README.md",
    "workflow.yml": ".github/workflows/kvfence.yml",
}
"""Where each file of the skeleton goes."""


@with_help({"folder": "The folder to write to; made if it is missing."})
def new(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> int:
    """Start your own specification: a small one with its tests, and a workflow that reviews changes."""
    places = {source: folder / place for source, place in FILES.items()}
    there = [str(place) for place in places.values() if os.path.lexists(place)]
    if there:
        raise CannotRun(f"{', '.join(there)} already there: choose another folder; nothing was written")
    written: list[Path] = []
    try:
        for source, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, (SKELETON / source).read_text(encoding="utf-8"))
            written.append(place)
    except BaseException as error:
        for place in written:
            place.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotRun(f"cannot write to {folder}: {error.strerror or error}") from error
        raise
    for place in written:
        print_out(f"wrote {place}")
    print_out(f"\nNext: cd {folder} && kvfence verify --machine two_tier.py:build")
    return 0
