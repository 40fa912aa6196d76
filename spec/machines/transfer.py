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

from __future__ import annotations

from kvfence.spec import events as ev
from kvfence.spec.language import (
    And,
    Elem,
    Enum,
    Exists,
    Expr,
    ForAll,
    If,
    Iff,
    Implies,
    Int,
    Machine,
    Not,
    Or,
    State,
    View,
)
from kvfence.spec.machines.accepted import transfer as transfer_accepted
from kvfence.spec.machines.lemmas import transfer as transfer_lemmas

Status = Enum("Status", "waiting loading running finishing aborting gone")
Op = Enum("Op", "idle queued issued")

FULL = 2  # tokens of a block
KEY = 1  # the one content key
GIVEN_AWAY = "a block that somebody holds is not given away"
COMPLETE = "a transfer is complete when every rank has reported"


class Names:
    """What a state is called in traces: the field map of the events below."""

    def __init__(self, view: View) -> None:
        self.view = view

    def req(self, r: int) -> str:
        """Holder of the request's table."""
        return f"req:{r}.{self.view.gen[r]}"

    def old(self, r: int) -> str:
        """Holder of the fence: the table of the generation before."""
        return f"req:{r}.{self.view.gen[r] - 1}"

    def gen(self, o: int) -> int:
        """Generation of the operation's current use."""
        return int(self.view.uses[o]) - 1

    def op(self, o: int) -> str:
        """Holder of the operation's slots."""
        return f"op:{o}.{self.gen(o)}"

    def of(self, relation: str, i: int) -> list[int]:
        """All x with relation(i, x)."""
        return [x for (j, x), yes in getattr(self.view, relation).items() if j == i and yes]

    def all(self, relation: str) -> list[int]:
        """All x with relation(x)."""
        return [x for x, yes in getattr(self.view, relation).items() if yes]

    def releases(self, o: int) -> list[ev.Event]:
        """The operation lets go of what it holds."""
        gpu, cpu = self.of("op_pin", o), self.of("host_pin", o)
        return [
            *([ev.Free("gpu", self.op(o), gpu)] if gpu else []),
            *([ev.Free("cpu", self.op(o), cpu)] if cpu else []),
        ]


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = Machine("transfer", doc=__doc__, faults=faults)
    Request = m.sort("Request", default=2)
    Block = m.sort("Block", default=2)
    Host = m.sort("Host", default=1)
    Operation = m.sort("Operation", default=2)
    Rank = m.sort("Rank", default=2)

    m.function("status", Request, value=Status, init=Status.waiting)
    m.function("gen", Request, value=Int(0, 1), init=0)
    m.function("computed", Request, value=Int(0, FULL), init=0)  # tokens of dispatched steps
    m.function("confirmed", Request, value=Int(0, FULL), init=0)  # tokens of processed steps
    m.relation("table", Request, Block, init=False)
    m.relation("fence", Request, Block, init=False)
    m.relation("flight", Int(0, 1), Request, init=False)  # steps in flight, the older one first
    m.relation("reads", Request, Block, init=False)  # blocks that steps in flight read or write
    m.relation("covered", Request, init=False)  # the block is stored, queued or dropped
    m.relation("cursor", Request, init=False)  # the store cursor is past the block

    m.relation("label", Block, init=False)  # in the GPU prefix index
    m.relation("good", Block, init=False)  # has the content of the key
    m.relation("resident", Host, init=False)  # in the index of the CPU tier

    m.function("state", Operation, value=Op, init=Op.idle)
    m.function("uses", Operation, value=Int(0, 2), init=0)
    m.relation("load", Operation, init=False)
    m.relation("of", Operation, Request, init=False)  # the request, in its present generation
    m.relation("block", Operation, Block, init=False)  # the GPU side of the copy
    m.relation("host", Operation, Host, init=False)  # the CPU side of the copy
    m.relation("op_pin", Operation, Block, init=False)
    m.relation("host_pin", Operation, Host, init=False)
    m.relation("reported", Operation, Rank, init=False)
    m.relation("late", Operation, Rank, init=False)  # a repeated report is on its way
    m.function("late_uses", Operation, Rank, value=Int(0, 2), init=0)  # the use of the operation it is about
    m.relation("failed", Operation, init=False)
    m.relation("old", Operation, init=False)  # queued before a reset
    m.relation("was_reset", init=False)

    m.header(
        lambda sizes: ev.Header(
            producer="kvfence machine transfer",
            pools=(ev.Pool("gpu", sizes["Block"]), ev.Pool("cpu", sizes["Host"])),
            groups=(ev.Group("gpu", block_size=FULL),),
            ranks=sizes["Rank"],
            depth=2,
        )
    )

    def held(s: State, b: Elem) -> Expr:
        return Or(
            Exists(Request, lambda r: s.table[r, b] | s.fence[r, b]),
            Exists(Operation, lambda o: s.op_pin[o, b]),
        )

    def host_held(s: State, h: Elem) -> Expr:
        return Exists(Operation, lambda o: s.host_pin[o, h])

    def is_open(s: State, o: Elem) -> Expr:
        return s.state[o] != Op.idle

    def in_flight(s: State, r: Elem) -> Expr:
        return s.flight[0, r] | s.flight[1, r]

    def fenced(s: State, r: Elem) -> Expr:
        return Exists(Block, lambda b: s.fence[r, b])

    def loading_into(s: State, b: Elem) -> Expr:
        return Exists(Operation, lambda o: is_open(s, o) & s.load[o] & s.block[o, b])

    def storing(s: State) -> Expr:
        return Exists(Operation, lambda o: is_open(s, o) & Not(s.load[o]))

    def all_reported(s: State, o: Elem) -> Expr:
        return ForAll(Rank, lambda k: s.reported[o, k])

    def clear_table(s: State, r: Elem) -> None:
        s.table.update(lambda q, b: s.table[q, b] & (q != r))

    def start(s: State, o: Elem, b: Elem, h: Elem, *, load: bool) -> None:
        """Operation o, idle until now, is queued for block b and CPU slot h, and holds both."""
        s.require(s.state[o] == Op.idle, s.uses[o] < 2)
        s.state[o] = Op.queued
        s.uses[o] = s.uses[o] + 1
        s.load[o] = load
        s.block[o, b] = True
        s.host[o, h] = True
        s.op_pin[o, b] = True
        s.host_pin[o, h] = True

    def end(s: State, o: Elem) -> None:
        """Operation o is complete: it lets go of its slots and is idle again."""
        s.state[o] = Op.idle
        s.load[o] = False
        s.failed[o] = False
        s.old[o] = False
        for name in ("of", "block", "host", "op_pin", "host_pin", "reported"):
            field = getattr(s, name)
            field.update(lambda p, x, field=field: field[p, x] & (p != o))

    def admitted(r: int, pre: View, local: int, external: int) -> ev.Admit:
        return ev.Admit(f"{r}", pre.gen[r], local, external, FULL - local - external, FULL)

    # Admission of a waiting request: fresh, by a prefix hit on the GPU, or by a load.

    @m.action(
        r=Request,
        b=Block,
        event=lambda pre, post, r, b: [ev.Alloc("gpu", Names(pre).req(r), [b]), admitted(r, pre, 0, 0)],
    )
    def admit(s: State, r: Elem, b: Elem) -> None:
        """The request gets the free block b and will compute its prompt."""
        s.require(s.status[r] == Status.waiting, Not(fenced(s, r)), Not(held(s, b)), Not(s.label[b]))
        s.check("FREEZE", Not(held(s, b)), GIVEN_AWAY)
        s.table[r, b] = True
        s.good[b] = False
        s.status[r] = Status.running

    @m.action(
        r=Request,
        b=Block,
        event=lambda pre, post, r, b: [ev.Touch("gpu", Names(pre).req(r), [b]), admitted(r, pre, FULL, 0)],
    )
    def admit_by_prefix_hit(s: State, r: Elem, b: Elem) -> None:
        """The request shares block b of the GPU prefix index."""
        s.require(s.status[r] == Status.waiting, Not(fenced(s, r)), s.label[b])
        s.table[r, b] = True
        s.computed[r] = FULL
        s.confirmed[r] = FULL
        s.status[r] = Status.running

    def load_events(pre: View, post: View, r: int, b: int, h: int, o: int) -> list[ev.Event]:
        was, now, hit = Names(pre), Names(post), f"hit:{r}.{pre.gen[r]}"
        return [
            ev.Touch("cpu", hit, [h]),
            ev.Lookup(f"{r}", pre.gen[r], 0, FULL, "cpu", [h]),
            ev.Alloc("gpu", was.req(r), [b]),
            admitted(r, pre, 0, FULL),
            ev.Touch("gpu", now.op(o), [b]),
            ev.Touch("cpu", now.op(o), [h]),
            ev.Queue(o, now.gen(o), "load", "cpu", [h], "gpu", [b], [KEY], f"{r}", pre.gen[r], [0]),
            ev.Free("cpu", hit, [h]),
            *([ev.Label("gpu", [b], [KEY], op=o, gen=now.gen(o))] if post.label[b] else []),
        ]

    @m.action(r=Request, b=Block, h=Host, o=Operation, event=load_events)
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

    # Steps.

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
        behind = Exists(Request, lambda q: s.flight[0, q])
        s.flight[1, r] = behind
        s.flight[0, r] = s.flight[0, r] | Not(behind)
        s.reads.update(lambda q, b: s.reads[q, b] | ((q == r) & s.table[q, b]))
        s.computed[r] = s.computed[r] + 1

    def process_events(pre: View, post: View, r: int) -> list[ev.Event]:
        was = Names(pre)
        filled = [b for b in was.of("table", r) if post.label[b] and not pre.label[b]]
        unfenced = sorted(set(was.of("fence", r)) - set(Names(post).of("fence", r)))
        over: list[ev.Event] = []
        if unfenced:
            over = [ev.Free("gpu", was.old(r), unfenced), ev.Retire(f"{r}", pre.gen[r] - 1)]
        label: list[ev.Event] = [ev.Label("gpu", filled, [KEY])] if filled else []
        return [
            ev.Process(ev.UNNUMBERED),
            *label,
            *over,
        ]

    @m.action(r=Request, fair="weak", event=process_events)
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

    # Stores.

    def store_events(pre: View, post: View, b: int, h: int, o: int, r: int = -1) -> list[ev.Event]:
        now = Names(post)
        req, rgen, at = (f"{r}", pre.gen[r], [0]) if r >= 0 else ("", 0, [])
        return [
            *([ev.Touch("gpu", now.op(o), [b])] if post.op_pin[o, b] else []),
            *([ev.Alloc("cpu", now.op(o), [h])] if post.host_pin[o, h] else []),
            ev.Queue(o, now.gen(o), "store", "gpu", [b], "cpu", [h], [KEY], req, rgen, at),
            *([ev.Cursor(req, rgen, 1)] if r >= 0 else []),
        ]

    def may_store(s: State, h: Elem) -> None:
        """A CPU slot is free, and neither the tier nor an operation has the key already."""
        s.require(Not(s.resident[h]), Not(host_held(s, h)))
        s.check("FREEZE", Not(host_held(s, h)), "a slot that a transfer holds is not given away")
        s.require(Not(Exists(Host, lambda g: s.resident[g])))
        if not m.faulty("duplicate_in_flight_store"):
            s.require(Not(storing(s)))
        s.check("UNIQUE", Not(storing(s)), "at most one store in flight for a key and a tier")

    @m.action(r=Request, b=Block, h=Host, o=Operation, event=store_events)
    def queue_store(s: State, r: Elem, b: Elem, h: Elem, o: Elem) -> None:
        """The request's full, confirmed block b will be stored to the CPU slot h; both are held."""
        s.require(Or(s.status[r] == Status.running, s.status[r] == Status.finishing))
        s.require(s.table[r, b], s.confirmed[r] == FULL, Not(s.covered[r]))
        s.check("CURSOR", Not(s.covered[r]), "a block is queued once: the cursor is still before it")
        may_store(s, h)
        start(s, o, b, h, load=False)
        s.of[o, r] = True
        s.covered[r] = True
        s.cursor[r] = True
        if m.faulty("unpinned_destination"):
            s.host_pin[o, h] = False

    @m.action(b=Block, h=Host, o=Operation, event=store_events)
    def queue_lazy_store(s: State, b: Elem, h: Elem, o: Elem) -> None:
        """The cached block b may be evicted soon: it will be stored to the CPU slot h."""
        s.require(s.label[b], Not(loading_into(s, b)))
        may_store(s, h)
        start(s, o, b, h, load=False)

    @m.action(
        r=Request,
        event=lambda pre, post, r: [ev.Cursor(f"{r}", pre.gen[r], 1)] if post.cursor[r] else [],
    )
    def decline_store(s: State, r: Elem) -> None:
        """No CPU slot is free: the block is not stored now, and the cursor stays before it."""
        s.require(s.status[r] == Status.running, s.confirmed[r] == FULL, Not(s.covered[r]))
        s.require(ForAll(Host, lambda h: s.resident[h] | host_held(s, h)))
        if m.faulty("cursor_before_queue"):
            s.cursor[r] = True

    # The life of an operation.

    @m.action(o=Operation, fair="weak", event=lambda pre, post, o: [ev.Issue(o, Names(pre).gen(o))])
    def issue(s: State, o: Elem) -> None:
        """The operation is handed to the workers."""
        s.require(s.state[o] == Op.queued)
        s.state[o] = Op.issued

    def reports_once(s: State, o: Elem, k: Elem) -> None:
        awaited = And(s.state[o] == Op.issued, Not(s.reported[o, k]))
        s.check("ONCE", awaited, "a rank reports an operation that was issued to it, once")

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
        s.late[o, k] = True
        s.late_uses[o, k] = s.uses[o]

    def late_events(pre: View, post: View, o: int, k: int) -> list[ev.Event]:
        gen = int(pre.late_uses[o, k]) - 1
        taken = post.reported[o, k] and not pre.reported[o, k]
        return [ev.Report(o, gen, k) if taken else ev.Stale(o, gen, k)]

    @m.action(o=Operation, k=Rank, event=late_events)
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
        s.reported[o, k] = counted
        s.late[o, k] = False
        s.late_uses[o, k] = 0

    if m.faulty("lost_completion"):

        @m.action(o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Stale(o, Names(pre).gen(o), k)])
        def ignore_report(s: State, o: Elem, k: Elem) -> None:
            """The request is gone and its operation's record with it: rank k's real report is ignored."""
            s.require(s.state[o] == Op.issued, Not(s.reported[o, k]))
            gone = Exists(Request, lambda r: s.of[o, r] & (s.status[r] == Status.gone))
            s.require(gone)
            s.check("ONCE", Not(gone), "every report of an open operation is counted")

    def complete_events(pre: View, post: View, o: int) -> list[ev.Event]:
        was, gen = Names(pre), Names(pre).gen(o)
        blocks, hosts = was.of("block", o), was.of("host", o)
        gpu = [b for b in blocks if post.label[b] and not pre.label[b]]
        cpu = [h for h in hosts if post.resident[h] and not pre.resident[h]]
        return [
            ev.Complete(o, gen),
            *([ev.Label("gpu", gpu, [KEY], op=o, gen=gen)] if gpu else []),
            *([ev.Label("cpu", cpu, [KEY], op=o, gen=gen)] if cpu else []),
            *was.releases(o),
        ]

    @m.action(o=Operation, fair="weak", event=complete_events)
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

    def failure_events(pre: View, post: View, o: int) -> list[ev.Event]:
        was, gen = Names(pre), Names(pre).gen(o)
        wrong = [b for b in was.of("block", o) if post.label[b]]
        lost = [h for h in was.of("host", o) if pre.resident[h] and not post.resident[h]]
        back = [r for r in was.of("of", o) if pre.status[r] == "loading" and post.computed[r] == 0]
        return [
            ev.Complete(o, gen, ok=False),
            *(ev.Rollback(f"{r}", pre.gen[r], 0) for r in back),
            *([ev.Unlabel("cpu", lost, "a load from it failed")] if lost else []),
            *([ev.Label("gpu", wrong, [KEY], op=o, gen=gen)] if wrong else []),
            *was.releases(o),
        ]

    @m.action(o=Operation, fair="weak", event=failure_events)
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

    # The end of a request.

    def preempt_events(pre: View, post: View, r: int) -> list[ev.Event]:
        was, now = Names(pre), Names(post)
        table, kept = was.of("table", r), now.of("fence", r)
        ops = [o for o in was.all("uses") if set(was.of("op_pin", o)) - set(now.of("op_pin", o))]
        return [
            ev.Preempt(f"{r}", pre.gen[r]),
            *([] if kept else [ev.Free("gpu", was.req(r), table)]),
            *(ev.Free("gpu", was.op(o), was.of("op_pin", o)) for o in ops),
            *([] if kept else [ev.Retire(f"{r}", pre.gen[r])]),
            *([ev.Cursor(f"{r}", post.gen[r], 1)] if post.cursor[r] else []),
        ]

    @m.action(r=Request, event=preempt_events)
    def preempt(s: State, r: Elem) -> None:
        """The request waits again, in a new generation; steps in flight keep its block behind a fence."""
        s.require(s.status[r] == Status.running, s.gen[r] == 0)
        if m.faulty("free_on_preempt"):
            s.op_pin.update(lambda o, b: s.op_pin[o, b] & Not(s.of[o, r]))
        s.fence.update(lambda q, b: s.fence[q, b] | ((q == r) & s.table[q, b] & in_flight(s, r)))
        clear_table(s, r)
        s.of.update(lambda o, q: s.of[o, q] & (q != r))
        s.gen[r] = 1
        s.computed[r] = 0
        s.confirmed[r] = 0
        s.covered[r] = False
        if not m.faulty("cursor_not_rewound"):
            s.cursor[r] = False
        s.status[r] = Status.waiting

    def finish_events(pre: View, post: View, r: int) -> list[ev.Event]:
        was = Names(pre)
        freed = sorted(set(was.of("table", r)) - set(Names(post).of("table", r)))
        return [
            ev.Finish(f"{r}", pre.gen[r], "stop", pre.confirmed[r]),
            *([ev.Free("gpu", was.req(r), freed)] if freed else []),
        ]

    if m.faulty("late_flush"):
        m.relation("owed", Request, Block, init=False)

    @m.action(r=Request, event=finish_events)
    def finish(s: State, r: Elem) -> None:
        """The request's last token is confirmed."""
        s.require(s.status[r] == Status.running)
        if m.faulty("free_before_processed"):
            s.require(s.computed[r] == FULL)
            clear_table(s, r)
        else:
            s.require(s.confirmed[r] == FULL)
        if m.faulty("late_flush"):
            s.owed.update(lambda q, b: s.owed[q, b] | ((q == r) & s.table[q, b] & Not(s.covered[r])))
            clear_table(s, r)
        s.status[r] = Status.finishing

    if m.faulty("late_flush"):

        @m.action(r=Request, b=Block, h=Host, o=Operation, event=store_events)
        def queue_late_store(s: State, r: Elem, b: Elem, h: Elem, o: Elem) -> None:
            """The store of the finished request's block is planned only now."""
            s.require(s.owed[r, b], s.status[r] == Status.finishing)
            may_store(s, h)
            start(s, o, b, h, load=False)
            s.op_pin[o, b] = False
            s.owed[r, b] = False
            s.of[o, r] = True
            s.covered[r] = True
            s.cursor[r] = True

    def drop_reason(pre: View) -> ev.DropReason:
        if Names(pre).all("resident"):
            return "resident"
        if any(v != "idle" and not pre.load[o] for o, v in pre.state.items()):
            return "in_flight"
        return "lazy"

    @m.action(
        r=Request,
        event=lambda pre, post, r: [
            ev.Drop(f"{r}", pre.gen[r], 0, 1, drop_reason(pre)),
            ev.Cursor(f"{r}", pre.gen[r], 1),
        ],
    )
    def drop(s: State, r: Elem) -> None:
        """The finished request's block is not stored, for a reason that is counted."""
        s.require(s.status[r] == Status.finishing, Not(s.covered[r]))
        s.covered[r] = True
        s.cursor[r] = True

    def abort_events(pre: View, post: View, r: int) -> list[ev.Event]:
        was, now, gen = Names(pre), Names(post), pre.gen[r]
        freed = sorted(set(was.of("table", r)) - set(now.of("table", r)))
        ops = [o for o in was.all("uses") if set(was.of("op_pin", o)) - set(now.of("op_pin", o))]
        uncovered = pre.confirmed[r] == FULL and not pre.covered[r]
        return [
            ev.Finish(f"{r}", gen, "abort", pre.confirmed[r]),
            *([ev.Drop(f"{r}", gen, 0, 1, "aborted")] if uncovered else []),
            *([ev.Free("gpu", was.req(r), freed)] if freed else []),
            *(ev.Free("gpu", was.op(o), was.of("op_pin", o)) for o in ops),
            *([ev.Retire(f"{r}", gen)] if post.status[r] == "gone" else []),
        ]

    @m.action(r=Request, event=abort_events)
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

    def retire_events(pre: View, post: View, r: int) -> list[ev.Event]:
        table = Names(pre).of("table", r)
        return [
            *([ev.Free("gpu", Names(pre).req(r), table)] if table else []),
            ev.Retire(f"{r}", pre.gen[r]),
        ]

    @m.action(r=Request, fair="weak", event=retire_events)
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
        clear_table(s, r)
        s.computed[r] = 0
        s.confirmed[r] = 0
        s.covered[r] = False
        s.cursor[r] = False
        s.status[r] = Status.gone

    # The caches.

    @m.action(b=Block, event=lambda pre, post, b: [ev.Evict("gpu", [b])])
    def evict(s: State, b: Elem) -> None:
        """The free cached block b leaves the GPU prefix index."""
        s.require(s.label[b], Not(held(s, b)))
        s.check("FREEZE", Not(held(s, b)), "a block that somebody holds is not evicted")
        s.label[b] = False
        s.good[b] = False

    @m.action(h=Host, event=lambda pre, post, h: [ev.Evict("cpu", [h])])
    def evict_from_tier(s: State, h: Elem) -> None:
        """The CPU tier forgets the content of slot h."""
        s.require(s.resident[h], Not(host_held(s, h)))
        s.check("FREEZE", Not(host_held(s, h)), "a slot that a transfer holds is not evicted")
        s.resident[h] = False

    def resting(s: State) -> Expr:
        def quiet(r: Elem) -> Expr:
            return Or(s.status[r] == Status.waiting, s.status[r] == Status.gone)

        return ForAll(Request, lambda r: quiet(r) & Not(fenced(s, r)))

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

    @m.action(event=lambda pre, post: [ev.Quiesce()])
    def rest(s: State) -> None:
        """All requests are gone and no operation is open: nothing may be held."""
        s.require(ForAll(Request, lambda r: s.status[r] == Status.gone))
        s.require(ForAll(Operation, lambda o: s.state[o] == Op.idle))
        s.check(
            "NO-LEAK",
            And(ForAll(Block, lambda b: Not(held(s, b))), ForAll(Host, lambda h: Not(host_held(s, h)))),
            "at quiescence nothing is held",
        )

    @m.invariant("FREEZE")
    def a_block_under_a_step_is_held(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.reads[r, b], held(s, b)))

    @m.invariant("FREEZE")
    def a_block_under_a_transfer_is_held(s: State) -> Expr:
        return ForAll(Operation, Block, lambda o, b: Implies(is_open(s, o) & s.block[o, b], held(s, b)))

    @m.invariant("FREEZE")
    def a_cpu_slot_under_a_transfer_is_held(s: State) -> Expr:
        return ForAll(Operation, Host, lambda o, h: Implies(is_open(s, o) & s.host[o, h], host_held(s, h)))

    @m.invariant("FREEZE")
    def a_step_in_flight_reads_a_block(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(in_flight(s, r), Exists(Block, lambda b: s.reads[r, b])))

    @m.invariant("USE-READY")
    def a_computed_token_is_confirmed_or_in_flight(s: State) -> Expr:
        def live(r: Elem) -> Expr:
            return Or(s.status[r] == Status.running, s.status[r] == Status.finishing)

        def tokens(r: Elem) -> Expr:
            return s.confirmed[r] + If(s.flight[0, r], 1, 0) + If(s.flight[1, r], 1, 0)

        return ForAll(Request, lambda r: Implies(live(r), s.computed[r] == tokens(r)))

    @m.invariant("USE-READY")
    def a_block_is_not_found_before_its_load_has_landed(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], Not(loading_into(s, b))))

    @m.invariant("FAIL-CLOSED")
    def a_block_that_can_be_found_has_its_content(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], Or(s.good[b], loading_into(s, b))))

    @m.invariant("FAIL-CLOSED")
    def a_store_copies_a_block_that_has_its_content(s: State) -> Expr:
        def storing_now(o: Elem) -> Expr:
            return is_open(s, o) & Not(s.load[o]) & Not(s.old[o])

        return ForAll(Operation, Block, lambda o, b: Implies(storing_now(o) & s.block[o, b], s.good[b]))

    @m.invariant("FAIL-CLOSED")
    def a_failure_is_reported_by_a_rank(s: State) -> Expr:
        return ForAll(Operation, lambda o: Implies(s.failed[o], Exists(Rank, lambda k: s.reported[o, k])))

    @m.invariant("ONCE")
    def an_open_operation_copies_a_block(s: State) -> Expr:
        def has_both_sides(o: Elem) -> Expr:
            return And(Exists(Block, lambda b: s.block[o, b]), Exists(Host, lambda h: s.host[o, h]))

        return ForAll(Operation, lambda o: Implies(is_open(s, o), And(s.uses[o] >= 1, has_both_sides(o))))

    @m.invariant("ONCE")
    def a_late_report_is_of_some_use(s: State) -> Expr:
        def used(o: Elem, k: Elem) -> Expr:
            return If(s.late[o, k], s.late_uses[o, k] >= 1, s.late_uses[o, k] == 0)

        return ForAll(Operation, Rank, used)

    @m.invariant("ONCE")
    def a_late_report_of_the_present_use_was_counted(s: State) -> Expr:
        def present(o: Elem, k: Elem) -> Expr:
            return And(s.late[o, k], s.late_uses[o, k] == s.uses[o], is_open(s, o))

        return ForAll(Operation, Rank, lambda o, k: Implies(present(o, k), s.reported[o, k]))

    @m.invariant("ONCE")
    def a_request_never_loads_and_stores_at_once(s: State) -> Expr:
        return ForAll(
            Operation,
            Operation,
            Request,
            lambda o, p, r: Not(And(s.of[o, r], s.of[p, r], s.load[o], Not(s.load[p]), is_open(s, p))),
        )

    @m.invariant("CURSOR")
    def the_cursor_passes_only_what_is_accounted_for(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.cursor[r], s.covered[r]))

    @m.invariant("CURSOR")
    def the_cursor_keeps_up_with_what_is_accounted_for(s: State) -> Expr:
        def passed(r: Elem) -> Expr:
            return s.covered[r] & (s.status[r] != Status.aborting)

        return ForAll(Request, lambda r: Implies(passed(r), s.cursor[r]))

    @m.invariant("FLUSH")
    def only_a_full_confirmed_block_is_accounted_for(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.covered[r], s.confirmed[r] == FULL))

    @m.invariant("FLUSH")
    def a_request_finishes_with_all_tokens_confirmed(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.status[r] == Status.finishing, s.confirmed[r] == FULL))

    @m.invariant("NO-LEAK")
    def a_request_that_is_gone_holds_nothing(s: State) -> Expr:
        return ForAll(
            Request,
            Block,
            lambda r, b: Implies(s.status[r] == Status.gone, Not(s.table[r, b] | s.fence[r, b])),
        )

    @m.invariant("NO-LEAK")
    def an_idle_operation_holds_nothing(s: State) -> Expr:
        def holds(o: Elem) -> Expr:
            return Or(Exists(Block, lambda b: s.op_pin[o, b]), Exists(Host, lambda h: s.host_pin[o, h]))

        return ForAll(Operation, lambda o: Implies(s.state[o] == Op.idle, Not(holds(o))))

    @m.invariant("NO-LEAK")
    def a_fence_is_lifted_after_the_last_step(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.fence[r, b], s.reads[r, b]))

    @m.invariant("NO-LEAK")
    def the_second_step_waits_for_a_first(s: State) -> Expr:
        first = Exists(Request, lambda q: s.flight[0, q])
        return ForAll(Request, lambda r: Implies(s.flight[1, r], first))

    @m.invariant("NO-LEAK")
    def a_loading_request_has_a_load(s: State) -> Expr:
        def has_load(r: Elem) -> Expr:
            return Exists(Operation, lambda o: s.load[o] & s.of[o, r])

        return ForAll(Request, lambda r: Implies(s.status[r] == Status.loading, has_load(r)))

    @m.invariant("UNIQUE")
    def a_table_has_the_block_once(s: State) -> Expr:
        return ForAll(Request, Block, Block, lambda r, b, c: Implies(s.table[r, b] & s.table[r, c], b == c))

    @m.invariant("UNIQUE")
    def the_tier_has_a_key_once(s: State) -> Expr:
        return ForAll(Host, Host, lambda g, h: Implies(s.resident[g] & s.resident[h], g == h))

    transfer_lemmas.declare(m, Status, Op, FULL)
    transfer_accepted.declare(m)

    @m.goal
    def two_steps_are_in_flight(s: State) -> Expr:
        return Exists(Request, lambda r: s.flight[1, r])

    @m.goal
    def a_rank_reports_before_another(s: State) -> Expr:
        def halfway(o: Elem) -> Expr:
            some = Exists(Rank, lambda k: s.reported[o, k])
            return And(Not(s.failed[o]), some, Not(all_reported(s, o)))

        return Exists(Operation, halfway)

    @m.goal
    def a_failure_arrives_before_another_report(s: State) -> Expr:
        return Exists(Operation, lambda o: s.failed[o] & Not(all_reported(s, o)))

    @m.goal
    def a_fence_outlives_a_preemption(s: State) -> Expr:
        return Exists(Request, lambda r: fenced(s, r) & (s.status[r] == Status.waiting))

    @m.goal
    def a_store_outlives_its_request(s: State) -> Expr:
        return Exists(
            Operation,
            Request,
            lambda o, r: is_open(s, o) & Not(s.load[o]) & s.of[o, r] & (s.status[r] == Status.gone),
        )

    @m.goal
    def a_late_report_meets_a_newer_generation(s: State) -> Expr:
        return Exists(
            Operation, Rank, lambda o, k: s.late[o, k] & (s.state[o] == Op.issued) & Not(s.reported[o, k])
        )

    @m.goal
    def a_preempted_request_comes_back_by_a_load(s: State) -> Expr:
        return Exists(Request, lambda r: (s.gen[r] == 1) & (s.status[r] == Status.loading))

    @m.goal
    def an_operation_is_in_flight_across_a_reset(s: State) -> Expr:
        return Exists(Operation, lambda o: s.old[o])

    @m.goal
    def two_requests_share_a_block(s: State) -> Expr:
        return Exists(Request, Request, Block, lambda q, r, b: (q != r) & s.table[q, b] & s.table[r, b])

    m.leads_to(
        "every_queued_operation_completes",
        lambda s, o: s.state[o] == Op.queued,
        lambda s, o: s.state[o] == Op.idle,
        id_="ONCE",
        doc="an operation that was queued is idle again some day",
        o=Operation,
    )
    m.liveness_sizes(Operation=1, Rank=1)
    return m
