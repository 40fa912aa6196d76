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


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        id="FREEZE",
        title="in-flight slots stay put",
        statement=(
            "While a transfer or a dispatched step may still read or write a slot, the slot is not freed, "
            "reallocated or relabelled; finish, abort, preempt and window slides only fence it."
        ),
        machines=("transfer", "stream_order", "scheduling", "ranks", "loads", "verdicts", "tiers"),
        asserted=True,
        monitored=True,
        reports=(
            "vllm#29870",
            "vllm#47282",
            "vllm#42959",
            "vllm#48596",
            "vllm#32255",
            "vllm#49674",
            "LMCache#4955",
            "sglang#28468",
        ),
    ),
    Invariant(
        id="NO-LEAK",
        title="everything taken is released once",
        statement=(
            "Every pin, slot and tracker taken for a request is released exactly once on every terminal "
            "path; at quiescence nothing is held."
        ),
        machines=("lookup", "transfer", "scheduling", "ranks", "loads", "verdicts", "tiers"),
        asserted=True,
        monitored=True,
        reports=("vllm#32255", "vllm#39726", "sglang#33862", "dynamo#3730"),
    ),
    Invariant(
        id="CONSERVE",
        title="no over-pop",
        statement=(
            "free + held + null = total, each block at most once in the free list; ref_cnt = number of "
            "holders >= 0; allocate(n) succeeds only if n <= free in the very pool that is popped, "
            "otherwise it fails with a typed error and changes nothing."
        ),
        machines=("block_pool", "lookup", "scheduling", "ranks"),
        asserted=True,
        monitored=True,
        reports=("vllm#42085", "vllm#42571", "LMCache#4133", "sglang#13483"),
    ),
    Invariant(
        id="PROGRESS",
        title="some request eventually runs",
        statement=(
            "If some operation can complete and some waiting request fits, some request eventually runs; "
            "holders of blocks are never unreachable behind non-holders; a retry changes state."
        ),
        kind="progress",
        machines=("scheduling", "ranks"),
        judged=("ranks",),
        asserted=True,
        monitored=True,
        reports=("vllm#45388", "vllm#57841", "vllm#49674", "vllm#45138", "sglang#33862"),
    ),
    Invariant(
        id="PIN",
        title="pin until consume",
        statement=(
            "From the lookup that promises a hit until the promise is consumed or released, every block of "
            "it, in any group or tier, has a holder: it is not evictable, and so never evicted, relabelled "
            "or given away."
        ),
        machines=("block_pool", "lookup", "verdicts"),
        asserted=True,
        monitored=True,
        reports=("vllm#39702", "LMCache#4133"),
    ),
    Invariant(
        id="FAIL-CLOSED",
        title="a failed load leaves nothing valid",
        statement=(
            "A failed or partial load leaves its destinations invalid for every sharer and group; the "
            "cached verdict becomes a miss; the failure arrives no later than the completion."
        ),
        machines=("transfer", "scheduling", "ranks", "loads", "verdicts", "tiers"),
        asserted=True,
        monitored=True,
        reports=("vllm#49250", "vllm#45138", "vllm#50388", "LMCache#4133"),
    ),
    Invariant(
        id="ONCE",
        title="one terminal event per operation",
        statement=(
            "Every issued operation gets exactly one terminal event, matched by (id, generation); late or "
            "duplicate events cannot touch a newer generation; a request never has a load and a store in "
            "flight together unless the design says why that is safe."
        ),
        machines=(
            "transfer",
            "stream_order",
            "scheduling",
            "ranks",
            "loads",
            "verdicts",
            "tiers",
            "host_memory",
        ),
        asserted=True,
        monitored=True,
        reports=("vllm#54872", "dynamo#3730"),
    ),
    Invariant(
        id="RANKS",
        title="all ranks decide alike",
        statement=(
            "All ranks take the same decision for the same operation; it is complete only when all expected"
            " ranks reported."
        ),
        machines=("transfer", "ranks"),
        asserted=True,
        monitored=True,
        reports=("vllm#21048", "LMCache#4955"),
    ),
    Invariant(
        id="GEOMETRY",
        title="block counts fit the group",
        statement=(
            "Per group: counts exclude null blocks and use that group's block size; bounds allow unaligned "
            "windows; what the writer retains covers what the reader needs."
        ),
        machines=("geometry", "loads"),
        asserted=True,
        monitored=True,
        reports=("vllm#48959", "vllm#52735", "vllm#50388"),
    ),
    Invariant(
        id="CURSOR",
        title="the store cursor leaves no hole",
        statement=(
            "A store cursor passes only stored or queued blocks, is rewound with the block table, and a "
            "declined store leaves a retryable gap. Blocks evicted later are not holes."
        ),
        machines=("transfer",),
        asserted=True,
        monitored=True,
        reports=("vllm#41704", "vllm#42959", "vllm#52170", "vllm#27697"),
    ),
    Invariant(
        id="COUNT",
        title="each token counted once",
        statement="local hit + external hit + to compute = prompt; each counted once.",
        machines=("lookup", "scheduling", "geometry", "loads"),
        asserted=True,
        monitored=True,
        reports=("vllm#52735", "vllm#45138"),
    ),
    Invariant(
        id="USE-READY",
        title="no use before the load has landed",
        statement=(
            "No token is counted computed, and no kernel reads a slot, before the load that fills it has "
            "landed on all layers, groups and ranks."
        ),
        machines=("transfer", "stream_order", "loads"),
        asserted=True,
        monitored=True,
        reports=("vllm#49250", "vllm#21048"),
    ),
    Invariant(
        id="STORE-READY",
        title="store after compute",
        statement=(
            "A store reads a block only after the last write of each of its tokens happened-before the "
            "copy's read; only confirmed tokens are eligible. A source-access order of ANY takes the read "
            "out of stream order: a wait on the same stream does not order it."
        ),
        machines=("stream_order",),
        asserted=True,
        monitored=True,
        reports=("vllm#45704", "vllm#31341"),
        limits="that only confirmed tokens are stored is judged at runtime, not by a machine",
    ),
    Invariant(
        id="LOAD-ORDER",
        title="load after every earlier access",
        statement=(
            "A load into a slot happens-after every earlier device read, write or zero-fill of it, whoever "
            "owned it."
        ),
        machines=("stream_order",),
        asserted=True,
        monitored=True,
        reports=("vllm#47282", "vllm#50696"),
    ),
    Invariant(
        id="PURE",
        title="a lookup repeats without effect",
        statement="Repeating a lookup changes nothing durable; pins are replaced, never added.",
        machines=("lookup",),
        asserted=True,
        monitored=True,
        reports=("vllm#39702",),
    ),
    Invariant(
        id="FLUSH",
        title="flush on finish",
        statement=(
            "When a request finishes, each full confirmed block is stored, queued with its source held, or "
            "dropped with a counted reason."
        ),
        machines=("transfer",),
        asserted=True,
        monitored=True,
        reports=("vllm#41704", "vllm#48596"),
    ),
    Invariant(
        id="UNIQUE",
        title="no slot twice, no store twice",
        statement=(
            "A slot appears at most once in a transfer, and at most one transfer in flight fills it; at most "
            "one store in flight per (content key, tier)."
        ),
        machines=("block_pool", "transfer", "scheduling", "loads", "tiers"),
        asserted=True,
        monitored=True,
        reports=("vllm#42085", "vllm#42571", "vllm#41289"),
    ),
    Invariant(
        id="RESET",
        title="a reset leaves no older key",
        statement=(
            "A reset either fails or leaves no tier able to serve an older key; transfers in flight across "
            "it neither resurrect entries nor leak."
        ),
        machines=("transfer", "tiers"),
        asserted=True,
        monitored=True,
        reports=("vllm#39726", "vllm#57727"),
    ),
    Invariant(
        id="HOSTMEM",
        title="host memory is pinned alike",
        statement=(
            "Ranks agree whether host memory is pinned; partial registration is rolled back; descriptor "
            "buffers obey FREEZE."
        ),
        machines=("host_memory",),
        asserted=True,
        monitored=True,
    ),
    Invariant(
        id="EVENTS",
        title="published events equal residency",
        statement="Published stored/removed events equal residency at the granularity that can be looked up.",
        machines=("tiers",),
        asserted=True,
        monitored=True,
    ),
)

BY_ID: dict[str, Invariant] = {row.id: row for row in INVARIANTS}
"""The catalogue by invariant id."""
