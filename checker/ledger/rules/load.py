"""Rules of loads that fail in part, of questions to a tier, and of zeros written over a slot."""

from __future__ import annotations

from kvfence.checker.ledger.kernels.slot_bits import LABEL
from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import judges
from kvfence.checker.ledger.state.extra_state import Question
from kvfence.checker.ledger.state.ledger_state import LedgerState, Op
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.request_state import Request
from kvfence.checker.ledger.state.tags import tags_of
from kvfence.checker.ledger.state.violation import Violation, fields
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, ints

# Conditions whose sentence does not fit beside the call that reports them: invariant, and what should hold.
FAILED_OF_THE_GROUP = "FAIL-CLOSED", "failed destinations are named by the group that they belong to"
FAILED_IS_A_DESTINATION = "FAIL-CLOSED", "failed destinations are destinations of the transfer"
FAILING_RANK_EXISTS = "ONCE", "a failure comes from a rank that exists"
SUCCESS_IS_FINAL = "FAIL-CLOSED", "a rank that reported success has not failed"
QUESTION_IS_NEW = "ONCE", "a question has an id that no open question has"
ANSWERED_ONCE = "ONCE", "an open question is answered, once"
ANSWER_TO_THE_ASKER = "ONCE", "an answer goes to the request generation that asked"
ANSWER_TO_THE_QUESTION = "ONCE", "an answer is about the keys asked for"
ZEROING_STEP_IS_OPEN = "ONCE", "zeros are written by a step that is dispatched and not processed"
NO_ZEROS_OVER_A_LOAD = "LOAD-ORDER", "no zeros are written over a slot that a load fills"
NO_LOAD_UNDER_A_WRITE = "LOAD-ORDER", "a load writes a slot after every earlier write of it is over"
FAILED_KEY_IS_A_MISS = "FAIL-CLOSED", "a key whose load failed is a miss until it is stored again"
BAD_COPY_NOT_LOADED = "FAIL-CLOSED", "a copy that is known to be no good is not loaded again"


class LoadRules(Rules):
    """Judges ``failed``, ``ask``, ``answer`` and ``zero``."""

    @judges(ev.Failed, "ONCE", "FAIL-CLOSED")
    def failed(self, event: ev.Failed) -> Violation | None:
        """A failure names destinations of an open transfer, by their group, before the rank calls it good."""
        state, slots = self.state, ints(event.dst)
        state.count_slots(len(slots))
        op = state.ops.get(event.op)
        if op is None or op.event.gen != event.gen:
            closed = state.closed.get(event.op)
            known = closed is not None and closed.gen == event.gen
            return self.fail(
                "FAIL-CLOSED" if known else "ONCE",
                "a failure arrives before the transfer is complete"
                if known
                else "only an open transfer of this id and generation fails",
                **fields(event, "op", "gen", "rank"),
            )
        dst, found = state.pools[op.event.dst_pool], self.rank_fault(op, event)
        if event.group != op.event.group:
            found = found or self.fail(
                *FAILED_OF_THE_GROUP, dst, slots, op=op.id, told=event.group, group=op.event.group
            )
        strange = [slot for slot in slots if not op.writes(slot)]
        if strange:
            found = found or self.fail(*FAILED_IS_A_DESTINATION, dst, strange, op=op.id)
        op.failed |= 1 << event.rank if 0 <= event.rank < state.header.ranks else 0
        self.extra.failed.setdefault((op.id, event.gen), set()).update(slots)
        return found

    def rank_fault(self, op: Op, event: ev.Failed) -> Violation | None:
        """Whether the rank exists and did not report success."""
        ranks = self.state.header.ranks
        if not 0 <= event.rank < ranks:
            return self.fail(*FAILING_RANK_EXISTS, op=op.id, rank=event.rank, ranks=ranks)
        if op.reported >> event.rank & 1 and not op.failed >> event.rank & 1:
            return self.fail(*SUCCESS_IS_FINAL, op=op.id, rank=event.rank)
        return None

    # Questions.

    @judges(ev.Ask, "ONCE")
    def ask(self, event: ev.Ask) -> Violation | None:
        """A question has an id of its own as long as it is open."""
        state, extra = self.state, self.extra
        request, found = state.request(event.req, event.gen)
        tags = tags_of(ints(event.keys, WIDE), event.group)
        if event.ask in extra.questions:
            found = found or self.fail(*QUESTION_IS_NEW, ask=event.ask, req=request.key)
        extra.asked = True
        extra.questions[event.ask] = Question(event.req, event.gen, event.pool, tuple(tags))
        return found

    @judges(ev.Answer, "ONCE", also=("FAIL-CLOSED",))
    def answer(self, event: ev.Answer) -> Violation | None:
        """An answer goes to the generation that asked, once, and not against what a failed load showed."""
        state, extra = self.state, self.extra
        question = extra.questions.pop(event.ask, None)
        if question is None:
            return self.fail(*ANSWERED_ONCE, ask=event.ask, req=f"{event.req}.{event.gen}")
        if (question.req, question.gen) != (event.req, event.gen):
            return self.fail(
                *ANSWER_TO_THE_ASKER,
                ask=event.ask,
                req=f"{event.req}.{event.gen}",
                asked_by=f"{question.req}.{question.gen}",
            )
        if not 0 <= event.hits <= len(question.tags):
            return self.fail(*ANSWER_TO_THE_QUESTION, ask=event.ask, hits=event.hits, keys=len(question.tags))
        misses = extra.misses.get(question.pool)
        if not misses or not event.hits:
            return None
        state.judge("FAIL-CLOSED")
        pool, suspects = state.pools[question.pool], extra.suspects.get(question.pool, set())
        for tag in question.tags[: event.hits]:
            if tag not in misses:
                continue
            if suspects.issuperset(pool.labelled_slots(tag)):
                return self.fail(
                    *FAILED_KEY_IS_A_MISS,
                    state.pools[question.pool],
                    ask=event.ask,
                    req=f"{event.req}.{event.gen}",
                )
            misses.discard(tag)
        return None

    # Zeros.

    @judges(ev.Zero, "ONCE", "LOAD-ORDER")
    def zero(self, event: ev.Zero) -> Violation | None:
        """A dispatched step writes zeros: no load may be written over there before it is over."""
        state, slots = self.state, ints(event.slots)
        pool = state.pools[event.pool]
        state.count_slots(len(slots))
        if all(step.number != event.step for step in state.steps):
            return self.fail(*ZEROING_STEP_IS_OPEN, pool, step=event.step)
        for slot in slots:
            self.extra.zeroing[pool.name, slot] = event.step
        loads = [op for op in state.ops.values() if op.load and op.event.dst_pool == pool.name]
        filling = [slot for slot in slots if any(op.writes(slot) for op in loads)]
        if filling:
            return self.fail(*NO_ZEROS_OVER_A_LOAD, pool, filling, step=event.step)
        if not slots:
            state.not_judged("LOAD-ORDER")
        return None


