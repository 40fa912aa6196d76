"""Stores and loads of one KV block per request, against steps that are dispatched ahead of their output.

All requests have the same prompt: one block of two tokens, so there is one content key. Up to two steps are
in flight, each computing one token of one request. A GPU block is held by the tables that contain it, by
fences (the table of a preempted request, kept until its dispatched steps are processed) and by transfers. A
CPU slot is held by transfers only.

* A **store** copies a full, confirmed block to a CPU slot: eagerly for a request, or lazily from the prefix
  index.
* A **load** fills a freshly allocated block of a waiting request from a resident CPU slot.
* An operation id is used again with a new generation. Each rank reports once; a report may be repeated, and
  arrive late.
* A finished request **retires** only when its block is accounted for: stored, queued, or dropped with a
  reason.
* A **reset** clears both tiers; operations in flight across it complete without registering anything.
"""

from kvfence.spec import events as ev
from kvfence.spec.language import Machine, State, View
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Iff, Implies, Not, Or
from kvfence.spec.machines.accepted import transfer as transfer_accepted
from kvfence.spec.machines.field_maps import transfer as events
from kvfence.spec.machines.field_maps.relations import quiesce
from kvfence.spec.machines.field_maps.transfer import FULL, Names
from kvfence.spec.machines.lemmas import transfer as transfer_lemmas
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove
from kvfence.spec.machines.state.transfer import (
    Block,
    Host,
    Op,
    Operation,
    Rank,
    Request,
    Status,
    all_reported,
    declare_accounting,
    declare_goals,
    declare_safety,
    declare_state,
    fenced,
    held,
    host_held,
    in_flight,
    is_open,
    loading_into,
    resting,
    storing,
)

GIVEN_AWAY = "a block that somebody holds is not given away"
COMPLETE = "a transfer is complete when every rank has reported"


def start(s: State, o: Elem, b: Elem, h: Elem, *, load: bool) -> None:
    """Operation o, idle until now, is queued for block b and CPU slot h, and holds both."""
    s.require(s.state[o] == Op.idle, s.uses[o] < 2)
    assign(s, o, state=Op.queued, uses=s.uses[o] + 1, load=load)
    s.block[o, b] = True
    s.host[o, h] = True
    s.op_pin[o, b] = True
    s.host_pin[o, h] = True


def end(s: State, o: Elem) -> None:
    """Operation o is complete: it lets go of its slots and is idle again."""
    assign(s, o, state=Op.idle, load=False, failed=False, old=False)
    remove(s, o, "of", "block", "host", "op_pin", "host_pin", "reported")


def declare_admission(m: Machine) -> None:
    """Declare admission of a waiting request: fresh, by a prefix hit on the GPU, or by a load."""

    @m.action(r=Request, b=Block, event=events.admit)
    def admit(s: State, r: Elem, b: Elem) -> None:
        """The request gets the free block b and will compute its prompt."""
        s.require(s.status[r] == Status.waiting, Not(fenced(s, r)), Not(held(s, b)), Not(s.label[b]))
        s.check("FREEZE", Not(held(s, b)), GIVEN_AWAY)
        s.table[r, b] = True
        s.good[b] = False
        s.status[r] = Status.running

    @m.action(r=Request, b=Block, event=events.admit_by_prefix_hit)
    def admit_by_prefix_hit(s: State, r: Elem, b: Elem) -> None:
        """The request shares block b of the GPU prefix index."""
        s.require(s.status[r] == Status.waiting, Not(fenced(s, r)), s.label[b])
        s.table[r, b] = True
        assign(s, r, computed=FULL, confirmed=FULL, status=Status.running)

    @m.action(r=Request, b=Block, h=Host, o=Operation, event=events.load)
    def admit_by_load(s: State, r: Elem, b: Elem, h: Elem, o: Elem) -> None:
        """The request gets the free block b, and operation o will fill it from the resident CPU slot h."""
        s.require(
            s.status[r] == Status.waiting, Not(fenced(s, r)), Not(held(s, b)), Not(s.label[b]), s.resident[h]
        )
        s.check("FREEZE", Not(held(s, b)), GIVEN_AWAY)
        s.check("FAIL-CLOSED", s.resident[h], "a load reads a slot that has the content")
        s.check("ONCE", s.state[o] == Op.idle, "an operation id is used again when its operation is complete")
        start(s, o, b, h, load=True)
        s.of[o, r] = True
        s.table[r, b] = True
        s.good[b] = False
        s.status[r] = Status.loading
        if m.faulty("register_before_landing"):
            s.label[b] = True


