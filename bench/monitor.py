"""What kvfence adds to the scheduler step of a real vLLM: prefill, load and decode steps, with and without.

    python bench/monitor.py [--rounds N] [--mode count] [--profile] [--output FILE]

Runs where vLLM (0.32 or newer) can be imported; ``make bench-monitor`` sees to that. ``plain`` is without
kvfence, ``off`` with its plugin installed and KVFENCE_MODE not set. In a round, each of the three has engines
of its own, in an order that changes, and the same requests are played through each: a prompt of 90,112
tokens in steps of 8,192 with stores, and loads of the whole prompt; then decode steps of one request and of
many, in bursts that take turns. Before a burst its side's hooks are put in or taken out, and uncounted steps
let Python adapt its bytecode to that, as it does in a process that goes on. Decode steps follow one another
at once in one half of a burst; in the other the engine's thread sleeps in each step, as it would wait for a
device, and the processor's caches lose what the step needs, which makes the step itself and what is added to
it slower.

Figures are medians over the steps of all rounds. The time of a step is the processor time of ``schedule`` and
``update_from_output`` in the engine's thread. Beside it stands the time on the clock, in which the thread may
also wait for the interpreter or for a processor.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "checker" / "adapters"))

PROMPT = 90_112
CHUNK = 8_192
BLOCKS = 6_000
BURSTS = 4
"""Bursts of decode steps of each side, in a round. They take turns: machines are not always as fast."""
ADAPTING = 100
"""Uncounted steps before a burst. Python looks at what has changed after 53 executions."""
DECODES = 30
"""Steps of half a burst."""
LOADS = 3
SETTLED = 0.5
"""Seconds in which no other thread runs, until all before is judged."""
MODEL = 0.005
"""Seconds that the device takes for a step. Decode steps of real models take about as long, or longer."""
TOGETHER = 64
"""Requests of decode steps of many."""
KINDS = (
    "prefill",
    "load, first step",
    "load, second step",
    *(f"decode{many}, {how}" for many in ("", f" of {TOGETHER}") for how in ("at once", "waiting")),
)


class Clock:
    """Seconds of the steps of each kind: of the processor, and on the clock."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, list[float]] = defaultdict(list)

    def step(self, engine: Any, kind: str, wait: float = MODEL) -> None:
        """One step of ``engine``, of which only the scheduler's part counts; ``wait``: for the device."""
        now, clock = time.thread_time, time.perf_counter
        scheduler = engine.scheduler
        schedule, update = scheduler.schedule, scheduler.update_from_output
        spent = passed = 0.0

        def timed(call: Any) -> Any:
            def run(*args: Any) -> Any:
                nonlocal spent, passed
                started, begin = clock(), now()
                result = call(*args)
                spent += now() - begin
                passed += clock() - started
                return result

            return run

        scheduler.schedule, scheduler.update_from_output = timed(schedule), timed(update)
        try:
            engine.dispatch()
            if wait:
                time.sleep(wait)  # While the model runs, another thread may judge.
            engine.process()
        finally:
            del scheduler.schedule, scheduler.update_from_output
        self.steps[kind].append(spent)
        self.wall[kind].append(passed)


