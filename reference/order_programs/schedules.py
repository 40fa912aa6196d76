"""Schedules: in which order a device does what an order program started.

Each runs a program to its end and compares what was read, and what memory holds at the end, with the order in
which the program was written: every operation over before the next call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvfence.reference.order_programs.contents import Content, content
from kvfence.reference.order_programs.program import Program, ProgramError, State
from kvfence.spec import order as od
from kvfence.spec.order_steps import Step, step_named, steps_of

Choice: TypeAlias = Callable[[State, list[Step]], Step]
"""Picks the next of the enabled steps."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A range that held something else than in the order in which the program was written.

    ``step`` read it (None: memory at the end); ``place`` counts its ranges. Contents are lists of length,
    value, and first byte of the value.
    """

    step: Step | None
    place: int
    expected: Content
    found: Content


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a program."""

    steps: tuple[Step, ...]
    """The schedule; :func:`witness` runs it again."""
    trace: tuple[od.OrderEvent, ...]
    """The calls in their order, as an order trace."""
    mismatches: tuple[Mismatch, ...]
    stuck: bool
    """Whether some thread waits for ever."""

    @property
    def corrupt(self) -> bool:
        """Whether something was read that should not have been, or left in memory."""
        return bool(self.mismatches)

    @property
    def names(self) -> list[str]:
        """The schedule as names of steps."""
        return [str(step) for step in self.steps]


def _finish(state: State, steps: Sequence[Step], expected: State | None) -> Run:
    mismatches = () if expected is None else tuple(_mismatches(state, expected))
    return Run(tuple(steps), tuple(state.trace), mismatches, stuck=not state.over)


def _mismatches(state: State, expected: State) -> Iterator[Mismatch]:
    for step, contents in state.seen.items():
        for place, (found, right) in enumerate(zip(contents, expected.seen.get(step, contents), strict=True)):
            if found != right:
                yield Mismatch(step, place, right, found)
    if not (state.over and expected.over):
        return
    for place, region in enumerate(state.program.regions.values()):
        span = region.at, region.at + region.bytes
        found, right = content(state.memory, *span), content(expected.memory, *span)
        if found != right:
            yield Mismatch(None, place, right, found)


def _execute(program: Program, choose: Choice) -> tuple[State, list[Step]]:
    state, steps = State(program), []
    while enabled := state.enabled():
        step = choose(state, enabled)
        state.take(step)
        steps.append(step)
    return state, steps


def _first_in_order(_: State, enabled: list[Step]) -> Step:
    return next((step for step in enabled if step.kind != "call"), enabled[0])


def _as_written(program: Program) -> tuple[State, list[Step]]:
    return _execute(program, _first_in_order)


def in_order(program: Program) -> Run:
    """Everything is over before the next call; threads go on as far as they can, the first one first."""
    state, steps = _as_written(program)
    return _finish(state, steps, None)


def seeded(program: Program, seed: int) -> Run:
    """Each next step is drawn from those that are possible."""
    draw = random.Random(seed)
    state, steps = _execute(program, lambda _, enabled: draw.choice(enabled))
    return _finish(state, steps, _as_written(program)[0])


def adversarial(program: Program, seed: int = 0) -> Run:
    """Prefers orders that expose a conflict.

    A step that conflicts with one that should have come before it, and did not yet, is taken at once. Else
    threads call as far ahead as they can; the device comes last, and first with steps that nothing later
    conflicts with. ``seed`` decides between equals, and which thread is ahead.
    """
    draw = random.Random(seed)
    expected, order = _as_written(program)
    place = {step: number for number, step in enumerate(order)}
    ahead = {thread: draw.random() for thread in program.calls}
    conflicts = {step: [other for other in order if program.dependent(step, other)] for step in order}
    taken: set[Step] = set()

    def urgency(step: Step) -> tuple[int, float]:
        late = len(order)
        mine = place.get(step, late)
        left = [other for other in conflicts.get(step, ()) if other not in taken and other[:2] != step[:2]]
        overtaken = any(place[other] < mine for other in left if _touches(program, step, other))
        if overtaken:
            return (0, draw.random())
        if step.kind == "call":
            return (1, ahead[step.thread])
        victim = any(place[other] > mine for other in left if _touches(program, step, other))
        return (3 if victim else 2, draw.random())

    def choose(_: State, enabled: list[Step]) -> Step:
        step = min(enabled, key=urgency)
        taken.add(step)
        return step

    state, steps = _execute(program, choose)
    return _finish(state, steps, expected)


