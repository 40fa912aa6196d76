"""The ordering rules, each as a pair of programs: one that breaks it and one that keeps it, otherwise alike.

They are what the virtual device and the race checker are tried on. One block of the GPU (region 0, slots of
16 bytes) is computed on stream 0, stored to the CPU (region 1) on stream 1, loaded on stream 2. Thread 0
serves; thread 1 copies in the background.
"""

from dataclasses import dataclass, field
from typing import Final

from kvfence.reference.order_programs.program import Program
from kvfence.spec import order as od

SLOT = 16
COMPUTE, STORE, LOAD = 0, 1, 2
READY, DONE = 10, 11
JOBS, BACK = 20, 21


def gpu(slot: int, n: int = 1) -> od.Range:
    """``n`` slots of the GPU from ``slot`` on."""
    return (0, slot * SLOT, n * SLOT)


def cpu(slot: int, n: int = 1) -> od.Range:
    """``n`` slots of the CPU from ``slot`` on."""
    return (1, slot * SLOT, n * SLOT)


def header(kinds: str = "nnn", threads: tuple[int, ...] = (0,)) -> od.Header:
    """Three streams, of the kinds n(onblocking), b(locking) or l(egacy), and the regions."""
    names = {"n": "nonblocking", "b": "blocking", "l": "legacy"}
    labels = ("compute", "store", "load")
    return od.Header(
        producer="test",
        threads=threads,
        streams=tuple(od.Stream(i, 0, names[kind], labels[i]) for i, kind in enumerate(kinds)),  # type: ignore[arg-type]
        regions=(
            od.Region(0, 0, 8 * SLOT, "device", 0, "gpu", SLOT),
            od.Region(1, 1 << 20, 8 * SLOT, "pinned", 0, "cpu", SLOT),
            od.Region(2, 2 * SLOT, 2 * SLOT, "device", 0, "view", SLOT),
        ),
    )


def compute(slot: int, thread: int = 0, stream: int = COMPUTE, by: str = "req:0.0") -> od.Kernel:
    """A kernel that writes a slot."""
    return od.Kernel(thread, stream, (), (gpu(slot),), "compute", by)


def attend(slot: int, thread: int = 0) -> od.Kernel:
    """A kernel that reads a slot."""
    return od.Kernel(thread, COMPUTE, (gpu(slot),), (gpu(7),), "attention", "req:1.0")


def store(slot: int, to: int, thread: int = 0, order: str = "stream", stream: int = STORE) -> od.Copy:
    """A copy from the GPU to the CPU."""
    return od.Copy(thread, stream, (gpu(slot),), (cpu(to),), order, "store", "op:0.0")  # type: ignore[arg-type]


def load(frm: int, slot: int, thread: int = 0, order: str = "stream", stream: int = LOAD) -> od.Copy:
    """A copy from the CPU to the GPU."""
    return od.Copy(thread, stream, (cpu(frm),), (gpu(slot),), order, "load", "op:1.0")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Twins:
    """A rule and its two programs."""

    rule: str
    faulty: list[od.OrderEvent]
    sound: list[od.OrderEvent]
    invariant: str
    """What the race checker says is broken, when the faulty program runs in order; "" : no invariant."""
    says: str
    """Part of what it says is missing."""
    header: od.Header = field(default_factory=header)
    sound_header: od.Header | None = None
    """If it is the streams that differ."""

    @property
    def broken(self) -> Program:
        """The program that breaks the rule."""
        return Program(self.header, self.faulty)

    @property
    def kept(self) -> Program:
        """The program that keeps it."""
        return Program(self.sound_header or self.header, self.sound)


FILL = od.Host(0, (), (cpu(0),), "fill")
"""Something to load."""
RECORD = od.Record(0, COMPUTE, READY)
STORE_WAITS = od.Wait(0, STORE, READY)
SYNC_COMPUTE = od.SyncStream(0, COMPUTE)
PUT = od.Put(0, JOBS, 0)
GET = od.Get(1, JOBS, 0)
ZERO = od.Kernel(0, COMPUTE, (), (gpu(1),), "zero")
RECORD_LOAD = od.Record(0, LOAD, DONE)
VIEWED = od.Kernel(0, COMPUTE, (), ((2, 0, SLOT),), "through the view")
REUSE = compute(1, by="req:2.0")
LATE_STORE = store(1, 0, thread=1)

