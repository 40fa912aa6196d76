"""The benchmark machine restated for other model checkers, and how they are run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """What a model checker found and how long its search took; compiling its program is not counted."""

    states: int
    transitions: int
    depth: int | None
    seconds: float


class Unusable(Exception):  # noqa: N818 (a reason to leave a peer out)
    """A peer that is not there or does not do what is wanted; the text says why."""


def output(command: list[str], folder: Path) -> str:
    """What a command prints. Unusable when it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unusable(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
