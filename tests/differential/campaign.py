"""A campaign: cases are drawn, judged directly and given to the engines; each difference becomes a test."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from comparing import Difference, own_cache
from drawing import MANY, draw
from judging import Report, Wanted, Workers, differences
from recipes import Recipe
from shrinking import shrunk
from writing import test_text

FOUND = Path(__file__).parent / "found"


@dataclass
class Finding:
    """A disagreement, made smaller, and the test that it became."""

    case: int
    question: str
    difference: Difference
    recipe: Recipe
    file: Path | None = None

    @property
    def line(self) -> str:
        """What is printed of it."""
        return f"case {self.case}, {self.question}: {self.difference.kind}: {self.difference.text}"


@dataclass
class Tally:
    """What a campaign did. ``done`` are the cases judged; all below ``next_case`` are."""

    first: int = 0
    done: set[int] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)
    large: int = 0
    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False

    @property
    def cases(self) -> int:
        """How many machines were judged."""
        return len(self.done)

    @property
    def next_case(self) -> int:
        """Where to go on."""
        return next(k for k in itertools.count(self.first) if k not in self.done)

    def add(self, r: Report) -> None:
        """Count a report."""
        self.done.add(r.case)
        self.verdicts[r.verdict or "not judged"] += 1
        self.kinds[r.kind] += 1
        self.large += r.large
        self.asked.update(r.spent.keys())
        self.spent.update(r.spent)

    def text(self) -> str:
        """The distribution, in a few lines."""
        n = max(1, self.cases)
        share = ", ".join(f"{v} {round(100 * k / n)} %" for v, k in sorted(self.verdicts.items()))
        asked = ", ".join(f"{q} {k} ({self.spent[q]:.0f} s)" for q, k in self.asked.most_common())
        return (
            f"{self.cases} machines: {share}; {round(100 * self.large / n)} % have over {MANY:,} states\n"
            f"asked: {asked}\n{len(self.findings)} disagreement{'s' if len(self.findings) != 1 else ''}"
        )


def campaign(
    wanted: Wanted,
    seconds: float = float("inf"),
    *,
    cases: Iterator[int] | None = None,
    first: int = 0,
    most: int = 1,
    workers: int = 1,
    shrink_seconds: float = 60.0,
    folder: Path | None = None,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Judge cases, from ``first`` on or as given, until the time is over or ``most`` disagreements are found.

    ``folder`` is where tests are written. Ctrl-C ends it, keeping what was found.
    """
    tally = Tally(first)
    deadline = time.perf_counter() + seconds
    known: set[tuple[str, str]] = set()
    with own_cache():
        judges = Workers(wanted, cases if cases is not None else itertools.count(first), workers)
        try:
            for report in judges.reports(deadline):
                tally.add(report)
                for question, difference in report.wrong:
                    if (question, difference.kind) in known:
                        continue  # most likely the same fault again
                    known.add((question, difference.kind))
                    recipe = draw(wanted.seed, report.case, wanted.features).recipe
                    found = Finding(report.case, question, difference, recipe)
                    tally.findings.append(found)
                    if shrink_seconds:
                        _smaller(found, shrink_seconds)
                    if folder is not None:
                        _write(wanted.seed, found, folder)
                if progress is not None:
                    progress(tally)
                if len(tally.findings) >= most:
                    break
        except KeyboardInterrupt:
            tally.interrupted = True
        finally:
            judges.close()
    return tally


def _smaller(found: Finding, seconds: float) -> None:
    last = [found.difference]

    def shows(r: Recipe) -> bool:
        same = [w for w in differences(found.question, r) if w.kind == found.difference.kind]
        last[:1] = same or last
        return bool(same)

    found.recipe = shrunk(found.recipe, shows, seconds)
    found.difference = last[0]


def _write(seed: int, found: Finding, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found.file = folder / f"test_seed_{seed}_case_{found.case}_{found.question.replace('-', '_')}.py"
    text = test_text(seed, found.case, found.question, found.difference, found.recipe)
    found.file.write_text(text, encoding="utf-8")
