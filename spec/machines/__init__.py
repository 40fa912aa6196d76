"""The machines: explicit state machines of the block lifecycle, one file each, to be read top to bottom."""

from collections.abc import Callable

from kvfence.spec.language import Machine
from kvfence.spec.machines import (
    block_pool,
    geometry,
    loads,
    loads_verdicts,
    lookup,
    ranks,
    scheduling,
    stream_order,
    tiers,
    tiers_host_memory,
    transfer,
)

MACHINES: dict[str, Callable[[frozenset[str]], Machine]] = {
    "block_pool": block_pool.build,
    "lookup": lookup.build,
    "transfer": transfer.build,
    "stream_order": stream_order.build,
    "scheduling": scheduling.build,
    "ranks": ranks.build,
    "geometry": geometry.build,
    "loads": loads.build,
    "verdicts": loads_verdicts.build,
    "tiers": tiers.build,
    "host_memory": tiers_host_memory.build,
}
"""How to build each machine, given the faults to switch on."""
