"""Vector clocks of threads, streams, events and queue items: what comes before whatever happens next.

A *lane* is a chain of operations: the calls of a thread, or what one thread launched on one stream.
Operations are named by their lane and by the number of their event, so that numbers grow along
each lane. A clock says for each lane up to which number its operations come before; operations of the lane's
future have greater numbers.

Only order that does not depend on timing counts. A stream orders what two threads launched on it, and a
synchronise call waits for what another thread launched, only if the later call comes after the earlier one on
the host: by the order of calls, through a queue, or because the earlier work was waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, TypeAlias

from kvfence.spec import order as od

Clock: TypeAlias = list[int]

_SHORT: Final = 32
"""A history shorter than this is not looked through for what nobody asks for any more."""
_LONGEST: Final = 4096
_RECORDS: Final = 16


class OrderTraceError(Exception):
    """An event contradicts what came before it: the trace is wrong, not what it tells about."""


class Thread:
    """A host thread: a lane of its own, and one on each stream that it launches on."""

    __slots__ = ("alive", "changes", "clock", "id", "index", "lanes")

    def __init__(self, id_: int, index: int, clock: Clock) -> None:
        self.id = id_
        self.index = index
        self.clock = clock
        self.changes = 0
        """How often ``clock`` learnt something from others."""
        self.lanes: dict[int, Lane] = {}
        """By stream."""
        self.alive = True


class Lane:
    """What ``thread`` launches on ``stream``."""

    __slots__ = ("clock", "history", "index", "last", "limit", "others", "seen", "stream", "thread")

    def __init__(self, stream: od.Stream, thread: Thread, index: int, clock: Clock) -> None:
        self.stream = stream
        self.thread = thread
        self.index = index
        self.clock = clock
        """What comes before the lane's next operation, the lane's operations included."""
        self.last = 0
        """Number of the last operation."""
        self.seen = -1
        """The thread's ``changes`` that ``clock`` has."""
        self.others: list[Lane] = []
        """Lanes whose earlier operations come before later ones of this lane."""
        self.history: list[tuple[int, Clock]] = []
        """Clocks as of the operations at which they learnt something, as long as a thread may ask."""
        self.limit = _SHORT


class _Record:
    """A record of an event: number, lane, and the lane's clock including the record."""

    __slots__ = ("clock", "lane", "number")

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.clock = lane.clock.copy()

    def known_to(self, thread: Thread) -> bool:
        """Whether the call that recorded comes before the thread's next call."""
        mine = self.lane.thread
        return mine is thread or thread.clock[mine.index] >= self.number


def unite(clock: Clock, other: Clock) -> None:
    """``clock`` learns ``other``, which may know of fewer lanes."""
    clock[: len(other)] = [a if a > b else b for a, b in zip(clock, other, strict=False)]


