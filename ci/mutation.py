"""Mutates kvfence's own Python, a sample of it, and runs the tests of the area that each mutant is in.

    python ci/mutation.py [--seed N] [--sample N] [--jobs N] [--results FILE] [--nearest] [PATH[:LINE] ...]

cosmic-ray makes the mutants, in copies of the working tree, which is not touched. A mutant meets the tests
nearest to it first, and those of its whole area if it survives them. Results are appended to a file as they
come, and a run with the same file goes on where the last one stopped; ``--sample 0`` tries nothing and judges
what the file holds. A mutant that survives must be explained in ci/mutation_explained.toml. Exit codes: 0 if
all survivors are, 1 if one is not, 2 if the tests fail without a mutant, 3 if interrupted.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any, Final, NamedTuple, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
EXPLAINED: Final = ROOT / "ci" / "mutation_explained.toml"
AREAS: Final[dict[str, tuple[str, ...]]] = {
    "checker/ledger": ("tests/checker/ledger", "tests/test_trace_examples.py"),
    "spec/files": ("tests/checker/ledger", "tests/checker/test_traces.py", "tests/checker/test_outputs.py"),
    "checker/order": ("tests/checker/order", "tests/checker/cli/test_races.py"),
    "checker/engines/smt": ("tests/checker/engines/smt",),
    "checker/engines/native": ("tests/checker/engines/native",),
    "checker/engines": ("tests/checker/engines",),
    "checker/adapters": ("tests/checker/adapters",),
    "reference": ("tests/reference", "tests/modelbased"),
}
"""The tests that each folder's mutants are run against; the first folder that fits counts."""


def tests_named(folder: str, names: str) -> tuple[str, ...]:
    """The test files of a folder by their names, without ``test_``."""
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


NEAREST: Final[dict[str, tuple[str, ...]]] = {
    "checker/ledger/guard/guard.py": ("tests/checker/ledger/test_guard.py",),
    "spec/files": ("tests/checker/test_traces.py",),
    "checker/ledger": tests_named(
        "checker/ledger", "pool_rules request_rules transfer_rules rarer_rules ledger check restore"
    ),
    "checker/order": tests_named("checker/order", "rules slot_races memory shadow"),
    "checker/engines/native": tests_named("checker/engines/native", "layout native"),
    "checker/engines": tests_named("checker/engines", "interpreter state_set"),
    "checker/adapters": ("tests/checker/adapters",),
    "reference/copy": ("tests/reference/copy/test_order.py",),
    "reference/device": ("tests/reference/device_order", "tests/reference/device"),
    "reference": tests_named("reference", "pool groups workload"),
    "checker/engines/smt": ("tests/checker/engines/smt/test_counters.py",),
}
"""Quick tests that are likely to notice a mutant of a file or folder; the longest name that fits counts."""
LEFT_OUT: Final = (
    "checker/engines/gpu",
    "checker/adapters/vllm/worker/observed_cuda.py",
    "reference/device/cuda.py",
    "reference/device/cuda_faults.py",
    "reference/device/cuda_runner.py",
    "reference/driver/driver.py",
)
"""What only a machine with a GPU runs."""
FACTOR: Final = 4
"""A mutant's tests may take so many times as long as without it."""
BASELINES: Final = ROOT / ".venv" / "mutation_baselines.json"
"""Seconds that tests took without a mutant, by the digest of those tests and of what they test."""


Key: TypeAlias = tuple[str, str, str]
Limits: TypeAlias = dict[tuple[str, ...], float]
"""Seconds that tests may take, in the order in which they are run."""


class Mutant(NamedTuple):
    """One change of one place; ``was`` and ``now`` are the lines that differ."""

    path: str
    line: int
    operator: str
    occurrence: int
    was: str
    now: str

    @property
    def name(self) -> str:
        """How the mutant is printed."""
        return f"{self.path}:{self.line}: {self.was}  ->  {self.now}"

    @property
    def key(self) -> Key:
        """What identifies the change, whichever operator makes it."""
        return self.path, self.was, self.now


