"""How soon an audit of the reference finds each faulty design, seed by seed, under which load.

    python bench/audit_designs.py [DESIGN ...] [--seeds 1 2 3] [--budget 60] [--output FILE]

Fails when one was not found within the budget, which is the time of the wall, starts of processes included.
"""

from __future__ import annotations

import os
import sys

import msgspec
from _measure import arguments, save

from kvfence.checker.adapters.reference import designs
from kvfence.checker.audit.campaign import Hunt
from kvfence.checker.audit.targets import REFERENCE, Reference
from kvfence.checker.core.processes import cores
from kvfence.spec.designs import DESIGNS


class Found(msgspec.Struct, frozen=True):
    """One hunt."""

    design: str
    seed: int
    seconds: float | None
    """Until the invariant that the design breaks was observed to be broken; None if it was not."""
    cases: int
    load: float
    """Processes that wanted to run at its end, over the last minute."""


def hunted(design: str, seed: int, budget: float) -> Found:
    """Looks for ``design`` until it is found, or for ``budget`` seconds."""
    target = Reference(design, cores())
    hunt = Hunt(target, REFERENCE, budget, seed, until=DESIGNS[design].breaks)
    try:
        hunt.hunt()
    finally:
        target.close()
    seconds = [seen.after for seen in hunt.seen.values() if seen.sighting.invariant == DESIGNS[design].breaks]
    return Found(design, seed, min(seconds, default=None), hunt.cases, os.getloadavg()[0])


def main() -> int:
    """Exit code 1 when a design was not found in time."""
    parser = arguments(__doc__, output="each hunt goes to this file when it is over, as JSON")
    parser.add_argument("designs", nargs="*", help="default: all that the reference can switch on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budget", type=float, default=60.0)
    asked = parser.parse_args()
    known = designs()
    if unknown := [name for name in asked.designs if name not in known]:
        parser.error(f"the reference cannot switch on {unknown[0]}")
    all_found: list[Found] = []
    for design in asked.designs or known:
        for seed in asked.seeds:
            found = hunted(design, seed, asked.budget)
            all_found.append(found)
            when = "not found" if found.seconds is None else f"{found.seconds:5.1f} s"
            print(f"{design:32} seed {seed}: {when} ({found.cases} cases, load {found.load:.1f})", flush=True)
            save(asked.output, all_found)
    late = sorted(found.seconds for found in all_found if found.seconds is not None)
    print(
        f"{len(late)} of {len(all_found)} hunts found their design, half of them within "
        f"{late[len(late) // 2] if late else 0:.1f} s, the last one after {late[-1] if late else 0:.1f} s"
    )
    return int(len(late) < len(all_found))


if __name__ == "__main__":
    sys.exit(main())
