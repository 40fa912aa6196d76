"""CUDA without a GPU, for connectors written against torch: streams, events, copy threads, copies of blocks.

Everything that was started ends later, when :meth:`Device.tick` finds it due, in any order that streams and
events allow, decided by a seed. Threads do not run by themselves either: a tick lets each take what is in its
queue, or not yet. What is done is told as order events, so that an order that is missing is found even if the
bytes happened to be right.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from kvfence.spec.order import (
    Copy,
    Declare,
    Get,
    Header,
    Kernel,
    OrderEvent,
    Put,
    Query,
    Range,
    Record,
    Region,
    RegionKind,
    SourceOrder,
    Spawn,
    Stream,
    SyncEvent,
    SyncStream,
    Wait,
)

ENGINE: Final = 0
COMPUTE: Final = 0
HANDED: Final = 1 << 20
"""The queue that stands for events given from thread to thread by other means, a list for instance."""
SOURCE_ORDERS: Final[dict[int, SourceOrder]] = {1: "stream", 2: "call", 3: "any"}
"""By the number that the driver knows them by."""
_MOST_TICKS: Final = 100_000


class Deadlock(Exception):  # noqa: N818 - what happened
    """Somebody waits for work that will never be done."""


class CopyFailed(RuntimeError):  # noqa: N818 - what happened
    """The driver refuses a copy, as it was told to."""


class _Nothing(BaseException):
    """A queue has nothing to take: the thread that asked goes on at a later tick."""


class _Op:
    """Something on a stream: ``run`` does it when it is due and everything before it is over."""

    __slots__ = ("done", "due", "run", "until")

    def __init__(self, run: Callable[[], None] | None, due: int, until: _Op | None = None) -> None:
        self.run, self.due, self.until = run, due, until
        self.done = False


class Device:
    """One worker's GPU. ``order`` is told order events, if there is one.

    ``delay``: ticks until a copy or a kernel is due, at most; ``launch_delay``: until a thread takes an item.
    """

    def __init__(
        self, seed: int, delay: int, launch_delay: int, order: Callable[[OrderEvent], None] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.delay, self.launch_delay = delay, launch_delay
        self.now = self.held = 0
        self.thread = ENGINE
        self.threads: list[VirtualThread] = []
        self.deaths: list[tuple[str, BaseException]] = []
        self.fail_next = False
        self.fail_rate = 0.0
        self.launched = {"store": 0, "load": 0}
        self._order = order
        self._streams: dict[int, deque[_Op]] = {}
        self._regions: dict[int, tuple[int, int]] = {}
        self._next = {"event": 0, "queue": 0, "item": 0, "region": 0}
        self.gpu: tuple[int, int] = (0, 0)
        """Address and bytes of the KV cache."""
        self.compute = VirtualStream(self, name="compute")
        self.kernels_of: Callable[[Sequence[int], str], tuple[str, str]] | None = None

    def tell(self, event: OrderEvent) -> None:
        """Tells an order event."""
        if self._order is not None:
            self._order(event)

    def number(self, what: str) -> int:
        """A new number for an event, a queue, an item or a region."""
        self._next[what] += 1
        return self._next[what] - 1

    def add_stream(self, name: str) -> int:
        """A new stream's number."""
        id_ = len(self._streams)
        self._streams[id_] = deque()
        self.tell(Declare(streams=(Stream(id_, name=name),)))
        return id_

    def region(self, tensor: Any, name: str = "") -> int:
        """The region that ``tensor`` ([blocks, bytes]) is; declared when it is met for the first time."""
        at = int(tensor.data_ptr())
        known = self._regions.get(at)
        if known is not None:
            return known[0]
        id_ = self.number("region")
        nbytes = int(tensor.numel() * tensor.element_size())
        slot = int(tensor.stride(0) * tensor.element_size())
        inside = self.gpu[0] <= at < self.gpu[0] + self.gpu[1]
        kind: RegionKind = "device" if inside else "pinned"
        self._regions[at] = id_, slot
        named = name or ("gpu" if inside else "cpu")
        self.tell(Declare(regions=(Region(id_, at, nbytes, kind, name=named, slot=slot),)))
        return id_

    # Starting work.

    def launch(self, stream: int, run: Callable[[], None], delay: int) -> _Op:
        """Puts work on ``stream`` that is due after at most ``delay`` ticks."""
        op = _Op(run, self.now + self.random.randint(1, max(1, delay)))
        self._streams[stream].append(op)
        return op

    def kernel(
        self,
        run: Callable[[], None],
        reads: Sequence[Range],
        writes: Sequence[Range],
        name: str,
        by: str = "",
    ) -> None:
        """A kernel on the compute stream."""
        self.tell(Kernel(self.thread, COMPUTE, reads, writes, name, by))
        self.launch(COMPUTE, run, self.delay)

    def record(self, stream: int, event: int) -> _Op:
        """Records ``event``."""
        self.tell(Record(self.thread, stream, event))
        op = _Op(None, self.now)
        self._streams[stream].append(op)
        return op

    def wait(self, stream: int, event: int, record: _Op | None) -> None:
        """``stream`` waits for ``record`` of ``event``."""
        self.tell(Wait(self.thread, stream, event))
        if record is not None:
            self._streams[stream].append(_Op(None, self.now, record))

    def copy(self, src: list[int], dst: list[int], params: Params) -> None:
        """Copies the blocks ``src`` to ``dst``, layer by layer. CopyFailed if it was told to fail."""
        if not src:
            return
        if self.fail_next or (self.fail_rate and self.random.random() < self.fail_rate):
            self.fail_next = False
            raise CopyFailed("batch memcpy failed: err=700 failIdx=0")
        sources: list[Range] = []
        targets: list[Range] = []
        for a, b in zip(params.src, params.dst, strict=True):
            for blocks, tensor, ranges in ((src, a, sources), (dst, b, targets)):
                region, size = self.region(tensor), int(tensor.stride(0) * tensor.element_size())
                ranges += [(region, block * size, size) for block in blocks]
        to_gpu = self.gpu[0] <= int(params.dst[0].data_ptr()) < self.gpu[0] + self.gpu[1]
        name = "load" if to_gpu else "store"
        self.launched[name] += 1
        self.tell(Copy(self.thread, params.stream.id, sources, targets, params.order, name))
        src, dst = list(src), list(dst)
        # Read in the order of the stream, or as soon as the driver likes.
        early = params.order != "stream" and self.random.random() < 0.5
        read = [a[src].clone() for a in params.src] if early else None

        def run() -> None:
            for layer, (a, b) in enumerate(zip(params.src, params.dst, strict=True)):
                b[dst] = read[layer] if read is not None else a[src]

        self.launch(params.stream.id, run, self.delay)

    # Time.

    def tick(self, forced: bool = False) -> None:
        """Threads take what they may, and streams do what is due. ``forced``: somebody waits for it."""
        self.now += 1
        for thread in self.threads:
            thread.pump()
        if self.held and not forced:
            self.held -= 1
            self._advance(COMPUTE)
            return
        order = list(self._streams)
        self.random.shuffle(order)
        for stream in order:
            self._advance(stream)

    def _advance(self, stream: int) -> None:
        ops = self._streams[stream]
        while ops and ops[0].due <= self.now and (ops[0].until is None or ops[0].until.done):
            op = ops.popleft()
            if op.run is not None:
                op.run()
            op.done = True

    def until(self, op: _Op | None) -> None:
        """Time goes on until ``op`` is done. Deadlock if that is never."""
        ticks = 0
        while op is not None and not op.done:
            self.tick(forced=True)
            ticks += 1
            if ticks > _MOST_TICKS:
                raise Deadlock("a thread waits for an event that will never be reached")

    @property
    def busy(self) -> bool:
        """Whether something is on a stream or in a queue."""
        return any(self._streams.values()) or any(thread.busy for thread in self.threads)

    @property
    def last(self) -> dict[int, _Op | None]:
        """The last thing on each stream."""
        return {stream: ops[-1] if ops else None for stream, ops in self._streams.items()}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within, this is the device that torch's names mean."""
        global _current  # noqa: PLW0603 - as in CUDA, the current device is a global
        before, _current = _current, self
        try:
            yield
        finally:
            _current = before


