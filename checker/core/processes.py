"""Runs a function on many items in a few processes that share what the parent has in memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_work: list[Callable[[int], Any]] = []  # of the parent when it forks; machines cannot be sent
_LOOK_AFTER: Final = 0.5
"""Seconds between two looks of a process at whether its parent is still there."""


class ProcessDied(Exception):  # noqa: N818 - what happened
    """A process of kvfence's own was killed, by the system for want of memory perhaps."""

    def __init__(self) -> None:
        super().__init__("a process of kvfence was killed; is there too little memory?")


def side_by_side(
    work: Callable[[Item], Found], items: Sequence[Item], workers: int | None = None
) -> Iterator[tuple[Item, Found]]:
    """Each item with what ``work`` answers, in order; one process for each core where nothing is said.

    Answers are sent between processes; items are not. Where processes cannot be forked, and for one worker,
    everything happens here. Leaving the iteration, by Ctrl-C too, ends the processes. ProcessDied when one
    of them was killed.
    """
    wanted = min(workers if workers is not None else cores(), len(items))
    if wanted < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from ((item, work(item)) for item in items)
        return
    _work.append(lambda k: work(items[k]))
    pool = processes(wanted)
    try:
        for k, found in enumerate(pool.map(_do, range(len(items)))):
            yield items[k], found
    except BrokenProcessPool:
        raise ProcessDied from None
    finally:
        _work.pop()
        end(pool)


def processes(count: int) -> ProcessPoolExecutor:
    """Processes, forked when they get their first work; that ends with BrokenProcessPool if one dies."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin, (os.getpid(),))


def end(pool: ProcessPoolExecutor) -> None:
    """Ends the processes of a pool, whatever they do."""
    theirs = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in theirs:
        process.kill()
    for process in theirs:
        process.join()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(parent: int) -> None:
    """Begins a process: its parent handles Ctrl-C for it, and it does not outlive the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_AFTER)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(k: int) -> Any:
    return _work[-1](k)
