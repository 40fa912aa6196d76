"""The serving loop: requests arrive, steps are scheduled, executed and processed, copies land in between."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator

from kvfence.reference.blocks.errors import Stalled
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.blocks.tables import BlockTables
from kvfence.reference.blocks.workload import RequestSpec
from kvfence.reference.connector.disk_tier import DiskTier
from kvfence.reference.designs.design import SOUND, Design
from kvfence.reference.device.platform import open_platform
from kvfence.reference.scheduler.options import Options
from kvfence.reference.scheduler.scheduler import StepOutput
from kvfence.reference.worker import OffloadWorker
from kvfence.spec import events as ev
from kvfence.spec import order as od

PATIENCE = 10_000
"""Rounds without any progress after which the engine is stalled."""


def header(options: Options) -> ev.Header:
    """The trace header for a run with ``options``."""
    disk = (ev.Pool("disk", options.disk_blocks),) if options.tiers > 2 else ()
    return ev.Header(
        producer="kvfence.reference",
        pools=(ev.Pool("gpu", options.gpu_blocks, null=0), ev.Pool("cpu", options.cpu_blocks), *disk),
        groups=tuple(
            ev.Group("gpu", spec.block_size, spec.window or None, spec.kind if spec.forgets else None)
            for spec in options.group_specs
        ),
        ranks=options.ranks,
        depth=options.async_depth,
        tier="cpu",
        meta={"mode": options.mode, "design": options.design, "seed": str(options.seed)},
    )


class Engine:
    """One engine over one workload. ``observer`` receives every event; without one, none is made.

    ``order`` receives the order events of the device.

    With ``async_depth`` 2 a step executes only after the next one was scheduled, which is as late as it can
    be: what the scheduler frees too early is gone when the kernel reads it.
    """

    patience = PATIENCE
    """Rounds without any progress after which this engine is stalled."""

    def __init__(
        self,
        options: Options,
        workload: Iterator[RequestSpec],
        design: Design = SOUND,
        observer: Observer | None = None,
        order: Callable[[od.OrderEvent], None] | None = None,
    ) -> None:
        self.options = options
        self.stats = Stats()
        self._workload = workload
        self._random = random.Random(options.seed)
        groups = options.group_specs
        self.gpu = design.gpu_pool("gpu", options.gpu_blocks, 0, len(groups), observer)
        self.cpu = design.cpu_pool("cpu", options.cpu_blocks, None, len(groups), observer)
        tables = BlockTables(groups, options.max_running, null=0)
        manager = design.manager(self.gpu, tables, options.async_depth, options.token_budget)
        manager.zeroes = options.zero_fill
        self.connector = design.connector(
            manager,
            self.cpu,
            options.mode == "lazy",
            options.ranks,
            options.store_batch,
            lazy_horizon=2 * sum(-(-options.token_budget // spec.block_size) for spec in groups) + 64,
            stats=self.stats,
            observer=observer,
            disk=self._disk(design, manager, observer) if options.tiers > 2 else None,
            share_loads=options.share_loads,
        )
        self.scheduler = design.scheduler(
            manager,
            self.connector,
            options.token_budget,
            self.stats,
            observer,
            options.on_failure,
            design.emitter,
        )
        for pool in (self.gpu, *self.connector.tiers):
            pool.publishes = options.publish
        refusing = frozenset(range(options.ranks - options.refusing_ranks, options.ranks))
        design.host_memory(options.ranks, refusing, observer).open(self.cpu.name)
        self.device, self.runner = open_platform(options, order)
        votes = design.votes(options.ranks, options.refuse_rate, options.seed, observer)
        self.worker = OffloadWorker(self.device, design.descriptors(observer), votes)
        self.round = 0
        self._in_flight: deque[StepOutput] = deque()
        self._aborts: list[tuple[int, int, Request]] = []
        self._exhausted = False
        self._forced_next = False
        self._finished_at_reset = 0

    def _disk(self, design: Design, manager: KVCacheManager, observer: Observer | None) -> DiskTier:
        options = self.options
        pool = design.disk_pool("disk", options.disk_blocks, None, len(manager.groups), observer)
        blocks = sum(-(-options.token_budget // spec.block_size) for spec in manager.groups)
        return design.disk(pool, self.cpu, manager, self.stats, observer, horizon=2 * blocks + 64)

    def rounds(self) -> Iterator[int]:
        """Run until the workload is done and everything is quiet; yields the number of each round.

        Raises GarbledBlock, Stalled, and whatever the workload or the observer raises.
        """
        idle = 0
        while self._feed() or self.scheduler.busy or self._in_flight:
            self.round += 1
            before = (self.stats.steps, self.stats.finished.total(), len(self.connector.transfers.open))
            self._abort_due()
            self._reset_due()
            self._step()
            after = (self.stats.steps, self.stats.finished.total(), len(self.connector.transfers.open))
            idle = 0 if before != after else idle + 1
            if idle > self.patience:
                raise Stalled(
                    f"no step, end or transfer in {self.patience} rounds: {len(self.scheduler.waiting)} "
                    f"requests wait, {len(self.scheduler.parked)} are parked, {self.gpu.num_free} of "
                    f"{self.gpu.usable} GPU slots are free"
                )
            yield self.round
        self.runner.settle()
        self.scheduler.quiesce()

    @property
    def lost_files(self) -> int:
        """Files of the third tier that got lost so far."""
        files = getattr(self.device, "files", None)
        return 0 if files is None else int(files.lost)

    def close(self) -> None:
        """Give back what the device holds."""
        self.device.close()

    def _step(self) -> None:
        output = self.scheduler.schedule()
        self.worker.bind_connector_metadata(output.metadata)
        self.worker.start_load_kv()
        self.worker.wait_for_save()
        if output.step >= 0:
            self._in_flight.append(output)
        self._advance()
        over: StepOutput | None = None
        if self._in_flight and (output.step < 0 or len(self._in_flight) >= self.options.async_depth):
            over = self._in_flight.popleft()
            if over.zero.size:
                self.runner.zero(over.zero)
            self.runner.execute(over.changes, over.rows, over.start, over.tokens)
        self._advance()
        self.scheduler.update_from_output(over, self.worker.get_finished())

    def _advance(self) -> None:
        self.device.advance()
        written = self.device.written("gpu")
        if written:
            self.runner.memory_written(written)

    def _feed(self) -> bool:
        """Let requests arrive while there is room to wait. False when none is left."""
        while not self._exhausted and len(self.scheduler.waiting) < self.options.max_waiting:
            spec = next(self._workload, None)
            if spec is None:
                self._exhausted = True
                break
            request = self.scheduler.add_request(spec)
            if self.options.abort_rate and self._random.random() < self.options.abort_rate:
                when = self.round + 1 + int(self._random.expovariate(1 / 60))
                heapq.heappush(self._aborts, (when, spec.uid, request))
        return not self._exhausted

    def _abort_due(self) -> None:
        while self._aborts and self._aborts[0][0] <= self.round:
            self.scheduler.abort_request(heapq.heappop(self._aborts)[2])

    def _reset_due(self) -> None:
        if self.options.reset_every and self.round % self.options.reset_every == 0:
            # A forced reset throws work away: only after some request ended, or none ever would.
            forced = self._forced_next and self.stats.finished.total() > self._finished_at_reset
            if forced:
                self._finished_at_reset = self.stats.finished.total()
            self._forced_next = not forced
            self.scheduler.reset_prefix_cache(preempt_running=forced)
