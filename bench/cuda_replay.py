"""A production trace on a GPU: contents compared in every step; with --order, accesses judged for races.

python bench/cuda_replay.py [WORKLOAD] [--requests N] [--order] [--mode eager|lazy]... [--output FOLDER]
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import msgspec
from _cuda import driver_or_exit, facts, heading
from _measure import RESULTS, replay_arguments, save_of_card, table

from kvfence.checker.order.races import OrderChecker
from kvfence.reference.blocks.errors import OffloadError
from kvfence.reference.device.virtual_order import replay_header
from kvfence.reference.replay import ReplayReport, replay
from kvfence.reference.scheduler.options import Options


def checker(options: Options) -> OrderChecker:
    """Judges the order events of a replay with ``options``, with room for all of its pools."""
    return OrderChecker(replay_header(options), most_pieces=16 * (options.gpu_blocks + options.cpu_blocks))


def measure(workload: Path, options: Options, order: bool) -> dict[str, Any]:
    """One replay: what it did, and what the order check says."""
    judge = checker(options) if order else None
    broke, report = "", None
    try:
        report = replay(workload, options, order=judge)
    except OffloadError as error:
        broke = f"{type(error).__name__}: {error}"
    found: dict[str, Any] = {"mode": options.mode, "depth": options.async_depth, "broke": broke}
    if judge is not None:
        found |= {
            "order_events": judge.events, "accesses": judge.accesses, "races": judge.found,
            "order_complete": judge.complete, "first_races": [str(race) for race in judge.races[:3]],
        }  # fmt: skip
    if isinstance(report, ReplayReport):
        found |= msgspec.to_builtins(report)
    found["verdict"] = verdict(found)
    return found


def verdict(found: dict[str, Any]) -> str:
    """``violated`` for wrong content or a race; ``holds`` only for a run to its end, all of it judged."""
    if found["broke"] or found.get("races"):
        return "violated"
    return "holds" if found.get("complete") and found.get("order_complete", True) else "undetermined"


def copies_text(moved: dict[str, Any]) -> str:
    """One direction's copies in a few words."""
    rate = moved["nbytes"] / moved["seconds"] / 1e9 if moved["seconds"] else 0.0
    return f"{moved['transfers']:,}, {moved['nbytes'] / 1e9:.2f} GB, {rate:.1f} GB/s"


def main() -> int:
    """Exit code: 0 holds, 1 violated, 3 undetermined."""
    parser = replay_arguments(__doc__, "?", output="folder for the results", default=RESULTS)
    parser.add_argument("--order", action="store_true", help="judge every access for races as well")
    parser.add_argument("--mode", action="append", choices=["eager", "lazy"], help="default: both")
    parser.add_argument("--depth", type=int, default=2)
    asked = parser.parse_args()
    driver = driver_or_exit()
    gc.disable()  # the race checker keeps millions of objects, none of them in cycles
    found: dict[str, Any] = {**facts(driver), "workload": asked.workload.name, "runs": []}
    for mode in asked.mode or ("eager", "lazy"):
        options = Options(device="cuda", mode=mode, async_depth=asked.depth, limit=asked.requests)
        run = measure(asked.workload, options, asked.order)
        found["runs"].append(run)
        print(f"{mode}: {run['verdict']} {run['broke']} {run.get('first_races', '')}", flush=True)
    rows = []
    for run in found["runs"]:
        stats, oracle, moved = run.get("stats", {}), run.get("oracle", {}), run.get("moved", {})
        rows.append([
            run["mode"], sum(stats.get("finished", {}).values()), stats.get("steps"), oracle.get("in_full"),
            *(copies_text(moved[kind]) if moved else "-" for kind in ("store", "load")),
            run.get("order_events", "-"), run.get("races", "-"), f"{run.get('seconds', 0):.0f}",
            run["verdict"],
        ])  # fmt: skip
    head = [
        "mode",
        "requests",
        "steps",
        "blocks compared in full",
        "stores",
        "loads",
        "order events",
        "races",
        "seconds",
        "verdict",
    ]
    name = "_".join(["cuda_replay", *(["order"] if asked.order else []), *(asked.mode or [])])
    text = heading(f"Replay of {asked.workload.name} on a GPU", found) + "\n" + table(head, rows)
    save_of_card(asked.output, name, found, text)
    verdicts = {run["verdict"] for run in found["runs"]}
    return 1 if "violated" in verdicts else 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
