"""Judges cases in worker processes, so that an engine that crashes or never ends is a disagreement, too."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import comparing as say
from comparing import Case, Difference, Question
from drawing import MANY, Drawn, Features, draw
from recipes import Recipe

from kvfence.checker.engines import Explore, Interpret, Native
from kvfence.checker.engines.smt.bmc import BMC
from kvfence.checker.engines.smt.kinduction import KInduction
from kvfence.checker.engines.smt.spacer import Spacer

HANGS = 45.0  # seconds after which a question of a drawn machine is never going to be answered
MEMORY = 4 << 30  # bytes that a worker may map
_fork = multiprocessing.get_context("fork")

# Every question by name. One and two threads use the same compiled library.
QUESTIONS: dict[str, Question] = {
    "build": lambda _: [],
    "interpret": say.asking(Interpret, say.explored),
    "explore": say.asking(partial(Explore, 1 << 15), say.explored),
    **{f"explore-chunks-of-{n}": say.asking(partial(Explore, n), say.explored) for n in (7, 64)},
    "explore-first": say.asking(Explore, say.first, until="first"),
    **{
        f"native{lanes}{threads}": say.asking(
            partial(Native, threads=2 if threads else 1, note=say.quietly),
            say.explored,
            one_lane=not lanes,
            name="native",
        )
        for lanes in ("", "-all-lanes")
        for threads in ("", "-2-threads")
    },
    "native-first": say.asking(lambda: Native(note=say.quietly), say.first, until="first"),
    "native-resumed": say.resumed,
    "native-little-memory": say.short_of_memory,
    "native-symmetry": say.asking(lambda: Native(symmetry=True, note=say.quietly), say.reduced),
    "gpu-kernels": say.on_gpu(1, False, False),
    "gpu-kernels-2-threads": say.on_gpu(2, False, False),
    "gpu-kernels-symmetry": say.on_gpu(1, True, False),
    "gpu": say.on_gpu(1, False, True),
    "gpu-symmetry": say.on_gpu(1, True, True),
    "liveness": say.promised(True),
    "liveness-in-c": say.promised(False),
    "bmc": say.bounded(lambda: BMC(7, seconds=4.0), complete=True),
    "kinduction": say.bounded(lambda: KInduction(4, seconds=4.0)),
    "kinduction-exercised": say.exercised,
    "spacer": say.bounded(lambda: Spacer(seconds=4.0, depth=3)),
    "smt": say.for_any_size,
    "evaluate": say.evaluated,
}


@dataclass(frozen=True)
class Wanted:
    """Which cases are drawn and what is asked: ``only`` restricts the questions, ``card`` adds a GPU."""

    seed: int
    features: Features = field(default_factory=Features)
    only: frozenset[str] = frozenset()
    card: bool = False


@dataclass
class Report:
    """What judging one case showed."""

    case: int
    kind: str = ""
    verdict: str = ""
    large: bool = False
    spent: dict[str, float] = field(default_factory=dict)
    wrong: list[tuple[str, Difference]] = field(default_factory=list)


def plan(d: Drawn, card: bool = False) -> list[str]:
    """Which questions a case is asked: cheap ones always, others so often that the time is well spread."""
    rng = random.Random(f"{d.seed}/{d.case}/plan")

    def now_and_then(share: float) -> bool:
        return rng.random() < share

    r, large, tiny = d.recipe, d.kind == "large", d.kind == "tiny"
    out = ["build", "explore"]
    if not large:
        explore = rng.choice(["explore", "explore", "explore-chunks-of-7", "explore-chunks-of-64"])
        out = ["build", "interpret", explore, *(["evaluate"] if now_and_then(0.3) else ())]
    if now_and_then(0.2):
        out.append("explore-first")
    compiled = now_and_then(0.5 if large else 0.25)
    if compiled:
        out += ["native", "native-2-threads"]
        out += [x for x in ("native-first", "native-resumed", "native-little-memory") if now_and_then(0.4)]
    if now_and_then(0.04):
        out += ["native-all-lanes", "native-all-lanes-2-threads"]
    if any(size > 1 for _, size in r.sorts) and now_and_then(0.12):
        out.append("native-symmetry")
    if now_and_then(0.06):
        out.append(rng.choice(["gpu-kernels", "gpu-kernels-2-threads", "gpu-kernels-symmetry"]))
    if card and now_and_then(0.5):
        out.append(rng.choice(["gpu", "gpu-symmetry"]))
    if r.liveness and not r.bounds:
        out.append("liveness")
        if compiled:
            out.append("liveness-in-c")
    if not large and now_and_then(0.25):
        out.append("bmc")
    if tiny:
        rare = (("kinduction", 0.25), ("kinduction-exercised", 0.1), ("smt", 0.2), ("spacer", 0.03))
        out += [x for x, share in rare if now_and_then(share)]
    if d.kind == "counting":
        out += ["smt", *(["kinduction"] if now_and_then(0.3) else [])]
    return out


def judge(wanted: Wanted, case: int, asking: Callable[[str], None]) -> Report:
    """Draw a case and ask everything; ``asking`` gets each question before it is asked."""
    out = Report(case)
    asking("build")
    started = time.perf_counter()
    d = draw(wanted.seed, case, wanted.features)
    out.kind = d.kind
    c, wrong = _built(d.recipe)
    out.spent["drawing"] = time.perf_counter() - started
    if c is None:
        out.wrong.append(("build", wrong))
        return out
    out.verdict, out.large = c.verdict, c.answer.states > MANY
    for question in plan(d, wanted.card):
        if question == "build" or (wanted.only and question not in wanted.only):
            continue
        asking(question)
        started = time.perf_counter()
        found = say.ask(QUESTIONS[question], c)
        out.spent[question] = time.perf_counter() - started
        out.wrong += [(question, w) for w in found[:1]]
    return out


def _built(r: Recipe) -> tuple[Case | None, Difference]:
    try:
        return Case(r), Difference("", "")
    except Exception as error:
        return None, Difference(f"build {type(error).__name__}", f"{type(error).__name__}: {error}")


def differences(question: str, r: Recipe) -> list[Difference]:
    """What one question shows of a machine, asked in a process of its own."""
    here, there = _fork.Pipe()
    child = _fork.Process(target=_answer, args=(there, question, r), daemon=True)
    child.start()
    there.close()
    try:
        if here.poll(HANGS):
            return here.recv()
        return [Difference("hang", f"no answer after {HANGS:g} s")]
    except EOFError:
        child.join()
        return [Difference("crash", f"the process ended with {child.exitcode}")]
    finally:
        child.kill()
        child.join()
        here.close()


def _begin(card: bool) -> None:
    """A worker leaves Ctrl-C to its parent, and cannot take all memory: an engine that goes wrong may try."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not card:  # a GPU maps more than there is
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _answer(there: Connection, question: str, r: Recipe) -> None:
    _begin(question in ("gpu", "gpu-symmetry"))
    c, wrong = _built(r)
    there.send([wrong] if c is None else say.ask(QUESTIONS[question], c))


