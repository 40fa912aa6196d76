"""What the guard costs a scheduler step, in microseconds: a prefill, a load and a decode step, for each mode.

    python bench/guard_cost.py [--rounds N] [--save FILE]

The steps emit the events that one request makes in vLLM 0.32 with SimpleCPUOffloadConnector at block size 16:
a prefill step of 8,192 tokens stores the 512 blocks of the one before while all 512 that it allocates in
either pool are evicted; a load step promises and loads 5,624 blocks (90,000 tokens); a decode step moves
nothing. Longer lists of numbers are arrays, as the adapter has them. Making the events is not counted. Times
are medians; the steps that they are compared with take 1.9 ms, 11 ms and 0.13 ms.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from _measure import arguments, save

from kvfence.checker.ledger.guard.guard import Guard, GuardMode
from kvfence.checker.ledger.guard.recorder import Recorder
from kvfence.spec import events as ev

BLOCK: Final = 16
CHUNK: Final = 512
LOADED: Final = 5624
GPU: Final = 6 * LOADED + 1
CPU: Final = 4 * LOADED
STEP_MS: Final = {"prefill": 1.9, "load": 11.0, "decode": 0.13}
"""What the step itself takes on release 0.32, in milliseconds: a figure for comparison."""


class Cycle:
    """Slots of a pool, given out again and again in the same order, and which of them have a key."""

    def __init__(self, slots: int, first: int) -> None:
        self.slots, self.first, self.next = slots, first, first
        self.cached: set[int] = set()

    def take(self, count: int) -> list[int]:
        """The next ``count`` slots."""
        if self.next + count > self.slots:
            self.next = self.first
        taken = list(range(self.next, self.next + count))
        self.next += count
        return taken


class Engine:
    """One request after the other, served as in the module's description."""

    def __init__(self) -> None:
        self.gpu, self.cpu = Cycle(GPU, 1), Cycle(CPU, 0)
        self.step = self.op = self.key = self.number = 0

    def header(self) -> ev.Header:
        """The header of its trace."""
        pools = (ev.Pool("gpu", GPU, null=0), ev.Pool("cpu", CPU))
        return ev.Header(producer="bench", pools=pools, groups=(ev.Group("gpu", BLOCK),))

    def alloc(self, pool: str, holder: str, count: int, at: int = 0) -> tuple[list[int], list[ev.Event]]:
        """Slots of a full pool: what they had is evicted."""
        cycle = self.gpu if pool == "gpu" else self.cpu
        slots = cycle.take(count)
        old = [slot for slot in slots if slot in cycle.cached]
        cycle.cached.difference_update(old)
        events: list[ev.Event] = [ev.Evict(pool, array("I", old))] if old else []
        return slots, [*events, ev.Alloc(pool, holder, array("I", slots), at=at)]

    def keys(self, count: int) -> list[int]:
        """New content keys."""
        self.key += count
        return [(key * 0x9E3779B97F4A7C15) & (2**64 - 1) for key in range(self.key - count, self.key)]

    def model_step(self, name: str, tokens: int) -> list[ev.Event]:
        """A step is dispatched and over."""
        self.step += 1
        return [ev.Dispatch(self.step, [name], [tokens]), ev.Process(self.step)]

    def serve(self) -> Iterator[tuple[str, list[ev.Event]]]:
        """The steps of a request that is computed and stored, and decodes."""
        name, held = f"cmpl-{self.number}", f"req:cmpl-{self.number}.0"
        self.number += 1
        chunks = LOADED // CHUNK
        prompt = chunks * CHUNK * BLOCK
        yield (
            "",
            [ev.Submit(name, 0, prompt), ev.Lookup(name, 0, 0, 0), ev.Admit(name, 0, 0, 0, prompt, prompt)],
        )
        table: list[int] = []
        stored: list[tuple[list[int], list[int]]] = []
        open_store: list[ev.Event] = []
        for chunk in range(chunks):
            slots, events = self.alloc("gpu", held, CHUNK, chunk * CHUNK)
            keys = self.keys(CHUNK)
            label: ev.Event = ev.Label("gpu", array("I", slots), array("Q", keys))
            self.gpu.cached.update(slots)
            if chunk:
                store, ends = self.store(name, table[-CHUNK:], stored[-1][1], chunk - 1)
                events, open_store = [*open_store, *events, label, *store], ends
            else:
                events.append(label)
            table += slots
            stored.append((slots, keys))
            yield "prefill" if chunk > 1 else "", [*events, *self.model_step(name, CHUNK * BLOCK)]
        yield "", open_store
        for _ in range(BLOCK - 1):
            yield "decode", self.model_step(name, 1)
        yield (
            "",
            [
                ev.Drop(name, 0, (chunks - 1) * CHUNK, CHUNK, "tier_full"),
                ev.Finish(name, 0, "length", prompt + BLOCK - 1),
                ev.Free("gpu", held, array("I", table[::-1])),
                ev.Retire(name, 0),
            ],
        )

    def store(
        self, name: str, slots: list[int], keys: list[int], chunk: int
    ) -> tuple[list[ev.Event], list[ev.Event]]:
        """What begins and what ends the store of a chunk."""
        self.op += 1
        op, holder = self.op, f"op:{self.op}.0"
        there, events = self.alloc("cpu", holder, CHUNK)
        src, dst = array("I", slots), array("I", there)
        at = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        moved = array("Q", keys)
        self.cpu.cached.update(there)
        begin = [
            *events,
            ev.Touch("gpu", holder, src),
            ev.Queue(op, 0, "store", "gpu", src, "cpu", dst, moved, name, 0, array("I", at)),
            ev.Cursor(name, 0, at.stop),
            ev.Issue(op, 0),
        ]
        end: list[ev.Event] = [
            ev.Report(op, 0, 0),
            ev.Complete(op, 0),
            ev.Label("cpu", dst, moved, 0, op),
            ev.Free("cpu", holder, dst),
            ev.Free("gpu", holder, src),
        ]
        return begin, end

    def load(self) -> Iterator[tuple[str, list[ev.Event]]]:
        """A request all of whose blocks are in the CPU pool: found, promised, loaded."""
        name, held, hit = f"cmpl-{self.number}", f"req:cmpl-{self.number}.0", f"hit:cmpl-{self.number}.0"
        self.number += 1
        keys = self.keys(LOADED)
        there, events = self.alloc("cpu", "op:fill.0", LOADED)
        cpu, moved = array("I", there), array("Q", keys)
        self.cpu.cached.update(there)
        yield "", [*events, ev.Label("cpu", cpu, moved), ev.Free("cpu", "op:fill.0", cpu)]
        self.op += 1
        op, holder = self.op, f"op:{self.op}.0"
        tokens = LOADED * BLOCK
        table, evicted = self.alloc("gpu", held, LOADED)
        gpu = array("I", table)
        self.gpu.cached.update(table)
        yield (
            "load",
            [
                ev.Submit(name, 0, tokens + 1),
                ev.Touch("cpu", hit, cpu),
                ev.Lookup(name, 0, 0, tokens, "cpu", cpu),
                *evicted,
                ev.Admit(name, 0, 0, tokens, 1, tokens + 1),
                ev.Touch("cpu", holder, cpu),
                ev.Touch("gpu", holder, gpu),
                ev.Queue(op, 0, "load", "cpu", cpu, "gpu", gpu, moved, name, 0, array("I", range(LOADED))),
                ev.Free("cpu", hit, cpu),
                ev.Issue(op, 0),
                ev.Report(op, 0, 0),
                ev.Complete(op, 0),
                ev.Label("gpu", gpu, moved, 0, op),
                ev.Free("gpu", holder, gpu),
                ev.Free("cpu", holder, cpu),
            ],
        )
        yield (
            "",
            [
                ev.Drop(name, 0, 0, LOADED, "resident"),
                ev.Finish(name, 0, "abort", tokens),
                ev.Free("gpu", held, gpu),
                ev.Retire(name, 0),
            ],
        )