def declare_steps(m: Machine) -> None:
    """Declare steps."""

    @m.action(r=Request, event=lambda pre, post, r: [ev.Dispatch(ev.UNNUMBERED, [f"{r}"], [1])])
    def dispatch(s: State, r: Elem) -> None:
        """A step computes the request's next token; it may be the second one in flight."""
        s.require(s.status[r] == Status.running, s.computed[r] < FULL)
        s.require(ForAll(Request, lambda q: Not(s.flight[1, q])))
        s.check(
            "USE-READY",
            ForAll(Block, lambda b: Implies(s.table[r, b], Not(loading_into(s, b)))),
            "no step reads a block before the load that fills it has landed",
        )
        second = Exists(Request, lambda q: s.flight[0, q])
        s.flight[1, r] = second
        s.flight[0, r] = s.flight[0, r] | Not(second)
        s.reads.update(lambda q, b: s.reads[q, b] | ((q == r) & s.table[q, b]))
        s.computed[r] = s.computed[r] + 1

    @m.action(r=Request, fair="weak", event=events.process)
    def process(s: State, r: Elem) -> None:
        """The oldest step's output arrives: its token is confirmed, a full block enters the prefix index."""
        s.require(s.flight[0, r])
        last = Not(s.flight[1, r])
        counts = And(Not(fenced(s, r)), s.status[r] == Status.running)
        full = counts & (s.confirmed[r] == FULL - 1)
        s.label.update(lambda b: s.label[b] | (full & s.table[r, b]))
        s.good.update(lambda b: s.good[b] | (full & s.table[r, b]))
        s.confirmed[r] = If(counts, s.confirmed[r] + 1, s.confirmed[r])
        s.reads.update(lambda q, b: s.reads[q, b] & Not((q == r) & last))
        s.fence.update(lambda q, b: s.fence[q, b] & Not((q == r) & last))
        s.flight.update(lambda i, q: (i == 0) & s.flight[1, q])


def may_store(m: Machine, s: State, h: Elem) -> None:
    """A CPU slot is free, and neither the tier nor an operation has the key already."""
    s.require(Not(s.resident[h]), Not(host_held(s, h)))
    s.check("FREEZE", Not(host_held(s, h)), "a slot that a transfer holds is not given away")
    s.require(Not(Exists(Host, lambda g: s.resident[g])))
    if not m.faulty("duplicate_in_flight_store"):
        s.require(Not(storing(s)))
    s.check("UNIQUE", Not(storing(s)), "at most one store in flight for a key and a tier")


def declare_stores(m: Machine) -> None:
    """Declare stores."""

    @m.action(r=Request, b=Block, h=Host, o=Operation, event=events.store)
    def queue_store(s: State, r: Elem, b: Elem, h: Elem, o: Elem) -> None:
        """The request's full, confirmed block b will be stored to the CPU slot h; both are held."""
        s.require(Or(s.status[r] == Status.running, s.status[r] == Status.finishing))
        s.require(s.table[r, b], s.confirmed[r] == FULL, Not(s.covered[r]))
        s.check("CURSOR", Not(s.covered[r]), "a block is queued once: the cursor is still before it")
        may_store(m, s, h)
        start(s, o, b, h, load=False)
        s.of[o, r] = True
        assign(s, r, covered=True, cursor=True)
        if m.faulty("unpinned_destination"):
            s.host_pin[o, h] = False

    @m.action(b=Block, h=Host, o=Operation, event=events.store)
    def queue_lazy_store(s: State, b: Elem, h: Elem, o: Elem) -> None:
        """The cached block b may be evicted soon: it will be stored to the CPU slot h."""
        s.require(s.label[b], Not(loading_into(s, b)))
        may_store(m, s, h)
        start(s, o, b, h, load=False)

    @m.action(
        r=Request, event=lambda pre, post, r: [ev.Cursor(f"{r}", pre.gen[r], 1)] if post.cursor[r] else []
    )
    def decline_store(s: State, r: Elem) -> None:
        """No CPU slot is free: the block is not stored now, and the cursor stays before it."""
        s.require(s.status[r] == Status.running, s.confirmed[r] == FULL, Not(s.covered[r]))
        s.require(ForAll(Host, lambda h: s.resident[h] | host_held(s, h)))
        if m.faulty("cursor_before_queue"):
            s.cursor[r] = True


