"""The checker for running engines agrees with the race checker, and says what is wrong in the same words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from kvfence.checker.order.races import OrderChecker, Race
from kvfence.checker.order.slot_races import KEPT, SlotChecker
from kvfence.spec import order as od

SLOTS = 5


def row(ranges: Sequence[od.Range]) -> list[tuple[int, np.ndarray]]:
    slots = [at for _, start, count in ranges for at in range(start, start + count)]
    return [(0, np.array(slots, np.int64))] if slots else []


ORDERING: dict[type[od.OrderEvent], tuple[Callable[..., None], int]] = {
    od.Put: (SlotChecker.put, 3),
    od.Get: (SlotChecker.get, 3),
    od.Record: (SlotChecker.record, 3),
    od.Wait: (SlotChecker.wait, 3),
    od.SyncEvent: (SlotChecker.sync_event, 2),
    od.Query: (SlotChecker.query, 3),
    od.SyncStream: (SlotChecker.sync_stream, 2),
    od.SyncDevice: (SlotChecker.sync_device, 2),
}
"""What the checker gets of calls that only order, and with how many fields of the event."""


def emit(checker: SlotChecker, event: od.OrderEvent) -> None:
    match event:
        case od.Host(thread, reads, writes):
            checker.host(thread, row(reads), row(writes))
        case od.Kernel(thread, stream, reads, writes):
            checker.kernel(thread, stream, row(reads), row(writes), event.name)
        case od.Copy(thread, stream, src, dst, order):
            checker.copy(thread, stream, row(src)[0], row(dst)[0], order, event.name)
        case _:
            method, count = ORDERING[type(event)]
            method(checker, *msgspec.structs.astuple(event)[:count])


def drawn(draw: random.Random, threads: int, streams: int) -> list[od.OrderEvent]:
    """Calls of several threads, with everything that can order them."""
    events: list[od.OrderEvent] = []
    items = 0

    def some() -> list[od.Range]:
        return [(0, at, 1) for at in sorted(draw.sample(range(SLOTS), draw.randint(1, 3)))]

    for _ in range(draw.randint(5, 60)):
        thread, stream, event = draw.randrange(threads), draw.randrange(streams), draw.randrange(3)
        kind = draw.choice("kkkcccrrwwqspptdh")
        if kind == "p":
            if threads > 1:
                other = draw.choice([each for each in range(threads) if each != thread])
                events += [od.Put(thread, 0, items), od.Get(other, 0, items)]
                items += 1
        elif kind == "k":
            events.append(od.Kernel(thread, stream, some(), some() if draw.random() < 0.7 else []))
        elif kind == "c":
            src = some()
            dst = [(0, draw.randrange(SLOTS), 1) for _ in src]
            events.append(od.Copy(thread, stream, src, dst, draw.choice(["stream", "call", "any"])))
        else:
            made: dict[str, od.OrderEvent] = {
                "r": od.Record(thread, stream, event),
                "w": od.Wait(thread, stream, event),
                "q": od.Query(thread, event, draw.random() < 0.5),
                "s": od.SyncEvent(thread, event),
                "t": od.SyncStream(thread, stream),
                "d": od.SyncDevice(thread, 0),
                "h": od.Host(thread, some(), []),
            }
            events.append(made[kind])
    return events


def both(threads: int, streams: Sequence[od.Stream]) -> tuple[OrderChecker, SlotChecker]:
    ids = tuple(range(threads))
    header = od.Header(producer="t", threads=ids, streams=tuple(streams), regions=(od.Region(0, 0, SLOTS),))
    slots = SlotChecker(ids)
    for stream in streams:
        slots.add_stream(stream)
    slots.add_pool("region 0", SLOTS, "device")
    return OrderChecker(header), slots


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_both_find_a_race_in_the_same_events(start: int) -> None:
    found = silent = 0
    for seed in range(start, start + 100):
        draw = random.Random(seed)
        kinds = draw.choice([("nonblocking",) * 3, ("legacy", "blocking", "nonblocking")])
        streams = [od.Stream(number, 0, kind) for number, kind in enumerate(kinds)]  # type: ignore[arg-type]
        threads = draw.choice([1, 2, 3])
        ranges, slots = both(threads, streams)
        for event in drawn(draw, threads, len(streams)):
            before = ranges.found, slots.found
            ranges(event)
            emit(slots, event)
            raced = ranges.found > before[0], slots.found > before[1]
            assert raced[0] == raced[1], f"seed {seed}: {event}"
            found += raced[0]
            silent += not raced[0]
    assert found > 50
    assert silent > 50


def small(slots: int = 8) -> tuple[SlotChecker, int]:
    """A checker with two streams, and a pool of so many slots on the device."""
    checker = SlotChecker()
    for number in range(2):
        checker.add_stream(od.Stream(number))
    return checker, checker.add_pool("gpu", slots, "device")


def store(*, waits: bool, order: str = "stream") -> tuple[SlotChecker, list[Race]]:
    emitted: list[Race] = []
    checker = SlotChecker((0, 1), on_race=emitted.append)
    for number, name in enumerate(("compute", "store")):
        checker.add_stream(od.Stream(number, name=name))
    gpu = checker.add_pool("gpu", 100, "device", 64)
    cpu = checker.add_pool("cpu", 100, "pinned", 64)
    slots = np.array([4, 5, 6, 9])
    checker.kernel(0, 0, [], [(gpu, slots)], "step", "a")
    checker.record(0, 0, 7)
    checker.put(0, 0, 0)
    checker.get(1, 0, 0)
    if waits:
        checker.wait(1, 1, 7)
    checker.copy(1, 1, (gpu, slots), (cpu, slots), order, "store", "store 0")  # type: ignore[arg-type]
    return checker, emitted


def test_a_store_that_waits_is_silent() -> None:
    checker, emitted = store(waits=True)
    assert not emitted
    assert checker.accesses == 12


def test_a_store_that_does_not_wait_is_told_with_both_accesses() -> None:
    checker, emitted = store(waits=False)
    race = emitted[0]
    assert (race.invariant, race.region, race.slots, race.offset) == ("STORE-READY", "gpu", (4, 6), 256)
    assert (race.first.name, race.first.by) == ("step", "a")
    assert (race.second.name, race.second.by) == ("store", "store 0")
    assert "make stream 1 (store) wait for the event" in race.missing
    assert checker.found == 4
    assert checker.times() == [4]


def test_a_wait_does_not_help_a_copy_that_reads_when_it_likes() -> None:
    _, emitted = store(waits=True, order="any")
    assert emitted[0].invariant == "STORE-READY"
    assert "source access order ANY" in emitted[0].missing


def test_a_load_over_what_a_kernel_still_reads_is_told() -> None:
    checker, gpu = small(100)
    cpu = checker.add_pool("cpu", 100, "pinned")
    first = checker.kernel(0, 0, [(gpu, np.array([1, 2]))], [], "step")
    checker.record(0, 0, 0)
    checker.sync_event(0, 0)
    last = checker.kernel(0, 0, [], [], "step")
    checker.read_earlier(gpu, np.array([2]), last)
    checker.copy(0, 1, (cpu, np.array([8])), (gpu, np.array([1])), "any", "load")
    assert not checker.races
    checker.copy(0, 1, (cpu, np.array([9])), (gpu, np.array([2])), "any", "load")
    assert checker.races[0].invariant == "LOAD-ORDER"
    assert checker.races[0].first.number + 1 == last[1] > first[1]


def test_memory_is_flat_and_races_alike_are_told_once() -> None:
    checker, gpu = small()
    for number in range(20_000):
        checker.kernel(0, 0, [], [(gpu, np.array([number % 8]))], "step")
        checker.record(0, 0, number)
        checker.forget_event(number)
        if number % 100 == 0:
            checker.kernel(0, 1, [(gpu, np.array([number % 8]))], [], "other")
    assert len(checker.races) == 2 < KEPT
    assert checker.found > 200
    assert not checker.clocks._records
    assert len(checker._sites) <= 1 << 14


def test_an_access_a_thousand_events_ago_is_told_by_its_name() -> None:
    checker, gpu = small()
    checker.kernel(0, 0, [], [(gpu, np.array([7]))], "step")
    for _ in range(1000):
        checker.kernel(0, 0, [(gpu, np.array([1]))], [], "other")
    checker.kernel(0, 1, [(gpu, np.array([7]))], [], "late")
    assert [(race.first.name, race.second.name) for race in checker.races] == [("step", "late")]
