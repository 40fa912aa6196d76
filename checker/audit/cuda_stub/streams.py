"""Streams and events of a virtual GPU, as torch has them."""

from __future__ import annotations

from typing import Any, Final

from kvfence.checker.audit.cuda_stub.stub_device import COMPUTE, ENGINE, Device, Op, device
from kvfence.spec import order as od

HANDED: Final = 1 << 20
"""The queue that stands for events given from thread to thread by other means, a list for instance."""


class VirtualStream:
    """Stands for ``torch.cuda.Stream``."""

    def __init__(self, owner: Any = None, priority: int = 0, name: str = "", **_: Any) -> None:
        self.device = owner if isinstance(owner, Device) else device()
        self.priority = priority
        self.id = self.device.add_stream(name or f"copy {len(self.device.last)}")
        self.cuda_stream = self.id

    @classmethod
    def compute(cls, owner: Device) -> VirtualStream:
        """The stream of ``owner`` that kernels run on."""
        made = cls.__new__(cls)
        made.device, made.priority, made.id, made.cuda_stream = owner, 0, COMPUTE, COMPUTE
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return 0, -1

    def wait_event(self, event: VirtualEvent) -> None:
        """What follows on this stream waits for the event's last record."""
        self.device.wait(self.id, event.id, event.last)

    def wait_stream(self, stream: VirtualStream) -> None:
        """What follows on this stream waits for what is on ``stream`` now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        """Records ``event``, or a new one."""
        event = event or VirtualEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Waits for everything on this stream."""
        last = self.device.last[self.id]
        self.device.emit(od.SyncStream(self.device.thread, self.id))
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
        self.last: Op | None = None
        self._by = self.device.thread
        self._handed = -1

    def record(self, stream: VirtualStream | None = None) -> None:
        """Records it on ``stream``, or on the current one."""
        self.last = self.device.record((stream or current_stream()).id, self.id)
        if self.device.thread != ENGINE:
            # Another thread can only have got the event from this one, and it is given away once recorded.
            self._by, self._handed = self.device.thread, self.device.number("item")
            self.device.emit(od.Put(self._by, HANDED, self._handed))

    def _taken(self) -> None:
        if self._handed >= 0 and self.device.thread != self._by:
            self.device.emit(od.Get(self.device.thread, HANDED, self._handed))
            self._handed = -1

    def wait(self, stream: VirtualStream | None = None) -> None:
        """``stream`` waits for it."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether what was before the last record is over."""
        self._taken()
        done = self.last is None or self.last.done
        self.device.emit(od.Query(self.device.thread, self.id, done))
        return done

    def synchronize(self) -> None:
        """Waits for the last record."""
        self._taken()
        self.device.until(self.last)
        self.device.emit(od.SyncEvent(self.device.thread, self.id))

    def elapsed_time(self, _: VirtualEvent) -> float:
        """Time has no unit here."""
        return 1.0


def current_stream(_: Any = None) -> VirtualStream:
    """The stream that kernels run on."""
    return _currents[-1] if _currents else VirtualStream.compute(device())
