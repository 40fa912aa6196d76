"""What drivers of the reference share: actions by name, what was evicted, and pressure on a pool."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvfence.checker.analysis.lockstep import Args, Step
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import BlockTables, GroupSpec
from kvfence.reference.designs.design import Design
from kvfence.spec import events as ev

PRESSURE = "op:900.0"


class Driver:
    """Performs each action by the method of its name, and keeps the events."""

    unobserved: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    def perform(self, action: str, args: Args) -> Sequence[Step] | None:
        perform: Callable[..., Sequence[Step] | None] = getattr(self, action)
        return perform(**args)

    def evicted(self, since: int, pool: str) -> list[int]:
        """The slots of the pool that were evicted in the events from ``since`` on."""
        evictions = (event for event in self.events[since:] if isinstance(event, ev.Evict))
        return [slot for event in evictions if event.pool == pool for slot in event.slots]


class RequestsDriver(Driver):
    """Parts of a scheduler of ``design`` around two pools, by the calls that the engine makes to them."""

    def __init__(
        self,
        design: Design,
        gpu: int,
        cpu: int,
        block: int,
        requests: int,
        *,
        depth: int = 1,
        ranks: int = 1,
        **connector: Any,
    ) -> None:
        super().__init__()
        self.header = ev.Header(
            producer="lockstep",
            pools=(ev.Pool("gpu", gpu, null=0), ev.Pool("cpu", cpu)),
            groups=(ev.Group("gpu", block),),
            ranks=ranks,
            depth=depth,
        )
        self.gpu = design.gpu_pool("gpu", gpu, 0, observer=self.observe)
        self.tier = design.cpu_pool("cpu", cpu, None, observer=self.observe)
        self.tables = BlockTables((GroupSpec(block),), requests, null=0)
        self.manager = design.manager(self.gpu, self.tables, depth=depth)
        self.connector = design.connector(
            self.manager, self.tier, ranks=ranks, observer=self.observe, **connector
        )

    def observe(self, event: ev.Event) -> None:
        self.events.append(event)

    def admitted(self, request: Request, local: int, external: int) -> None:
        """The manager has admitted the request: what is counted, reported and loaded of it."""
        row, tables = request.row, self.tables
        tables.computed[row] = tables.confirmed[row] = tables.cached[row] = local
        compute = request.total - local - external
        self.observe(ev.Admit(request.id, request.generation, local, external, compute, request.total))
        self.connector.update_state_after_alloc(request, external)

    def preempted(self, request: Request) -> int:
        """The connector learns that the request is preempted; its confirmed tokens."""
        self.observe(ev.Preempt(request.id, request.generation))
        self.connector.request_preempted(request)
        return int(self.tables.confirmed[request.row])

    def finished(self, request: Request, why: ev.FinishReason, confirmed: int) -> None:
        """The connector learns that the request is finished or aborted."""
        self.observe(ev.Finish(request.id, request.generation, why, confirmed))
        self.connector.request_finished(request, aborted=why == "abort")

    def release(self, request: Request) -> None:
        """The request gives its table up, if it has one."""
        if request.row >= 0:
            self.manager.release(request)


def press(pool: BlockPool, slot: int) -> None:
    """Take slots, least recently freed first, until ``slot`` comes; a held one is refused."""
    if pool.ref[slot]:
        wanted = pool.usable - np.count_nonzero(pool.ref) + 1  # more than there is without the slot
    else:
        wanted = pool.free_queue.in_order().tolist().index(slot) + 1
    pool.free_blocks(PRESSURE, pool.get_new_blocks(PRESSURE, int(wanted)))
