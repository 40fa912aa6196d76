"""Rules of how ranks decide a transfer between them: all set aside what it needs, then all do it, or none."""

from __future__ import annotations

from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.extra_state import Votes
from kvfence.checker.ledger.state.ledger_state import LedgerState, Op
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
DECIDED_IS_OPEN = "ONCE", "only an open transfer of this id and generation is decided"
DECIDING_RANK_EXISTS = "ONCE", "a rank that exists decides"
ASKED_BEFORE_COMMIT = "RANKS", "no rank commits before every rank was asked"
DECIDED_ALIKE = "RANKS", "all ranks take the same decision for the same transfer"
RESERVED_BY_ALL = "RANKS", "a rank commits only what every rank has reserved"
COMMITTED_BY_ALL = "RANKS", "a transfer is good only if every rank committed it"


class RankRules(Rules):
    """Judges ``reserve`` and ``decide``."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        self.votes = state.extra.votes

    def open_op(self, event: ev.Reserve | ev.Decide) -> tuple[Op | None, Violation | None]:
        """The open transfer that is meant, and what is wrong with the event's names."""
        state = self.state
        op = state.ops.get(event.op)
        if op is None or op.event.gen != event.gen:
            return None, self.fail(*DECIDED_IS_OPEN, op=event.op, gen=event.gen)
        if not 0 <= event.rank < state.header.ranks:
            return None, self.fail(*DECIDING_RANK_EXISTS, op=op.id, rank=event.rank, ranks=state.header.ranks)
        return op, None

    @judges(ev.Reserve, "ONCE", "RANKS")
    def reserve(self, event: ev.Reserve) -> Violation | None:
        """Each rank is asked once, before any decides."""
        op, found = self.open_op(event)
        if op is None:
            return found
        votes, bit = self.votes.setdefault((op.id, event.gen), Votes()), 1 << event.rank
        if votes.asked & bit:
            found = self.fail("ONCE", "a rank is asked once", op=op.id, gen=event.gen, rank=event.rank)
        elif votes.committed:
            found = self.fail(*ASKED_BEFORE_COMMIT, op=op.id, gen=event.gen, rank=event.rank)
        votes.asked |= bit
        if event.ok:
            votes.reserved |= bit
        return found

    @judges(ev.Decide, "ONCE", "RANKS")
    def decide(self, event: ev.Decide) -> Violation | None:
        """All ranks decide alike; they commit only what all of them reserved."""
        op, found = self.open_op(event)
        if op is None:
            return found
        votes, bit = self.votes.setdefault((op.id, event.gen), Votes()), 1 << event.rank
        commit = event.what == "commit"
        mine, others = (votes.committed, votes.aborted) if commit else (votes.aborted, votes.committed)
        if others:
            found = self.fail(
                *DECIDED_ALIKE, **fields(event, "op", "gen", "rank", "what"), otherwise=self.ranks_in(others)
            )
        elif mine & bit:
            found = self.fail("ONCE", "a rank decides once", op=op.id, gen=event.gen, rank=event.rank)
        elif commit and votes.asked and votes.reserved != self.all_ranks:
            found = self.fail(
                *RESERVED_BY_ALL, **fields(event, "op", "gen", "rank"), missing=self.ranks_in(~votes.reserved)
            )
        if commit:
            votes.committed |= bit
        else:
            votes.aborted |= bit
        return found


def end_fault(state: LedgerState, op: Op, ok: bool) -> Violation | None:
    """Whether a transfer ends well that its ranks aborted, or that some of them did not commit."""
    votes = state.extra.votes.pop((op.id, op.event.gen), None)
    if votes is None or not ok or not votes.committed | votes.aborted:
        return None
    if votes.aborted or votes.committed != (1 << state.header.ranks) - 1:
        return state.fail(
            *COMMITTED_BY_ALL,
            op=op.id,
            gen=op.event.gen,
            committed=votes.committed.bit_count(),
            aborted=votes.aborted.bit_count(),
            ranks=state.header.ranks,
        )
    return None
