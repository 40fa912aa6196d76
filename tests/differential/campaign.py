"""A campaign: case after case is drawn, judged directly, and asked of engines; what differs is kept as a test."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import comparing as say
from comparing import Case, Difference, Question
from drawing import MANY, Drawn, Features, draw
from recipes import Recipe
from shrinking import shrunk
from writing import test_text

FOUND = Path(__file__).parent / "found"

# Every question by name. With two threads and one lane the library is that of one thread, so it costs nothing.
QUESTIONS: dict[str, Question] = {
    "interpret": say.interpreted,
    "explore": say.in_numpy(1 << 15),
    "explore-chunks-of-7": say.in_numpy(7),
    "explore-chunks-of-64": say.in_numpy(64),
    "explore-first": say.first_of(say.Explore),
    "native": say.in_c(1, True),
    "native-2-threads": say.in_c(2, True),
    "native-all-lanes": say.in_c(1, False),
    "native-all-lanes-2-threads": say.in_c(2, False),
    "native-first": say.first_of(lambda: say.Native(note=say.quietly)),
    "native-resumed": say.resumed,
    "native-symmetry": say.up_to_renaming,
    "gpu-kernels": say.on_gpu(1, False, False),
    "gpu-kernels-2-threads": say.on_gpu(2, False, False),
    "gpu-kernels-symmetry": say.on_gpu(1, True, False),
    "gpu": say.on_gpu(1, False, True),
    "gpu-symmetry": say.on_gpu(1, True, True),
    "liveness": say.promised(True),
    "liveness-in-c": say.promised(False),
    "bmc": say.bounded(7),
    "kinduction": say.by_induction,
    "spacer": say.by_spacer,
    "smt": say.for_any_size,
    "evaluate": say.evaluated,
}


def plan(d: Drawn, card: bool = False) -> list[str]:
    """Which questions a case is asked: cheap ones always, others so often that the time is well spread."""
    rng = random.Random(f"{d.seed}/{d.case}/plan")

    def now_and_then(share: float) -> bool:
        return rng.random() < share

    out: list[str] = []
    r = d.recipe
    large, tiny = d.kind == "large", d.kind == "tiny"
    if not large:
        out.append("interpret")
        out.append(rng.choice(["explore", "explore", "explore-chunks-of-7", "explore-chunks-of-64"]))
        if now_and_then(0.3):
            out.append("evaluate")
    else:
        out.append("explore")
    if now_and_then(0.2):
        out.append("explore-first")
    compiled = now_and_then(0.5 if large else 0.16)
    if compiled:
        out += ["native", "native-2-threads"]
        out += [x for x in ("native-first", "native-resumed") if now_and_then(0.4)]
    if now_and_then(0.04):
        out += ["native-all-lanes", "native-all-lanes-2-threads"]
    if any(size > 1 for _, size in r.sorts) and now_and_then(0.12):
        out.append("native-symmetry")
    if now_and_then(0.06):
        out.append(rng.choice(["gpu-kernels", "gpu-kernels-2-threads", "gpu-kernels-symmetry"]))
    if card and now_and_then(0.5):
        out.append(rng.choice(["gpu", "gpu-symmetry"]))
    if r.promises and not r.bounds:
        out.append("liveness")
        if compiled:
            out.append("liveness-in-c")
    if not large and now_and_then(0.25):
        out.append("bmc")
    if tiny:
        out += [x for x, share in (("kinduction", 0.25), ("smt", 0.2), ("spacer", 0.03)) if now_and_then(share)]
    return out


@dataclass
class Finding:
    """A disagreement, made smaller, and the test that it became."""

    case: int
    question: str
    difference: Difference
    recipe: Recipe
    file: Path | None = None


@dataclass
class Tally:
    """What a campaign did."""

    cases: int = 0
    next_case: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)
    large: int = 0
    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False

    def text(self) -> str:
        """The distribution, in a few lines."""
        n = max(1, self.cases)
        share = ", ".join(f"{v} {100 * k // n} %" for v, k in sorted(self.verdicts.items()))
        asked = ", ".join(f"{q} {k} ({self.spent[q]:.0f} s)" for q, k in self.asked.most_common())
        return (
            f"{self.cases} machines: {share}; {100 * self.large // n} % have over {MANY:,} states\n"
            f"asked: {asked}\n{len(self.findings)} disagreement{'s' if len(self.findings) != 1 else ''}"
        )


def campaign(
    seed: int,
    seconds: float = float("inf"),
    *,
    cases: Iterator[int] | None = None,
    features: Features | None = None,
    only: Collection[str] = (),
    card: bool = False,
    most: int = 1,
    shrink_seconds: float = 60.0,
    folder: Path | None = None,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Judge cases until the time is over or ``most`` disagreements are found.

    ``only`` restricts the questions; ``folder`` is where tests are written. Ctrl-C ends it, keeping what was found.
    """
    tally = Tally()
    deadline = time.perf_counter() + seconds
    seen: set[tuple[str, str]] = set()
    with say.own_cache():
        try:
            for case in cases if cases is not None else iter(range(sys.maxsize)):
                tally.next_case = case
                if time.perf_counter() > deadline or len(tally.findings) >= most:
                    break
                for found in _case(seed, case, tally, features, only, card, deadline):
                    if (found.question, found.difference.kind) in seen:
                        continue  # most likely the same fault again
                    seen.add((found.question, found.difference.kind))
                    tally.findings.append(found)
                    if shrink_seconds:
                        _smaller(found, shrink_seconds)
                    if folder is not None:
                        _write(seed, found, folder)
                    if len(tally.findings) >= most:
                        break
                if progress is not None:
                    progress(tally)
        except KeyboardInterrupt:
            tally.interrupted = True
    return tally


