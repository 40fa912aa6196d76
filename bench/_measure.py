"""What the measurements share: arguments, facts about the computer, tables, and files of results."""

from __future__ import annotations

import gc
import os
import platform
import runpy
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from kvfence.spec.language import Machine

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
SAMPLE: Final = HERE.parent / "reference" / "samples" / "mooncake_conversation_300.jsonl"
"""The workload that is replayed where no other is given."""
NOT_MEASURED: Final = 3
"""Exit code of a measurement that this computer has no device for."""


def arguments(text: str | None, *, output: str | None = None, default: Path | None = None) -> ArgumentParser:
    """A parser whose description is the first line of ``text``; ``output`` is the help of ``--output``."""
    parser = ArgumentParser(description=(text or "").partition("\n")[0])
    if output is not None:
        parser.add_argument("--output", type=Path, default=default, help=output)
    return parser


def replay_arguments(text: str | None, workloads: str = "*", **output: Any) -> ArgumentParser:
    """The arguments of a measurement that replays workloads, or one if ``workloads`` is ``?``."""
    parser = arguments(text, **output)
    one = workloads == "?"
    name, default = ("workload", SAMPLE) if one else ("workloads", [SAMPLE])
    parser.add_argument(name, nargs=workloads, type=Path, default=default)
    parser.add_argument("--requests", type=int, default=None, help="only the first so many")
    return parser


class Stopwatch:
    """What the block of a ``with`` takes: ``cpu`` and ``seconds``, and the ``load`` average before it."""

    def __enter__(self) -> Stopwatch:
        """Starts both clocks."""
        self.load = round(os.getloadavg()[0], 1)
        self.cpu, self.seconds = time.process_time(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops both clocks."""
        self.cpu, self.seconds = time.process_time() - self.cpu, time.perf_counter() - self.seconds


def best_of(rounds: int, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The least seconds of the processor that each of ``works`` takes; rounds of all of them alternate."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            gc.collect()
            with Stopwatch() as watch:
                work()
            best[name] = min(best[name], watch.cpu)
    return best


def machine() -> dict[str, str]:
    """The interpreter and the kind of processor."""
    return {"python": platform.python_version(), "processor": platform.machine()}


def today() -> str:
    """The date in UTC, as in ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def kernel_driver() -> str:
    """Version of the NVIDIA kernel driver."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        file = Path("/proc/driver/nvidia/version")
        parts = file.read_text(encoding="ascii").split() if file.exists() else []
        return next((part for part in parts if part[:1].isdigit()), "unknown")


def resident() -> int:
    """Bytes of this process that are in memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("not measured: this system does not say how much memory is resident")


def save(path: Path | None, found: object) -> None:
    """Writes ``found`` as JSON to ``path``, if there is one."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def save_of_card(folder: Path, name: str, found: Mapping[str, Any], text: str) -> None:
    """Writes ``name``-CARD.json and ``text`` beside it as Markdown, and prints ``text``."""
    stem = f"{name}-{str(found['card']).removeprefix('NVIDIA ').split()[0].lower()}"
    stem += f"-x{found['cards']}" if found.get("cards", 1) != 1 else ""
    save(folder / f"{stem}.json", found)
    (folder / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def kvlife() -> Callable[[], Machine]:
    """``build`` of tests/machines/kvlife.py, the machine that search engines are compared on."""
    build: Callable[[], Machine] = runpy.run_path(str(HERE.parent / "tests/machines/kvlife.py"))["build"]
    return build


def searched(engine: str, size: str, r: Any) -> dict[str, object]:
    """What a search of kvlife found, and how fast: a row of the results."""
    return {
        "engine": engine,
        "size": size,
        "states": r.states,
        "transitions": r.transitions,
        "depth": r.depth,
        "seconds": round(r.seconds, 4),
        "states_per_second": round(r.states / r.seconds),
        "transitions_per_second": round(r.transitions / r.seconds),
        "stopped": r.stopped,
    }
