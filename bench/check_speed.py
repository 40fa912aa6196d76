"""How many events a second `kvfence check` judges, of a recorded replay and of a made-up trace.

    python bench/check_speed.py [--workload FILE] [--replayed N] [--trace FILE] [--requests N] [--rounds N]

The replay is one of the reference implementation, with hundreds of slots in many events. The made-up trace is
that of a small eager connector: prompts of a few to thousands of blocks, prefix hits in both tiers, one block
at a time while decoding, stores for each full block, loads, evictions, finishes. Times are CPU time.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

from _measure import SAMPLE, arguments, best_of

from kvfence.checker.adapters.reference import replay
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec import events as ev
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.traces import TraceReader, TraceWriter

BLOCK = 16
Observer = Callable[[ev.Event], None]


class SmallPool:
    """A pool with a least-recently-freed free list and a prefix index, which emits its events."""

    def __init__(self, name: str, slots: int, null: int | None, emit: Observer) -> None:
        self.name = name
        self.emit = emit
        self.refs = [0] * slots
        self.key: dict[int, int] = {}
        self.slot: dict[int, int] = {}
        self.free_list = deque(slot for slot in range(slots) if slot != null)
        self.free_count = len(self.free_list)

    def alloc(self, holder: str, n: int, at: int = 0) -> list[int]:
        """Take ``n`` slots; the caller knows that they are free."""
        taken: list[int] = []
        while len(taken) < n:
            slot = self.free_list.popleft()
            if self.refs[slot] == 0:
                self.refs[slot] = 1
                taken.append(slot)
        cached = [slot for slot in taken if slot in self.key]
        if cached:
            for slot in cached:
                del self.slot[self.key.pop(slot)]
            self.emit(ev.Evict(self.name, cached))
        self.free_count -= n
        self.emit(ev.Alloc(self.name, holder, taken, self.free_count, at=at))
        return taken

    def touch(self, holder: str, slots: list[int], at: int = 0) -> None:
        """Join the holders of ``slots``."""
        for slot in slots:
            self.free_count -= self.refs[slot] == 0
            self.refs[slot] += 1
        self.emit(ev.Touch(self.name, holder, slots, self.free_count, at=at))

    def free(self, holder: str, slots: list[int]) -> None:
        """Leave ``slots``."""
        for slot in slots:
            self.refs[slot] -= 1
            if self.refs[slot] == 0:
                self.free_count += 1
                self.free_list.append(slot)
        self.emit(ev.Free(self.name, holder, slots, self.free_count))

    def label(self, slots: list[int], keys: list[int], op: int = -1) -> None:
        """Publish ``slots``, except those whose key is cached elsewhere in the pool."""
        new = [(slot, key) for slot, key in zip(slots, keys, strict=True) if key not in self.slot]
        if new:
            self.key.update(new)
            self.slot.update((key, slot) for slot, key in new)
            self.emit(ev.Label(self.name, [slot for slot, _ in new], [key for _, key in new], op=op))

    def prefix(self, keys: list[int]) -> list[int]:
        """Slots of the longest cached prefix."""
        found: list[int] = []
        for key in keys:
            if key not in self.slot:
                break
            found.append(self.slot[key])
        return found


class Running:
    """A request that is being served."""

    def __init__(self, number: int, prompt: int, output: int, document: int) -> None:
        self.id = str(number)
        self.prompt, self.length = prompt, prompt + output
        shared = prompt * 3 // 4 // BLOCK
        self.keys = [
            (1_000_003 * document + i if i < shared else 7_000_000_019 * (number + 1) + i) & (2**63 - 1)
            for i in range(self.length // BLOCK)
        ]
        self.table: list[int] = []
        self.computed = 0
        self.stored = 0


class Serving:
    """An eager connector over two small pools that does everything right, one step after the other."""

    def __init__(self, emit: Observer, *, gpu: int, cpu: int, seed: int) -> None:
        self.emit = emit
        self.random = random.Random(seed)
        self.gpu = SmallPool("gpu", gpu, 0, emit)
        self.cpu = SmallPool("cpu", cpu, None, emit)
        self.running: list[Running] = []
        self.ops = 0
        self.steps = 0

    def header(self) -> ev.Header:
        """The header of the trace."""
        pools = (ev.Pool("gpu", len(self.gpu.refs), 0), ev.Pool("cpu", len(self.cpu.refs)))
        return ev.Header(producer="bench", pools=pools, groups=(ev.Group("gpu", BLOCK),))

    def need(self, request: Running) -> int:
        """Blocks for the whole request."""
        return -(-request.length // BLOCK)

    def admit(self, request: Running) -> None:
        """Look up, allocate and load."""
        name, emit = request.id, self.emit
        emit(ev.Submit(name, 0, request.prompt))
        keys = request.keys[: (request.prompt - 1) // BLOCK]
        local = self.gpu.prefix(keys)
        promised = self.cpu.prefix(keys[len(local) :])
        if promised:
            self.cpu.touch(f"hit:{name}.0", promised)
        emit(ev.Lookup(name, 0, len(local) * BLOCK, len(promised) * BLOCK, "cpu", promised))
        external = len(promised) * BLOCK
        computed = len(local) * BLOCK + external
        emit(ev.Admit(name, 0, len(local) * BLOCK, external, request.prompt - computed, request.prompt))
        if local:
            self.gpu.touch(f"req:{name}.0", local)
        missing = -(-request.prompt // BLOCK) - len(local)
        request.table = local + self.gpu.alloc(f"req:{name}.0", missing, len(local))
        request.computed = computed
        request.stored = len(local) + len(promised)
        if promised:
            op = self.ops
            self.ops += 1
            at = list(range(len(local), request.stored))
            dst = request.table[len(local) : request.stored]
            self.cpu.touch(f"op:{op}.0", promised)
            moved = request.keys[len(local) : request.stored]
            emit(ev.Queue(op, 0, "load", "cpu", promised, "gpu", dst, moved, name, 0, at))
            self.cpu.free(f"hit:{name}.0", promised)
            self.land(op)
            self.cpu.free(f"op:{op}.0", promised)
            self.gpu.label(dst, moved, op)
        if request.stored:
            emit(ev.Drop(name, 0, 0, request.stored, "resident"))
            emit(ev.Cursor(name, 0, request.stored))
        self.running.append(request)

    def land(self, op: int) -> None:
        """The transfer goes through."""
        for event in (ev.Issue(op, 0), ev.Report(op, 0, 0), ev.Complete(op, 0)):
            self.emit(event)

    def store(self, request: Running) -> None:
        """Store the blocks that are full now."""
        start, full = request.stored, request.computed // BLOCK
        if full <= start:
            return
        slots, keys = request.table[start:full], request.keys[start:full]
        self.gpu.label(slots, keys)
        wanted = [(slot, key, i) for i, (slot, key) in enumerate(zip(slots, keys, strict=True), start)]
        new = [row for row in wanted if row[1] not in self.cpu.slot]
        if len(new) > self.cpu.free_count:
            new = []
        name = request.id
        for _, key, i in wanted if len(new) < len(wanted) else ():
            if not any(key == row[1] for row in new):
                self.emit(ev.Drop(name, 0, i, 1, "resident" if key in self.cpu.slot else "tier_full"))
        if new:
            op = self.ops
            self.ops += 1
            src, moved, at = [row[0] for row in new], [row[1] for row in new], [row[2] for row in new]
            self.gpu.touch(f"op:{op}.0", src)
            dst = self.cpu.alloc(f"op:{op}.0", len(new))
            self.emit(ev.Queue(op, 0, "store", "gpu", src, "cpu", dst, moved, name, 0, at))
            self.land(op)
            self.cpu.label(dst, moved, op)
            self.cpu.free(f"op:{op}.0", dst)
            self.gpu.free(f"op:{op}.0", src)
        self.emit(ev.Cursor(name, 0, full))
        request.stored = full

    def step(self) -> None:
        """One model step of all running requests."""
        tokens: list[int] = []
        for request in self.running:
            count = max(1, request.prompt - request.computed)
            missing = -(-(request.computed + count) // BLOCK) - len(request.table)
            if missing > 0:
                at = len(request.table)
                request.table += self.gpu.alloc(f"req:{request.id}.0", missing, at)
            tokens.append(count)
        self.emit(ev.Dispatch(self.steps, [request.id for request in self.running], tokens))
        self.emit(ev.Process(self.steps))
        self.steps += 1
        for request, count in zip(self.running, tokens, strict=True):
            request.computed += count
            self.store(request)
        for request in [one for one in self.running if one.computed >= one.length]:
            self.running.remove(request)
            self.emit(ev.Finish(request.id, 0, "length", request.computed))
            self.gpu.free(f"req:{request.id}.0", request.table[::-1])
            self.emit(ev.Retire(request.id, 0))

    def serve(self, requests: int, *, longest: int, documents: int = 40, most_running: int = 32) -> None:
        """Serve ``requests`` made-up requests and come to rest."""
        waiting = deque(
            Running(
                number,
                min(longest, int(self.random.lognormvariate(6.8, 1.3)) + 1),
                self.random.randint(1, min(400, longest)),
                self.random.randrange(documents),
            )
            for number in range(requests)
        )
        reserved = 0
        while waiting or self.running:
            reserved = sum(self.need(request) for request in self.running)
            room = len(self.gpu.refs) - 1 - reserved
            while waiting and len(self.running) < most_running and self.need(waiting[0]) <= room:
                room -= self.need(waiting[0])
                self.admit(waiting.popleft())
            self.step()
        self.emit(ev.Quiesce())


def serving_trace(
    requests: int, seed: int, *, gpu: int, cpu: int, longest: int
) -> tuple[ev.Header, list[ev.Event]]:
    """Header and events of a made-up, sound run. ``longest``: tokens of the longest prompt."""
    events: list[ev.Event] = []
    serving = Serving(events.append, gpu=gpu, cpu=cpu, seed=seed)
    serving.serve(requests, longest=longest)
    return serving.header(), events


def main() -> None:
    """Judge a recorded trace and a made-up one, and print how long each part took."""
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="of the made-up trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workload", type=Path, default=SAMPLE, help="what the recorded replay serves")
    parser.add_argument("--replayed", type=int, default=None, help="only the first so many requests of it")
    parser.add_argument("--gpu-blocks", type=int, default=24576)
    parser.add_argument("--cpu-blocks", type=int, default=60000)
    parser.add_argument("--trace", type=Path, help="judge this trace instead of recording one")
    parser.add_argument("--compress", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="the best one counts")
    given = parser.parse_args()
    suffix = ".jsonl.zst" if given.compress else ".jsonl"
    with tempfile.TemporaryDirectory() as folder:
        path = given.trace or record_replay(Path(folder) / f"recorded{suffix}", given)
        if path is not None:
            print(f"{'trace ' + str(path) if given.trace else 'recorded replay'}:")
            judge_file(path, given.rounds)
        print("made-up trace:")
        header, events = serving_trace(given.requests, given.seed, gpu=32768, cpu=65536, longest=126_000)
        for name, lengths in sizes(events):
            print(f"  {name}: {lengths}")
        path = Path(folder) / f"made_up{suffix}"
        measure("record", given.rounds, lambda: record(path, header, events))
        judge_file(path, given.rounds)


def record_replay(path: Path, given: argparse.Namespace) -> Path | None:
    """Record a replay of the reference implementation in ``path``; None without torch."""
    options = {"gpu_blocks": given.gpu_blocks, "cpu_blocks": given.cpu_blocks, "limit": given.replayed}
    try:
        replay(given.workload, options, judge=False, record=path)
    except CannotRun as error:
        print(f"no replay is recorded: {error}")
        return None
    return path


def record(path: Path, header: ev.Header, events: list[ev.Event]) -> tuple[int, int]:
    """Write ``events`` to ``path``; the counts that :func:`measure` wants."""
    with TraceWriter(path, header) as write:
        for event in events:
            write(event)
    return len(events), 0


def judge_file(path: Path, rounds: int) -> None:
    """Measure decoding, judging and both together."""

    def decode() -> tuple[int, int]:
        return sum(len(batch) for batch in TraceReader(path).batches()), 0

    def check() -> tuple[int, int]:
        report = check_trace(path)
        if report.verdict != "holds":
            raise SystemExit(f"{path} is {report.verdict}: {report.violations}")
        return report.events, report.slot_transitions

    print(f"  {path.stat().st_size / 2**20:.0f} MiB")
    measure("decode only", rounds, decode)
    measure("check", rounds, check)
    reader = TraceReader(path)
    events = [event for batch in reader.batches() for event in batch]

    def observe() -> tuple[int, int]:
        ledger = Ledger(reader.header)
        for event in events:
            ledger(event)
        return ledger.events, ledger.slot_transitions

    measure("ledger as observer", rounds, observe)


def measure(what: str, rounds: int, work: Callable[[], tuple[int, int]]) -> None:
    """Print the best of so many rounds in CPU time. ``work`` returns how many events and slots it met."""
    counts: list[tuple[int, int]] = []
    best = best_of(rounds, {what: lambda: counts.append(work())})[what]
    count, slots = counts[-1]
    named = f", {slots / best:,.0f} slots a second" if slots else ""
    print(f"  {what}: {count:,} events in {best:.2f} s of CPU, {count / best:,.0f} events a second{named}")


def sizes(events: list[ev.Event]) -> Iterator[tuple[str, str]]:
    """How many events of each kind there are, and how many slots they name."""
    kinds = Counter(type(event).__name__ for event in events)
    slots: Counter[str] = Counter()
    for event in events:
        slots[type(event).__name__] += len(getattr(event, "slots", getattr(event, "src", ())))
    for kind, count in kinds.most_common():
        yield kind, f"{count} events, {slots[kind] / count:.1f} slots each"


if __name__ == "__main__":
    main()
