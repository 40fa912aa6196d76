"""The order of what one worker does on its streams: who launches what, and what waits for what.

One object for each worker side of a connector. Its methods are called by what stands for CUDA's names in the
connector's modules, and by the hooks on its steps; any thread may call. No exception leaves them: one that
happens inside ends the judging of this worker, which is then not determined.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from kvfence.checker.adapters.vllm.worker.order_events import OrderEmitter
from kvfence.checker.adapters.vllm.worker.worker_tables import BatchTables, GroupKind, Reader, Slots
from kvfence.checker.order.races import Race
from kvfence.checker.order.slot_races import Row, SlotChecker
from kvfence.spec import order as od

ENGINE: Final = 0
"""The thread that steps are launched by."""
COMPUTE: Final = 0
"""The stream that steps run on."""
QUEUE: Final = 0
HANDED: Final = 1
"""The queue that stands for device events given to another thread by other means, in a list for instance."""
MOST_PARAMETERS: Final = 256


Function = TypeVar("Function", bound=Callable[..., Any])


def _guarded(otherwise: Any = None) -> Callable[[Function], Function]:
    """Make a method return ``otherwise``, and end the judging of its worker, if it raises an exception."""

    def wrapper(method: Function) -> Function:
        @functools.wraps(method)
        def call(self: WorkerOrder, *args: Any, **named: Any) -> Any:
            if self.off:
                return otherwise
            try:
                with self._lock:
                    while self._gone:
                        self._forget(self._gone.popleft())
                    return method(self, *args, **named)
            except Exception as error:
                self.lose(f"{type(error).__name__}: {error}")
                return otherwise

        return call  # type: ignore[return-value]  # functools.wraps does not say that it is like ``method``

    return wrapper


class WorkerOrder:
    """Observes one worker. ``on_race`` gets races; ``emitter`` gets everything; either may be missing.

    ``not_checked`` gets, in words, what is not judged.
    """

    def __init__(
        self,
        *,
        on_race: Callable[[Race], None] | None,
        emitter: OrderEmitter | None,
        not_checked: Callable[[str], None],
    ) -> None:
        self.checker = SlotChecker((ENGINE,), on_race=on_race) if on_race is not None else None
        self._observers: list[Any] = [each for each in (self.checker, emitter) if each is not None]
        self._emitter = emitter
        self._not_checked = not_checked
        self.off = False
        self.current: Callable[[], Any] = lambda: None
        """The current stream, as the connector's own module finds it."""
        self.event_type: Callable[[], Any] = lambda: None
        """Makes an observed event."""
        self.stream_names: Callable[[Any], str] = lambda _: ""
        self.on_pools: Callable[[], None] = lambda: None
        """Called once, when copies are prepared next: says which pool steps use."""
        self.gpu_caches: Callable[[Any], None] = lambda _: None
        """Called with the layers that steps use, by a connector that says itself which they are."""
        self.arrived: Any = None
        """What connectors were given with the step that arrived last."""
        self.caches: Any = None
        """The KV cache as a connector was given it, until the first step: who is given the same is observed
        together with it.
        """
        self.gpu = -1
        """The pool that steps use."""
        self._lock = threading.RLock()
        self._threads = self._events = self._items = 0
        self._streams: dict[Any, int] = {}
        self._pools: dict[int, int] = {}
        """By address of their first tensor."""
        self._parameters: dict[int, tuple[Any, int, int, Any, od.SourceOrder]] = {}
        """By id of what a connector calls the parameters of its copies, which are kept so that it stays."""
        self._given: dict[int, tuple[int, int]] = {}
        """By device event: the thread that recorded it, if not the engine's, and the item it stands for."""
        self._gone: deque[int] = deque()
        """Device events that exist no more."""
        self.tables: BatchTables | None = None
        self.depth = 1
        """Steps that the engine keeps in flight, the one that arrives included, unless it says how many."""
        self._launched = True
        self._steps = 0
        self._running: deque[int] = deque()
        """Device events that stand for the ends of launched steps whose output may not be known yet."""

    # Carefully.

    def lose(self, why: str) -> None:
        """The order of this worker cannot be followed any further."""
        if not self.off:
            self.off = True
            self._not_checked(f"the order of streams is not judged further: {why}")

    def _emit(self, what: str, *args: Any) -> Any:
        result = None
        for observer in self._observers:
            found = getattr(observer, what)(*args)
            result = found if result is None else result
        return result

    # What exists.

    def new_event(self, event: Any) -> int:
        """The number of a device event that is made now."""
        del event
        with self._lock:
            self._events += 1
            return self._events

    def gone_event(self, number: int) -> None:
        """A device event exists no more. May be called at any moment, by any thread."""
        self._gone.append(number)

    def _forget(self, number: int) -> None:
        for observer in self._observers:
            observer.forget_event(number)
        given = self._given.pop(number, None)
        if given is not None:
            # Nobody else can take it any more, but what was put must be taken.
            self._emit("get", given[0], HANDED, given[1])

    def new_thread(self) -> int:
        """The number of a thread that is made now."""
        with self._lock:
            self._threads += 1
            return self._threads

    @_guarded(0)
    def stream_of(self, stream: Any) -> int:
        """The number of ``stream``; of the current one for None."""
        return self._stream_of(stream)

    def _stream_of(self, stream: Any) -> int:
        if stream is None:
            stream = self.current()
        observed = getattr(stream, "_kvfence_worker", None) is not None
        handle = getattr(stream, "cuda_stream", None)
        key = handle if isinstance(handle, int) else id(stream) if observed else "current"
        known = self._streams.get(key)
        if known is not None:
            return known
        if not observed and COMPUTE not in self._streams.values():
            number, name = COMPUTE, "compute"
        else:
            number = max([COMPUTE, *self._streams.values()]) + 1
            name = self.stream_names(stream) or f"stream {number}"
        self._streams[key] = number
        self._emit("add_stream", od.Stream(number, name=name))
        return number

    def pool(self, caches: Any, name: str, kind: od.RegionKind, parts: int = 1) -> int:
        """The number of the pool whose layers ``caches`` are, each [slots, bytes].

        ``parts``: slots that each of these is taken for.
        """
        tensors = list(caches.values()) if isinstance(caches, dict) else list(caches)
        first = int(tensors[0].data_ptr())
        known = self._pools.get(first)
        if known is None:
            size = sum(int(each.stride(0) * each.element_size()) for each in tensors)
            known = self._emit("add_pool", name, int(tensors[0].shape[0]) * parts, kind, size // parts)
            self._pools[first] = known
        return known

    @property
    def memories(self) -> int:
        """How many pools are known by the address of their first layer."""
        return len(self._pools)

    @_guarded(-1)
    def memory(self, caches: Any, name: str, kind: od.RegionKind, parts: int = 1) -> int:
        """:meth:`pool`, or -1 where that goes wrong."""
        return self.pool(caches, name, kind, parts)

    @_guarded()
    def use(self, caches: Any, kinds: list[GroupKind | None]) -> None:
        """``caches`` are what steps use, by groups of ``kinds``."""
        tensors = list(caches.values()) if isinstance(caches, dict) else list(caches)
        slots = int(tensors[0].shape[0])
        if self.tables is None:
            self.gpu = self.pool(tensors, "gpu", "device")
            self.tables = BatchTables(kinds, slots, self._read_earlier)
        elif slots != self.tables.slots:
            raise ValueError(
                f"the KV cache has {self.tables.slots} blocks for a connector, {slots} for another"
            )
        else:
            self._pools[int(tensors[0].data_ptr())] = self.gpu

    def _read_earlier(self, slots: Slots, reader: Reader) -> None:
        if self.checker is not None:
            self.checker.read_earlier(self.gpu, slots, reader)

    # Threads and events.

    @_guarded()
    def spawned(self, thread: int, child: int) -> None:
        """``thread`` starts ``child``."""
        self._emit("spawn", thread, child)

    @_guarded(0)
    def handed_over(self, thread: int) -> int:
        """``thread`` puts something into a queue; its number."""
        self._items += 1
        self._emit("put", thread, QUEUE, self._items)
        return self._items

    @_guarded()
    def taken(self, thread: int, item: int) -> None:
        """``thread`` took something out of a queue."""
        self._emit("get", thread, QUEUE, item)

    @_guarded()
    def recorded(self, thread: int, stream: Any, event: int) -> None:
        """``thread`` records ``event``."""
        self._emit("record", thread, self._stream_of(stream), event)
        if thread != ENGINE:
            # Another thread can only get the event from this one, and it is given away once it is recorded.
            given = self._given.pop(event, None)
            if given is not None:
                self._emit("get", given[0], HANDED, given[1])
            self._items += 1
            self._given[event] = thread, self._items
            self._emit("put", thread, HANDED, self._items)

    def _taken_event(self, thread: int, event: int) -> None:
        given = self._given.get(event)
        if given is not None and given[0] != thread:
            del self._given[event]
            self._emit("get", thread, HANDED, given[1])

    @_guarded()
    def waited(self, thread: int, stream: int, event: Any) -> None:
        """``thread`` makes ``stream`` wait for ``event``."""
        number = getattr(event, "_kvfence_id", -1)
        if number < 0 or event._kvfence_worker is not self:
            self.lose("a stream waits for an event that nobody saw made")
            return
        self._taken_event(thread, number)
        self._emit("wait", thread, stream, number)

    @_guarded()
    def waited_for_stream(self, thread: int, stream: int, other: int) -> None:
        """``thread`` makes ``stream`` wait for what is on ``other``."""
        self._events += 1
        self._emit("record", thread, other, self._events)
        self._emit("wait", thread, stream, self._events)
        self._forget(self._events)

    @_guarded()
    def queried(self, thread: int, event: int, done: bool) -> None:
        """``thread`` asked whether ``event`` is over."""
        self._taken_event(thread, event)
        if done:
            self._emit("query", thread, event, done)

    @_guarded()
    def synchronized(self, thread: int, event: int) -> None:
        """``thread`` waited for ``event``."""
        self._taken_event(thread, event)
        self._emit("sync_event", thread, event)

    @_guarded()
    def synchronized_stream(self, thread: int, stream: int) -> None:
        """``thread`` waited for what is on ``stream``."""
        self._emit("sync_stream", thread, stream)

    # Copies.

    @_guarded()
    def prepared(self, params: Any, src: Any, dst: Any, stream: Any, order: od.SourceOrder) -> None:
        """``params`` describe copies from ``src`` to ``dst``, which are layers by name."""
        if len(self._parameters) >= MOST_PARAMETERS:
            raise ValueError(f"more than {MOST_PARAMETERS} kinds of copies")
        on_pools, self.on_pools = self.on_pools, lambda: None
        on_pools()
        pools = [self.pool(caches, "cpu", "pinned") for caches in (src, dst)]
        self._parameters[id(params)] = params, pools[0], pools[1], stream, order

    @_guarded()
    def copied(self, thread: int, src: Sequence[int], dst: Sequence[int], params: Any, by: str) -> None:
        """``thread`` launched a copy of the slots ``src`` to the slots ``dst``."""
        known = self._parameters.get(id(params))
        if known is None:
            raise ValueError("a copy is launched with parameters that nobody saw made")
        _, source, target, stream, order = known
        if len(src):
            self._copy(thread, self._stream_of(stream), (source, src), (target, dst), order, by)

    @_guarded()
    def transferred(
        self, thread: int, rows: Callable[[], tuple[Row, Row]], order: od.SourceOrder, by: str
    ) -> None:
        """``thread`` launched a copy on the current stream; ``rows`` says from where to where."""
        source, target = rows()
        if len(source[1]):
            self._copy(thread, self._stream_of(None), source, target, order, by)

    def _copy(self, thread: int, stream: int, src: Any, dst: Any, order: od.SourceOrder, by: str) -> None:
        """Emit a copy; ``src`` and ``dst``: a pool, and its slots."""
        rows: list[Row] = [(pool, np.array(slots, np.int64)) for pool, slots in (src, dst)]
        name = "copy"
        if self.gpu in (src[0], dst[0]):
            name = "load" if dst[0] == self.gpu else "store"
        if dst[0] == self.gpu and self.tables is not None:
            self.tables.about_to_write(rows[1][1])
        self._emit("copy", thread, stream, rows[0], rows[1], order, name, by)

    @_guarded()
    def touched(self, thread: int, caches: Any, slots: Slots, read: bool) -> None:
        """``thread`` itself read (or wrote) ``slots`` of the memory ``caches``."""
        rows: list[Row] = [(self.pool(caches, "cpu", "pinned"), slots)]
        self._emit("host", thread, rows if read else [], [] if read else rows, "disk")

    # Steps.

    @_guarded()
    def step(self, output: Any, in_flight: int | None) -> None:
        """A step of the scheduler arrives at the worker.

        ``in_flight``: how many earlier steps had computed tokens that the scheduler did not know yet; None:
        it does not say. All steps before these are over: their outputs came from the device.
        """
        self.caches = None
        if not self._launched:
            self._launch()
        if self.tables is None:
            return
        still = self.depth - 1 if in_flight is None else in_flight
        over = -1
        while len(self._running) > still:
            if over >= 0:
                self._forget(over)
            over = self._running.popleft()
        if over >= 0:
            self._emit("sync_event", ENGINE, over)
            self._forget(over)
        self._steps += 1
        self.tables.follow(output)
        self._launched = not output.num_scheduled_tokens

    @_guarded()
    def launched(self) -> None:
        """The step's kernels are launched by now."""
        if not self._launched:
            self._launch()

    def _launch(self) -> None:
        self._launched = True
        assert self.tables is not None
        reads, writes = self.tables.accesses()
        stream = self._stream_of(None)
        by, reader = f"step {self._steps}", None
        if self.checker is not None:
            rows = [(self.gpu, reads)], [(self.gpu, writes)]
            reader = self.checker.kernel(ENGINE, stream, *rows, "step", by)
        if self._emitter is not None:
            everything = [(self.gpu, self.tables.all_reads())]
            self._emitter.kernel(ENGINE, stream, everything, [(self.gpu, np.unique(writes))], "step", by)
        self.tables.launched(reader or (0, 0))
        self._events += 1
        self._running.append(self._events)
        self._emit("record", ENGINE, stream, self._events)
