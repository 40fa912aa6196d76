"""How fast a GPU searches: known counts, states a second, the C engine beside it, and the largest that fits.

    python bench/explore_gpu.py [SIZE ...] [--memory GIB] [--native SIZE] [--walks SIZE]
        [--repeat N] [--whole]
    python bench/explore_gpu.py --tune SIZE
    torchrun --nproc-per-node N bench/explore_gpu.py SIZE ...

A SIZE is BLOCKSxREQUESTS of tests/machines/kvlife.py, for instance 5x3. Counts are compared with the known
ones where there are any; the exit code is 1 when one differs, and 3 when there is no GPU. Times of the search
are from its first allocation to the last count; "all" includes making the machine's source and starting the
device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kvfence.checker.engines.gpu import Gpu, Swarm, gpu_engine
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.search_device import NoGpu
from kvfence.checker.engines.gpu.pinned_levels import pinned_levels
from kvfence.checker.engines.native.native import Native
from kvfence.spec.language import Machine

HERE = Path(__file__).parent
NOT_MEASURED = 3
LONG = 10.0  # seconds: longer runs are not repeated
KNOWN = {
    "4x3": (3_250_176, 25_802_664, 27),
    "4x4": (31_859_712, 291_685_416, 28),
    "5x3": (103_526_400, 943_108_680, 33),
    "4x5": (270_096_384, 2_793_910_632, 30),
    "5x4": (1_308_180_480, 13_561_511_160, 34),
    "4x6": (1_955_867_136, 22_473_952_296, 32),
    "5x5": (14_699_028_480, 170_613_148_920, None),
}


def main() -> int:
    """Exit code: 0 when every count is the known one, 1 when one is not, 3 without a GPU."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("sizes", nargs="*", default=["4x3", "4x4", "5x3", "4x5"], metavar="SIZE")
    arguments.add_argument("--native", metavar="SIZE", help="also the C engine on one thread, at this size")
    arguments.add_argument("--repeat", type=int, default=3, help="runs of each size; the best one counts")
    arguments.add_argument("--whole", action="store_true", help="also with whole keys of 64 bits")
    arguments.add_argument("--memory", type=float, metavar="GIB", help="of the device; the rest on the host")
    arguments.add_argument("--walks", metavar="SIZE", help="also random walks, at this size")
    arguments.add_argument("--tune", metavar="SIZE", help="try shapes of the kernel at this size, and stop")
    arguments.add_argument("--output", type=Path, default=HERE / "results", help="folder of the results")
    given = arguments.parse_args()
    build = benchmark_machine()
    first = int(os.environ.get("RANK", "0")) == 0
    try:
        device = CudaDevice(int(os.environ.get("LOCAL_RANK", "0")))
    except NoGpu as why:
        print(f"not measured: {why}", file=sys.stderr)
        return NOT_MEASURED
    found: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": device.name,
        "cards": int(os.environ.get("WORLD_SIZE", "1")),
        "driver": kernel_driver(),
        "cuda": device.driver_version(),
        "memory": device.free_bytes(),
        "processor": processor(),
        "python": platform.python_version(),
    }
    device.close()
    if first:
        print(found, flush=True)
    if given.tune:
        tune(build, given.tune)
        return 0
    rows, wrong = [], []
    for size in given.sizes:
        for narrow in (True, False) if given.whole else (True,):
            row = measure(build, size, given.repeat, narrow, given.memory and int(given.memory * (1 << 30)))
            rows.append(row)
            known = KNOWN.get(size, (None, None, None))
            got = (row["states"], row["transitions"], row["depth"])
            if row["stopped"] or any(k is not None and k != g for k, g in zip(known, got, strict=True)):
                wrong.append(f"{size}: {got}, not {known} ({row['stopped']})")
            if first:
                print(json.dumps(row), flush=True)
    if not first:
        return 0
    if given.walks:
        rows.append(walk(build, given.walks))
        print(json.dumps(rows[-1]), flush=True)
    if given.native:
        rows.append(native(build, given.native))
        print(json.dumps(rows[-1]), flush=True)
    found["rows"], found["start"] = rows, start_up() if found["cards"] == 1 else None
    save(given.output, found)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def sizes_of(size: str) -> dict[str, int]:
    """``5x3`` as sizes of sorts."""
    blocks, _, requests = size.partition("x")
    return {"Block": int(blocks), "Request": int(requests)}


