"""Order faults on a GPU: each rule broken on purpose, and obeyed, with what it does to the content of blocks.

Compute is held up by a kernel that only waits, so that a copy without its edge overtakes it every time. A
rule whose faulty way leaves content as it should be shows nothing, and is undetermined.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kvfence.reference.copy.batched import BatchedDMA
from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import KernelCopy, Kernels
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.driver.driver import SRC_ANY, Driver
from kvfence.reference.driver.host_pool import HostPool
from kvfence.spec import events as ev

BLOCK: Final = 65536
BLOCKS: Final = 64
MOVED: Final = 8
HOLD: Final = 8_000_000
"""Cycles for which the kernel in front waits, four milliseconds: a copy takes less, on a lagging host too."""


class Arena:
    """A few blocks on both sides, a compute stream, a copy stream, and the engine under test."""

    def __init__(self, driver: Driver, engine: CopyEngine) -> None:
        self.driver = driver
        self.engine = engine
        self.pool = HostPool(driver, BLOCKS, BLOCK)
        self.host = self.pool.array().view(np.int64).reshape(BLOCKS, -1)
        device = torch.device("cuda", driver.ordinal)
        self.blocks = torch.zeros((BLOCKS, BLOCK // 8), dtype=torch.int64, device=device)
        self.compute = torch.cuda.Stream(device, -1)
        self.copies = driver.new_stream()
        self.ready, self.end = torch.cuda.Event(), torch.cuda.Event()
        draw = np.random.default_rng(0)
        self.on_device, self.on_host = (draw.permutation(BLOCKS)[:MOVED] for _ in range(2))
        self._index = torch.from_numpy(self.on_device).to(device)
        self._views = [View.of(self.blocks)], [View.of(torch.from_numpy(self.host))]
        self._serial = 0
        torch.cuda.synchronize(device)

    def close(self) -> None:
        """Give the memory back."""
        torch.cuda.synchronize(self.blocks.device)
        del self.host
        self._views = [], []
        self.pool.close()

    # What a trial is made of. Values never repeat, so stale content shows.

    def fresh(self) -> int:
        """A value that no block has had."""
        self._serial += 1
        return self._serial

    def settle(self, device: int, host: int) -> None:
        """Nothing runs, and all blocks have these contents."""
        torch.cuda.synchronize(self.blocks.device)
        self.blocks.fill_(device)
        self.host[self.on_host] = host
        torch.cuda.synchronize(self.blocks.device)

    def follow_compute(self) -> None:
        """Let copies wait for what is on the compute stream now."""
        self.ready.record(self.compute)
        self.copies.wait_event(self.ready)

    def settle_and_compute(self) -> int:
        """Compute is about to write, after a while, the value that is returned."""
        old, new = self.fresh(), self.fresh()
        self.settle(old, 0)
        self.hold(self.compute)
        self.fill(new)
        return new

    def settle_and_store(self) -> int:
        """A store is about to read, after a while, the value that is returned."""
        mine = self.fresh()
        self.settle(mine, 0)
        self.hold(self.copies)
        self.copy("store")
        return mine

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Hold up what follows on ``stream``."""
        with torch.cuda.stream(stream):
            torch.cuda._sleep(HOLD)

    def fill(self, value: int) -> None:
        """Compute writes ``value`` into the blocks."""
        with torch.cuda.stream(self.compute):
            self.blocks.fill_(value)

    def segment(self, kind: ev.Kind) -> Segment:
        """The blocks that a trial moves."""
        device, host = self._views
        if kind == "store":
            return Segment(device, self.on_device, host, self.on_host)
        return Segment(host, self.on_host, device, self.on_device)

    def copy(self, kind: ev.Kind) -> None:
        """Launch the copy and record its end."""
        self.engine.copy(kind, [self.segment(kind)], self.copies)
        self.end.record(self.copies)

    def stored(self, value: int) -> bool:
        """Whether the host's blocks all have ``value`` once everything is over."""
        torch.cuda.synchronize(self.blocks.device)
        return bool((self.host[self.on_host] == value).all())

    def loaded(self, value: int, blocks: torch.Tensor | None = None) -> bool:
        """Whether the blocks of the device, or a copy of them, all have ``value`` once everything is over."""
        torch.cuda.synchronize(self.blocks.device)
        blocks = self.blocks if blocks is None else blocks
        return bool((blocks.index_select(0, self._index) == value).all().item())


# Each rule: a trial that breaks or obeys it, and returns whether the content is right.


def _store_after_compute(arena: Arena, faulty: bool) -> bool:
    new = arena.settle_and_compute()
    if not faulty:
        arena.follow_compute()
    arena.copy("store")
    return arena.stored(new)


def _barrier_after_compute(arena: Arena, faulty: bool) -> bool:
    old, new = arena.fresh(), arena.fresh()
    arena.settle(old, 0)
    if faulty:
        arena.ready.record(arena.compute)
    arena.hold(arena.compute)
    arena.fill(new)
    if not faulty:
        arena.ready.record(arena.compute)
    arena.copies.wait_event(arena.ready)
    arena.copy("store")
    return arena.stored(new)


def _event_of_this_step(arena: Arena, faulty: bool) -> bool:
    first, second = arena.fresh(), arena.fresh()
    arena.settle(0, 0)
    arena.fill(first)
    arena.ready.record(arena.compute)
    if faulty:  # bound to the first step's record, although the event is recorded again before the copy
        arena.copies.wait_event(arena.ready)
    arena.hold(arena.compute)
    arena.fill(second)
    arena.ready.record(arena.compute)
    if not faulty:
        arena.copies.wait_event(arena.ready)
    arena.copy("store")
    return arena.stored(second)


