"""The race checker judges every stream operation of every engine: lanes, staging and descriptors included."""

import numpy as np
import torch

from kvfence.checker.order.races import OrderChecker
from kvfence.reference.copy.plan import Segment, View
from kvfence.spec import order as od


def races(driver, engine, kind, *, waits_before=True, waits_after=True):
    """Compute writes the blocks on the device, a copy moves them, compute writes them again; twice over.

    ``driver.events`` also has what the engine itself does on its streams. Returns the races.
    """
    device, host = (torch.zeros((24, 160), dtype=torch.uint8) for _ in range(2))
    compute, copies = driver.new_stream(), driver.new_stream()
    ready, end = driver.next_number(), driver.next_number()
    blocks = np.random.default_rng(0).permutation(24)
    sides = (device, host) if kind == "store" else (host, device)
    segment = Segment([View.of(sides[0])], blocks, [View.of(sides[1])], blocks[::-1].copy())
    everything = [(0, device.data_ptr(), device.numel())]
    for _ in range(2):
        driver.emit(od.Kernel(0, compute.number, [], everything, "compute"))
        driver.emit(od.Record(0, compute.number, ready))
        if waits_before:
            driver.emit(od.Wait(0, copies.number, ready))
        engine.copy(kind, [segment], copies)
        driver.emit(od.Record(0, copies.number, end))
        if waits_after:
            driver.emit(od.Wait(0, compute.number, end))
    driver.emit(od.Kernel(0, compute.number, [], everything, "compute"))
    streams = tuple(od.Stream(number) for number in driver.streams)
    checker = OrderChecker(od.Header(producer="test", streams=streams, regions=(od.Region(0, 0, 2**62),)))
    checker.apply_all(driver.events)
    assert checker.complete
    return checker.races


def test_nothing_that_an_engine_does_races_with_compute_or_itself(driver, engine, kind):
    assert races(driver, engine, kind) == []


def test_a_copy_that_does_not_wait_for_the_compute_races(driver, engine, kind):
    assert races(driver, engine, kind, waits_before=False)


def test_compute_that_does_not_wait_for_the_copy_races(driver, engine, kind):
    assert races(driver, engine, kind, waits_after=False)
