"""Threads and queues of a connector, which run within the ticks of a virtual GPU."""

from __future__ import annotations

from collections import deque
from typing import Any

from kvfence.checker.audit.cuda_stub.stub_device import MOST_TICKS, Deadlock, device
from kvfence.spec import order as od


class _Nothing(BaseException):
    """A queue has nothing to take: the thread that asked goes on at a later tick."""


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
        self.device.emit(od.Put(self.device.thread, self.id, number))
        for reader in (thread for thread in self.device.threads if thread.reads is self):
            reader.busy = True

    def get(self, *_: Any, **__: Any) -> Any:
        """Takes the first item; gives the thread up for now if there is none yet."""
        for running in (t for t in self.device.threads if t.id == self.device.thread):
            running.reads, running.busy = self, bool(self._items)
        if not self.ready:
            raise _Nothing
        number, item = self._items.popleft()[1:]
        self.device.emit(od.Get(self.device.thread, self.id, number))
        return item

    @property
    def ready(self) -> bool:
        """Whether an item can be taken now."""
        return bool(self._items) and self._items[0][0] <= self.device.now

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
        _: None = None,
        target: Any = None,
        name: str = "",
        args: Any = (),
        kwargs: Any = None,
        **__: Any,
    ) -> None:
        self.device = device()
        self.target, self.args, self.kwargs = target, args, kwargs or {}
        self.name = name or getattr(target, "__name__", "thread")
        self.id = -1
        self.alive = self.busy = False
        self.running = False
        """Whether it is within an item: it may wait there, while others go on."""
        self.reads: VirtualQueue | None = None

    def start(self) -> None:
        """It exists from here on."""
        self.id = len(self.device.threads) + 1
        self.alive = True
        self.device.threads.append(self)
        self.device.emit(od.Spawn(self.device.thread, self.id))
        self.pump()

    @property
    def waits(self) -> bool:
        """Whether it waits for an item that is not there yet, or has ended."""
        return not self.alive or (self.reads is not None and not self.reads.ready)

    def pump(self) -> None:
        """Lets it take what is ready. An exception ends it, as it would end a thread."""
        if not self.alive or self.running:
            return
        before, self.device.thread = self.device.thread, self.id
        self.running = True
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
            self.running = False
            self.device.thread = before

    def join(self, timeout: float | None = None) -> None:
        """Lets it go on until it ends, or for a while."""
        for _ in range(1000 if timeout else MOST_TICKS):
            if not self.alive:
                return
            self.device.tick(forced=True)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.alive
