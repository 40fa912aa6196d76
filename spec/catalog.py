"""The invariants: one row each, and where it is specified, asserted and monitored.

Ranked by how many of 76 public reports each would have caught. A row whose ``machines`` is empty is not
specified yet; the verdict table shows it as "not yet". ``asserted`` says that the events of the reference
implementation are judged against it at runtime, ``monitored`` that the ledger judges it on any trace.
``proved`` names the machines whose statement of it is proved for any size. ``limits`` says what part is still
open.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue. ``reports`` are public issue numbers as ``project#number``."""

    id: str
    title: str
    statement: str
    kind: Literal["safety", "progress"] = "safety"
    machines: tuple[str, ...] = ()
    asserted: bool = False
    monitored: bool = False
    reports: tuple[str, ...] = ()
    limits: str = ""

    judged: tuple[str, ...] = ()
    """Those of ``machines`` that state it of whole runs only: it is judged there at stated sizes."""

    @property
    def proved(self) -> tuple[str, ...]:
        """The machines in which it is proved for sorts of any size."""
        return tuple(machine for machine in self.machines if machine not in self.judged)

    @property
    def specified(self) -> bool:
        """Whether at least one machine states it."""
        return bool(self.machines)


def _row(
    id_: str,
    title: str,
    statement: str,
    machines: str,
    reports: str,
    *,
    kind: Literal["safety", "progress"] = "safety",
    judged: tuple[str, ...] = (),
    limits: str = "",
) -> Invariant:
    """A row of an invariant that is asserted and monitored; names of machines and reports are words."""
    return Invariant(
        id=id_,
        title=title,
        statement=statement,
        kind=kind,
        machines=tuple(machines.split()),
        asserted=True,
        monitored=True,
        reports=tuple(reports.split()),
        limits=limits,
        judged=judged,
    )


