"""What drivers of the reference share: actions by name, what was evicted, and pressure on a pool."""

from collections.abc import Callable, Sequence

import numpy as np

from kvfence.checker.analysis.lockstep import Args, Step
from kvfence.reference.blocks.pool import BlockPool
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


def press(pool: BlockPool, slot: int) -> None:
    """Take slots, least recently freed first, until ``slot`` comes; a held one is refused."""
    if pool.ref[slot]:
        wanted = pool.usable - np.count_nonzero(pool.ref) + 1  # more than there is without the slot
    else:
        wanted = pool.free_queue.in_order().tolist().index(slot) + 1
    pool.free_blocks(PRESSURE, pool.get_new_blocks(PRESSURE, int(wanted)))