def reports_once(s: State, o: Elem, k: Elem) -> None:
    """Check that the report is awaited."""
    awaited = And(s.state[o] == Op.issued, Not(s.reported[o, k]))
    s.check("ONCE", awaited, "a rank reports an operation that was issued to it, once")


def declare_reports(m: Machine) -> None:
    """Declare the life of an operation until all ranks have reported it."""

    @m.action(o=Operation, fair="weak", event=lambda pre, post, o: [ev.Issue(o, Names(pre).gen(o))])
    def issue(s: State, o: Elem) -> None:
        """The operation is handed to the workers."""
        s.require(s.state[o] == Op.queued)
        s.state[o] = Op.issued

    @m.action(
        o=Operation, k=Rank, fair="weak", event=lambda pre, post, o, k: [ev.Report(o, Names(pre).gen(o), k)]
    )
    def report(s: State, o: Elem, k: Elem) -> None:
        """Rank k's copy has landed, and its report is counted."""
        s.require(s.state[o] == Op.issued, Not(s.reported[o, k]))
        reports_once(s, o, k)
        s.reported[o, k] = True

    @m.action(
        o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Report(o, Names(pre).gen(o), k, ok=False)]
    )
    def report_failure(s: State, o: Elem, k: Elem) -> None:
        """Rank k's load has failed, and its report is counted."""
        s.require(s.state[o] == Op.issued, Not(s.reported[o, k]), s.load[o])
        reports_once(s, o, k)
        s.reported[o, k] = True
        s.failed[o] = True

    @m.action(o=Operation, k=Rank, event=lambda pre, post, o, k: [])
    def repeat(s: State, o: Elem, k: Elem) -> None:
        """Rank k's report is sent a second time; it has not arrived yet."""
        s.require(s.reported[o, k], Not(s.late[o, k]))
        assign(s, (o, k), late=True, late_uses=s.uses[o])

    @m.action(o=Operation, k=Rank, event=events.late)
    def late_report(s: State, o: Elem, k: Elem) -> None:
        """A repeated report arrives; it is counted only if its generation has not been reported yet."""
        s.require(s.late[o, k])
        same = s.late_uses[o, k] == s.uses[o]
        awaited = And(s.state[o] == Op.issued, Not(s.reported[o, k]))
        taken = awaited if m.faulty("ignore_generation") else And(awaited, same)
        counted = s.reported[o, k] | taken
        s.check(
            "ONCE",
            Implies(Not(same), Iff(counted, s.reported[o, k])),
            "a late report does not touch a newer generation",
        )
        assign(s, (o, k), reported=counted, late=False, late_uses=0)

    if m.faulty("lost_completion"):

        @m.action(o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Stale(o, Names(pre).gen(o), k)])
        def ignore_report(s: State, o: Elem, k: Elem) -> None:
            """The request is gone and its operation's record with it: rank k's real report is ignored."""
            s.require(s.state[o] == Op.issued, Not(s.reported[o, k]))
            gone = Exists(Request, lambda r: s.of[o, r] & (s.status[r] == Status.gone))
            s.require(gone)
            s.check("ONCE", Not(gone), "every report of an open operation is counted")