def measure(
    build: Callable[[], Machine], size: str, repeat: int, narrow: bool, memory: int | None = None
) -> dict[str, object]:
    """The best of some runs. A first one, cut short, compiles."""
    best: dict[str, object] = {}
    for k in range(1 + repeat):  # the first one compiles
        begin = time.perf_counter()
        engine = gpu_engine(threads=1, symmetry=False, checkpoint=None, note=None, store=pinned_levels)
        engine.limits = replace(engine.limits, narrow=narrow)
        r = engine.run(build(), sizes_of(size), max_states=None if k else 1000, memory=memory)
        if not k:
            continue
        row = {
            "engine": ("gpu" if narrow else "gpu, whole keys")
            + (f", {memory / (1 << 30):g} GiB" if memory else ""),
            "size": size,
            "states": r.states,
            "transitions": r.transitions,
            "depth": r.depth,
            "seconds": round(r.seconds, 4),
            "all": round(time.perf_counter() - begin, 4),
            "verdict": str(r.verdict),
            "stopped": r.stopped,
        }
        if not best or r.seconds < float(str(best["seconds"])):
            best = row
        if engine.ranks.largest(int(r.seconds > LONG)):
            break
    seconds = float(str(best["seconds"]))
    best["states_per_second"] = round(int(str(best["states"])) / seconds)
    best["transitions_per_second"] = round(int(str(best["transitions"])) / seconds)
    return best


def native(build: Callable[[], Machine], size: str) -> dict[str, object]:
    """The C engine on one thread of this machine."""
    Native().run(build(), sizes_of(size), max_states=1000)
    r = Native().run(build(), sizes_of(size))
    return {
        "engine": "native, 1 thread",
        "size": size,
        "states": r.states,
        "transitions": r.transitions,
        "depth": r.depth,
        "seconds": round(r.seconds, 4),
        "states_per_second": round(r.states / r.seconds),
        "transitions_per_second": round(r.transitions / r.seconds),
        "stopped": r.stopped,
    }


def walk(build: Callable[[], Machine], size: str) -> dict[str, object]:
    """A million random walks of a thousand steps; states count as often as walks come by."""
    Swarm(walks=1, steps=1).run(build(), sizes_of(size))
    r = Swarm().run(build(), sizes_of(size))
    return {
        "engine": "swarm",
        "size": size,
        "states": r.states,
        "transitions": r.transitions,
        "depth": r.depth,
        "seconds": round(r.seconds, 4),
        "states_per_second": round(r.states / r.seconds),
        "transitions_per_second": round(r.transitions / r.seconds),
        "stopped": r.stopped,
    }


def tune(build: Callable[[], Machine], size: str) -> None:
    """Shapes of the kernel, tried one after another."""
    for threads, blocks in ((256, 1), (256, 2), (256, 3), (256, 4), (128, 4), (128, 6), (512, 1), (512, 2)):
        for queue in (256, 512, 1024):

            def device(threads: int = threads, blocks: int = blocks) -> CudaDevice:
                return CudaDevice(threads=threads, blocks=blocks)

            try:
                best = min(
                    Gpu(device=device, queue=queue).run(build(), sizes_of(size)).seconds for _ in range(3)
                )
                print(f"threads {threads} blocks {blocks} queue {queue}: {best:.3f} s", flush=True)
            except (RuntimeError, NoGpu) as error:
                print(f"threads {threads} blocks {blocks} queue {queue}: {error}", flush=True)


def start_up() -> float:
    """Seconds of a whole process that searches a small machine, its kernels compiled before."""
    command = [sys.executable, "-m", "kvfence", "verify", "--engine", "gpu"]
    command += ["--machine", "lookup"]
    took = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        took = time.perf_counter() - begin
        if done.returncode:
            print(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
    return round(took, 3)


def save(folder: Path, found: dict[str, object]) -> None:
    """Write explore_gpu-CARD.json, and a table beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    card = str(found["card"]).removeprefix("NVIDIA ").split()[0].lower()
    cards = f"-x{found['cards']}" if found["cards"] != 1 else ""
    stem = folder / f"explore_gpu-{card}{cards}"
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    start = (
        f"A whole process on a small machine, kernels compiled before: {found['start']} s."
        if found["start"]
        else ""
    )
    lines = [
        "# Exhaustive search on a GPU",
        "",
        f"{found['cards']} {found['card']}, driver {found['driver']}, CUDA {found['cuda']}, "
        f"{found['processor']}, {found['date']}. kvlife at BLOCKSxREQUESTS. {start}".rstrip(),
        "",
        "| engine | size | states | transitions | seconds | M states/s | M transitions/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:  # type: ignore[attr-defined]
        lines.append(
            f"| {row['engine']} | {row['size']} | {row['states']:,} | {row['transitions']:,} "
            f"| {row['seconds']} | {row['states_per_second'] / 1e6:.1f} "
            f"| {row['transitions_per_second'] / 1e6:.0f} |"
        )
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)


def kernel_driver() -> str:
    """Version of the NVIDIA kernel driver."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def benchmark_machine() -> Callable[[], Machine]:
    """``build`` of tests/machines/kvlife.py."""
    spec = importlib.util.spec_from_file_location("kvlife", HERE.parent / "tests" / "machines" / "kvlife.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build: Callable[[], Machine] = module.build
    return build


if __name__ == "__main__":
    sys.exit(main())
