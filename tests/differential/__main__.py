"""Differential testing of the engines, for as long as one likes: ``make fuzz SEED=7 SECONDS=3600``.

Exit code 0: no disagreement. 1: at least one, each written as a test. 3: nothing was judged, or it was
interrupted before anything was found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from campaign import FOUND, Tally, campaign
from drawing import Features, draw
from judging import QUESTIONS, Wanted, has_card
from recipes import machine_text


def main() -> int:
    """Parses the line and runs a campaign."""
    p = argparse.ArgumentParser(prog="differential", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--seed", type=int, default=1, help="which machines are drawn")
    p.add_argument("--seconds", type=float, default=60.0, help="for how long")
    p.add_argument(
        "--from", type=int, default=0, dest="first", help="the case to go on from, where a run ended"
    )
    p.add_argument("--case", type=int, help="this case only")
    p.add_argument("--show", action="store_true", help="print the machine of --case and stop")
    p.add_argument("--only", default="", help=f"questions, with commas between: {', '.join(QUESTIONS)}")
    p.add_argument("--without", default="", help="what machines lack: words, size_functions, unbounded, …")
    p.add_argument("--gpu", action="store_true", help="ask a CUDA device, too")
    p.add_argument("--most", type=int, default=10, help="disagreements after which to stop")
    p.add_argument("--shrink", type=float, default=60.0, help="seconds to make a disagreement smaller")
    p.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that judge")
    p.add_argument("--folder", type=Path, default=FOUND, help="where disagreements go as tests")
    o = p.parse_args()
    only = [x for x in o.only.split(",") if x]
    unknown = [x for x in only if x not in QUESTIONS]
    features = Features(**dict.fromkeys([x for x in o.without.split(",") if x], False))
    if unknown:
        p.error(f"there is no question {unknown[0]}; there are {', '.join(QUESTIONS)}")
    if o.gpu and not has_card():
        p.error("there is no CUDA device to ask; leave out --gpu")
    if o.show:
        print(machine_text(draw(o.seed, o.case or 0, features).recipe))
        return 0
    tally = campaign(
        Wanted(o.seed, features, frozenset(only), o.gpu),
        o.seconds,
        cases=iter([o.case]) if o.case is not None else None,
        first=o.first,
        most=o.most,
        workers=o.workers,
        shrink_seconds=o.shrink,
        folder=o.folder,
        progress=_Progress(),
    )
    print(tally.text())
    for f in tally.findings:
        print(f"{f.line}\n  {f.file}")
    if tally.interrupted:
        print(f"interrupted; go on with --seed {o.seed} --from {tally.next_case}")
    if tally.findings:
        return 1
    return 3 if tally.interrupted or not tally.cases else 0


class _Progress:
    """A line every few seconds, and one for each disagreement."""

    def __init__(self) -> None:
        self.last = self.start = time.perf_counter()
        self.printed = 0

    def __call__(self, t: Tally) -> None:
        for f in t.findings[self.printed :]:
            print(f.line, file=sys.stderr)
        self.printed = len(t.findings)
        now = time.perf_counter()
        if now - self.last > 10:
            self.last = now
            rate = t.cases * 60 / (now - self.start)
            line = f"{t.cases} machines, {rate:.0f} a minute, next is case {t.next_case}"
            print(f"{line}; {len(t.findings)} disagreements", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
