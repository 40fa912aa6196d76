"""What the steps of the stream order machine look like as order events: its field map.

Thread 0 is the engine thread and thread 1 the copy thread. Queue 0 has the transfers to launch, queue 1 those
that were launched. Each operation has two events, its barrier and its completion.
"""

from dataclasses import dataclass

from kvfence.spec import order as od
from kvfence.spec.language import View
from kvfence.spec.language.sizes import Sizes
from kvfence.spec.machines.field_maps.relations import related

ENGINE, COPIER = 0, 1
LEGACY, COMPUTE, STORE, LOAD, FILL = range(5)
JOBS, LAUNCHED = 0, 1
STEP_BEGIN, FILLED, OUTPUT = range(3)
DEVICE, PINNED = 0, 1
SLOT_BYTES = 4096

ORDERS: dict[str, od.SourceOrder] = {"stream": "stream", "during_api_call": "call", "any": "any"}


def barrier(o: int) -> int:
    """The event that the copy of operation o waits for."""
    return 3 + 2 * o


def done(o: int) -> int:
    """The event that is recorded behind the copy of operation o."""
    return 4 + 2 * o


def bytes_of(region: int, slots: list[int]) -> list[od.Range]:
    """The bytes of slots of the device or of the host."""
    return [(region, slot * SLOT_BYTES, SLOT_BYTES) for slot in slots]