def git(*arguments: str) -> list[str]:
    """The file names, or other output, of a git command with ``-z``; or its lines."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\0\n").split("\0" if "-z" in arguments else "\n")


def within(path: str, places: Iterable[str]) -> list[str]:
    """Those of some files and folders that a file is, or lies in."""
    return [one for one in places if path == one or path.startswith(f"{one}/")]


def files(paths: list[str]) -> list[str]:
    """The tracked Python files of the areas, or those of them that are named."""
    wanted = [path.split(":")[0].rstrip("/") for path in paths] or list(AREAS)
    tracked = [path for path in git("ls-files", "*.py") if area(path)]
    return [path for path in tracked if within(path, wanted) and not within(path, LEFT_OUT)]


def area(path: str) -> str:
    """The area of a file; "" for none."""
    return next(iter(within(path, AREAS)), "")


def nearest(path: str) -> tuple[str, ...]:
    """The tests that are named like a file, and the quick ones of its folder."""
    folders = [ROOT / one for one in AREAS[area(path)] if (ROOT / one).is_dir()]
    named = sorted(test for one in folders for test in one.rglob(f"test_{Path(path).stem}.py"))
    return tuple(dict.fromkeys((*(str(test.relative_to(ROOT)) for test in named), *NEAREST[group(path)])))


def group(path: str) -> str:
    """What of NEAREST a file belongs to."""
    return max(within(path, NEAREST), key=len)


def digest(tests: tuple[str, ...]) -> str:
    """SHA-256 of the tests and of everything that they may test."""
    names = git("ls-files", "-z", "checker", "reference", "spec", *tests)
    found = hashlib.sha256(repr(tests).encode())
    for name in names:
        if (ROOT / name).is_file():
            found.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return found.hexdigest()


def untested(source: str) -> set[tuple[int, int]]:
    """Lines and columns of what is never executed: annotations, and blocks under TYPE_CHECKING."""
    spans: list[ast.expr | ast.stmt] = []
    for node in ast.walk(ast.parse(source)):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        spans += [annotation] if annotation is not None else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            spans += [node.test, *node.body]
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation) and node.value:
            spans.append(node.value)
    lines = source.splitlines()
    return {
        (line, column)
        for span in spans
        for line in range(span.lineno, (span.end_lineno or span.lineno) + 1)
        for column in range(
            span.col_offset if line == span.lineno else 0,
            (span.end_col_offset or 0) if line == span.end_lineno else len(lines[line - 1]) + 1,
        )
    }


@cache
def parsed(path: str) -> tuple[set[tuple[int, int]], list[Any]]:
    """What of a file is never executed, and its nodes as cosmic-ray sees them."""
    from cosmic_ray.ast import ast_nodes, get_ast

    source = (ROOT / path).read_text(encoding="utf-8")
    return untested(source), list(ast_nodes(get_ast(source)))


def places(path: str, operator: str, only: set[int]) -> list[tuple[int, int]]:
    """Line and occurrence of each place that an operator changes; in the lines ``only``, if there are any."""
    from cosmic_ray.plugins import get_operator

    skipped, nodes = parsed(path)
    change = get_operator(operator)()
    starts = (start for node in nodes for start, _ in change.mutation_positions(node))
    return [
        (start[0], occurrence)
        for occurrence, start in enumerate(starts)
        if start not in skipped and (not only or start[0] in only)
    ]


def changed(path: str, operator: str, occurrence: int) -> str | None:
    """The source of a mutant; None if there is none, or it is the same program."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / path).read_text(encoding="utf-8")
    mutated: str | None = mutate_code(source, get_operator(operator)(), occurrence)
    if mutated is None:
        return None
    try:
        same = ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else mutated


