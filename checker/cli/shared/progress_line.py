"""Progress on stderr while a command works, and only when a person watches: stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvfence.spec.files.visible import visible_line

if TYPE_CHECKING:
    from kvfence.checker.engines.base import Progress

    MachineProgress = Callable[[str, Progress], None]


@contextmanager
def machine_progress() -> Iterator[MachineProgress | None]:
    """A line on the machine explored: states, frontier, depth, states/s; None without a terminal."""
    with _line() as write:
        yield write and (lambda machine, state: write(f"{visible_line(machine)}: {described(state)}"))


def described(state: Progress) -> str:
    """How far the work is, in a line."""
    rate = f"{state.states_per_second:,.0f} {state.unit}/s"
    if state.unit != "states":
        return f"{state.states:,} {state.unit}, {rate}"
    place = f"frontier {state.frontier:,}, depth {state.depth}"
    return f"{state.states:,} states, {place}, {rate}{room_left(state)}"


def room_left(state: Progress) -> str:
    """How full the table is, and when at this rate memory would be full; nothing where that is unknown."""
    if state.load is None or state.room is None:
        return ""
    text = f", table {state.load:.0%} full, room for {state.room:,} more"
    if state.states_per_second > 0:
        text += f" (about {state.room / state.states_per_second:,.0f} s at this rate)"
    return text


@contextmanager
def count_progress(unit: str) -> Iterator[Callable[..., None] | None]:
    """Shows how many ``unit`` are done, and of how many where that is given; None without a terminal."""
    with _line() as write:

        def show(done: int, total: int = 0) -> None:
            if write is not None:
                write(f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}")

        yield write and show


@contextmanager
def _line() -> Iterator[Callable[[str], None] | None]:
    """Writes the line anew each time; None where stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text)
