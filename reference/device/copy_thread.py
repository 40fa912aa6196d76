"""The background thread that launches copies, so that the engine's thread never waits for the driver."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch

from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import Segment
from kvfence.reference.device import order_tap as taps
from kvfence.reference.device.events import EventPool
from kvfence.reference.device.protocol import CopyJob
from kvfence.spec import events as ev
from kvfence.spec import order

KINDS: Final[Sequence[ev.Kind]] = ("store", "load")


@dataclass(slots=True, eq=False)
class Copy:
    """A copy on its way: submitted when ``ready`` was recorded, on the GPU between ``begin`` and ``end``."""

    job: CopyJob
    kind: ev.Kind
    ready: torch.cuda.Event
    begin: torch.cuda.Event
    end: torch.cuda.Event
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """How long the copy took on the GPU, without its planning and its wait for compute."""
        return float(self.begin.elapsed_time(self.end)) / 1e3


class CopyThread:
    """Takes copies from a queue and launches each on the low-priority stream of its direction.

    Every copy waits on its stream for ``ready``, an event that its submitter recorded behind the compute
    that the copy must not overtake: the writes of a store's source (STORE-READY), every use of a load's
    destination by its previous owners (LOAD-ORDER). It is over when the event behind it on that same stream
    is complete.
    """

    def __init__(
        self,
        engine: CopyEngine,
        segment: Callable[[CopyJob], Segment],
        device: torch.device,
        tap: taps.OrderTap | None = None,
    ) -> None:
        self._engine = engine
        self._tap = tap
        self._segment = segment
        self._device = device
        self._streams: dict[ev.Kind, torch.cuda.Stream] = {
            kind: torch.cuda.Stream(device, 0) for kind in KINDS
        }
        self._ready = EventPool(timing=False, numbers=count(0, 2))
        self._timed = EventPool(timing=True, numbers=count(1, 2))
        self._queue: queue.Queue[Copy | None] = queue.Queue()
        self._launched: dict[ev.Kind, deque[Copy]] = {kind: deque() for kind in KINDS}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvfence-copy", daemon=True)
        if tap is not None:
            tap.emit(order.Spawn(taps.ENGINE_THREAD, taps.COPY_THREAD))
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Copies that are queued and not launched, roughly."""
        return self._queue.qsize()

    def submit(self, job: CopyJob, compute: torch.cuda.Stream) -> None:
        """Copy after everything that is on ``compute`` now."""
        kind: ev.Kind = "load" if job.load else "store"
        copy = Copy(job, kind, self._ready.take(), self._timed.take(), self._timed.take())
        if self._tap is not None:
            self._tap.emit(order.Record(taps.ENGINE_THREAD, taps.COMPUTE, self._ready.number(copy.ready)))
            self._tap.emit(order.Put(taps.ENGINE_THREAD, taps.JOBS, id(copy)))
        copy.ready.record(compute)
        self._queue.put(copy)

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        torch.cuda.synchronize(self._device)
        while (copy := self._queue.get()) is not None:
            try:
                # After a failure the queue is emptied without copying, so that no thread waits for ever.
                if self._error is None:
                    self._launch(copy)
            except BaseException as error:
                self._error = error
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _launch(self, copy: Copy) -> None:
        work = self._engine.plan(copy.kind, [self._segment(copy.job)])
        copy.nbytes = work.total
        stream, number = self._streams[copy.kind], taps.STREAMS[copy.kind]
        if self._tap is not None:
            self._tap.emit(order.Get(taps.COPY_THREAD, taps.JOBS, id(copy)))
            self._tap.emit(order.Wait(taps.COPY_THREAD, number, self._ready.number(copy.ready)))
            self._tap.copy(copy.job, copy.kind, self._engine.source_order(work))
        launch = self._engine.stage(work, stream)
        stream.wait_event(copy.ready)
        copy.begin.record(stream)
        launch()
        copy.end.record(stream)
        if self._tap is not None:
            self._tap.emit(order.Record(taps.COPY_THREAD, number, self._timed.number(copy.end)))
            self._tap.emit(order.Put(taps.COPY_THREAD, taps.LAUNCHED, id(copy)))
        self._launched[copy.kind].append(copy)

    def finished(self) -> list[Copy]:
        """Copies that ended since the last call, each direction in order. Raises what stopped the thread.

        Done with a copy, hand it to :meth:`recycle`.
        """
        self._raise_error()
        over = []
        for launched in self._launched.values():
            while launched and launched[0].end.query():
                copy = launched.popleft()
                over.append(copy)
                if self._tap is not None:
                    self._tap.emit(order.Get(taps.ENGINE_THREAD, taps.LAUNCHED, id(copy)))
                    self._tap.emit(order.Query(taps.ENGINE_THREAD, self._timed.number(copy.end), True))
        return over

    def recycle(self, copy: Copy) -> None:
        """Nothing needs the events of ``copy`` any more."""
        self._ready.give_back(copy.ready)
        self._timed.give_back(copy.begin)
        self._timed.give_back(copy.end)

    def flush(self) -> None:
        """Wait until every copy submitted so far has landed: those still queued as well as those launched."""
        self._queue.join()
        for kind, stream in self._streams.items():
            stream.synchronize()
            if self._tap is not None:
                self._tap.emit(order.SyncStream(taps.ENGINE_THREAD, taps.STREAMS[kind]))
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Let the thread end once it has launched what is queued. Returns at once; may be repeated."""
        if self._thread.is_alive():
            self._queue.put(None)

    def close(self) -> None:
        """Launch what is queued, wait for it, and end the thread."""
        self.end()
        self._thread.join()
        for stream in self._streams.values():
            stream.synchronize()
