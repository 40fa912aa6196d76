"""The machines: explicit state machines of the block lifecycle, one file each, to be read top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from kvfence.spec.language import Machine
from kvfence.spec.machines import block_pool, lookup, transfer

MACHINES: dict[str, Callable[[frozenset[str]], Machine]] = {
    "block_pool": block_pool.build,
    "lookup": lookup.build,
    "transfer": transfer.build,
}
"""How to build each machine, given the faults to switch on."""
