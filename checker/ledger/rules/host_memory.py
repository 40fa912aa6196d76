"""Rules of host memory: registered by pieces, pinned by all ranks or by none; descriptors stay until read."""

from __future__ import annotations

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.extra_state import HostMemory
from kvfence.checker.ledger.state.ledger_state import LedgerState
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
RANK_EXISTS = "HOSTMEM", "memory is registered by a rank that exists"
REGISTERED_ONCE = "HOSTMEM", "a piece is registered once"
REGISTERED_IS_PINNED = "HOSTMEM", "nothing is registered of memory that is not pinned"
UNREGISTERED_WAS_REGISTERED = "HOSTMEM", "only a registered piece is taken back"
PINNED_AS_A_WHOLE = "HOSTMEM", "memory is pinned only when all of it is registered"
REFUSED_AS_A_WHOLE = "HOSTMEM", "a registration that did not succeed as a whole is taken back"
RANKS_AGREE = "HOSTMEM", "all ranks agree whether host memory is pinned"
DESCRIBED_IS_OPEN = "ONCE", "only an open transfer of this id and generation is described"
BUFFER_IS_READ = "HOSTMEM", "a buffer of descriptors is used again only when its transfer is over"
EACH_RANK_ANSWERS = "HOSTMEM", "each rank says whether its host memory is pinned"


class HostMemoryRules(Rules):
    """Judges ``register``, ``unregister``, ``hostmem`` and ``describe``."""

    def memory(self, event: ev.Register | ev.Unregister | ev.Hostmem) -> tuple[HostMemory, Violation | None]:
        """The ledger state of a pool's memory, and whether the rank exists."""
        pool, ranks = self.state.pools[event.pool], self.state.header.ranks
        memory = self.extra.host.setdefault(event.pool, HostMemory())
        if 0 <= event.rank < ranks:
            return memory, None
        return memory, self.fail(*RANK_EXISTS, pool, rank=event.rank, ranks=ranks)

    @judges(ev.Register, "HOSTMEM")
    def register(self, event: ev.Register) -> Violation | None:
        """A piece is registered once, before the rank says how it uses the memory."""
        memory, found = self.memory(event)
        pool, mine = self.state.pools[event.pool], memory.pieces.setdefault(event.rank, set())
        if event.piece in mine:
            found = found or self.fail(*REGISTERED_ONCE, pool, rank=event.rank, piece=event.piece)
        if memory.pinned.get(event.rank) is False:
            found = found or self.fail(*REGISTERED_IS_PINNED, pool, rank=event.rank)
        if event.ok:
            mine.add(event.piece)
        else:
            memory.refused.add(event.rank)
        return found

    @judges(ev.Unregister, "HOSTMEM")
    def unregister(self, event: ev.Unregister) -> Violation | None:
        """Only what is registered is taken back, and no rank goes on as if it were pinned."""
        memory, found = self.memory(event)
        pool, mine = self.state.pools[event.pool], memory.pieces.setdefault(event.rank, set())
        if event.piece not in mine:
            found = found or self.fail(*UNREGISTERED_WAS_REGISTERED, pool, rank=event.rank, piece=event.piece)
        mine.discard(event.piece)
        return found

    @judges(ev.Hostmem, "HOSTMEM")
    def hostmem(self, event: ev.Hostmem) -> Violation | None:
        """All of it or nothing, and each rank like the others."""
        memory, found = self.memory(event)
        pool, left = self.state.pools[event.pool], memory.pieces.get(event.rank, set())
        if event.pinned and event.rank in memory.refused:
            found = found or self.fail(*PINNED_AS_A_WHOLE, pool, rank=event.rank)
        if not event.pinned and left:
            found = found or self.fail(*REFUSED_AS_A_WHOLE, pool, rank=event.rank, pieces_left=len(left))
        others = {rank: pinned for rank, pinned in memory.pinned.items() if pinned != event.pinned}
        if others:
            found = found or self.fail(
                *RANKS_AGREE, pool, rank=event.rank, pinned=event.pinned, others=sorted(others)
            )
        memory.pinned[event.rank] = event.pinned
        memory.refused.discard(event.rank)
        return found

    @judges(ev.Describe, "ONCE", also=("HOSTMEM",))
    def describe(self, event: ev.Describe) -> Violation | None:
        """A buffer of descriptors is written only when the rank is done with what was in it."""
        state, place = self.state, (event.rank, event.buffer)
        before = self.extra.buffers.get(place)
        self.extra.buffers[place] = event.op, event.gen
        op = state.ops.get(event.op)
        if op is None or op.event.gen != event.gen:
            return self.fail(*DESCRIBED_IS_OPEN, op=event.op, gen=event.gen)
        if before is None or before == (event.op, event.gen):
            return None
        state.judge("HOSTMEM")
        old = state.ops.get(before[0])
        if old is None or old.event.gen != before[1] or old.reported >> event.rank & 1:
            return None
        return self.fail(
            *BUFFER_IS_READ,
            **fields(event, "op", "gen", "rank", "buffer"),
            in_use_by=f"{before[0]}.{before[1]}",
        )


def quiet_fault(state: LedgerState) -> Violation | None:
    """Whether some ranks said how they use a pool's memory, and others never did."""
    for name, memory in state.extra.host.items():
        if not memory.pinned:
            continue
        state.judge("HOSTMEM")
        silent = [rank for rank in range(state.header.ranks) if rank not in memory.pinned]
        if silent:
            return state.fail(*EACH_RANK_ANSWERS, state.pools[name], silent=silent)
    return None
