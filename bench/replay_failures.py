"""Production traces on 4 ranks and three tiers: loads fail, a rank is late, files get lost; all of it judged.

    python bench/replay_failures.py [WORKLOAD ...] [--requests N] [--groups G] [--output FOLDER]

Each run must hold: no invariant broken, no garbled block read, nothing held at its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from _measure import Stopwatch, machine, replay_arguments, save

from kvfence.checker.adapters.reference import replay

TROUBLE: dict[str, Any] = {
    "gpu_blocks": 24_576,
    "cpu_blocks": 60_000,
    "disk_blocks": 400_000,
    "tiers": 3,
    "ranks": 4,
    "late_rank": 5,
    "refusing_ranks": 1,
    "fail_rate": 0.01,
    "lose_rate": 0.02,
    "repeat_rate": 0.01,
    "abort_rate": 0.01,
    "publish": True,
    "zero_fill": True,
    "refuse_rate": 0.002,
}


def measure(workload: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One replay, and what it cost."""
    with Stopwatch() as watch:
        found = replay(workload, options)
    assert found.run is not None or found.broke
    facts: dict[str, Any] = msgspec.to_builtins(found)
    return facts | {"path": workload.name, "cpu_seconds": round(watch.cpu, 1), "machine": machine()}


def run_text(facts: dict[str, Any]) -> str:
    """One run in a few lines."""
    if facts["run"] is None:
        return f"{facts['path']}: {facts['verdict']}. {facts['broke'] or facts['violations']}"
    stats, checks = facts["run"]["stats"], sum(facts["checks"].values())
    return (
        f"{facts['path']}: {facts['verdict']}; {stats['requests']:,} requests, {stats['steps']:,} steps, "
        f"{facts['events']:,} events and {checks:,} checks in {facts['cpu_seconds']} s of CPU;\n"
        f"    {stats['loads']:,} loads, {stats['failed_loads']:,} failed, {stats['partial_loads']:,} partly; "
        f"{stats['disk_stored_blocks']:,} blocks to files, {stats['fetched_blocks']:,} back, "
        f"{stats['lost_files']:,} files lost, {stats['failed_fetches']:,} transfers from files failed"
    )


def main() -> int:
    """Exit code 1 if a run does not hold."""
    parser = replay_arguments(__doc__, output="write each run's figures to this folder")
    parser.add_argument("--groups", default="full")
    parser.add_argument("--block-sizes", type=int, nargs="*", default=())
    asked = parser.parse_args()
    options = TROUBLE | {
        "groups": asked.groups, "block_sizes": tuple(asked.block_sizes), "limit": asked.requests,
    }  # fmt: skip
    failed = False
    for workload in asked.workloads:
        facts = measure(workload, options)
        print(run_text(facts), flush=True)
        failed |= facts["verdict"] != "holds"
        name = f"replay-{workload.stem}-{asked.groups.replace('+', '_')}.json"
        save(asked.output and asked.output / name, facts)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