def declare_completion(m: Machine) -> None:
    """Declare the end of an operation, good or failed."""

    @m.action(o=Operation, fair="weak", event=events.complete)
    def complete(s: State, o: Elem) -> None:
        """All ranks have reported success: what was copied can be found, and the slots are let go."""
        s.require(s.state[o] == Op.issued, Not(s.failed[o]))
        if m.faulty("complete_on_first_rank"):
            s.require(Exists(Rank, lambda k: s.reported[o, k]))
        else:
            s.require(all_reported(s, o))
        s.check("RANKS", all_reported(s, o), COMPLETE)
        s.check("FAIL-CLOSED", Not(s.failed[o]), "a transfer that failed on one rank has failed")
        if m.faulty("reset_ignores_in_flight"):
            s.check("RESET", Not(s.old[o]), "a transfer from before a reset registers nothing")
            fresh = Not(s.load[o])
        else:
            fresh = Not(s.load[o]) & Not(s.old[o])
        s.resident.update(lambda h: s.resident[h] | (s.host[o, h] & fresh))
        s.label.update(lambda b: s.label[b] | (s.block[o, b] & s.load[o]))
        s.good.update(lambda b: s.good[b] | (s.block[o, b] & s.load[o]))

        def loaded(r: Elem) -> Expr:
            return And(s.load[o], s.of[o, r], s.status[r] == Status.loading)

        s.computed.update(lambda r: If(loaded(r), FULL, s.computed[r]))
        s.confirmed.update(lambda r: If(loaded(r), FULL, s.confirmed[r]))
        s.status.update(lambda r: If(loaded(r), Status.running, s.status[r]))
        end(s, o)

    @m.action(o=Operation, fair="weak", event=events.failure)
    def complete_failed(s: State, o: Elem) -> None:
        """All ranks have reported, some of them a failure: the request computes, the CPU copy is a miss."""
        s.require(s.state[o] == Op.issued, s.failed[o], all_reported(s, o))
        s.check("RANKS", all_reported(s, o), COMPLETE)
        s.resident.update(lambda h: s.resident[h] & Not(s.host[o, h]))

        def waited(r: Elem) -> Expr:
            return And(s.of[o, r], s.status[r] == Status.loading)

        if m.faulty("keep_label_on_failure"):
            s.label.update(lambda b: s.label[b] | s.block[o, b])
            s.computed.update(lambda r: If(waited(r), FULL, s.computed[r]))
            s.confirmed.update(lambda r: If(waited(r), FULL, s.confirmed[r]))
        s.status.update(lambda r: If(waited(r), Status.running, s.status[r]))
        end(s, o)


def declare_ends(m: Machine) -> None:
    """Declare the end of a request: preempted, finished, dropped, aborted, retired."""

    @m.action(r=Request, event=events.preempt)
    def preempt(s: State, r: Elem) -> None:
        """The request waits again, in a new generation; steps in flight keep its block behind a fence."""
        s.require(s.status[r] == Status.running, s.gen[r] == 0)
        if m.faulty("free_on_preempt"):
            s.op_pin.update(lambda o, b: s.op_pin[o, b] & Not(s.of[o, r]))
        s.fence.update(lambda q, b: s.fence[q, b] | ((q == r) & s.table[q, b] & in_flight(s, r)))
        remove(s, r, "table")
        s.of.update(lambda o, q: s.of[o, q] & (q != r))
        assign(s, r, gen=1, computed=0, confirmed=0, covered=False)
        if not m.faulty("cursor_not_rewound"):
            s.cursor[r] = False
        s.status[r] = Status.waiting

    if m.faulty("late_flush"):
        m.relation("owed", Request, Block, init=False)

    @m.action(r=Request, event=events.finish)
    def finish(s: State, r: Elem) -> None:
        """The request's last token is confirmed."""
        s.require(s.status[r] == Status.running)
        if m.faulty("free_before_processed"):
            s.require(s.computed[r] == FULL)
            remove(s, r, "table")
        else:
            s.require(s.confirmed[r] == FULL)
        if m.faulty("late_flush"):
            s.owed.update(lambda q, b: s.owed[q, b] | ((q == r) & s.table[q, b] & Not(s.covered[r])))
            remove(s, r, "table")
        s.status[r] = Status.finishing

    if m.faulty("late_flush"):

        @m.action(r=Request, b=Block, h=Host, o=Operation, event=events.store)
        def queue_late_store(s: State, r: Elem, b: Elem, h: Elem, o: Elem) -> None:
            """The store of the finished request's block is planned only now."""
            s.require(s.owed[r, b], s.status[r] == Status.finishing)
            may_store(m, s, h)
            start(s, o, b, h, load=False)
            s.op_pin[o, b] = False
            s.owed[r, b] = False
            s.of[o, r] = True
            assign(s, r, covered=True, cursor=True)

    @m.action(r=Request, event=events.drop)
    def drop(s: State, r: Elem) -> None:
        """The finished request's block is not stored, for a reason that is counted."""
        s.require(s.status[r] == Status.finishing, Not(s.covered[r]))
        assign(s, r, covered=True, cursor=True)

    @m.action(r=Request, event=events.abort)
    def abort(s: State, r: Elem) -> None:
        """The client goes away. Nothing is freed while a load or a step may still touch it."""
        waiting = And(s.status[r] == Status.waiting, Not(fenced(s, r)))
        s.require(Or(waiting, s.status[r] == Status.loading, s.status[r] == Status.running))
        s.covered[r] = s.covered[r] | (s.confirmed[r] == FULL)
        ends_now = waiting
        if m.faulty("free_on_abort"):
            s.op_pin.update(lambda o, b: s.op_pin[o, b] & Not(s.load[o] & s.of[o, r]))
            s.table.update(lambda q, b: s.table[q, b] & Not((q == r) & (s.status[r] == Status.loading)))
        if m.faulty("leak_on_abort"):
            ends_now = Or(waiting, s.status[r] == Status.loading)
        s.status[r] = If(ends_now, Status.gone, Status.aborting)

    @m.action(r=Request, fair="weak", event=events.retire)
    def retire(s: State, r: Elem) -> None:
        """The block of an ended request is accounted for, nothing in flight uses it: it is freed."""
        s.require(Or(s.status[r] == Status.finishing, s.status[r] == Status.aborting))
        s.require(Not(in_flight(s, r)))
        s.require(Not(Exists(Operation, lambda o: s.of[o, r] & s.load[o] & is_open(s, o))))
        if not m.faulty("no_flush_on_finish"):
            s.require(s.covered[r] | (s.status[r] == Status.aborting))
        s.check(
            "FLUSH",
            s.covered[r] | (s.confirmed[r] < FULL),
            "each full confirmed block is stored, queued or dropped with a reason",
        )
        remove(s, r, "table")
        assign(s, r, computed=0, confirmed=0, covered=False, cursor=False, status=Status.gone)


