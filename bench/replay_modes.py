"""Production traces at two tiers in each mode, judged: eager or lazy, one group or two, depth 1 or 2.

    python bench/replay_modes.py [WORKLOAD ...] [--requests N] [--output FOLDER]

Each of the eight runs must hold: no invariant broken, no garbled block read, nothing held at its end.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

from kvfence.checker.adapters.reference import replay

SAMPLE = Path(__file__).parents[1] / "reference" / "samples" / "mooncake_conversation_300.jsonl"
POOLS: Final[dict[str, Any]] = {"gpu_blocks": 24_576, "cpu_blocks": 60_000}
MODES: Final = tuple(product(("eager", "lazy"), ("full", "full+sliding"), (1, 2)))


def measure(workload: Path, mode: str, groups: str, depth: int, requests: int | None) -> dict[str, Any]:
    """One replay."""
    load, start = os.getloadavg()[0], time.process_time()
    found = replay(
        workload, {**POOLS, "mode": mode, "groups": groups, "async_depth": depth, "limit": requests}
    )
    cpu = time.process_time() - start
    stats = {} if found.run is None else found.run["stats"]
    return {
        "mode": mode,
        "groups": groups,
        "async_depth": depth,
        "verdict": found.verdict,
        "wrong": [str(one) for one in found.violations] + ([found.broke] if found.broke else []),
        "requests": stats.get("requests"),
        "steps": stats.get("steps"),
        "loads": stats.get("loads"),
        "stores": stats.get("stores"),
        "preemptions": stats.get("preemptions"),
        "events": found.events,
        "checks": sum(found.checks.values()),
        "cpu_seconds": round(cpu, 1),
        "load_average": round(load, 1),
    }


def main() -> int:
    """Exit code 1 if a run does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", type=Path, default=[SAMPLE])
    parser.add_argument("--requests", type=int, default=None, help="only the first so many")
    parser.add_argument("--output", type=Path, default=None, help="write the figures to this folder")
    asked = parser.parse_args()
    failed = False
    for workload in asked.workloads:
        rows = []
        for mode, groups, depth in MODES:
            rows.append(measure(workload, mode, groups, depth, asked.requests))
            row = rows[-1]
            print(
                f"{workload.stem} {mode}, {groups}, depth {depth}: {row['verdict']}; "
                f"{row['events']:,} events, "
                f"{row['checks']:,} checks in {row['cpu_seconds']} s of CPU {' '.join(row['wrong'])}",
                flush=True,
            )
            failed |= row["verdict"] != "holds"
            if asked.output is not None:
                machine = {"python": platform.python_version(), "processor": platform.machine()}
                facts = {"path": workload.name, "pools": POOLS, "machine": machine, "runs": rows}
                text = msgspec.json.format(msgspec.json.encode(facts), indent=1)
                (asked.output / f"replay-modes-{workload.stem}.json").write_bytes(text + b"\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