class Workers:
    """Processes that judge cases. Iterate over the reports; close them in the end."""

    def __init__(self, wanted: Wanted, cases: Iterator[int], many: int) -> None:
        self.wanted, self.cases = wanted, cases
        self.busy: dict[Any, _Worker] = {}
        for _ in range(many):
            self._give(_Worker(wanted))

    def _give(self, w: _Worker) -> None:
        case = next(self.cases, None)
        if case is None:
            w.close()
        else:
            w.give(case)
            self.busy[w.pipe] = w

    def reports(self, deadline: float) -> Iterator[Report]:
        """Reports as they come, until the deadline or the last case."""
        while self.busy and time.perf_counter() < deadline:
            ready = wait(list(self.busy), timeout=0.5)
            for pipe in list(self.busy):
                w = self.busy[pipe]
                report = w.look() if pipe in ready else w.overdue()
                if report is None:
                    continue
                del self.busy[pipe]
                yield report
                if w.gone:
                    w.close()
                    w = _Worker(self.wanted)
                self._give(w)

    def close(self) -> None:
        """End all processes."""
        for w in self.busy.values():
            w.close()
        self.busy.clear()


class _Worker:
    def __init__(self, wanted: Wanted) -> None:
        self.pipe, there = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(there, self.pipe, wanted), daemon=True)
        self.process.start()
        there.close()
        self.case, self.question, self.since, self.gone = -1, "", 0.0, False

    def give(self, case: int) -> None:
        """Have a case judged."""
        self.case, self.question, self.since = case, "build", time.perf_counter()
        self.pipe.send(case)

    def look(self) -> Report | None:
        """A report if there is one; the end of the process is one, too."""
        try:
            received = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return self._lost("crash", f"the process ended with {self.process.exitcode}")
        if isinstance(received, Report):
            return received
        self.question, self.since = received, time.perf_counter()
        return None

    def overdue(self) -> Report | None:
        """A report that the present question is never going to be answered."""
        if time.perf_counter() - self.since < HANGS:
            return None
        return self._lost("hang", f"no answer after {HANGS:g} s")

    def _lost(self, kind: str, text: str) -> Report:
        self.gone = True
        return Report(self.case, wrong=[(self.question, Difference(kind, text))])

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, other: Connection, wanted: Wanted) -> None:
    _begin(wanted.card)
    other.close()
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(judge(wanted, pipe.recv(), pipe.send))


def has_card() -> bool:
    """Whether there is a CUDA device. Another process looks, as one that has opened it cannot fork."""
    child = _fork.Process(target=_look_for_card)
    child.start()
    child.join()
    return child.exitcode == 0


def _look_for_card() -> None:
    """Ends the process with exit code 1 if there is no device."""
    from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
    from kvfence.checker.engines.gpu.device.search_device import NoGpu

    try:
        CudaDevice().close()
    except NoGpu:
        sys.exit(1)
