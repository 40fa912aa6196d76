"""Where audits keep what they fetched: a folder of the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfence.checker.errors import CannotRun


def cache_folder(name: str) -> Path:
    """The folder ``kvfence/name`` of the user's cache, made if it is missing. CannotRun if it cannot be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = base / "kvfence" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(
            f"{folder}: cannot be made ({error.strerror}): set XDG_CACHE_HOME to a folder that you may write"
        ) from error
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out while something is fetched into ``path``; waits for them."""
    import fcntl

    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