def measure(mode: GuardMode, rounds: int, recorder: Recorder | None) -> dict[str, float]:
    """Microseconds that each kind of step spends in the guard: medians."""
    engine = Engine()
    guard = Guard(mode, engine.header(), recorder=recorder)
    spent: dict[str, list[float]] = {"prefill": [], "load": [], "decode": []}
    for round_ in range(rounds):
        for steps in (engine.serve(), engine.load()):
            for kind, events in steps:
                start = time.perf_counter()
                for event in events:
                    guard(event)
                seconds = time.perf_counter() - start
                if kind and round_ > 2:
                    spent[kind].append(seconds)
    if mode != "off":
        facts = guard.facts()
        if facts.verdict != "holds":
            raise SystemExit(f"the events are not sound: {guard.faults[0] if guard.faults else facts}")
    return {kind: statistics.median(times) * 1e6 for kind, times in spent.items()}


def main() -> None:
    """Print a table, and save it if wanted."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--save", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            "off": measure("off", given.rounds, None),
            "count": measure("count", given.rounds, None),
            "count, recording": measure("count", given.rounds, Recorder(folder)),
        }
    print(f"{'us in the guard':18}" + "".join(f"{kind:>20}" for kind in STEP_MS))
    for mode, row in rows.items():
        cells = (f"{row[kind]:9.2f} ({row[kind] / STEP_MS[kind] / 10:5.2f} %)" for kind in STEP_MS)
        print(f"{mode:18}" + "".join(f"{cell:>20}" for cell in cells))
    save(given.save, {"step_ms": STEP_MS, "guard_us": rows})


if __name__ == "__main__":
    main()
