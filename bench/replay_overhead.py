"""What asserting every invariant adds to a replay: the same run with and without the ledger, alternating.

    python bench/replay_overhead.py [WORKLOAD] [--requests N] [--rounds N] [--gpu-blocks N] [--cpu-blocks N]

The figure compared is the process time of the whole replay, reading the workload included. Each side's
best round counts, and rounds alternate so that other work on the machine meets both sides.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from kvfence.checker.adapters.reference import replay

SAMPLE = Path(__file__).parents[1] / "reference" / "samples" / "mooncake_conversation_300.jsonl"


def seconds(workload: Path, options: dict[str, object], judge: bool) -> tuple[float, int]:
    """Seconds of one replay, and the events judged in it."""
    gc.collect()
    start = time.process_time()
    found = replay(workload, options, judge=judge)
    if found.verdict == "violated" or found.run is None or found.why == "interrupted":
        raise SystemExit(f"the replay does not hold: {found.violations or found.broke}")
    return time.process_time() - start, found.events


def main() -> None:
    """Prints both sides and the share that asserting adds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--requests", type=int, default=None, help="only the first so many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu-blocks", type=int, default=8192)
    parser.add_argument("--cpu-blocks", type=int, default=65536)
    asked = parser.parse_args()
    options = {"gpu_blocks": asked.gpu_blocks, "cpu_blocks": asked.cpu_blocks, "limit": asked.requests}
    best = {False: float("inf"), True: float("inf")}
    events = 0
    for _ in range(asked.rounds):
        for judge in (False, True):
            took, judged = seconds(asked.workload, options, judge)
            best[judge] = min(best[judge], took)
            events = max(events, judged)
    added = best[True] / best[False] - 1
    print(f"without assertions {best[False]:.2f} s of CPU, with them {best[True]:.2f} s ({events:,} events)")
    print(f"asserting adds {added:.1%}")


if __name__ == "__main__":
    main()