_current: Device | None = None


def device() -> Device:
    """The current device."""
    assert _current is not None, "no virtual device is current"
    return _current


def order_header(producer: str) -> Header:
    """The header of the order trace; streams and regions are declared as they are met."""
    return Header(producer=producer, threads=(ENGINE,))


class VirtualStream:
    """Stands for ``torch.cuda.Stream``."""

    def __init__(self, owner: Any = None, priority: int = 0, name: str = "", **_: Any) -> None:
        self.device = owner if isinstance(owner, Device) else device()
        self.priority = priority
        self.id = self.device.add_stream(name or f"copy {len(self.device.last)}")
        self.cuda_stream = self.id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return 0, -1

    def wait_event(self, event: VirtualEvent) -> None:
        """What follows on this stream waits for the event's last record."""
        self.device.wait(self.id, event.id, event.last)

    def wait_stream(self, stream: VirtualStream) -> None:
        """What follows on this stream waits for what is on ``stream`` now."""
        event = VirtualEvent()
        event.record(stream)
        self.wait_event(event)

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        """Records ``event``, or a new one."""
        event = event or VirtualEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Waits for everything on this stream."""
        last = self.device.last[self.id]
        self.device.tell(SyncStream(self.device.thread, self.id))
        self.device.until(last)

    def query(self) -> bool:
        """Whether nothing is on this stream."""
        return self.device.last[self.id] is None

    def __enter__(self) -> VirtualStream:
        """Current within."""
        _currents.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Current no longer."""
        _currents.pop()