def sample(paths: list[str], seed: int, count: int) -> list[Mutant]:
    """``count`` different mutants, fewer if there are no more: as many of each area, and of each operator.

    Of a named line, all.
    """
    from cosmic_ray.plugins import get_operator, operator_names

    operators = sorted(name for name in operator_names() if not get_operator(name).arguments())
    lines: dict[str, set[int]] = {}
    for path in paths:
        file, _, line = path.partition(":")
        if line:
            lines.setdefault(file, set()).add(int(line))
    chance = random.Random(seed)
    chosen: dict[Key, Mutant] = {}

    def take(path: str, operator: str, line: int, occurrence: int) -> None:
        mutated = changed(path, operator, occurrence)
        if mutated is not None:
            was, now = difference((ROOT / path).read_text(encoding="utf-8"), mutated)
            mutant = Mutant(path, line, operator, occurrence, was, now)
            chosen.setdefault(mutant.key, mutant)

    by_area: dict[str, list[str]] = {}
    for path in files(paths):
        if path in lines:
            for operator in operators:
                for place in places(path, operator, lines[path]):
                    take(path, operator, *place)
        else:
            first, second = path.split("/")[:2]
            by_area.setdefault(f"{first}/{second}" if first == "checker" else first, []).append(path)
    sizes = {path: (ROOT / path).stat().st_size for found in by_area.values() for path in found}
    tries = 200 * count
    while by_area and len(chosen) < count and tries:
        for found in by_area.values():
            wanted = min(count, len(chosen) + 1)
            while len(chosen) < wanted and tries:
                tries -= 1
                path = chance.choices(found, [sizes[one] for one in found])[0]
                operator = chance.choice(operators)
                if at := places(path, operator, set()):
                    take(path, operator, *chance.choice(at))
    return list(chosen.values())


def difference(source: str, mutated: str) -> tuple[str, str]:
    """The lines that differ, before and after."""
    one, other = source.splitlines(), mutated.splitlines()
    begin = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    end = 0
    while end < min(len(one), len(other)) - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    cut = [" ".join(line.strip() for line in lines[begin : len(lines) - end]) for lines in (one, other)]
    return cut[0], cut[1]


class Copy:
    """A copy of the tracked files, in which mutants are made one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in git("ls-files", "-z"):
            if (ROOT / name).exists() or (ROOT / name).is_symlink():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        # Compiled once; what does not fit its source any more, a mutant, is compiled anew each time.
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
        folders = ["checker", "reference", "spec"]
        subprocess.run([sys.executable, *compiling, *folders], cwd=folder, check=True)

    def run(self, tests: tuple[str, ...], limit: float) -> tuple[str, float]:
        """Fate of what the copy holds (killed, survived, timeout), and seconds."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        names = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        started = time.monotonic()
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, cwd=self.folder, env=os.environ | names, **quiet) as process:
            try:
                fate = "killed" if process.wait(limit) else "survived"
            except subprocess.TimeoutExpired:
                fate = "timeout"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return fate, time.monotonic() - started

    def judge(self, mutant: Mutant, limits: Limits) -> tuple[str, float]:
        """Fate of a mutant, and seconds: the tests of ``limits`` are run until one notices."""
        file = self.folder / mutant.path
        mutated = changed(mutant.path, mutant.operator, mutant.occurrence)
        assert mutated is not None
        file.write_text(mutated, encoding="utf-8")
        fate, total = "survived", 0.0
        try:
            for tests, limit in limits.items():
                fate, seconds = self.run(tests, limit)
                total += seconds
                if fate != "survived":
                    break
        finally:
            shutil.copy2(ROOT / mutant.path, file)
        return fate, total

    def baseline(self, tests: tuple[str, ...]) -> float | None:
        """Seconds that tests take without a mutant, measured once for each state; None if they fail."""
        key = digest(tests)
        kept: dict[str, float] = json.loads(BASELINES.read_text()) if BASELINES.exists() else {}
        if key not in kept:
            fate, seconds = self.run(tests, 3600)
            if fate != "survived":
                return None
            kept[key] = round(seconds, 1)
            BASELINES.write_text(json.dumps(kept))
            print(f"{' '.join(tests)}: {seconds:.0f} s", flush=True)
        return kept[key]