def declare_caches(m: Machine) -> None:
    """Declare evictions and resets, and what must hold at rest."""

    @m.action(b=Block, event=lambda pre, post, b: [ev.Evict("gpu", [b])])
    def evict(s: State, b: Elem) -> None:
        """The free cached block b leaves the GPU prefix index."""
        s.require(s.label[b], Not(held(s, b)))
        s.check("FREEZE", Not(held(s, b)), "a block that somebody holds is not evicted")
        assign(s, b, label=False, good=False)

    @m.action(h=Host, event=lambda pre, post, h: [ev.Evict("cpu", [h])])
    def evict_from_tier(s: State, h: Elem) -> None:
        """The CPU tier forgets the content of slot h."""
        s.require(s.resident[h], Not(host_held(s, h)))
        s.check("FREEZE", Not(host_held(s, h)), "a slot that a transfer holds is not evicted")
        s.resident[h] = False

    def reset_events(pre: View, post: View) -> list[ev.Event]:
        return [ev.Reset(True, ("gpu",) if m.faulty("reset_one_tier") else ("gpu", "cpu"))]

    @m.action(event=reset_events)
    def reset(s: State) -> None:
        """No request has blocks: both tiers are cleared, and operations in flight become old."""
        s.require(Not(s.was_reset), resting(s))
        s.check("RESET", resting(s), "a reset is refused while a request has blocks")
        s.label.update(lambda b: False)
        s.good.update(lambda b: False)
        if not m.faulty("reset_one_tier"):
            s.resident.update(lambda h: False)
        s.check(
            "RESET", Not(Exists(Host, lambda h: s.resident[h])), "after a reset no tier serves an older key"
        )
        s.old.update(lambda o: is_open(s, o))
        s.was_reset = True

    @m.action(event=lambda pre, post: [ev.Reset(False)])
    def refuse_reset(s: State) -> None:
        """A request has blocks: the reset is refused and changes nothing."""
        s.require(Not(resting(s)))

    @m.action(event=quiesce)
    def rest(s: State) -> None:
        """All requests are gone and no operation is open: nothing may be held."""
        s.require(ForAll(Request, lambda r: s.status[r] == Status.gone))
        s.require(ForAll(Operation, lambda o: s.state[o] == Op.idle))
        s.check(
            "NO-LEAK",
            And(ForAll(Block, lambda b: Not(held(s, b))), ForAll(Host, lambda h: Not(host_held(s, h)))),
            "at quiescence nothing is held",
        )


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("transfer", doc=__doc__, faults=faults), Request, Block, Host, Operation, Rank)
    declare_state(m)
    declare_admission(m)
    declare_steps(m)
    declare_stores(m)
    declare_reports(m)
    declare_completion(m)
    declare_ends(m)
    declare_caches(m)
    declare_safety(m)
    declare_accounting(m)
    transfer_lemmas.declare(m)
    transfer_accepted.declare(m)
    declare_goals(m)
    m.liveness_sizes(Operation=1, Rank=1)
    return m