_currents: list[VirtualStream] = []


class VirtualEvent:
    """Stands for ``torch.Event`` and ``torch.cuda.Event``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = device()
        self.id = self.device.number("event")
        self.last: _Op | None = None
        self._by = self.device.thread
        self._handed = -1

    def record(self, stream: VirtualStream | None = None) -> None:
        """Records it on ``stream``, or on the current one."""
        self.last = self.device.record((stream or current_stream()).id, self.id)
        if self.device.thread != ENGINE:
            # Another thread can only have got the event from this one, and it is given away once recorded.
            self._by, self._handed = self.device.thread, self.device.number("item")
            self.device.tell(Put(self._by, HANDED, self._handed))

    def _taken(self) -> None:
        if self._handed >= 0 and self.device.thread != self._by:
            self.device.tell(Get(self.device.thread, HANDED, self._handed))
            self._handed = -1

    def wait(self, stream: VirtualStream | None = None) -> None:
        """``stream`` waits for it."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether what was before the last record is over."""
        self._taken()
        done = self.last is None or self.last.done
        self.device.tell(Query(self.device.thread, self.id, done))
        return done

    def synchronize(self) -> None:
        """Waits for the last record."""
        self._taken()
        self.device.until(self.last)
        self.device.tell(SyncEvent(self.device.thread, self.id))

    def elapsed_time(self, _: VirtualEvent) -> float:
        """Time has no unit here."""
        return 1.0


def current_stream(_: Any = None) -> VirtualStream:
    """The stream that kernels run on."""
    return _currents[-1] if _currents else device().compute


class VirtualQueue:
    """Stands for ``queue.SimpleQueue``: an item can be taken some ticks after it was put."""

    def __init__(self, *_: Any) -> None:
        self.device = device()
        self.id = self.device.number("queue")
        self._items: deque[tuple[int, int, Any]] = deque()

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        """Puts ``item``."""
        number = self.device.number("item")
        ready = self.device.now + self.device.random.randint(0, self.device.launch_delay)
        self._items.append((ready, number, item))
        self.device.tell(Put(self.device.thread, self.id, number))
        reader = next((thread for thread in self.device.threads if thread.reads is self), None)
        if reader is not None:
            reader.busy = True

    def get(self, *_: Any, **__: Any) -> Any:
        """Takes the first item; gives the thread up for now if there is none yet."""
        running = next((t for t in self.device.threads if t.id == self.device.thread), None)
        if running is not None:
            running.reads, running.busy = self, bool(self._items)
        if not self._items or self._items[0][0] > self.device.now:
            raise _Nothing
        number, item = self._items.popleft()[1:]
        self.device.tell(Get(self.device.thread, self.id, number))
        return item

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return not self._items

    def qsize(self) -> int:
        """Items in it."""
        return len(self._items)


