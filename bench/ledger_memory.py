"""Memory of a process whose guard judges a day's worth of events: it must stay flat.

    python bench/ledger_memory.py [--events N] [--every N] [--save FILE]

A made-up connector serves one request after the other, tens of them at a time: prefix hits in both tiers,
loads, stores, evictions, preemptions, aborts between lookup and admission, resets when
nothing runs. Request and transfer ids are never used again. The guard counts, and keeps the last events for a
recording. Prints the resident memory as it goes; exits with 1 if it grew by more than a tenth after the first
fifth of the events, or if anything was found.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from _measure import arguments, resident, save
from check_speed import BLOCK, Observer, Running, Serving

from kvfence.checker.ledger.guard.guard import Guard
from kvfence.checker.ledger.guard.recorder import Recorder
from kvfence.spec import events as ev

GPU, CPU = 4096, 8192


class Day(Serving):
    """A connector that serves without end, and to which everything happens now and then."""

    def __init__(self, emit: Observer, seed: int) -> None:
        super().__init__(emit, gpu=GPU, cpu=CPU, seed=seed)
        self.number = 0

    def arrive(self) -> Running:
        """The next request."""
        self.number += 1
        prompt = min(2000, int(self.random.lognormvariate(5.0, 1.0)) + 1)
        return Running(self.number, prompt, self.random.randint(1, 60), self.random.randrange(200))

    def preempt(self, request: Running) -> None:
        """The request loses its blocks, and goes away instead of coming back."""
        self.running.remove(request)
        self.emit(ev.Preempt(request.id, 0))
        self.gpu.free(f"req:{request.id}.0", request.table[::-1])
        self.emit(ev.Retire(request.id, 0))
        self.emit(ev.Finish(request.id, 1, "abort", 0))
        self.emit(ev.Retire(request.id, 1))

    def change_its_mind(self) -> None:
        """A request is promised a hit, and its client goes away."""
        request = self.arrive()
        name, keys = request.id, request.keys[: (request.prompt - 1) // BLOCK]
        promised = self.cpu.prefix(keys)
        self.emit(ev.Submit(name, 0, request.prompt))
        if promised:
            self.cpu.touch(f"hit:{name}.0", promised)
            self.emit(ev.Lookup(name, 0, 0, len(promised) * BLOCK, "cpu", promised))
            self.emit(ev.Withdraw(name, 0))
            self.cpu.free(f"hit:{name}.0", promised)
        self.emit(ev.Finish(name, 0, "abort", 0))
        self.emit(ev.Retire(name, 0))

    def reset(self) -> None:
        """Nothing runs: the prefix caches are cleared."""
        for pool in (self.gpu, self.cpu):
            pool.key.clear()
            pool.slot.clear()
        self.emit(ev.Reset(True, ("gpu", "cpu")))

    def tidy(self) -> None:
        """Drop what the free lists name in vain, so that it is not this connector that grows."""
        for pool in (self.gpu, self.cpu):
            if len(pool.free_list) > 2 * len(pool.refs):
                last = dict.fromkeys(reversed(pool.free_list))
                pool.free_list = deque(slot for slot in reversed(last) if pool.refs[slot] == 0)

    def serve_until(self, enough: int, guard: Guard) -> None:
        """Serve until the guard has judged that many events."""
        waiting = self.arrive()
        draining = False
        while guard.events < enough:
            room = GPU - 1 - sum(self.need(request) for request in self.running)
            while not draining and len(self.running) < 32 and self.need(waiting) <= room:
                room -= self.need(waiting)
                self.admit(waiting)
                waiting = self.arrive()
            if self.running:
                self.step()
                self.tidy()
            chance = self.random.random()
            if chance < 0.02 and self.running:
                self.preempt(self.random.choice(self.running))
            elif chance < 0.05:
                self.change_its_mind()
            elif chance < 0.0505:
                draining = True
            if draining and not self.running:
                self.reset()
                draining = False


def main() -> int:
    """Exit code: 0 if memory stayed flat."""
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--every", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard("count", recorder=Recorder(folder))
        day = Day(guard, given.seed)
        guard(day.header())
        start = time.perf_counter()
        for events in range(given.every, given.events + 1, given.every):
            day.serve_until(events, guard)
            seconds = time.perf_counter() - start
            rows.append({"events": guard.events, "seconds": round(seconds, 1), "mib": resident() / 2**20})
            print(f"{guard.events:>12,} events {seconds:8.0f} s {rows[-1]['mib']:8.1f} MiB", flush=True)
    facts = guard.facts()
    print(f"{day.number:,} requests, {day.ops:,} transfers, verdict: {facts.verdict}")
    first = rows[max(0, len(rows) // 5 - 1)]["mib"]
    growth = rows[-1]["mib"] / first - 1
    print(f"grown since the first fifth: {growth:.1%}")
    report = {"rows": rows, "requests": day.number, "transfers": day.ops, "verdict": facts.verdict}
    save(given.save, report)
    return 0 if facts.verdict == "holds" and growth <= 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