def load_order_fault(state: LedgerState, event: ev.Queue, dst: PoolState) -> Violation | None:
    """Whether a load writes a slot over which a step in flight still writes zeros."""
    destinations = ints(event.dst)
    if destinations:
        state.judge("LOAD-ORDER")
    for slot in destinations:
        step = state.extra.zeroing.get((dst.name, slot))
        if step is not None:
            return state.fail(
                *NO_LOAD_UNDER_A_WRITE, dst, slot, op=event.op, step=step, processed=state.processed
            )
    return None


def zeros_over(state: LedgerState) -> None:
    """Steps are processed: their zeros are written."""
    state.extra.zeroing = {
        place: step for place, step in state.extra.zeroing.items() if step > state.processed
    }


def distrust(state: LedgerState, op: Op) -> None:
    """A load failed: what the tier has under these keys is no hit any more."""
    event, failed = op.event, state.extra.failed.get((op.id, op.event.gen))
    sources, destinations = ints(event.src), ints(event.dst)
    tags = tags_of(ints(event.keys, WIDE), event.group)
    where = [i for i, slot in enumerate(destinations) if failed is None or slot in failed]
    src = state.pools[event.src_pool]
    state.extra.suspects.setdefault(src.name, set()).update(
        sources[i] for i in where if src.word(sources[i]) & LABEL and src.label_of(sources[i]) == tags[i]
    )
    if state.extra.asked:
        state.extra.misses.setdefault(src.name, set()).update(tags[i] for i in where)


def promised_again(
    state: LedgerState, request: Request, pool: PoolState, slots: frozenset[int]
) -> Violation | None:
    """Whether a promise names a slot from which a load failed, and which nothing filled since."""
    state.judge("FAIL-CLOSED")
    again = state.extra.suspects.get(pool.name, set()) & slots
    if not again:
        return None
    state.extra.suspects[pool.name] -= again
    return state.fail(*FAILED_KEY_IS_A_MISS, pool, sorted(again), req=request.key)


def distrusted_fault(state: LedgerState, event: ev.Queue, src: PoolState) -> Violation | None:
    """Whether a load reads a slot that lost its key after a load from it failed."""
    suspects = state.extra.suspects.get(src.name, set())
    again = [slot for slot in ints(event.src) if slot in suspects and not src.word(slot) & LABEL]
    if not again:
        return None
    return state.fail(*BAD_COPY_NOT_LOADED, src, again, op=event.op, gen=event.gen)


def refilled(state: LedgerState, event: ev.Queue) -> None:
    """A transfer fills slots again: what failed before is past."""
    suspects = state.extra.suspects.get(event.dst_pool)
    if suspects:
        suspects.difference_update(ints(event.dst))
