"""A GPU that is not there: streams of work that ends late, early and out of order, decided by a seed.

Everything that was started ends later, when :meth:`Device.tick` finds it due, in any order that streams and
events allow. Threads do not run by themselves either: a tick lets each take what is in its queue, or not yet.
What is done is emitted as order events, so that a missing order is found even if the bytes were right anyway.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from kvfence.spec import order as od

ENGINE: Final = 0
COMPUTE: Final = 0
MOST_TICKS: Final = 100_000
"""Ticks after which a wait is taken to last for ever."""


class Deadlock(Exception):  # noqa: N818 - what happened
    """A thread waits for work that will never be done."""


class CopyFailed(RuntimeError):  # noqa: N818 - what happened
    """The driver refuses a copy that is to fail."""


REFUSED: Final = "batch memcpy failed: err=700 failIdx=0"
"""What the driver says then."""


class Thread(Protocol):
    """A thread of the connector, as far as the device cares."""

    id: int
    alive: bool
    busy: bool
    reads: Any
    """The queue that it takes items from."""

    @property
    def waits(self) -> bool:
        """Whether it waits for an item, and there is none yet."""

    def pump(self) -> None:
        """Lets it take what is ready."""


class Caches(Protocol):
    """What copies have in common: tensors of each side, layer by layer, a stream, a source access order."""

    src: list[Any]
    dst: list[Any]
    stream: Any
    order: od.SourceOrder


class Op:
    """Something on a stream: ``run`` does it when it is due and everything before it is over."""

    __slots__ = ("done", "due", "run", "until")

    def __init__(self, run: Callable[[], None] | None, due: int, until: Op | None = None) -> None:
        self.run, self.due, self.until = run, due, until
        self.done = False


class Device:
    """One worker's GPU. ``order`` receives its order events, if there is one.

    ``delay``: ticks until a copy or a kernel is due, at most; ``launch_delay``: until a thread takes an item.
    """

    def __init__(
        self, seed: int, delay: int, launch_delay: int, order: Callable[[od.OrderEvent], None] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.delay, self.launch_delay = delay, launch_delay
        self.now = self.held = 0
        self.thread = ENGINE
        self.threads: list[Thread] = []
        self.deaths: list[tuple[str, BaseException]] = []
        self.fail_next = False
        self.fail_rate = 0.0
        self.spared = 0
        """Copies that were to fail and did not, since their connector cannot report it."""
        self.launched = {"store": 0, "load": 0}
        self._order = order
        self._streams: dict[int, deque[Op]] = {}
        self._regions: dict[int, tuple[int, int]] = {}
        self._next = {"event": 0, "queue": 0, "item": 0, "region": 0}
        self.gpu: tuple[int, int] = (0, 0)
        """Address and bytes of the KV cache."""
        self.add_stream("compute")

    def emit(self, event: od.OrderEvent) -> None:
        """Emits an order event."""
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
        self.emit(od.Declare(streams=(od.Stream(id_, name=name),)))
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
        inside = self.in_gpu(at)
        kind: od.RegionKind = "device" if inside else "pinned"
        self._regions[at] = id_, slot
        named = name or ("gpu" if inside else "cpu")
        self.emit(od.Declare(regions=(od.Region(id_, at, nbytes, kind, name=named, slot=slot),)))
        return id_

    # Starting work.

    def launch(self, stream: int, run: Callable[[], None], delay: int) -> Op:
        """Puts work on ``stream`` that is due after at most ``delay`` ticks."""
        return self._append(stream, Op(run, self.now + self.random.randint(1, max(1, delay))))

    def _append(self, stream: int, op: Op) -> Op:
        self._streams[stream].append(op)
        return op

    def kernel(
        self, run: Callable[[], None], reads: Sequence[od.Range], writes: Sequence[od.Range], name: str
    ) -> None:
        """A kernel on the compute stream."""
        self.emit(od.Kernel(self.thread, COMPUTE, reads, writes, name))
        self.launch(COMPUTE, run, self.delay)

    def record(self, stream: int, event: int) -> Op:
        """Records ``event``."""
        self.emit(od.Record(self.thread, stream, event))
        return self._append(stream, Op(None, self.now))

    def wait(self, stream: int, event: int, record: Op | None) -> None:
        """``stream`` waits for ``record`` of ``event``."""
        self.emit(od.Wait(self.thread, stream, event))
        if record is not None:
            self._streams[stream].append(Op(None, self.now, record))

    def fails(self) -> bool:
        """Whether the copy that is launched now is one that is to fail."""
        due = self.fail_next or (self.fail_rate > 0 and self.random.random() < self.fail_rate)
        self.fail_next = self.fail_next and not due
        return due

    def in_gpu(self, address: int) -> bool:
        """Whether ``address`` lies in the KV cache."""
        return self.gpu[0] <= address < self.gpu[0] + self.gpu[1]

    def begin_copy(
        self, address: int, stream: int, reads: list[od.Range], writes: list[od.Range], order: od.SourceOrder
    ) -> bool:
        """Emits and counts a copy to ``address``; whether the driver reads as soon as it likes."""
        name = "load" if self.in_gpu(address) else "store"
        self.launched[name] += 1
        self.emit(od.Copy(self.thread, stream, reads, writes, order, name))
        return order != "stream" and self.random.random() < 0.5

    def copy(self, src: list[int], dst: list[int], params: Caches) -> None:
        """Copies the blocks ``src`` to ``dst``, layer by layer. CopyFailed if it is to fail."""
        if not src:
            return
        if self.fails():
            raise CopyFailed(REFUSED)
        sources: list[od.Range] = []
        targets: list[od.Range] = []
        for a, b in zip(params.src, params.dst, strict=True):
            for blocks, tensor, ranges in ((src, a, sources), (dst, b, targets)):
                region, size = self.region(tensor), int(tensor.stride(0) * tensor.element_size())
                ranges += [(region, block * size, size) for block in blocks]
        at = int(params.dst[0].data_ptr())
        early = self.begin_copy(at, params.stream.id, sources, targets, params.order)
        src, dst = list(src), list(dst)
        read = [a[src].clone() for a in params.src] if early else None

        def run() -> None:
            for layer, (a, b) in enumerate(zip(params.src, params.dst, strict=True)):
                b[dst] = read[layer] if read is not None else a[src]

        self.launch(params.stream.id, run, self.delay)

    # Time.

    def tick(self, forced: bool = False) -> None:
        """Threads take what they may, and streams do what is due. ``forced``: a caller waits for it."""
        self.now += 1
        for thread in self.threads:
            if not thread.waits:
                thread.pump()
        if self.held and not forced:
            self.held -= 1
            self._advance(COMPUTE)
            return
        order = [stream for stream, ops in self._streams.items() if ops]
        if len(order) > 1:
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

    def until(self, op: Op | None) -> None:
        """Time goes on until ``op`` is done. Deadlock if that is never."""
        for _ in range(MOST_TICKS + 1):
            if op is None or op.done:
                return
            self.tick(forced=True)
        raise Deadlock("a thread waits for an event that will never be reached")

    @property
    def busy(self) -> bool:
        """Whether something is on a stream or in a queue."""
        return any(self._streams.values()) or any(thread.busy for thread in self.threads)

    @property
    def last(self) -> dict[int, Op | None]:
        """The last thing on each stream."""
        return {stream: ops[-1] if ops else None for stream, ops in self._streams.items()}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within, this is the device that torch's names mean; as in CUDA, that is a global."""
        _entered.append(self)
        try:
            yield
        finally:
            _entered.pop()


_entered: list[Device] = []


def device() -> Device:
    """The current device."""
    if not _entered:
        raise AssertionError("no virtual device is current")
    return _entered[-1]


def order_header(producer: str) -> od.Header:
    """The header of the order trace; streams and regions are declared as they are met."""
    return od.Header(producer=producer, threads=(ENGINE,))
