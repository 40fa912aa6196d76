"""How fast the engines search, beside Spin and Rumur: the same machine, counts compared, times of one run.

    python bench/explore.py [--repeat N] [--large] [--no-rumur] [--output FILE]

The machine is tests/machines/kvlife.py, restated for the peers in bench/peers/. A peer that is not installed
is left out with a message. Programs are compiled before the clock starts, those of kvfence too; its times
include everything else, from the machine's text to the last count. Engines take turns, so that a busy
computer is equally unkind to all.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _measure import RESULTS, arguments, kvlife, processor, save, today
from peers import Found, Unusable, rumur, spin

from kvfence import __version__
from kvfence.checker.core.processes import cores
from kvfence.checker.engines.base import Engine
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.native.native import Native
from kvfence.spec.language import Machine

SIZES = {(3, 2): (12_864, 71_154, 19), (3, 3): (110_400, 740_994, 21), (4, 3): (3_250_176, 25_802_664, 27)}
LARGE = {(5, 3): (103_526_400, 943_108_680, 33)}
SLOW = {"rumur": 4_000_000, "interpret": 200_000}  # run once, last, and up to so many states

Run = Callable[[int, int], Found]


def main() -> int:
    """Exit code: 0 when every count is the known one, 1 when one is not."""
    parser = arguments(__doc__, output="default: bench/results/explore-DATE.json")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each engine and size")
    parser.add_argument("--large", action="store_true", help="also 5 blocks and 3 requests, native only")
    parser.add_argument("--no-rumur", action="store_true", help="leave out Rumur, which takes minutes")
    given = parser.parse_args()
    build, threads = kvlife(), cores()
    facts = computer()
    print(f"{facts['processor']}, {threads} cores, load {facts['load_before']}")
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        peers = usable_peers(Path(folder), facts, leave_out={"rumur"} if given.no_rumur else set())
        for size, known in (SIZES | (LARGE if given.large else {})).items():
            asked = engines(build, threads) | peers
            if size in LARGE:
                asked = {name: run for name, run in asked.items() if name.startswith("native")}
            asked = {name: run for name, run in asked.items() if known[0] <= SLOW.get(name, known[0])}
            for row in measure(asked, size, given.repeat if size not in LARGE else 1):
                rows.append(row)
                found = (row["states"], row["transitions"], row["depth"] or known[2])
                if found != known:
                    wrong.append(f"{row['engine']} at {size}: {found}, not {known}")
                show(row, [r for r in rows if r["size"] == row["size"]])
    facts["load_after"] = load()
    path = given.output or RESULTS / f"explore-{facts['date']}.json"
    save(path, {**facts, "machine_searched": "kvlife", "rows": rows})
    print(f"load {facts['load_after']} at the end; written to {path}")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def engines(build: Callable[[], Machine], threads: int) -> dict[str, Run]:
    """kvfence's own engines, by name."""

    def runner(engine: Engine) -> Run:
        def run(blocks: int, requests: int) -> Found:
            r = engine.run(build(), {"Block": blocks, "Request": requests})
            return Found(r.states, r.transitions, r.depth, r.seconds)

        return run

    own: dict[str, Engine] = {"native, 1 thread": Native()}
    if threads > 1:
        own[f"native, {threads} threads"] = Native(threads=threads)
    own |= {"numpy": Explore(), "interpret": Interpret()}
    return {name: runner(engine) for name, engine in own.items()}


def usable_peers(folder: Path, facts: dict[str, object], leave_out: set[str]) -> dict[str, Run]:
    """The peers that are installed; says which are not, and notes the versions of the others."""
    found: dict[str, Run] = {}
    for name, peer in (("spin", spin), ("rumur", rumur)):
        if name in leave_out:
            continue
        try:
            facts[name] = peer.version()
        except Unusable as why:
            print(f"{why}: left out")
            continue

        def run(blocks: int, requests: int, search: Callable[..., Found] = peer.run) -> Found:
            return search(blocks, requests, folder, SIZES[blocks, requests][0])

        found[name] = run
    return found


def measure(asked: dict[str, Run], size: tuple[int, int], repeat: int) -> list[dict[str, object]]:
    """Each engine ``repeat`` times, in turns, then the slow ones; native ones once before, to compile."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    last: dict[str, Found] = {}
    if size not in LARGE:
        for name, run in asked.items():
            if name.startswith("native"):
                run(*size)
    turns = [name for name in asked if name not in SLOW] * repeat
    for name in [*turns, *(name for name in asked if name in SLOW)]:
        last[name] = asked[name](*size)
        times[name].append(last[name].seconds)
    return [
        {
            "engine": name,
            "size": f"Block={size[0]}, Request={size[1]}",
            "states": found.states,
            "transitions": found.transitions,
            "depth": found.depth,
            "best": round(min(times[name]), 4),
            "median": round(statistics.median(times[name]), 4),
            "runs": len(times[name]),
        }
        for name, found in last.items()
    ]


def show(row: dict[str, object], beside: list[dict[str, object]]) -> None:
    """Print a row, compared with the first one of its size."""
    best, first = float(str(row["best"])), float(str(beside[0]["best"]))
    if len(beside) == 1:
        print(f"\n{row['size']}: {row['states']:,} states, {row['transitions']:,} transitions")
    rate = int(str(row["states"])) / best / 1e6
    print(
        f"  {row['engine']:18} best {best:8.3f} s  median {row['median']:8.3f} s  {rate:6.2f} M states/s  "
        f"{best / first:7.2f} times the first"
    )


def computer() -> dict[str, object]:
    """What the figures depend on."""
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False).stdout
    return {
        "date": today(),
        "processor": processor(),
        "cores": cores(),
        "system": platform.platform(),
        "load_before": load(),
        "kvfence": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": compiler.partition("\n")[0],
        "lanes": "8 (AVX-512)" if avx512() else "1",
    }


def avx512() -> bool:
    """Whether the compiler will use eight lanes."""
    asked = ["cc", "-march=native", "-dM", "-E", "-x", "c", os.devnull]
    return "__AVX512DQ__" in subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def load() -> list[float]:
    """The load averages of 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()]


if __name__ == "__main__":
    started = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - started:.0f} s in all")
    sys.exit(code)