RULES: Final = [
    Twins(
        "a store waits for the compute",
        [compute(1), store(1, 0)],
        [compute(1), RECORD, STORE_WAITS, store(1, 0)],
        "STORE-READY",
        "record an event on stream 0 (compute) after it and make stream 1 (store) wait",
    ),
    Twins(
        "the barrier is recorded after the compute",
        [RECORD, compute(1), STORE_WAITS, store(1, 0)],
        [compute(1), RECORD, STORE_WAITS, store(1, 0)],
        "STORE-READY",
        "ends with event 0, before the former",
    ),
    Twins(
        "a wait does not order the source of a copy in order ANY",
        [compute(1), RECORD, STORE_WAITS, store(1, 0, order="any")],
        [compute(1), RECORD, od.SyncEvent(0, READY), store(1, 0, order="any")],
        "STORE-READY",
        "source access order ANY takes the read out of stream order",
    ),
    Twins(
        "a copy in order ANY does not follow the kernel before it on its own stream",
        [compute(1, stream=STORE), store(1, 0, order="any")],
        [compute(1, stream=STORE), store(1, 0)],
        "STORE-READY",
        "use STREAM",
    ),
    Twins(
        "a copy that reads during its call does not wait for its stream",
        [compute(1), RECORD, STORE_WAITS, store(1, 0, order="call")],
        [compute(1), SYNC_COMPUTE, store(1, 0, order="call")],
        "STORE-READY",
        "DURING_API_CALL",
    ),
    Twins(
        "the source may be written again once a copy that reads during its call returned",
        [FILL, load(0, 1), od.Host(0, (), (cpu(0),), "refill")],
        [FILL, load(0, 1, order="call"), od.Host(0, (), (cpu(0),), "refill")],
        "FREEZE",
        "wait for the event on the host before the access",
    ),
    Twins(
        "a wait is for the last record when it is called",
        [RECORD, STORE_WAITS, compute(1), RECORD, store(1, 0)],
        [RECORD, compute(1), RECORD, STORE_WAITS, store(1, 0)],
        "STORE-READY",
        "record an event on stream 0",
    ),
    Twins(
        "a wait for an event that was never recorded waits for nothing",
        [compute(1), STORE_WAITS, RECORD, store(1, 0)],
        [compute(1), RECORD, STORE_WAITS, store(1, 0)],
        "STORE-READY",
        "record an event on stream 0",
    ),
    Twins(
        "an event used again on another stream no longer stands for the first record",
        [compute(1), RECORD, od.Record(0, LOAD, READY), STORE_WAITS, store(1, 0)],
        [compute(1), RECORD, RECORD_LOAD, STORE_WAITS, store(1, 0)],
        "STORE-READY",
        "record an event on stream 0",
    ),
    Twins(
        "a load waits for the kernels of the previous owner",
        [FILL, attend(1), load(0, 1)],
        [FILL, attend(1), RECORD, od.Wait(0, LOAD, READY), load(0, 1)],
        "LOAD-ORDER",
        "make stream 2 (load) wait",
    ),
    Twins(
        "zero-fill lands before a load",
        [FILL, ZERO, load(0, 1)],
        [FILL, ZERO, RECORD, od.Wait(0, LOAD, READY), load(0, 1)],
        "LOAD-ORDER",
        "make stream 2 (load) wait",
    ),
    Twins(
        "a kernel reads a block when its load has landed",
        [FILL, load(0, 1), attend(1)],
        [FILL, load(0, 1), RECORD_LOAD, od.Wait(0, COMPUTE, DONE), attend(1)],
        "USE-READY",
        "record an event on stream 2 (load) after it and make stream 0 (compute) wait",
    ),
    Twins(
        "completion is polled on the stream that copies",
        [FILL, load(0, 1), od.Record(0, COMPUTE, DONE), od.Query(0, DONE, True), attend(1)],
        [FILL, load(0, 1), RECORD_LOAD, od.Query(0, DONE, True), attend(1)],
        "USE-READY",
        "record an event on stream 2 (load)",
    ),
    Twins(
        "a query that is not answered yes orders nothing",
        [FILL, load(0, 1), RECORD_LOAD, od.Query(0, DONE, False), attend(1)],
        [FILL, load(0, 1), RECORD_LOAD, od.Query(0, DONE, True), attend(1)],
        "USE-READY",
        "record an event on stream 2 (load)",
    ),
    Twins(
        "a slot is not used again while a store reads it",
        [compute(1), SYNC_COMPUTE, store(1, 0), REUSE],
        [compute(1), SYNC_COMPUTE, store(1, 0), od.SyncStream(0, STORE), REUSE],
        "FREEZE",
        "make stream 0 (compute) wait",
    ),
    Twins(
        "synchronising a device waits for its streams only",
        [compute(1), od.SyncDevice(0, 1), od.Host(0, (gpu(1),), (), "look")],
        [compute(1), od.SyncDevice(0, 0), od.Host(0, (gpu(1),), (), "look")],
        "",
        "wait for the event on the host",
    ),
    Twins(
        "a flush waits for copies that are still queued",
        [compute(1), SYNC_COMPUTE, PUT, od.SyncStream(0, STORE), REUSE, GET, LATE_STORE, od.Put(1, BACK, 0)],
        [
            compute(1),
            SYNC_COMPUTE,
            PUT,
            od.Get(0, BACK, 0),
            od.SyncStream(0, STORE),
            REUSE,
            GET,
            LATE_STORE,
            od.Put(1, BACK, 0),
        ],
        "STORE-READY",
        "it is a matter of timing whether thread 0 launches the former",
        header(threads=(0, 1)),
    ),
    Twins(
        "an event is recorded before the copy thread waits for it",
        [compute(1), PUT, RECORD, GET, od.Wait(1, STORE, READY), LATE_STORE],
        [compute(1), RECORD, PUT, GET, od.Wait(1, STORE, READY), LATE_STORE],
        "STORE-READY",
        "record an event on stream 0 (compute)",
        header(threads=(0, 1)),
    ),
    Twins(
        "two threads that share a stream do not share an order",
        [compute(1, stream=STORE), LATE_STORE],
        [compute(1, stream=STORE), PUT, GET, LATE_STORE],
        "STORE-READY",
        "the stream keeps the order of the launches",
        header(threads=(0, 1)),
    ),
    Twins(
        "what a thread wrote is handed over with its queue item",
        [PUT, FILL, GET, load(0, 1, thread=1)],
        [FILL, PUT, GET, load(0, 1, thread=1)],
        "USE-READY",
        "hand something over to thread 1",
        header(threads=(0, 1)),
    ),
    Twins(
        "a spawned thread knows what came before its start",
        [od.Spawn(0, 1), FILL, load(0, 1, thread=1)],
        [FILL, od.Spawn(0, 1), load(0, 1, thread=1)],
        "USE-READY",
        "hand something over to thread 1",
    ),
    Twins(
        "a thread's calls come before its join",
        [od.Spawn(0, 1), od.Host(1, (), (cpu(0),), "fill"), load(0, 1), od.Join(0, 1)],
        [od.Spawn(0, 1), od.Host(1, (), (cpu(0),), "fill"), od.Join(0, 1), load(0, 1)],
        "FREEZE",
        "hand something over",
    ),
    Twins(
        "a blocking stream waits for the legacy default stream",
        [compute(1), store(1, 0)],
        [compute(1), store(1, 0)],
        "STORE-READY",
        "record an event",
        header("lnn"),
        header("lbn"),
    ),
    Twins(
        "the legacy default stream waits for blocking streams",
        [FILL, load(0, 1), attend(1)],
        [FILL, load(0, 1), attend(1)],
        "USE-READY",
        "record an event",
        header("lbn"),
        header("lbb"),
    ),
    Twins(
        "the parts of one copy have no order",
        [compute(1), SYNC_COMPUTE, od.Copy(0, STORE, (gpu(1), cpu(0)), (cpu(0), gpu(2)), "stream", "batch")],
        [compute(1), SYNC_COMPUTE, store(1, 0), load(0, 2, stream=STORE)],
        "FREEZE",
        "the parts of one copy have no order",
    ),
    Twins(
        "a view is the memory that it is a view of",
        [VIEWED, store(2, 0)],
        [VIEWED, SYNC_COMPUTE, store(2, 0)],
        "STORE-READY",
        "record an event",
    ),
    Twins(
        "ranges that overlap in one byte conflict",
        [od.Kernel(0, COMPUTE, (), ((0, 0, 17),), "compute"), store(1, 0)],
        [od.Kernel(0, COMPUTE, (), ((0, 0, 16),), "compute"), store(1, 0)],
        "STORE-READY",
        "record an event",
    ),
]
