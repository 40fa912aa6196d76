"""What every copy engine is: it plans a transfer on the host, then launches it on a stream."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch

from kvfence.reference.copy.plan import Plan, Segment, plan
from kvfence.spec import events as ev
from kvfence.spec import order as od


class CopyEngine(ABC):
    """A way to move blocks.

    Whatever the engine, a transfer is one operation of the stream: its reads and writes come after what the
    stream waited for before the launch, and before what follows on it. Only the source of a load may be read
    out of stream order; :meth:`source_order` says so.

    Planning, staging and launching are three calls, so that events around the last time the copy alone.
    """

    name: ClassVar[str]
    merges: ClassVar[bool] = True
    """Whether neighbouring blocks become one piece."""

    def source_order(self, work: Plan) -> od.SourceOrder:  # noqa: ARG002 - some engines look at it
        """When the source of ``work`` is read: in stream order, or at any time after the launch."""
        return "stream"

    def plan(self, kind: ev.Kind, segments: Sequence[Segment]) -> Plan:
        """The pieces of a transfer. Raises CopyError."""
        return plan(kind, self.name, segments, self.merges)

    @abstractmethod
    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """Start ``work`` on ``stream``, which is not the default stream. Returns before it is over.

        Raises DriverError.
        """

    def stage(self, work: Plan, stream: torch.cuda.Stream) -> Callable[[], None]:
        """Send ahead on ``stream`` what the launch needs. What is returned launches, on the same stream."""
        return partial(self.launch, work, stream)

    def copy(self, kind: ev.Kind, segments: Sequence[Segment], stream: torch.cuda.Stream) -> None:
        """Plan and launch."""
        self.launch(self.plan(kind, segments), stream)
