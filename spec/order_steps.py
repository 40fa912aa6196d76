"""Schedules: in which order the steps of an order program are taken, as a list of names.

A call of a thread is one step, and so is each thing that a device does on its own. ``t0.3`` is call 3 of
thread 0 (from 0); ``t0.3:run`` is the kernel that it launched; ``t0.3:read1`` and ``t0.3:write1`` are the
read and the write of part 1 of the copy that it launched. Records, waits and the ends of synchronise calls
happen as soon as they can and have no name. The reads of a copy in order ``call`` come after its call, like
those in order ``any``; the thread's next call comes after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from kvfence.spec import order as od

Part: TypeAlias = Literal["call", "run", "read", "write"]

_HALVES: Final[tuple[Part, Part]] = ("read", "write")
_NAME: Final = re.compile(r"t(\d+)\.(\d+)(?::(?:(run)|(read|write)(\d+)))?")


class Step(NamedTuple):
    """One step of a schedule: a call, or what the device does for it (``part`` counts within a copy)."""

    thread: int
    call: int
    kind: Part
    part: int = 0

    def __str__(self) -> str:
        call = f"t{self.thread}.{self.call}"
        if self.kind == "call":
            return call
        return f"{call}:run" if self.kind == "run" else f"{call}:{self.kind}{self.part}"


def step_named(name: str) -> Step:
    """The step that ``name`` is the name of. Raises ValueError."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no step: a step is t0.3, t0.3:run, t0.3:read1 or t0.3:write1")
    kind: Part = match[3] or match[4] or "call"  # type: ignore[assignment]
    return Step(int(match[1]), int(match[2]), kind, int(match[5] or 0))


def steps_of(call: od.OrderEvent, thread: int, number: int) -> list[Step]:
    """What a device does on its own for ``call``, which is call ``number`` of ``thread``."""
    if isinstance(call, od.Kernel):
        return [Step(thread, number, "run")]
    if isinstance(call, od.Copy):
        parts = range(len(call.src))
        return [Step(thread, number, kind, part) for kind in _HALVES for part in parts]
    return []


def calls_by_thread(events: Iterable[od.OrderEvent]) -> dict[int, list[od.OrderEvent]]:
    """The calls of each thread in their order, as a schedule counts them: declarations are no calls."""
    calls: dict[int, list[od.OrderEvent]] = {}
    for event in events:
        if not isinstance(event, od.Declare | od.Own):
            calls.setdefault(event.thread, []).append(event)
    return calls