def _load_after_previous_owner(arena: Arena, faulty: bool) -> bool:
    previous, wanted = arena.fresh(), arena.fresh()
    arena.settle(0, wanted)
    arena.hold(arena.compute)
    arena.fill(previous)
    if not faulty:
        arena.follow_compute()
    arena.copy("load")
    return arena.loaded(wanted)


def _zero_before_load(arena: Arena, faulty: bool) -> bool:
    wanted = arena.fresh()
    arena.settle(arena.fresh(), wanted)
    arena.hold(arena.compute)
    with torch.cuda.stream(arena.compute):
        arena.blocks.zero_()
    if not faulty:
        arena.follow_compute()
    arena.copy("load")
    return arena.loaded(wanted)


def _use_after_load(arena: Arena, faulty: bool) -> bool:
    stale, wanted = arena.fresh(), arena.fresh()
    arena.settle(stale, wanted)
    arena.hold(arena.copies)
    arena.copy("load")
    if not faulty:
        arena.compute.wait_event(arena.end)
    with torch.cuda.stream(arena.compute):
        found = arena.blocks.clone()
    return arena.loaded(wanted, found)


def _reuse_after_store(arena: Arena, faulty: bool) -> bool:
    mine = arena.settle_and_store()
    if not faulty:
        arena.end.synchronize()
    arena.fill(arena.fresh())
    return arena.stored(mine)


def _end_polled_on_its_stream(arena: Arena, faulty: bool) -> bool:
    mine = arena.settle_and_store()
    polled = arena.end
    if faulty:
        polled = arena.ready
        polled.record(arena.compute)
    while not polled.query():
        pass
    arena.fill(arena.fresh())
    return arena.stored(mine)


def _flush_waits_for_queued(arena: Arena, faulty: bool) -> bool:
    mine = arena.fresh()
    arena.settle(mine, 0)
    jobs: queue.Queue[ev.Kind] = queue.Queue()
    reused = threading.Event()

    def launch_later() -> None:
        torch.cuda.set_device(arena.blocks.device)
        kind = jobs.get()
        # As late as the flush allows: one that looks only at the stream lets the next owner go first.
        reused.wait(10 if faulty else 3e-4)
        arena.copy(kind)
        jobs.task_done()

    thread = threading.Thread(target=launch_later)
    thread.start()
    jobs.put("store")
    if not faulty:
        jobs.join()
    arena.copies.synchronize()
    arena.fill(arena.fresh())
    arena.compute.synchronize()
    reused.set()
    thread.join()
    return arena.stored(mine)


def _stream_order_of_source(arena: Arena, faulty: bool) -> bool:
    new = arena.settle_and_compute()
    arena.follow_compute()
    if faulty:
        work = arena.engine.plan("store", [arena.segment("store")])
        arena.driver.copy_batch(work.dst, work.src, work.nbytes, SRC_ANY, arena.copies.cuda_stream)
    else:
        arena.copy("store")
    return arena.stored(new)


@dataclass(frozen=True, slots=True)
class OrderRule:
    """An ordering rule; ``trial`` breaks it, if its argument is true, or obeys it.

    The trial returns whether the content is right.

    ``certain``: breaking it corrupts at any time. Otherwise a device may happen to get it right.
    """

    invariant: str
    trial: Callable[[Arena, bool], bool]
    certain: bool = True


RULES: Final[dict[str, OrderRule]] = {
    "a store waits for the compute": OrderRule("STORE-READY", _store_after_compute),
    "the barrier comes after the compute": OrderRule("STORE-READY", _barrier_after_compute),
    "the wait is for this step's record": OrderRule("STORE-READY", _event_of_this_step),
    "a load waits for the previous owner": OrderRule("LOAD-ORDER", _load_after_previous_owner),
    "zeroes come before the load": OrderRule("LOAD-ORDER", _zero_before_load),
    "use waits for the load": OrderRule("USE-READY", _use_after_load),
    "reuse waits for the store": OrderRule("FREEZE", _reuse_after_store),
    "the end is polled on the copy's stream": OrderRule("FREEZE", _end_polled_on_its_stream),
    "a flush waits for queued copies": OrderRule("FREEZE", _flush_waits_for_queued),
    "a store reads in stream order": OrderRule("STORE-READY", _stream_order_of_source, certain=False),
}


@dataclass(slots=True)
class Outcome:
    """What trials of one rule did."""

    trials: int = 0
    broken_corrupt: int = 0
    obeyed_corrupt: int = 0

    @property
    def verdict(self) -> str:
        """``violated`` if obeying corrupts; ``undetermined`` unless breaking corrupts in 99 of 100 trials."""
        if self.obeyed_corrupt:
            return "violated"
        return "holds" if self.trials and self.broken_corrupt >= 0.99 * self.trials else "undetermined"


def try_rule(arena: Arena, rule: OrderRule, trials: int) -> Outcome:
    """Break and obey ``rule`` so often, alternately."""
    outcome = Outcome()
    for _ in range(trials):
        outcome.broken_corrupt += not rule.trial(arena, True)
        outcome.obeyed_corrupt += not rule.trial(arena, False)
        outcome.trials += 1
    return outcome


def engines_on_trial(driver: Driver) -> dict[str, CopyEngine]:
    """DMA that reads loads in stream order (so that both directions have something to break), and the
    kernels.
    """
    return {"dma": BatchedDMA(driver, any_for_loads=False), "kernel": KernelCopy(Kernels(driver))}
