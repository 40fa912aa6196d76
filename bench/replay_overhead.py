"""What asserting every invariant adds to a replay: the same run with and without the ledger, alternating.

    python bench/replay_overhead.py [WORKLOAD] [--requests N] [--rounds N] [--gpu-blocks N] [--cpu-blocks N]

The figure compared is the process time of the whole replay, reading the workload included. Each side's
best round counts, and rounds alternate so that other work on the machine meets both sides.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _measure import best_of, replay_arguments

from kvfence.checker.adapters.reference import replay


def serve(workload: Path, options: dict[str, object], judge: bool, judged: list[int]) -> None:
    """One replay; the events that were judged in it go to ``judged``."""
    found = replay(workload, options, judge=judge)
    if found.verdict == "violated" or found.run is None or found.why == "interrupted":
        raise SystemExit(f"the replay does not hold: {found.violations or found.broke}")
    judged.append(found.events)


def main() -> None:
    """Prints both times and the share that asserting adds."""
    parser = replay_arguments(__doc__, "?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu-blocks", type=int, default=8192)
    parser.add_argument("--cpu-blocks", type=int, default=65536)
    asked = parser.parse_args()
    options = {"gpu_blocks": asked.gpu_blocks, "cpu_blocks": asked.cpu_blocks, "limit": asked.requests}
    judged: list[int] = []
    ways = {"plain": False, "judged": True}
    works = {name: partial(serve, asked.workload, options, judge, judged) for name, judge in ways.items()}
    plain, asserting = best_of(asked.rounds, works).values()
    print(f"without assertions {plain:.2f} s of CPU, with them {asserting:.2f} s ({max(judged):,} events)")
    print(f"asserting adds {asserting / plain - 1:.1%}")


if __name__ == "__main__":
    main()
