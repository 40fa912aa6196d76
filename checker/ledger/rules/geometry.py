"""Rules of how a connector counts the blocks of a table: by the group's own size, window and kind."""

from __future__ import annotations

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.attention_window import blocks_read, most_blocks_read
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.packed import ints

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
NEEDED_IS_READ = (
    "GEOMETRY",
    "the blocks needed are those that the next token reads, by the size and window of the group",
)
BOUND_COVERS_WINDOW = "GEOMETRY", "the bound allows for a window that begins in the middle of a block"
NULL_BLOCKS_NOT_HELD = "GEOMETRY", "the blocks held are counted without null blocks"
TABLE_IS_HELD = "GEOMETRY", "the table of a request names slots that it holds"
TABLE_COVERS_WINDOW = "GEOMETRY", "what is kept of a table covers what the next token reads"
HIT_ENDS_WITH_BLOCK = "GEOMETRY", "a hit ends with a block of each group"
PROMISE_COVERS = "GEOMETRY", "a promise has each block that is read behind it and that is not a local hit"
ACCEPTED_COVERS = "GEOMETRY", "what is accepted of a promise has each block that is read behind it"


class GeometryRules(Rules):
    """Judges ``geometry``."""

    @judges(ev.Geometry, "ONCE", also=("GEOMETRY",))
    def geometry(self, event: ev.Geometry) -> Violation | None:
        """What is counted is what there is, and what is kept covers what the next token reads."""
        state = self.state
        group = state.groups.get(event.group)
        if group is None:
            raise ValueError(f"the header has no group {event.group}")
        request, found = state.request(event.req, event.gen)
        slots = ints(event.slots)
        state.count_slots(len(slots))
        if event.needed >= 0 or slots or (event.bound >= 0 and most_blocks_read(group)):
            state.judge("GEOMETRY")
        found = found or self.counts_fault(event, group, request)
        return found or (self.table_fault(event, group, request, list(slots)) if slots else None)

    def counts_fault(self, event: ev.Geometry, group: ev.Group, request: Request) -> Violation | None:
        """Whether the connector's numbers fit the group."""
        read, most = blocks_read(group, event.tokens), most_blocks_read(group)
        if event.needed >= 0 and event.needed != len(read):
            return self.fail(
                *NEEDED_IS_READ,
                req=request.key,
                **fields(event, "group", "tokens"),
                told=event.needed,
                read=len(read),
                block_size=group.block_size,
                window=group.window,
            )
        if 0 <= event.bound < (most or 0):
            return self.fail(
                *BOUND_COVERS_WINDOW,
                req=request.key,
                group=event.group,
                told=event.bound,
                read=most,
                **fields(group, "block_size", "window"),
            )
        return None

    def table_fault(
        self, event: ev.Geometry, group: ev.Group, request: Request, slots: list[int]
    ) -> Violation | None:
        """Whether the table is counted right, belongs to the request, and has what is read."""
        pool = self.state.pools[group.pool]
        real = [slot for slot in slots if slot != pool.null]
        if event.held >= 0 and event.held != len(real):
            return self.fail(
                *NULL_BLOCKS_NOT_HELD,
                pool,
                req=request.key,
                group=event.group,
                told=event.held,
                held=len(real),
                null_blocks=len(slots) - len(real),
            )
        holder = pool.holders.get(f"req:{request.key}")
        strange = [slot for slot in real if holder is None or slot not in holder.slots]
        if strange:
            return self.fail(*TABLE_IS_HELD, pool, strange, req=request.key, group=event.group)
        for block in blocks_read(group, event.tokens):
            place = block - event.at
            if not 0 <= place < len(slots) or slots[place] == pool.null:
                return self.fail(
                    *TABLE_COVERS_WINDOW,
                    pool,
                    req=request.key,
                    **fields(event, "group", "tokens"),
                    block=block,
                )
        return None


def promise_fault(state: LedgerState, event: ev.Lookup, pool: PoolState) -> Violation | None:
    """Whether a promise whose slots are counted by group leaves no window uncovered."""
    local, end, total = event.local, event.local + event.external, sum(event.counts)
    if len(event.counts) > len(state.groups) or total != len(ints(event.slots)):
        raise ValueError(f"counts add up to {total} slots in {len(event.counts)} groups")
    state.judge("GEOMETRY")
    state.extra.promised[f"{event.req}.{event.gen}"] = local, event.external, tuple(event.counts)
    for index, count in enumerate(event.counts):
        group = state.groups[index]
        if end % group.block_size:
            return state.fail(
                *HIT_ENDS_WITH_BLOCK, pool, req=event.req, group=index, hit=end, block_size=group.block_size
            )
        read = blocks_read(group, end)
        wanted = max(0, read.stop - max(read.start, local // group.block_size))
        if count < wanted:
            return state.fail(
                *PROMISE_COVERS, pool, req=event.req, group=index, hit=end, promised=count, read=wanted
            )
    return None


def accepted_fault(state: LedgerState, event: ev.Admit) -> Violation | None:
    """Whether less is accepted than was promised, and another window is read behind that."""
    promise = state.extra.promised.pop(f"{event.req}.{event.gen}", None)
    if promise is None or not 0 < event.external < promise[1]:
        return None
    state.judge("GEOMETRY")
    local, external, counts = promise
    end = event.local + event.external
    for index, count in enumerate(counts):
        group = state.groups[index]
        read, first = blocks_read(group, end), (local + external) // group.block_size - count
        wanted = max(read.start, event.local // group.block_size)
        if wanted < min(first, read.stop):
            return state.fail(
                *ACCEPTED_COVERS,
                req=f"{event.req}.{event.gen}",
                group=index,
                hit=end,
                promised=local + external,
                first_promised=first,
                first_read=wanted,
            )
    return None