def known(results: Path) -> dict[Mutant, str]:
    """The mutants that a results file has, and their fates; the last one counts of the same change."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    rows = {(row["path"], row["was"], row["now"]): row for row in map(json.loads, lines)}
    return {Mutant(**{name: row[name] for name in Mutant._fields}): row["fate"] for row in rows.values()}


def explained() -> dict[Key, str]:
    """Why each survivor that is known may survive."""
    rows = tomllib.loads(EXPLAINED.read_text(encoding="utf-8")).get("survivor", [])
    return {(row["path"], row["was"], row["now"]): row["why"] for row in rows}


def main() -> int:
    """Run what is not in the results yet; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="copies in which mutants are tried at once")
    parser.add_argument("--limit", type=float, default=30, help="seconds that a mutant has at least")
    parser.add_argument("--results", type=Path, default=ROOT / "ci" / "mutation_results.jsonl")
    parser.add_argument("--nearest", action="store_true", help="only the nearest tests, not the whole area's")
    parser.add_argument("--again", action="store_true", help="try survivors again that are not explained")
    parser.add_argument("paths", nargs="*", help="folders, files, or lines (FILE:LINE); default: all areas")
    given = parser.parse_args()
    (commit,) = git("describe", "--always", "--dirty")
    kept = known(given.results)
    fates = {m.key: fate for m, fate in kept.items()}
    chosen = sample(given.paths, given.seed, given.sample) if given.sample or given.paths else list(kept)
    open_ = {key for key, fate in fates.items() if fate == "survived" and key not in explained()}
    rest = [m for m in chosen if m.key not in fates or (given.again and m.key in open_)]
    print(f"{len(chosen)} mutants, {len(chosen) - len(rest)} of them in {given.results}", flush=True)
    if not rest or not (given.sample or given.paths):
        return report(chosen, fates)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        free: Queue[Copy] = Queue()
        for number in range(given.jobs):
            free.put(Copy(Path(folder) / str(number)))
        done = 0
        try:
            with given.results.open("a", encoding="utf-8") as out:
                for one in NEAREST:
                    members = [m for m in rest if group(m.path) == one]
                    limits = limits_of(members, free.queue[0], given) if members else {}
                    if limits is None:
                        return 2
                    tasks = [pool.submit(judged, mutant, free, limits[mutant.path]) for mutant in members]
                    for future in as_completed(tasks):
                        mutant, fate, seconds = future.result()
                        done += 1
                        fates[mutant.key] = fate
                        about = {"seconds": round(seconds, 1), "commit": commit, "seed": given.seed}
                        about |= {"tests": "nearest"} if given.nearest and fate == "survived" else {}
                        print(json.dumps(mutant._asdict() | {"fate": fate} | about), file=out, flush=True)
                        place = f"{done}/{len(rest)} {fate:8} {seconds:4.0f} s"
                        print(f"{place}  {mutant.name[:160]}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print(f"interrupted; what was found is in {given.results}", file=sys.stderr)
            return 3
    return report(chosen, fates)


def judged(mutant: Mutant, free: Queue[Copy], limits: Limits) -> tuple[Mutant, str, float]:
    """A mutant, judged in one of the copies that are free; its fate, and seconds."""
    copy = free.get()
    try:
        return mutant, *copy.judge(mutant, limits)
    finally:
        free.put(copy)


def limits_of(members: list[Mutant], copy: Copy, given: argparse.Namespace) -> dict[str, Limits] | None:
    """The tests that the mutants of each file meet, and how long they may take; None if some fail anyway."""
    paths = sorted({m.path for m in members})
    limits: dict[str, Limits] = {path: {} for path in paths}
    quick = tuple(sorted({test for path in paths for test in nearest(path)}))
    for tests in (quick, *([] if given.nearest else [AREAS[area(paths[0])]])):
        seconds = copy.baseline(tests)
        if seconds is None:
            print(f"{' '.join(tests)} fail without a mutant: mend them first", file=sys.stderr)
            return None
        for path in paths:
            limits[path][nearest(path) if tests is quick else tests] = max(given.limit, FACTOR * seconds)
    return limits


def report(chosen: list[Mutant], fates: dict[Key, str]) -> int:
    """Print what became of the mutants; 1 if a survivor is not explained."""
    why = explained()
    counts = Counter(fates[m.key] for m in chosen)
    alive = [m for m in chosen if fates[m.key] == "survived"]
    open_ = [m for m in alive if m.key not in why]
    for mutant in open_:
        print(f"survived: {mutant.name}")
    totals = ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items()))
    print(f"{len(chosen)} mutants: {totals}; {len(alive) - len(open_)} of the survivors are explained")
    return 1 if open_ else 0


if __name__ == "__main__":
    sys.exit(main())
