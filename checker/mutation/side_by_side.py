"""Runs a function on many items in a few processes that share what the parent has in memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_work: list[Callable[[int], Any]] = []  # of the parent when it forks; machines cannot be sent


def side_by_side(
    work: Callable[[Item], Found], items: Sequence[Item], workers: int | None = None
) -> Iterator[tuple[Item, Found]]:
    """Each item with what ``work`` answers, in order; one process for each core where nothing is said.

    Answers are sent between processes; items are not. Where processes cannot be forked, and for one worker,
    everything happens here. Leaving the iteration, by Ctrl-C too, ends the processes.
    """
    wanted = min(workers if workers is not None else cores(), len(items))
    if wanted < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from ((item, work(item)) for item in items)
        return
    _work.append(lambda k: work(items[k]))
    try:
        with multiprocessing.get_context("fork").Pool(wanted, leave_ctrl_c_to_the_parent) as pool:
            for k, found in enumerate(pool.imap(_do, range(len(items)))):
                yield items[k], found
    finally:
        _work.pop()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_ctrl_c_to_the_parent() -> None:
    """In a process of its own: whoever started it ends it, and keeps what was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _do(k: int) -> Any:
    return _work[-1](k)