def _case(
    seed: int,
    case: int,
    tally: Tally,
    features: Features | None,
    only: Collection[str],
    card: bool,
    deadline: float,
) -> Iterator[Finding]:
    started = time.perf_counter()
    d = draw(seed, case, features)
    try:
        c = Case(d.recipe)
    except Exception as error:  # noqa: BLE001 (every machine that is drawn is one, so this is a disagreement, too)
        yield Finding(case, "build", Difference("build", f"{type(error).__name__}: {error}"), d.recipe)
        return
    tally.spent["drawing"] += time.perf_counter() - started  # type: ignore[assignment]
    for question in plan(d, card):
        if (only and question not in only) or time.perf_counter() > deadline:
            continue
        started = time.perf_counter()
        wrong = say.ask(QUESTIONS[question], c)
        tally.asked[question] += 1
        tally.spent[question] += time.perf_counter() - started  # type: ignore[assignment]
        if wrong:
            yield Finding(case, question, wrong[0], d.recipe)
    tally.cases += 1
    tally.next_case = case + 1
    tally.verdicts[c.verdict] += 1
    tally.kinds[d.kind] += 1
    tally.large += c.answer.states > MANY


def _smaller(found: Finding, seconds: float) -> None:
    last = [found.difference]

    def shows(r: Recipe) -> bool:
        if found.question == "build":
            try:
                Case(r)
            except Exception as error:  # noqa: BLE001
                text = f"{type(error).__name__}: {error}"
                if text.split(":")[0] != found.difference.text.split(":")[0]:
                    return False
                last[0] = Difference("build", text)
                return True
            return False
        wrong = say.ask(QUESTIONS[found.question], Case(r))
        same = [w for w in wrong if w.kind == found.difference.kind]
        if same:
            last[0] = same[0]
        return bool(same)

    found.recipe = shrunk(found.recipe, shows, seconds)
    found.difference = last[0]


def _write(seed: int, found: Finding, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = found.question.replace("-", "_")
    found.file = folder / f"test_seed_{seed}_case_{found.case}_{name}.py"
    text = test_text(seed, found.case, found.question, found.difference, found.recipe)
    found.file.write_text(text, encoding="utf-8")
