"""Where audits keep what they fetched: a folder of the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfence.checker.core.user_cache import NotOurs, check_tree, made
from kvfence.spec.errors import CannotRun


def cache_folder(name: str) -> Path:
    """The folder ``kvfence/name`` of the user's cache, made if it is missing.

    CannotRun if it cannot be, or if other users may change what is in it: audits execute that.
    """
    try:
        return made(name)
    except NotOurs as why:
        raise CannotRun(f"{why}: set XDG_CACHE_HOME to a folder of your own") from None


def check_ours(folder: Path) -> None:
    """Looks at a folder of the cache before it is executed. CannotRun if others may change what is in it."""
    try:
        check_tree(folder)
    except NotOurs as why:
        advice = f"delete {folder} to have it made anew"
        raise CannotRun(f"{why}, and an audit would execute it: {advice}") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out while something is fetched into ``path``; waits for them."""
    import fcntl

    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