def _touches(program: Program, one: Step, other: Step) -> bool:
    """Whether two steps conflict in memory, and not only in what they start."""

    def memory(step: Step) -> tuple[set[object], set[object]]:
        looks, changes = program.footprint(step)
        return {at for at in looks if isinstance(at, int)}, {at for at in changes if isinstance(at, int)}

    (looks, changes), (looks_too, changes_too) = memory(one), memory(other)
    return bool(changes & (looks_too | changes_too) or looks & changes_too)


def hunt(program: Program, tries: int = 16) -> Run:
    """The first corrupt run of several adversarial ones, or the last of them."""
    for seed in range(tries):
        run = adversarial(program, seed)
        if run.corrupt:
            break
    return run


def witness(program: Program, steps: Iterable[Step | str]) -> Run:
    """Take ``steps`` in this order, then go on in order. Raises ProgramError where a step is not possible."""
    state = State(program)
    taken: list[Step] = []
    for item in steps:
        try:
            step = step_named(item) if isinstance(item, str) else item
        except ValueError as error:
            raise ProgramError(str(error)) from error
        calls = program.calls.get(step.thread, ())
        known = step.call < len(calls) and (
            step.kind == "call" or step in steps_of(calls[step.call], step.thread, step.call)
        )
        if not known:
            raise ProgramError(f"step {step} is not one of the program's")
        try:
            state.take(step)
        except ProgramError as error:
            raise ProgramError(f"after {len(taken)} steps: {error}") from error
        taken.append(step)
    while enabled := state.enabled():
        step = _first_in_order(state, enabled)
        state.take(step)
        taken.append(step)
    return _finish(state, taken, _as_written(program)[0])


@dataclass(slots=True)
class Search:
    """All executions of a program, up to the order of steps that do not depend on each other.

    Iterate over it once. ``complete``: whether the search came to its end with all executions.
    """

    program: Program
    most: int = 20_000
    """Executions after which it gives up."""
    runs: int = 0
    complete: bool = False

    def __iter__(self) -> Iterator[Run]:
        """Depth first. Sleep sets leave out orders that were seen; a step that nothing can conflict with any
        more is taken alone.
        """
        program, expected = self.program, _as_written(self.program)[0]
        all_steps = [
            step
            for thread, calls in program.calls.items()
            for number, call in enumerate(calls)
            for step in (Step(thread, number, "call"), *steps_of(call, thread, number))
        ]
        stack: list[tuple[State, tuple[Step, ...], frozenset[Step]]] = [(State(program), (), frozenset())]
        while stack:
            state, path, sleep = stack.pop()
            enabled = state.enabled()
            if not enabled:
                self.runs += 1
                yield _finish(state, path, expected)
                if self.runs >= self.most:
                    return
                continue
            done = set(path)
            left = [step for step in all_steps if step not in done]
            alone = next((step for step in enabled if _is_alone(program, step, left)), None)
            choices = enabled if alone is None else [alone]
            asleep = set(sleep)
            # Later choices are pushed first, so that the first one is looked at first.
            nexts = []
            for step in choices:
                if step in asleep:
                    continue
                after = state.copy()
                after.take(step)
                still = frozenset(other for other in asleep if not program.dependent(step, other))
                nexts.append((after, (*path, step), still))
                asleep.add(step)
            stack.extend(reversed(nexts))
        self.complete = True


def exhaustive(program: Program, most: int = 20_000) -> Search:
    """Every execution of a small program: ``for run in exhaustive(program)``."""
    return Search(program, most)


def _is_alone(program: Program, step: Step, left: list[Step]) -> bool:
    """Whether no step that is left, and could come before ``step``, can conflict with it."""
    return not any(
        program.dependent(step, other)
        for other in left
        if other != step and not _follows(program, step, other)
    )


def _follows(program: Program, step: Step, other: Step) -> bool:
    """Whether ``other`` cannot be taken before ``step``: the order of calls or of a stream is against it."""
    if step.thread != other.thread:
        return False
    if step.kind == "call":
        return (other.call, other.kind != "call") > (step.call, False)
    if step.call == other.call:
        return step.kind == "read" and other.kind == "write" and step.part == other.part
    one, two = program.call(step), program.call(other)
    if other.kind == "call" or not (
        isinstance(one, od.Kernel | od.Copy) and isinstance(two, od.Kernel | od.Copy)
    ):
        return False
    loose = other.kind == "read" and isinstance(two, od.Copy) and two.order != "stream"
    return one.stream == two.stream and step.call < other.call and not loose
