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

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import _measure as ms

from kvfence.checker.engines.gpu import Gpu, Swarm, gpu_engine
from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
from kvfence.checker.engines.gpu.device.search_device import NoGpu
from kvfence.checker.engines.gpu.pinned_levels import pinned_levels
from kvfence.checker.engines.native.native import Native
from kvfence.spec.language import Machine

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
    parser = ms.arguments(__doc__, output="folder of the results", default=ms.RESULTS)
    parser.add_argument("sizes", nargs="*", default=["4x3", "4x4", "5x3", "4x5"], metavar="SIZE")
    parser.add_argument("--native", metavar="SIZE", help="also the C engine on one thread, at this size")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each size; the best one counts")
    parser.add_argument("--whole", action="store_true", help="also with whole keys of 64 bits")
    parser.add_argument("--memory", type=float, metavar="GIB", help="of the device; the rest on the host")
    parser.add_argument("--walks", metavar="SIZE", help="also random walks, at this size")
    parser.add_argument("--tune", metavar="SIZE", help="try shapes of the kernel at this size, and stop")
    given = parser.parse_args()
    build = ms.kvlife()
    first = int(os.environ.get("RANK", "0")) == 0
    try:
        device = CudaDevice(int(os.environ.get("LOCAL_RANK", "0")))
    except NoGpu as why:
        print(f"not measured: {why}", file=sys.stderr)
        return ms.NOT_MEASURED
    found: dict[str, object] = {
        "date": ms.today(),
        "card": device.name,
        "cards": int(os.environ.get("WORLD_SIZE", "1")),
        "driver": ms.kernel_driver(),
        "cuda": device.driver_version(),
        "memory": device.free_bytes(),
        "processor": ms.processor(),
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
    for measured, size in ((walk, given.walks), (native, given.native)):
        if size:
            rows.append(measured(build, size))
            print(json.dumps(rows[-1]), flush=True)
    found["rows"], found["start"] = rows, start_up() if found["cards"] == 1 else None
    ms.save_of_card(given.output, "explore_gpu", found, results_text(found))
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
    best: tuple[Any, float] | None = None
    for k in range(1 + repeat):  # the first one compiles
        begin = time.perf_counter()
        engine = gpu_engine(threads=1, symmetry=False, checkpoint=None, note=None, store=pinned_levels)
        engine.limits = replace(engine.limits, narrow=narrow)
        r = engine.run(build(), sizes_of(size), max_states=None if k else 1000, memory=memory)
        if not k:
            continue
        if best is None or r.seconds < best[0].seconds:
            best = r, round(time.perf_counter() - begin, 4)
        if engine.ranks.largest(int(r.seconds > LONG)):
            break
    assert best is not None
    r, took = best
    name = f"gpu{'' if narrow else ', whole keys'}{f', {memory / (1 << 30):g} GiB' if memory else ''}"
    return ms.searched(name, size, r) | {"all": took, "verdict": str(r.verdict)}


def native(build: Callable[[], Machine], size: str) -> dict[str, object]:
    """The C engine on one thread of this machine."""
    Native().run(build(), sizes_of(size), max_states=1000)
    return ms.searched("native, 1 thread", size, Native().run(build(), sizes_of(size)))


def walk(build: Callable[[], Machine], size: str) -> dict[str, object]:
    """A million random walks of a thousand steps; states count as often as walks visit them."""
    Swarm(walks=1, steps=1).run(build(), sizes_of(size))
    return ms.searched("swarm", size, Swarm().run(build(), sizes_of(size)))


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


def results_text(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    start = f"A whole process on a small machine, kernels compiled before: {found['start']} s."
    first = (
        f"# Exhaustive search on a GPU\n\n{found['cards']} {found['card']}, driver {found['driver']}, "
        f"CUDA {found['cuda']}, {found['processor']}, {found['date']}. kvlife at BLOCKSxREQUESTS. "
    )
    rows = [
        [
            *(row["engine"], row["size"], f"{row['states']:,}", f"{row['transitions']:,}", row["seconds"]),
            *(f"{row['states_per_second'] / 1e6:.1f}", f"{row['transitions_per_second'] / 1e6:.0f}"),
        ]
        for row in found["rows"]
    ]
    head = ["engine", "size", "states", "transitions", "seconds", "M states/s", "M transitions/s"]
    return f"{first}{start if found['start'] else ''}".rstrip() + "\n\n" + ms.table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
