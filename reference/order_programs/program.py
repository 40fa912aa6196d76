"""Order programs: the calls of host threads, executed with real effects on small streams and memories.

A program is made of the same events as an order trace. A device does what the calls start in any order that
the rules of :mod:`kvfence.spec.order` allow; :mod:`kvfence.reference.order_programs.schedules` picks one.
Kernels write what depends on what they read, copies move contents, so that a wrong order shows as a wrong
content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from kvfence.reference.blocks.errors import OffloadError
from kvfence.reference.order_programs.contents import Content, Memory, content, value_of, written
from kvfence.spec import order as od
from kvfence.spec.order_steps import Step, calls_by_thread

OLDEST: Final = -1
"""Item of a :class:`~kvfence.spec.order.Get` that takes whatever is first in the queue."""

Launch = od.Kernel | od.Copy | od.Record | od.Wait
Operation = tuple[int, int]
"""Thread and number of the call that launched it."""
Footprint = tuple[frozenset[object], frozenset[object]]
"""What a step only looks at, and what it changes: pieces of memory, streams, events, queues."""


class ProgramError(OffloadError):
    """A program makes no sense, or a schedule does not fit it."""


class Program:
    """The calls of each thread over the streams and regions that ``header`` and the events declare."""

    def __init__(self, header: od.Header, events: Iterable[od.OrderEvent]) -> None:
        events = list(events)
        declared: list[od.Header | od.Declare] = [header]
        declared += [event for event in events if isinstance(event, od.Declare)]
        self.header = header
        self.streams = {stream.id: stream for some in declared for stream in some.streams}
        self.regions = {region.id: region for some in declared for region in some.regions}
        self.calls: dict[int, tuple[od.OrderEvent, ...]] = {
            thread: tuple(calls) for thread, calls in calls_by_thread(events).items()
        }
        started = (*header.threads, *(event.child for event in events if isinstance(event, od.Spawn)))
        for thread in started:
            self.calls.setdefault(thread, ())
        self._footprints: dict[Step, Footprint] = {}
        self._check()

    def _check(self) -> None:
        spawned = [call.child for call in self._all() if isinstance(call, od.Spawn)]
        for thread in self.calls:
            if thread not in self.header.threads and spawned.count(thread) != 1:
                raise ProgramError(f"thread {thread} is not started once: name it in the header, or spawn it")
        for call in self._all():
            if isinstance(call, Launch | od.SyncStream) and call.stream not in self.streams:
                raise ProgramError(f"stream {call.stream} is not declared")
            if isinstance(call, od.Copy) and [one[2] for one in call.src] != [one[2] for one in call.dst]:
                raise ProgramError("the sources and destinations of a copy differ in their bytes")
            if isinstance(call, od.Join) and call.child not in self.calls:
                raise ProgramError(f"thread {call.child} is waited for and never started")
            for region, offset, nbytes in _ranges(call):
                known = self.regions.get(region)
                if known is None or offset < 0 or nbytes < 1 or offset + nbytes > known.bytes:
                    raise ProgramError(f"the range {region, offset, nbytes} is in no declared region")

    def _all(self) -> Iterable[od.OrderEvent]:
        return (call for calls in self.calls.values() for call in calls)

    def call(self, step: Step | Operation) -> od.OrderEvent:
        """The call that a step belongs to."""
        return self.calls[step[0]][step[1]]

    def span(self, where: od.Range) -> tuple[int, int]:
        """First address of a range, and the one after its last."""
        start = self.regions[where[0]].at + where[1]
        return start, start + where[2]

    # What depends on what.

    @cached_property
    def _cuts(self) -> list[int]:
        """All addresses at which some access begins or ends."""
        return sorted({at for call in self._all() for where in _ranges(call) for at in self.span(where)})

    def _memory(self, ranges: Sequence[od.Range]) -> frozenset[object]:
        spans = [self.span(where) for where in ranges]
        return frozenset(cut for cut in self._cuts for start, end in spans if start <= cut < end)

    def footprint(self, step: Step) -> Footprint:
        """What ``step`` looks at and changes; steps that touch nothing in common may change places."""
        found = self._footprints.get(step)
        if found is None:
            found = self._footprints[step] = self._footprint(step)
        return found

    def _footprint(self, step: Step) -> Footprint:
        call = self.call(step)
        nothing: frozenset[object] = frozenset()
        match step.kind, call:
            case "run", od.Kernel():
                return self._memory(call.reads), self._memory(call.writes)
            case "read", od.Copy():
                return self._memory([call.src[step.part]]), nothing
            case "write", od.Copy():
                return nothing, self._memory([call.dst[step.part]])
            case "call", od.Host():
                return self._memory(call.reads), self._memory(call.writes)
            case "call", od.Release():
                return nothing, self._memory([self._whole(call.region)])
            case "call", od.Put() | od.Get():
                return nothing, frozenset({("queue", call.queue)})
            case "call", od.Kernel() | od.Copy() | od.Record() | od.Wait():
                looks, changes = self._launching(call.stream)
                if isinstance(call, od.Record):
                    changes |= {("event", call.event)}
                if isinstance(call, od.Wait):
                    looks |= {("event", call.event)}
                return looks, changes
            case "call", od.SyncEvent() | od.Query():
                return frozenset({("event", call.event)}), nothing
            case "call", od.SyncStream():
                return frozenset({("stream", call.stream)}), nothing
            case "call", od.SyncDevice():
                here = (stream.id for stream in self.streams.values() if stream.device == call.device)
                return frozenset(("stream", stream) for stream in here), nothing
        return nothing, nothing

    def _launching(self, stream: int) -> Footprint:
        return (
            frozenset(("stream", other) for other in self._ordered_with(stream)),
            frozenset({("stream", stream)}),
        )

    def _ordered_with(self, stream: int) -> list[int]:
        """The streams whose earlier operations come before what is launched on ``stream``, without itself."""
        mine = self.streams[stream]
        other_kind = {"legacy": "blocking", "blocking": "legacy"}.get(mine.kind)
        return [
            other.id
            for other in self.streams.values()
            if other.device == mine.device and other.kind == other_kind
        ]

    def _whole(self, region: int) -> od.Range:
        return (region, 0, self.regions[region].bytes)

    def dependent(self, one: Step, other: Step) -> bool:
        """Whether it can matter which of two steps comes first."""
        calls = (one.kind == "call") + (other.kind == "call")
        if one.thread == other.thread and (
            calls == 2 or (one.call == other.call and (calls or one.part == other.part))
        ):
            return True
        looks, changes = self.footprint(one)
        looks_too, changes_too = self.footprint(other)
        return not (
            changes.isdisjoint(changes_too)
            and changes.isdisjoint(looks_too)
            and looks.isdisjoint(changes_too)
        )


def _ranges(call: od.OrderEvent) -> Sequence[od.Range]:
    if isinstance(call, od.Kernel | od.Host):
        return [*call.reads, *call.writes]
    return [*call.src, *call.dst] if isinstance(call, od.Copy) else []


class State:
    """Where the execution of a program stands."""

    __slots__ = (
        "_after",
        "_events",
        "_pending",
        "_queues",
        "_read",
        "_started",
        "_streams",
        "_waits",
        "calls",
        "memory",
        "program",
        "seen",
        "trace",
    )

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory: Memory = ()
        self.calls = dict.fromkeys(program.calls, 0)
        """Calls made so far, by thread."""
        self.seen: dict[Step, tuple[Content, ...]] = {}
        """What the steps so far read."""
        self.trace: list[od.OrderEvent] = []
        """The calls so far, in their order."""
        self._started = set(program.header.threads)
        self._waits: dict[int, frozenset[Operation]] = {}
        """By thread: operations whose end it waits for."""
        self._streams: dict[int, tuple[Operation, ...]] = dict.fromkeys(program.streams, ())
        self._pending: dict[Operation, frozenset[Step]] = {}
        """Operations that are not over; for kernels and copies, the steps still to be taken."""
        self._after: dict[Operation, frozenset[Operation]] = {}
        """Operations that must be over before one starts, besides the earlier ones of its stream."""
        self._read: dict[tuple[Operation, int], Content] = {}
        """What copies have read and not yet written."""
        self._events: dict[int, Operation] = {}
        self._queues: dict[int, tuple[int, ...]] = {}

    def copy(self) -> State:
        """The same state, to go on from independently."""
        other = State.__new__(State)
        other.program, other.memory = self.program, self.memory
        other.calls, other.seen, other.trace = self.calls.copy(), self.seen.copy(), self.trace.copy()
        other._started, other._waits = self._started.copy(), self._waits.copy()
        other._streams, other._pending = self._streams.copy(), self._pending.copy()
        other._after, other._read = self._after.copy(), self._read.copy()
        other._events, other._queues = self._events.copy(), self._queues.copy()
        return other

    # What can happen.

    @property
    def over(self) -> bool:
        """Whether all calls were made and everything that they started is over."""
        return not self._pending and all(
            self.calls[thread] == len(calls) for thread, calls in self.program.calls.items()
        )

    def enabled(self) -> list[Step]:
        """The steps that may be taken now."""
        steps = [Step(thread, at, "call") for thread, at in self.calls.items() if self._may_call(thread, at)]
        for operation, left in self._pending.items():
            steps += [step for step in sorted(left) if self._may_run(operation, step)]
        return steps

    def _may_call(self, thread: int, at: int) -> bool:
        calls = self.program.calls[thread]
        if at == len(calls) or thread not in self._started or self._is_waiting(thread):
            return False
        call = calls[at]
        if isinstance(call, od.Get):
            queue = self._queues.get(call.queue, ())
            return bool(queue) and (call.item == OLDEST or call.item in queue)
        if isinstance(call, od.Join):
            child = call.child
            return self.calls[child] == len(self.program.calls[child]) and not self._is_waiting(child)
        return True

    def _is_waiting(self, thread: int) -> bool:
        return any(self._still_blocks(thread, operation) for operation in self._waits.get(thread, ()))

    def _still_blocks(self, thread: int, operation: Operation) -> bool:
        left = self._pending.get(operation)
        if left is None:
            return False
        # A call that its own copy keeps from returning waits for the reads only.
        mine = operation == (thread, self.calls[thread] - 1)
        return any(step.kind == "read" for step in left) if mine else True

    def _may_run(self, operation: Operation, step: Step) -> bool:
        call = self.program.call(operation)
        if step.kind == "read" and isinstance(call, od.Copy) and call.order != "stream":
            return True
        if step.kind == "write" and (operation, step.part) not in self._read:
            return False
        return self._may_start(operation, call)

    def _may_start(self, operation: Operation, call: od.OrderEvent) -> bool:
        assert isinstance(call, Launch)
        first = self._streams[call.stream][0] == operation
        return first and self._after[operation].isdisjoint(self._pending)

    # Taking steps.

    def take(self, step: Step) -> None:
        """Take an enabled step, and whatever happens by itself then. Raises ProgramError."""
        call = self.program.call(step)
        if step.kind == "call":
            if self.calls[step.thread] != step.call or not self._may_call(step.thread, step.call):
                raise ProgramError(f"step {step} cannot be taken here")
            self.calls[step.thread] += 1
            self._waits.pop(step.thread, None)
            self.trace.append(self._called(call, step))
        else:
            operation = step[:2]
            if step not in self._pending.get(operation, ()) or not self._may_run(operation, step):
                raise ProgramError(f"step {step} cannot be taken here")
            self._run(call, operation, step)
            left = self._pending[operation] - {step}
            self._pending[operation] = left
            if not left:
                self._end(operation, call)
        self._settle()

    def _called(self, call: od.OrderEvent, step: Step) -> od.OrderEvent:
        match call:
            case od.Host():
                self._access(step, call.reads, call.writes)
            case od.Release():
                whole = self.program._whole(call.region)
                self._access(step, (), (whole,))
            case od.Kernel() | od.Copy() | od.Record() | od.Wait():
                self._launch(call, step)
            case od.SyncEvent() | od.Query():
                if not isinstance(call, od.Query) or call.done:
                    record = self._events.get(call.event)
                    self._waits[step.thread] = frozenset() if record is None else frozenset({record})
            case od.SyncStream():
                self._waits[step.thread] = frozenset(self._streams[call.stream])
            case od.SyncDevice():
                self._waits[step.thread] = frozenset(
                    operation
                    for stream, operations in self._streams.items()
                    if self.program.streams[stream].device == call.device
                    for operation in operations
                )
            case od.Put():
                self._queues[call.queue] = (*self._queues.get(call.queue, ()), call.item)
            case od.Get():
                queue = self._queues[call.queue]
                at = 0 if call.item == OLDEST else queue.index(call.item)
                self._queues[call.queue] = queue[:at] + queue[at + 1 :]
                return od.Get(call.thread, call.queue, queue[at])
            case od.Spawn():
                self._started.add(call.child)
        return call

    def _launch(self, call: Launch, step: Step) -> None:
        operation = step[:2]
        self._streams[call.stream] += (operation,)
        after = {
            other for stream in self.program._ordered_with(call.stream) for other in self._streams[stream]
        }
        if isinstance(call, od.Wait) and call.event in self._events:
            after.add(self._events[call.event])
        if isinstance(call, od.Record):
            self._events[call.event] = operation
        self._after[operation] = frozenset(after)
        self._pending[operation] = frozenset(_device_steps(call, operation))
        if isinstance(call, od.Copy) and call.order == "call":
            self._waits[step.thread] = frozenset({operation})

    def _settle(self) -> None:
        """Records and waits that are due happen at once: that only lets more happen."""
        again = True
        while again:
            again = False
            for operations in list(self._streams.values()):
                if not operations or self._pending[operations[0]]:
                    continue
                call = self.program.call(operations[0])
                if self._may_start(operations[0], call):
                    self._end(operations[0], call)
                    again = True

    def _end(self, operation: Operation, call: od.OrderEvent) -> None:
        assert isinstance(call, Launch)
        del self._pending[operation], self._after[operation]
        self._streams[call.stream] = self._streams[call.stream][1:]

    def _run(self, call: od.OrderEvent, operation: Operation, step: Step) -> None:
        if isinstance(call, od.Kernel):
            self._access(step, call.reads, call.writes)
            return
        assert isinstance(call, od.Copy)
        if step.kind == "read":
            what = content(self.memory, *self.program.span(call.src[step.part]))
            self.seen[step] = (what,)
            self._read[operation, step.part] = what
        else:
            what = self._read.pop((operation, step.part))
            self.memory = written(self.memory, self.program.span(call.dst[step.part])[0], what)

    def _access(self, step: Step, reads: Sequence[od.Range], writes: Sequence[od.Range]) -> None:
        """Read, then write what depends on what was read."""
        seen = tuple(content(self.memory, *self.program.span(where)) for where in reads)
        if reads:
            self.seen[step] = seen
        for number, where in enumerate(writes):
            start, end = self.program.span(where)
            value = value_of(str(step), number, seen)
            self.memory = written(self.memory, start, ((end - start, value, 0),))


def _device_steps(call: Launch, operation: Operation) -> list[Step]:
    if isinstance(call, od.Kernel):
        return [Step(*operation, "run")]
    if isinstance(call, od.Copy):
        parts = range(len(call.src))
        return [
            *(Step(*operation, "read", part) for part in parts),
            *(Step(*operation, "write", part) for part in parts),
        ]
    return []
