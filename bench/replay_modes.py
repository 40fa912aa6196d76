"""Production traces at two tiers in each mode, judged: eager or lazy, one group or two, depth 1 or 2.

    python bench/replay_modes.py [WORKLOAD ...] [--requests N] [--output FOLDER]

Each of the eight runs must hold: no invariant broken, no garbled block read, nothing held at its end.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Final

from _measure import Stopwatch, machine, replay_arguments, save

from kvfence.checker.adapters.reference import replay

POOLS: Final[dict[str, Any]] = {"gpu_blocks": 24_576, "cpu_blocks": 60_000}
MODES: Final = tuple(product(("eager", "lazy"), ("full", "full+sliding"), (1, 2)))


def measure(workload: Path, mode: str, groups: str, depth: int, requests: int | None) -> dict[str, Any]:
    """One replay."""
    options = {**POOLS, "mode": mode, "groups": groups, "async_depth": depth, "limit": requests}
    with Stopwatch() as watch:
        found = replay(workload, options)
    stats = {} if found.run is None else found.run["stats"]
    return {
        "mode": mode,
        "groups": groups,
        "async_depth": depth,
        "verdict": found.verdict,
        "wrong": [str(one) for one in found.violations] + ([found.broke] if found.broke else []),
        **{name: stats.get(name) for name in ("requests", "steps", "loads", "stores", "preemptions")},
        "events": found.events,
        "checks": sum(found.checks.values()),
        "cpu_seconds": round(watch.cpu, 1),
        "load_average": watch.load,
    }


def main() -> int:
    """Exit code 1 if a run does not hold."""
    asked = replay_arguments(__doc__, output="write the figures to this folder").parse_args()
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
            facts = {"path": workload.name, "pools": POOLS, "machine": machine(), "runs": rows}
            save(asked.output and asked.output / f"replay-modes-{workload.stem}.json", facts)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