class Clocks:
    """All clocks. Event numbers start from 1; methods that get one stand for that event."""

    def __init__(self) -> None:
        self.threads: dict[int, Thread] = {}
        self.lanes: list[Lane | None] = []
        """The lane of each position in a clock; None for those of threads."""
        self.owners: list[Thread] = []
        """The thread of each position in a clock."""
        self.streams: dict[int, od.Stream] = {}
        self.guessed = 0
        """How often a clock was asked for that had been forgotten, so that a race may have been missed."""
        self._on_stream: dict[int, list[Lane]] = {}
        self._records: dict[int, list[_Record]] = {}
        self._shortened: set[int] = set()
        """Events of which a record was forgotten that some thread may not know to be replaced."""
        self._items: dict[tuple[int, int], tuple[Thread, int, Clock]] = {}

    # What exists.

    def add_thread(self, id_: int, parent: Thread | None = None) -> Thread:
        """A thread that knows what its parent knows."""
        known = self.threads.get(id_)
        if known is not None and known.alive:
            raise OrderTraceError(f"thread {id_} was started twice")
        clock = [] if parent is None else parent.clock.copy()
        thread = Thread(id_, self._widen(None), clock)
        self.owners.append(thread)
        clock += [0] * (len(self.owners) - len(clock))
        self.threads[id_] = thread
        return thread

    def add_stream(self, stream: od.Stream) -> None:
        """A stream that may be used from here on."""
        if self.streams.setdefault(stream.id, stream) != stream:
            raise OrderTraceError(f"stream {stream.id} was declared before, and differently")
        self._on_stream.setdefault(stream.id, [])

    def _widen(self, lane: Lane | None) -> int:
        """One more position in all clocks that grow."""
        index = len(self.lanes)
        self.lanes.append(lane)
        for thread in self.threads.values():
            thread.clock.append(0)
        for other in self.lanes:
            if other is not None and other is not lane:
                other.clock.append(0)
        return index

    def _add_lane(self, stream_id: int, thread: Thread) -> Lane:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise OrderTraceError(f"stream {stream_id} was not declared")
        lane = Lane(stream, thread, -1, [])
        lane.index = self._widen(lane)
        lane.clock = [0] * len(self.lanes)
        self.owners.append(thread)
        thread.lanes[stream_id] = lane
        self._on_stream[stream_id].append(lane)
        for other in self.lanes:
            if other is not None and other is not lane:
                if _before(other.stream, stream):
                    lane.others.append(other)
                if _before(stream, other.stream):
                    other.others.append(lane)
        return lane

    def thread(self, id_: int) -> Thread:
        """The thread ``id_``."""
        thread = self.threads.get(id_)
        if thread is None or not thread.alive:
            what = "was never started" if thread is None else "is over"
            raise OrderTraceError(f"thread {id_} {what}; record the spawn of each thread")
        return thread

    # Launching.

    def launch(self, thread: Thread, stream: int, number: int) -> Lane:
        """The thread's lane on ``stream``, whose clock has what comes before an operation launched now.

        The operation itself is not in the clock yet: see :meth:`launched`.
        """
        thread.clock[thread.index] = number
        lane = thread.lanes.get(stream)
        if lane is None:
            lane = self._add_lane(stream, thread)
        if lane.seen != thread.changes:
            unite(lane.clock, thread.clock)
            lane.seen = thread.changes
            self._note(lane, number)
        if lane.others:
            self._after_others(lane, number)
        return lane

    def launched(self, lane: Lane, number: int) -> None:
        """The operation is part of the lane now."""
        clock = lane.clock
        clock[lane.index] = lane.last = number
        clock[lane.thread.index] = number

    def _after_others(self, lane: Lane, number: int) -> None:
        changed = False
        for other in lane.others:
            changed |= self._join_lane(lane.clock, lane.thread, other)
        if changed:
            self._note(lane, number)

    def _join_lane(self, clock: Clock, thread: Thread, lane: Lane) -> bool:
        """``clock`` learns what ``lane`` did as far as ``thread`` knows that it was launched."""
        if lane.thread is thread:
            if clock[lane.index] >= lane.last:
                return False
            unite(clock, lane.clock)
            return True
        known = min(thread.clock[lane.thread.index], lane.last)
        if clock[lane.index] >= known:
            return False
        if known == lane.last:
            unite(clock, lane.clock)
            return True
        at = bisect_right(lane.history, known, key=lambda entry: entry[0])
        if at:
            unite(clock, lane.history[at - 1][1])
        elif lane.history:
            self.guessed += 1
            unite(clock, lane.history[0][1])
        clock[lane.index] = max(clock[lane.index], known)
        return True

    def _note(self, lane: Lane, number: int) -> None:
        """The lane's clock learnt something: another thread may ask what it was at this operation."""
        if len(self.threads) == 1:
            return
        lane.history.append((number, lane.clock.copy()))
        if len(lane.history) <= lane.limit:
            return
        mine = lane.thread.index
        asked = min(
            (thread.clock[mine] for thread in self.threads.values() if thread.alive and thread.index != mine),
            default=number,
        )
        at = bisect_right(lane.history, asked, key=lambda entry: entry[0])
        del lane.history[: max(0, at - 1)]
        if len(lane.history) > _LONGEST:
            del lane.history[: -_LONGEST // 2]
        lane.limit = min(_LONGEST, max(_SHORT, 2 * len(lane.history)))

    # Events.

    def record(self, thread: Thread, stream: int, event: int, number: int) -> None:
        """Record ``event``."""
        lane = self.launch(thread, stream, number)
        self.launched(lane, number)
        record = _Record(number, lane)
        records = self._records.get(event)
        if records is None or len(self.threads) == 1:
            self._records[event] = [record]
            return
        records.append(record)
        others = [other for other in self.threads.values() if other.alive]
        at = len(records) - 1
        while at and not all(records[at].known_to(other) for other in others):
            at -= 1
        if len(records) - _RECORDS > at:
            at = len(records) - _RECORDS
            self._shortened.add(event)
        del records[:at]

    def forget_event(self, event: int) -> None:
        """An event exists no more; its number may stand for another one from here on."""
        self._records.pop(event, None)
        self._shortened.discard(event)

    def _bound(self, thread: Thread, event: int) -> tuple[int, int, Clock] | None:
        """What a wait for ``event`` called now surely waits for, as a clock.

        Whoever knows the lane (-1: no lane says it all) up to the number knows the clock.
        """
        records = self._records.get(event)
        if not records:
            return None
        last = records[-1]
        if last.known_to(thread):
            return last.lane.index, last.number, last.clock
        # Which record a wait is for depends on timing here: count only what comes before all of them.
        at = len(records) - 1
        while at >= 0 and not records[at].known_to(thread):
            at -= 1
        if at < 0:
            if event not in self._shortened:
                return None
            self.guessed += 1
            at = 0
        clock = records[at].clock
        for record in records[at + 1 :]:
            clock = [min(a, b) for a, b in zip(clock, record.clock, strict=False)]
        return -1, 0, clock

    def wait(self, thread: Thread, stream: int, event: int, number: int) -> None:
        """Make ``stream`` wait for ``event``."""
        lane = self.launch(thread, stream, number)
        bound = self._bound(thread, event)
        if bound is not None:
            index, upto, clock = bound
            if index < 0 or lane.clock[index] < upto:
                unite(lane.clock, clock)
                self._note(lane, number)
        self.launched(lane, number)

    # What threads wait for.

    def sync_event(self, thread: Thread, event: int, number: int) -> None:
        """The thread goes on when ``event`` is over."""
        thread.clock[thread.index] = number
        bound = self._bound(thread, event)
        if bound is not None:
            index, upto, clock = bound
            if index < 0 or thread.clock[index] < upto:
                unite(thread.clock, clock)
                thread.changes += 1

    def sync_stream(self, thread: Thread, stream: int, number: int) -> None:
        """The thread goes on when what it knows to be launched on ``stream`` is over."""
        thread.clock[thread.index] = number
        lanes = self._on_stream.get(stream)
        if lanes is None:
            raise OrderTraceError(f"stream {stream} was not declared")
        changed = False
        for lane in lanes:
            changed |= self._join_lane(thread.clock, thread, lane)
        thread.changes += changed

    def sync_device(self, thread: Thread, device: int, number: int) -> None:
        """The same for all streams of ``device``."""
        for stream in self.streams.values():
            if stream.device == device:
                self.sync_stream(thread, stream.id, number)
        thread.clock[thread.index] = number

    # From thread to thread.

    def put(self, thread: Thread, queue: int, item: int, number: int) -> None:
        """Hand over what the thread knows."""
        thread.clock[thread.index] = number
        if (queue, item) in self._items:
            raise OrderTraceError(f"item {item} was put into queue {queue} twice before it was got")
        self._items[queue, item] = thread, number, thread.clock.copy()

    def get(self, thread: Thread, queue: int, item: int, number: int) -> None:
        """Learn what was handed over."""
        thread.clock[thread.index] = number
        try:
            giver, given, clock = self._items.pop((queue, item))
        except KeyError:
            raise OrderTraceError(
                f"item {item} was got from queue {queue}, which it was not put into"
            ) from None
        if giver is not thread and thread.clock[giver.index] < given:
            unite(thread.clock, clock)
            thread.changes += 1

    def spawn(self, thread: Thread, child: int, number: int) -> None:
        """Start a thread."""
        thread.clock[thread.index] = number
        if len(self.threads) == 1:
            # Nobody could ask before; from now on the child may ask for what its parent launched until now.
            for lane in self.lanes:
                if lane is not None:
                    lane.history = [(lane.last, lane.clock.copy())]
        self.add_thread(child, thread)

    def join(self, thread: Thread, child: int, number: int) -> None:
        """A thread ended before the next call."""
        over = self.thread(child)
        if over is thread:
            raise OrderTraceError(f"thread {child} waits for its own end")
        thread.clock[thread.index] = number
        unite(thread.clock, over.clock)
        thread.changes += 1
        over.alive = False

    def everywhere(self) -> Clock:
        """What comes before everything that can still be launched, whoever launches it."""
        clocks = [thread.clock for thread in self.threads.values() if thread.alive]
        return [min(column) for column in zip(*clocks, strict=True)]


def _before(earlier: od.Stream, later: od.Stream) -> bool:
    """Whether operations of ``earlier`` come before those launched later on ``later``."""
    if earlier.id == later.id:
        return True
    kinds: set[od.StreamKind] = {earlier.kind, later.kind}
    return earlier.device == later.device and kinds == {"legacy", "blocking"}
