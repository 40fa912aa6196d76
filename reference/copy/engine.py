"""What every copy engine is: it plans a transfer on the host, then launches it on a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from kvfence.reference.copy.plan import Plan, Segment, plan
from kvfence.spec.events import Kind


class CopyEngine(ABC):
    """A way to move blocks.

    Whatever the engine, a transfer is one operation of the stream: its reads and writes come after what the
    stream waited for before the launch, and before what follows on it. An engine that reads the source of a
    load out of stream order says so in ``loads_in_order``.

    Planning and launching are two calls, so that the events around a launch time the copy alone.
    """

    name: ClassVar[str]
    merges: ClassVar[bool] = True
    """Whether neighbouring blocks become one piece."""
    loads_in_order: bool = True

    def plan(self, kind: Kind, segments: Sequence[Segment]) -> Plan:
        """The pieces of a transfer. Raises CopyError."""
        return plan(kind, self.name, segments, self.merges)

    @abstractmethod
    def launch(self, work: Plan, stream: int) -> None:
        """Start ``work`` on the stream with the handle ``stream``, not the default stream; return before it
        is over.

        Raises DriverError.
        """

    def copy(self, kind: Kind, segments: Sequence[Segment], stream: int) -> None:
        """Plan and launch."""
        self.launch(self.plan(kind, segments), stream)