INVARIANTS: tuple[Invariant, ...] = (
    _row(
        "FREEZE",
        "in-flight slots stay put",
        "While a transfer or a dispatched step may still read or write a slot, the slot is not freed, "
        "reallocated or relabelled; finish, abort, preempt and window slides only fence it.",
        "transfer stream_order scheduling ranks loads verdicts tiers",
        "vllm#29870 vllm#47282 vllm#42959 vllm#48596 vllm#32255 vllm#49674 LMCache#4955 sglang#28468",
    ),
    _row(
        "NO-LEAK",
        "everything taken is released once",
        "Every pin, slot and tracker taken for a request is released exactly once on every terminal path; at "
        "quiescence nothing is held.",
        "lookup transfer scheduling ranks loads verdicts tiers",
        "vllm#32255 vllm#39726 sglang#33862 dynamo#3730",
    ),
    _row(
        "CONSERVE",
        "no over-pop",
        "free + held + null = total, each block at most once in the free list; ref_cnt = number of holders "
        ">= 0; allocate(n) succeeds only if n <= free in the very pool that is popped, otherwise it fails "
        "with a typed error and changes nothing.",
        "block_pool lookup scheduling ranks",
        "vllm#42085 vllm#42571 LMCache#4133 sglang#13483",
    ),
    _row(
        "PROGRESS",
        "some request eventually runs",
        "If some operation can complete and some waiting request fits, some request eventually runs; holders "
        "of blocks are never unreachable behind non-holders; a retry changes state.",
        "scheduling ranks",
        "vllm#45388 vllm#57841 vllm#49674 vllm#45138 sglang#33862",
        kind="progress",
        judged=("ranks",),
    ),
    _row(
        "PIN",
        "pin until consume",
        "From the lookup that promises a hit until the promise is consumed or released, every block of it, "
        "in any group or tier, has a holder: it is not evictable, and so never evicted, relabelled or given "
        "away.",
        "block_pool lookup verdicts",
        "vllm#39702 LMCache#4133",
    ),
    _row(
        "FAIL-CLOSED",
        "a failed load leaves nothing valid",
        "A failed or partial load leaves its destinations invalid for every sharer and group; the cached "
        "verdict becomes a miss; the failure arrives no later than the completion.",
        "transfer scheduling ranks loads verdicts tiers",
        "vllm#49250 vllm#45138 vllm#50388 LMCache#4133",
    ),
    _row(
        "ONCE",
        "one terminal event per operation",
        "Every issued operation gets exactly one terminal event, matched by (id, generation); late or "
        "duplicate events cannot touch a newer generation; a request never has a load and a store in flight "
        "together unless the design says why that is safe.",
        "transfer stream_order scheduling ranks loads verdicts tiers host_memory",
        "vllm#54872 dynamo#3730",
    ),
    _row(
        "RANKS",
        "all ranks decide alike",
        "All ranks take the same decision for the same operation; it is complete only when all expected "
        "ranks reported.",
        "transfer ranks",
        "vllm#21048 LMCache#4955",
    ),
    _row(
        "GEOMETRY",
        "block counts fit the group",
        "Per group: counts exclude null blocks and use that group's block size; bounds allow unaligned "
        "windows; what the writer retains covers what the reader needs.",
        "geometry loads",
        "vllm#48959 vllm#52735 vllm#50388",
    ),
    _row(
        "CURSOR",
        "the store cursor leaves no hole",
        "A store cursor passes only stored or queued blocks, is rewound with the block table, and a declined "
        "store leaves a retryable gap. Blocks evicted later are not holes.",
        "transfer",
        "vllm#41704 vllm#42959 vllm#52170 vllm#27697",
    ),
    _row(
        "COUNT",
        "each token counted once",
        "local hit + external hit + to compute = prompt; each counted once.",
        "lookup scheduling geometry loads",
        "vllm#52735 vllm#45138",
    ),
    _row(
        "USE-READY",
        "no use before the load has landed",
        "No token is counted computed, and no kernel reads a slot, before the load that fills it has landed "
        "on all layers, groups and ranks.",
        "transfer stream_order loads",
        "vllm#49250 vllm#21048",
    ),
    _row(
        "STORE-READY",
        "store after compute",
        "A store reads a block only after the last write of each of its tokens happened-before the copy's "
        "read; only confirmed tokens are eligible. A source-access order of ANY takes the read out of stream "
        "order: a wait on the same stream does not order it.",
        "stream_order",
        "vllm#45704 vllm#31341",
        limits="that only confirmed tokens are stored is judged at runtime, not by a machine",
    ),
    _row(
        "LOAD-ORDER",
        "load after every earlier access",
        "A load into a slot happens-after every earlier device read, write or zero-fill of it, whoever owned "
        "it.",
        "stream_order",
        "vllm#47282 vllm#50696",
    ),
    _row(
        "PURE",
        "a lookup repeats without effect",
        "Repeating a lookup changes nothing durable; pins are replaced, never added.",
        "lookup",
        "vllm#39702",
    ),
    _row(
        "FLUSH",
        "flush on finish",
        "When a request finishes, each full confirmed block is stored, queued with its source held, or "
        "dropped with a counted reason.",
        "transfer",
        "vllm#41704 vllm#48596",
    ),
    _row(
        "UNIQUE",
        "no slot twice, no store twice",
        "A slot appears at most once in a transfer, and at most one transfer in flight fills it; at most one "
        "store in flight per (content key, tier).",
        "block_pool transfer scheduling loads tiers",
        "vllm#42085 vllm#42571 vllm#41289",
    ),
    _row(
        "RESET",
        "a reset leaves no older key",
        "A reset either fails or leaves no tier able to serve an older key; transfers in flight across it "
        "neither resurrect entries nor leak.",
        "transfer tiers",
        "vllm#39726 vllm#57727",
    ),
    _row(
        "HOSTMEM",
        "host memory is pinned alike",
        "Ranks agree whether host memory is pinned; partial registration is rolled back; descriptor buffers "
        "obey FREEZE.",
        "host_memory",
        "",
    ),
    _row(
        "EVENTS",
        "published events equal residency",
        "Published stored/removed events equal residency at the granularity that can be looked up.",
        "tiers",
        "",
    ),
)

BY_ID: dict[str, Invariant] = {row.id: row for row in INVARIANTS}
"""The catalogue by invariant id."""
