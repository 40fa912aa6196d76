"""How many order events a second the race checker judges: online, and from a file.

    python bench/order_speed.py [--events N] [--keep FILE]

The trace is that of a serving loop with a background copy thread: two kernels, a barrier, a job through a
queue, a store on another stream, its completion through a queue and an event. Seconds are of the processor.
"""

from __future__ import annotations

import random
import resource
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from _measure import Stopwatch, arguments

from kvfence.checker.order.race_check import check_order_trace
from kvfence.checker.order.races import OrderChecker
from kvfence.spec import order as od
from kvfence.spec.files.order_traces import OrderTraceWriter

SLOT = 1 << 16
SLOTS = 1 << 16
COMPUTE, STORE = 0, 1
READY, DONE = 0, 1
JOBS, LAUNCHED = 0, 1

HEADER = od.Header(
    producer="bench",
    threads=(0, 1),
    streams=(od.Stream(COMPUTE), od.Stream(STORE)),
    regions=(
        od.Region(0, 0, SLOT * SLOTS, slot=SLOT, name="gpu"),
        od.Region(1, 1 << 48, SLOT * SLOTS, "pinned", slot=SLOT, name="cpu"),
    ),
)


def serving() -> Iterator[od.OrderEvent]:
    """Steps without end."""
    draw = random.Random(0)
    job = 0
    while True:
        one, two, three, to = (draw.randrange(SLOTS) * SLOT for _ in range(4))
        first: od.Range = (0, one, SLOT)
        second: od.Range = (0, two, SLOT)
        yield od.Kernel(0, COMPUTE, (first,), (second,), "attention", "req:1.0")
        yield od.Kernel(0, COMPUTE, (second,), ((0, three, SLOT),), "mlp", "req:1.0")
        yield od.Record(0, COMPUTE, READY)
        yield od.Put(0, JOBS, job)
        yield od.Get(1, JOBS, job)
        yield od.Wait(1, STORE, READY)
        yield od.Copy(1, STORE, (second,), ((1, to, SLOT),), "stream", "store", "op:1.0")
        yield od.Record(1, STORE, DONE)
        yield od.Put(1, LAUNCHED, job)
        yield od.Get(0, LAUNCHED, job)
        yield od.SyncEvent(0, DONE)
        job += 1


def rates(events: int, accesses: int, seconds: float) -> str:
    """What is judged in a second."""
    return f"{events / seconds:,.0f} events/s, {accesses / seconds:,.0f} accesses/s"


def main() -> None:
    """Prints the measurements."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--keep", type=Path, help="keep the trace in this file")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = wanted.keep or Path(folder) / "order.jsonl"
        with OrderTraceWriter(path, HEADER) as write:
            for event in islice(serving(), wanted.events):
                write(event)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with Stopwatch() as check:
            found = check_order_trace(path)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = path.stat().st_size / 2**20
    print(f"from a file of {size:,.0f} MiB: {found.events:,} events, {found.verdict}")
    print(f"  {rates(found.events, found.accesses, check.cpu)}")
    print(f"  memory grew by {grown / 2**10:,.0f} MiB")
    events = list(islice(serving(), min(wanted.events, 500_000)))
    checker = OrderChecker(HEADER)
    with Stopwatch() as online:
        checker.apply_all(events)
    print(
        f"online: {len(events) / online.cpu:,.0f} events/s, {checker.accesses / online.cpu:,.0f} accesses/s"
    )


if __name__ == "__main__":
    main()
