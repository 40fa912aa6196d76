"""What the measurements on a GPU share: the driver or a message, facts about it, and times by events."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _measure import NOT_MEASURED, kernel_driver, today

from kvfence.reference.driver.driver import Driver, NoDevice, open_driver


def driver_or_exit() -> Driver:
    """The driver of the first GPU. Without one, says so and ends the program: nothing was measured."""
    try:
        return open_driver()
    except NoDevice as error:
        print(f"not measured: {error}", file=sys.stderr)
        raise SystemExit(NOT_MEASURED) from None


def facts(driver: Driver) -> dict[str, object]:
    """What a result is of."""
    card = driver.card
    return {
        "date": today(),
        "card": card.name,
        "driver": kernel_driver(),
        "cuda": card.driver,
        "torch": str(torch.__version__),
    }


def mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event that knows when the work before it in ``stream`` was over."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def seconds(stream: torch.cuda.Stream, work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of ``work`` on the device and of the host's call, medians after one run that does not count."""
    on_device, on_host = [], []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begin = mark(stream)
        start = time.perf_counter()
        work()
        on_host.append(time.perf_counter() - start)
        end = mark(stream)
        end.synchronize()
        on_device.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(on_device[1:]), statistics.median(on_host[1:])


def heading(title: str, found: dict[str, Any]) -> str:
    """Title, and what it is of."""
    return (
        f"# {title}\n\n{found['card']}, driver {found['driver']}, CUDA {found['cuda']}, "
        f"torch {found['torch']}, {found['date']}.\n"
    )
