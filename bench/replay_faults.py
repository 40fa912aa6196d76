"""Faulty designs on whole production traces, under the failures of `replay_failures.py`: each must be caught.

    python bench/replay_faults.py [WORKLOAD ...] [--design D ...] [--requests N] [--output FOLDER]

4 ranks, one of them late, and three tiers; loads fail and files get lost. A run stops when the invariant that
the design breaks is violated. Some faults need traffic of their kind besides, in terms of options of `kvfence
replay`: EXTRA says which. With ``--sound``, the sound design is run with each of these, and must hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from _measure import Stopwatch, machine, replay_arguments, save
from replay_failures import TROUBLE

from kvfence.checker.adapters.reference import designs, replay
from kvfence.spec.designs import DESIGNS

CROWDED: Final = {"gpu_blocks": 12_500}
"""The longest prompt alone fills it: requests are preempted."""
TIGHT: Final = {"gpu_blocks": 4_000}
"""Some requests run beside others only; the few that could never run are turned away."""
SLIDING: Final = {"groups": "full+sliding"}
SMALL_TIER: Final = {"cpu_blocks": 8_000}
SHARING: Final = CROWDED | {"share_loads": True, "resend_rate": 0.2, "fail_rate": 0.2, "max_delay": 30}
"""Many loads, under way for long: others ask for the same blocks meanwhile."""
RESETTING: Final = {"reset_every": 200}
AHEAD: Final = {"async_depth": 2}
IMPATIENT: Final = {"abort_rate": 0.5}
EXTRA: Final[dict[str, dict[str, Any]]] = {
    "allocate_unchecked": CROWDED | SLIDING,
    "pin_leak_on_abort": IMPATIENT,
    "leak_on_abort": IMPATIENT | {"token_budget": 1024, "limit": 2_000},  # before it brings all to a halt
    "free_before_processed": SLIDING | AHEAD,
    "cursor_not_rewound": CROWDED,
    "cursor_before_queue": SMALL_TIER,
    "free_on_preempt": CROWDED,
    "free_on_abort": IMPATIENT,
    "reset_ignores_in_flight": RESETTING,
    "reset_one_tier": RESETTING,
    "head_blocks_holder": CROWDED,
    "blockless_head": TIGHT | SMALL_TIER,
    "fenced_victim_spin": TIGHT | AHEAD,
    "free_fenced_victim": CROWDED | AHEAD,
    "preempt_beside_parked": TIGHT,
    "null_blocks_counted": SLIDING,
    "other_groups_block_size": SLIDING | {"block_sizes": [16, 32]},
    "aligned_window_bound": SLIDING,
    "eagle_marks_every_group": SLIDING,
    "writer_keeps_too_little": SLIDING,
    "promise_longer_than_acceptable": TIGHT | SLIDING | {"resend_rate": 0.3},
    "block_ids_unique_only_in_group": SLIDING,
    "partial_load_counted_whole": SLIDING,
    "invalid_in_one_group_only": SLIDING,
    "sharer_not_rolled_back": SHARING,
    "shared_before_landing": SHARING,
    "unpinned_verdict": SMALL_TIER,
    "dropped_answer_keeps_pin": {"abort_rate": 0.9, "cpu_blocks": 5_000},
    "mirror_pins_starve": SMALL_TIER,
    "answers_by_key": SMALL_TIER,
    "answer_on_its_way_kept": TIGHT | SMALL_TIER | {"lose_rate": 0.5, "resend_rate": 0.3},
    "lost_file_still_listed": SMALL_TIER,
    "lost_file_still_found": SMALL_TIER,
    "reset_not_published": RESETTING,
    "promotion_during_reset": SMALL_TIER | {"reset_every": 1_000, "max_delay": 30},
    "store_resurrects_key": RESETTING | SMALL_TIER,
    "reset_skips_a_tier": RESETTING,
    "reset_forgets_transfers": RESETTING,
}
"""Design -> what its fault needs beside the failures: options of `kvfence replay`."""

SOONER: Final = {"reset_forgets_transfers": "ONCE"}
"""What a trace shows of a design long before: reports of transfers that are forgotten."""


def measure(workload: Path, design: str, requests: int | None) -> dict[str, Any]:
    """One run: up to the violation that is expected, or to the end of the trace."""
    expected = SOONER.get(design, DESIGNS[design].breaks)
    options = {**TROUBLE, "limit": requests, **EXTRA.get(design, {}), "design": design}
    with Stopwatch() as watch:
        found = replay(workload, options, expected=expected)
    caught = next((one for one in found.violations if one.invariant == expected), None)
    return {
        "design": design,
        "machines": DESIGNS[design].machines,
        "extra": EXTRA.get(design, {}),
        "requests": requests,
        "breaks": expected,
        "caught": caught is not None,
        "condition": "" if caught is None else caught.condition,
        "events_before": found.events if caught is None else caught.number,
        "others_before": {one.invariant: one.number for one in found.violations if one is not caught},
        "broke": found.broke,
        "cpu_seconds": round(watch.cpu, 2),
        "seconds": round(watch.seconds, 2),
        "load_average": watch.load,
    }


def holds(workload: Path, extra: dict[str, Any], requests: int | None) -> dict[str, Any]:
    """The sound design with the same traffic: ``holds`` says whether nothing was found wrong."""
    with Stopwatch() as watch:
        found = replay(workload, {**TROUBLE, "limit": requests, **extra})
    return {
        "design": "sound",
        "extra": extra,
        "requests": requests,
        "holds": found.verdict == "holds",
        "found": [str(one) for one in found.violations] + ([found.broke] if found.broke else []),
        "events": found.events,
        "cpu_seconds": round(watch.cpu, 2),
        "load_average": watch.load,
    }


def run_text(row: dict[str, Any]) -> str:
    """One run in a line."""
    others = "".join(f"; before: {name} at {number:,}" for name, number in row["others_before"].items())
    end = f"{row['breaks']} at event {row['events_before']:,}" if row["caught"] else f"NOT {row['breaks']}"
    broke = f"; broke: {row['broke']}" if row["broke"] else ""
    return f"{row['design']}: {end}, {row['cpu_seconds']} s of CPU{others}{broke}"


def results_file(folder: Path, workload: Path, sound: bool, requests: int | None) -> Path:
    """Where figures are kept: those of whole traces apart from others."""
    first = "" if requests is None else f"-first-{requests}"
    return folder / f"replay-faults-{workload.stem}{'-sound' if sound else ''}{first}.json"


def recorded(file: Path, path: str, rows: list[dict[str, Any]]) -> None:
    """Write what is known so far: ``rows`` take the place of earlier ones of the same runs, others stay."""
    before = msgspec.json.decode(file.read_bytes())["runs"] if file.exists() else []
    known = {run_name(row): row for row in [*before, *rows]}
    sound = any(row["design"] == "sound" for row in rows)
    order = [run_name({"design": "sound", "extra": kind}) for kind in kinds()] if sound else designs()
    runs = [known[name] for name in order if name in known]
    facts = {
        "path": path,
        "as_expected": sum(row.get("caught", row.get("holds", False)) for row in runs),
        "not_measured": [name for name in order if name not in known],
        "options": TROUBLE,
        "machine": machine(),
        "runs": runs,
    }
    save(file, facts)


def run_name(row: dict[str, Any]) -> str:
    """What a run is known by: its design, and for the sound one its traffic."""
    if row["design"] != "sound":
        return str(row["design"])
    return " ".join(["sound", *(f"{name}={value}" for name, value in row["extra"].items())])


def kinds(of: list[str] | None = None) -> list[dict[str, Any]]:
    """Each kind of traffic once, the plain one first; or that of some designs."""
    every: list[dict[str, Any]] = (
        [{}, *EXTRA.values()] if of is None else [EXTRA.get(name, {}) for name in of]
    )
    return [extra for i, extra in enumerate(every) if extra not in every[:i]]


def main() -> int:
    """Exit code 1 if a design is not caught, or the sound one does not hold."""
    parser = replay_arguments(__doc__, output="write the figures to this folder")
    parser.add_argument("--design", nargs="*", default=None, help="default: all that the reference has")
    parser.add_argument(
        "--sound",
        action="store_true",
        help="the sound design under each kind of traffic, or that of --design",
    )
    asked = parser.parse_args()
    failed = False
    for workload in asked.workloads:
        rows: list[dict[str, Any]] = []
        for what in kinds(asked.design) if asked.sound else asked.design or designs():
            if isinstance(what, dict):
                rows.append(holds(workload, what, asked.requests))
                line = f"sound with {what}: {'holds' if rows[-1]['holds'] else rows[-1]['found']}"
            else:
                rows.append(measure(workload, what, asked.requests))
                line = run_text(rows[-1])
            print(f"{workload.stem} {line}", flush=True)
            good = sum(row.get("caught", row.get("holds", False)) for row in rows)
            if asked.output is not None:
                file = results_file(asked.output, workload, asked.sound, asked.requests)
                recorded(file, workload.name, rows)
        failed |= good < len(rows)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
