"""What the measurements on a GPU share: the driver or a message, times by events, and files of results."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from kvfence.reference.driver.driver import Driver, NoDevice, open_driver

NOT_MEASURED: Final = 3
RESULTS: Final = Path(__file__).parent / "results"


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
        "date": datetime.now(UTC).date().isoformat(),
        "card": card.name,
        "driver": kernel_driver(),
        "cuda": card.driver,
        "torch": str(torch.__version__),
    }


def kernel_driver() -> str:
    """Version of the NVIDIA kernel driver."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        text = Path("/proc/driver/nvidia/version")
        words = text.read_text(encoding="ascii").split() if text.exists() else []
        return next((word for word in words if word[:1].isdigit()), "unknown")


def seconds(stream: torch.cuda.Stream, work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of ``work`` on the device and of the host's call, medians after one run that does not count."""
    on_device, on_host = [], []
    for _ in range(repeats + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record(stream)
        start = time.perf_counter()
        work()
        on_host.append(time.perf_counter() - start)
        end.record(stream)
        end.synchronize()
        on_device.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(on_device[1:]), statistics.median(on_host[1:])


def save(folder: Path, name: str, found: dict[str, Any], text: str) -> None:
    """Writes ``name``-CARD.json, and ``text`` beside it as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{str(found['card']).removeprefix('NVIDIA ').split()[0].lower()}"
    (folder / f"{stem}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def heading(title: str, found: dict[str, Any]) -> str:
    """Title, and what it is of."""
    return (
        f"# {title}\n\n{found['card']}, driver {found['driver']}, CUDA {found['cuda']}, "
        f"torch {found['torch']}, {found['date']}.\n"
    )