@dataclass(frozen=True, kw_only=True)
class Events:
    """The order events of each action, for a design with these traits.

    ``fill_apart``: zero-fills have a stream of their own. ``early_record``: a step records the event that
    stores wait for when it begins. ``store_barrier``, ``load_barrier``: whether an operation has its own
    event to wait for. ``event_reused``: each launch records the barriers of what is still queued.
    ``wrong_stream``: completion is asked of the compute stream.
    """

    fill_apart: bool
    early_record: bool
    store_barrier: bool
    load_barrier: bool
    event_reused: bool
    wrong_stream: bool

    def header(self, sizes: Sizes) -> od.Header:
        """The threads, streams and memories."""
        streams = [
            od.Stream(LEGACY, kind="legacy", name="default"),
            od.Stream(COMPUTE, kind="blocking", name="compute"),
            od.Stream(STORE, name="store"),
            od.Stream(LOAD, name="load"),
            *([od.Stream(FILL, name="fill")] if self.fill_apart else []),
        ]
        device, pinned = sizes["Slot"] * SLOT_BYTES, sizes["Host"] * SLOT_BYTES
        return od.Header(
            producer="kvfence machine stream_order",
            threads=(ENGINE, COPIER),
            streams=tuple(streams),
            regions=(
                od.Region(DEVICE, at=SLOT_BYTES, bytes=device, name="gpu", slot=SLOT_BYTES),
                od.Region(
                    PINNED, at=SLOT_BYTES + device, bytes=pinned, kind="pinned", name="cpu", slot=SLOT_BYTES
                ),
            ),
        )

    # Kernels.

    def _step_begin(self) -> list[od.OrderEvent]:
        return [od.Record(ENGINE, COMPUTE, STEP_BEGIN)] if self.early_record else []

    def _after_fills(self) -> list[od.OrderEvent]:
        return [od.Record(ENGINE, FILL, FILLED), od.Wait(ENGINE, COMPUTE, FILLED)] if self.fill_apart else []

    def zero_fill(self, pre: View, post: View, x: int) -> list[od.OrderEvent]:
        """A kernel on the legacy default stream, or on a stream that is ordered with compute by hand."""
        writes = bytes_of(DEVICE, [x])
        if self.fill_apart:
            after_steps: list[od.OrderEvent] = [
                od.Record(ENGINE, COMPUTE, OUTPUT),
                od.Wait(ENGINE, FILL, OUTPUT),
            ]
            return [*after_steps, od.Kernel(ENGINE, FILL, writes=writes, name="zero_fill")]
        return [*self._step_begin(), od.Kernel(ENGINE, LEGACY, writes=writes, name="zero_fill")]

    def compute(self, pre: View, post: View, x: int) -> list[od.OrderEvent]:
        """A kernel that writes."""
        kernel = od.Kernel(ENGINE, COMPUTE, writes=bytes_of(DEVICE, [x]), name="compute")
        return [*self._step_begin(), *self._after_fills(), kernel]

    def attend(self, pre: View, post: View, x: int) -> list[od.OrderEvent]:
        """A kernel that reads."""
        return [*self._after_fills(), od.Kernel(ENGINE, COMPUTE, reads=bytes_of(DEVICE, [x]), name="attend")]

    def flush(self, pre: View, post: View) -> list[od.OrderEvent]:
        """A wait for the store stream."""
        return [od.SyncStream(ENGINE, STORE)]

    def wait_for_steps(self, pre: View, post: View) -> list[od.OrderEvent]:
        """A wait for an event behind the steps."""
        return [od.Record(ENGINE, COMPUTE, OUTPUT), od.SyncEvent(ENGINE, OUTPUT)]

    def synchronise_device(self, pre: View, post: View) -> list[od.OrderEvent]:
        """A wait for everything."""
        return [od.SyncDevice(ENGINE, 0)]

    # Transfers.

    def queue_store(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """The barrier, and the item."""
        recorded: list[od.OrderEvent] = [od.Record(ENGINE, COMPUTE, barrier(o))] if self.store_barrier else []
        return [*recorded, od.Put(ENGINE, JOBS, o)]

    def queue_load(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """The barrier, and the item."""
        recorded: list[od.OrderEvent] = [od.Record(ENGINE, COMPUTE, barrier(o))] if self.load_barrier else []
        return [*recorded, od.Put(ENGINE, JOBS, o)]

    def take(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """The get of the item."""
        return [od.Get(COPIER, JOBS, o)]

    def synchronise_with_barrier(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """A wait for the barrier."""
        return [od.SyncEvent(COPIER, barrier(o))]

    def launch_store(self, pre: View, post: View, o: int, order: str) -> list[od.OrderEvent]:
        """The wait, the copy, and its completion event."""
        waits: list[od.OrderEvent] = []
        if self.early_record:
            waits = [od.Wait(COPIER, STORE, STEP_BEGIN)]
        if self.store_barrier:
            waits = [od.Wait(COPIER, STORE, barrier(o))]
        src, dst = bytes_of(DEVICE, related(pre, "slot", o)), bytes_of(PINNED, related(pre, "host", o))
        copy = od.Copy(COPIER, STORE, src, dst, ORDERS[order], "store", f"op:{o}")
        return [*waits, copy, *self._launched(pre, o, STORE)]

    def launch_load(self, pre: View, post: View, o: int, order: str) -> list[od.OrderEvent]:
        """The wait, the copy, and its completion event."""
        waits: list[od.OrderEvent] = [od.Wait(COPIER, LOAD, barrier(o))] if self.load_barrier else []
        src, dst = bytes_of(PINNED, related(pre, "host", o)), bytes_of(DEVICE, related(pre, "slot", o))
        copy = od.Copy(COPIER, LOAD, src, dst, ORDERS[order], "load", f"op:{o}")
        return [*waits, copy, *self._launched(pre, o, LOAD)]

    def _launched(self, pre: View, o: int, stream: int) -> list[od.OrderEvent]:
        queued = [p for p, state in pre.state.items() if p != o and state in ("queued", "taken")]
        again = [od.Record(COPIER, stream, barrier(p)) for p in queued] if self.event_reused else []
        return [od.Record(COPIER, stream, done(o)), *again, od.Put(COPIER, LAUNCHED, o)]

    def hear_of_launch(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """The get of the notice."""
        return [od.Get(ENGINE, LAUNCHED, o)]

    def complete(self, pre: View, post: View, o: int) -> list[od.OrderEvent]:
        """The question whether the copy is over, and the answer that it is."""
        if self.wrong_stream:
            return [od.Record(ENGINE, COMPUTE, OUTPUT), od.Query(ENGINE, OUTPUT, done=True)]
        return [od.Query(ENGINE, done(o), done=True)]