def long_prompts(clock: Clock) -> None:
    """A long prompt and its loads through a new engine."""
    from mini_engine import MiniEngine

    engine = MiniEngine(gpu_blocks=BLOCKS, cpu_blocks=BLOCKS, budget=CHUNK, max_len=4096, seqs=8)
    engine.add("adapting", list(range(2 * CHUNK // 16)), ADAPTING)
    engine.run()
    engine = MiniEngine(
        gpu_blocks=BLOCKS, cpu_blocks=BLOCKS + 2000, budget=CHUNK, max_len=PROMPT + 4096, seqs=8
    )
    prompt = [token % 977 for token in range(PROMPT + 1)]
    engine.add("first", prompt, 64)
    for number in range(PROMPT // CHUNK):
        clock.step(engine, "prefill" if number else "warm up")
    engine.run()
    for load in range(LOADS):
        engine.step()
        engine.step()
        if not engine.scheduler.reset_prefix_cache():
            raise SystemExit("the GPU's prefix cache could not be reset")
        engine.add(f"again{load}", prompt, 16)
        gc.collect()
        time.sleep(SETTLED)
        clock.step(engine, "load, first step")
        clock.step(engine, "load, second step")
        engine.run(100)


class Side:
    """One of the three: its hooks, if it has any, and an engine that is only stepped while these are in."""

    def __init__(self, clock: Clock, mode: str | None, count: int) -> None:
        from mini_engine import MiniEngine

        from kvfence.checker.adapters.vllm.runtime import install

        self.clock = clock
        self.places: list[tuple[Any, str, Any, Any]] = []
        """Class, name, method and hook."""
        if mode is not None:
            self.runtime = install(mode)
            undo = self.runtime.instrumentation._patches._undo
            self.places = [
                (owner, name, before, owner.__dict__[name])
                for owner, name, before in undo
                if callable(before)
            ]
        self.engine = MiniEngine(gpu_blocks=BLOCKS, cpu_blocks=BLOCKS, budget=CHUNK, max_len=4096, seqs=count)
        for number in range(count):
            # Lengths differ, so that in each step some requests need a new block.
            prompt = [(token * 7 + number) % 977 for token in range(160 + number)]
            self.engine.add(f"one of many {number}", prompt, 3000)
        for _ in range(20):
            self.engine.step()
        self.take_out()

    def put_in(self) -> None:
        """Its hooks observe."""
        for owner, name, _, hook in self.places:
            setattr(owner, name, hook)

    def take_out(self) -> None:
        """vLLM is as it was."""
        for owner, name, method, _ in self.places:
            setattr(owner, name, method)

    def burst(self, kind: str) -> None:
        """Some decode steps, counted once everything has settled."""
        self.put_in()
        try:
            for _ in range(ADAPTING):
                self.engine.step()
            gc.collect()
            time.sleep(SETTLED)
            for how, wait in (("at once", 0), ("waiting", MODEL)):
                spare = Clock()
                for _ in range(5):
                    spare.step(self.engine, kind, wait)
                for _ in range(DECODES):
                    self.clock.step(self.engine, f"{kind}, {how}", wait)
        finally:
            self.take_out()


def decodes(sides: dict[str, Clock], mode: str, turn: int) -> Any:
    """Decode steps of one request and of many, in bursts that take turns; what kvfence found."""
    from kvfence.checker.adapters.vllm.runtime import facts, uninstall
    from kvfence.checker.adapters.vllm_plugin import register

    found: list[dict[str, Any]] = []
    for count, kind in ((1, "decode"), (TOGETHER, f"decode of {TOGETHER}")):
        engines: dict[str, Side] = {}
        for name in turned(sides, turn):
            if name == "off":
                register()
            engines[name] = Side(sides[name], name if name == mode else None, count)
        for number in range(BURSTS):
            for name in turned(sides, turn + number):
                engines[name].burst(kind)
        engines[mode].put_in()
        found.append(facts(engines[mode].runtime))
        uninstall()
    return found


def turned(sides: dict[str, Clock], turn: int) -> list[str]:
    """The sides in another order each turn."""
    order = list(sides)
    start = turn % len(order)
    turned = order[start:] + order[:start]
    return turned if turn // len(order) % 2 else turned[::-1]


def observed(mode: str, play: Callable[[Clock], None], clock: Clock) -> Any:
    """``play`` with kvfence in ``mode``; what it found."""
    from kvfence.checker.adapters.vllm.runtime import facts, install, uninstall

    runtime = install(mode)
    try:
        play(clock)
        return facts(runtime)
    finally:
        uninstall()


def table(sides: dict[str, Clock]) -> list[dict[str, Any]]:
    """For each kind of step and way to measure: medians in microseconds, and what is added to ``plain``."""
    rows = []
    for kind in KINDS:
        for measured in ("processor", "clock"):
            found = {
                side: statistics.median((times.steps if measured == "processor" else times.wall)[kind]) * 1e6
                for side, times in sides.items()
            }
            plain = found["plain"]
            rows.append(
                {
                    "step": kind,
                    "measured": measured,
                    "steps": len(sides["plain"].steps[kind]),
                    "us": {side: round(value, 1) for side, value in found.items()},
                    "added": {side: round(value / plain - 1, 4) for side, value in found.items()},
                }
            )
    return rows


def machine() -> dict[str, Any]:
    """What it was measured on, and how much else ran there."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def main() -> None:
    """Prints the medians and the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mode", choices=("log", "count"), default="count")
    parser.add_argument("--profile", action="store_true", help="profile one observed round instead")
    parser.add_argument("--output", type=Path, help="write the figures to this file as JSON")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.pop("KVFENCE_MODE", None)
    try:
        import vllm
    except ImportError as error:
        raise SystemExit(f"no vLLM can be imported ({error}): run make bench-monitor") from None
    from kvfence.checker.adapters.vllm_plugin import register

    sides = {"plain": Clock(), "off": Clock(), asked.mode: Clock()}
    if asked.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.runcall(decodes, {asked.mode: Clock()}, asked.mode, 0)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    long_prompts(Clock())
    found: Counter[str] = Counter()
    events = 0
    for number in range(asked.rounds):
        known = []
        for side in turned(sides, number):
            gc.collect()
            if side == asked.mode:
                known.append(observed(side, long_prompts, sides[side]))
            else:
                if side == "off":
                    register()
                long_prompts(sides[side])
        known += decodes(sides, asked.mode, number)
        for each in known:
            found.update(each["violations"])
            events += each["events"]
    rows, where = table(sides), machine()
    print(f"vLLM {vllm.__version__}, {asked.rounds} rounds, medians; {where}")
    print(f"{'step':<24}{'time of':<12}{'plain us':>10}{'off us':>10}{asked.mode + ' us':>12}", end="")
    print(f"{'off':>8}{asked.mode:>8}")
    for row in rows:
        plain, off, fenced = row["us"].values()
        shares = f"{row['added']['off']:>8.1%}{row['added'][asked.mode]:>8.1%}"
        print(f"{row['step']:<24}{row['measured']:<12}{plain:>10.1f}{off:>10.1f}{fenced:>12.1f}{shares}")
    if asked.output is not None:
        facts = {"vllm": vllm.__version__, "rounds": asked.rounds, "machine": where, "rows": rows}
        asked.output.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"judged: {events} events, violations {dict(+found) or 'none'}")


if __name__ == "__main__":
    main()
