"""`kvfence new`: a folder with a small specification to begin with, its tests, and a workflow for reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kvfence.checker.errors import CannotRun

SKELETON: Final = Path(__file__).parents[1] / "skeleton"
FILES: Final = {
    "two_tier.py.txt": "two_tier.py",
    "test_two_tier.py.txt": "test_two_tier.py",
    "README.md": "README.md",
    "workflow.yml": ".github/workflows/kvfence.yml",
}
"""Where each file of the skeleton goes."""


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")],
) -> int:
    """Begin a specification of your own: a small one with its tests, and a workflow that reviews changes."""
    places = {source: folder / place for source, place in FILES.items()}
    there = [str(place) for place in places.values() if place.exists()]
    if there:
        raise CannotRun(f"{', '.join(there)} already there: give a folder without, nothing was written")
    for source, place in places.items():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((SKELETON / source).read_bytes())
        except OSError as error:
            raise CannotRun(f"cannot write {place}: {error.strerror or error}") from error
        typer.echo(f"wrote {place}")
    typer.echo(f"\nNext: cd {folder} && kvfence verify --machine two_tier.py:build")
    return 0