class VirtualThread:
    """Stands for ``threading.Thread`` with a loop that takes items from one queue: it runs within ticks.

    The loop is entered anew at each tick, which is the same as going on as long as it keeps nothing between
    two items.
    """

    def __init__(
        self,
        group: None = None,
        target: Any = None,
        name: str = "",
        args: Any = (),
        kwargs: Any = None,
        **_: Any,
    ) -> None:
        del group
        self.device = device()
        self.target, self.args, self.kwargs = target, args, kwargs or {}
        self.name = name or getattr(target, "__name__", "thread")
        self.id = -1
        self.alive = False
        self.busy = False
        self.reads: VirtualQueue | None = None

    def start(self) -> None:
        """It exists from here on."""
        self.id = len(self.device.threads) + 1
        self.alive = True
        self.device.threads.append(self)
        self.device.tell(Spawn(self.device.thread, self.id))
        self.pump()

    def pump(self) -> None:
        """Lets it take what is ready. An exception ends it, as it would end a thread."""
        if not self.alive or self.device.thread == self.id:
            return
        before, self.device.thread = self.device.thread, self.id
        try:
            with self.device.current():
                self.target(*self.args, **self.kwargs)
            self.alive = False
        except _Nothing:
            pass
        except Deadlock:
            raise
        except Exception as error:
            self.alive = self.busy = False
            self.device.deaths.append((self.name, error))
        finally:
            self.device.thread = before

    def join(self, timeout: float | None = None) -> None:
        """Lets it go on until it ends, or for a while."""
        for _ in range(1000 if timeout else _MOST_TICKS):
            if not self.alive:
                return
            self.device.tick(forced=True)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.alive


class Params:
    """What a connector's copies have in common: layers, stream and source access order."""

    def __init__(self, src: list[Any], dst: list[Any], stream: VirtualStream, order: SourceOrder) -> None:
        self.src, self.dst, self.stream, self.order = src, dst, stream, order


def build_params(
    src_caches: dict[str, Any], dst_caches: dict[str, Any], stream: VirtualStream, src_access_order: int = 3
) -> Params:
    """Stands for a connector's function of this name; releases before it took an order meant ANY."""
    order = SOURCE_ORDERS[src_access_order]
    return Params(list(src_caches.values()), list(dst_caches.values()), stream, order)


def copy_blocks(src_block_ids: list[int], dst_block_ids: list[int], params: Params) -> None:
    """Stands for a connector's function of this name."""
    params.stream.device.copy(src_block_ids, dst_block_ids, params)


def _pin_tensor(tensor: Any) -> None:
    """Memory needs no pinning here."""
    del tensor


class _Proxy(ModuleType):
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


class _Platform:
    """Stands for ``current_platform``: a CUDA device that needs no setting."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def set_device(self, _: Any) -> None:
        """Nothing to set."""

    def is_cuda_alike(self) -> bool:
        """It is."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def virtual_torch(torch: Any) -> Any:
    """``torch`` with streams and events that are virtual."""
    cuda = _Proxy(
        torch.cuda,
        Stream=VirtualStream,
        Event=VirtualEvent,
        current_stream=current_stream,
        default_stream=current_stream,
        stream=lambda stream: stream,
        is_available=lambda: True,
        current_device=lambda: 0,
        synchronize=lambda *_: device().compute.synchronize(),
    )
    return _Proxy(torch, cuda=cuda, Event=VirtualEvent, Stream=VirtualStream)


def install(module: Any, torch: Any) -> list[str]:
    """Replaces the CUDA primitives that ``module`` of a connector uses; returns their names."""
    import queue
    import threading

    stand_ins: dict[str, Callable[[Any], Any]] = {
        "torch": lambda old: virtual_torch(old if isinstance(old, ModuleType) else torch),
        "queue": lambda _: _Proxy(queue, SimpleQueue=VirtualQueue, Queue=VirtualQueue),
        "threading": lambda _: _Proxy(threading, Thread=VirtualThread),
        "current_platform": _Platform,
        "build_params": lambda _: build_params,
        "copy_blocks": lambda _: copy_blocks,
        "pin_tensor": lambda _: _pin_tensor,
    }
    done = []
    for name, make in stand_ins.items():
        if hasattr(module, name):
            setattr(module, name, make(getattr(module, name)))
            done.append(name)
    return done
