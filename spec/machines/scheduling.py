"""The scheduler's queues: who gets blocks, who gives them back, and that everybody gets on.

A request waits in the order of arrival. Its turn comes when no request ahead of it waits. Then it is

* **admitted**: it gets the free blocks that it needs, and runs; or
* **parked**: it gets them, and a load from elsewhere fills them first; when the load has landed, it is
  promoted and runs; or
* **deferred**: the connector does not know yet what it has of it. It holds nothing meanwhile, others pass,
  and when the answer is there it is tried again.

A short request needs one block, a long one two at once, and a growing one a second block before its second
token; one that needs more blocks than there are is turned away when it arrives. Running requests come first:
nobody is admitted while one of them lacks a block. If no block is free and none is about to come free, the
last of them in the order of arrival is preempted.

Steps are dispatched ahead of their output, two at most. A preempted request's steps in flight still use its
blocks: a **fence** keeps them until the last of these steps is processed. The tokens of steps in flight are
**placeholders**; a load may turn out to have failed when the first step that leans on it is processed, and
then the request computes everything.

Blocks of finished requests stay cached, and are wanted in a smaller **host tier** too. A host slot mirrors
one block; it may be used again for another block once its copy is over.

The promises at the end hold of weakly fair runs: what the scheduler, the workers or the connector can do from
some time on, they do some day. Requests arrive when they like, and any load may fail.
"""

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Iff, Implies, IsIn, Not, Or
from kvfence.spec.machines.accepted import scheduling as scheduling_accepted
from kvfence.spec.machines.field_maps import scheduling as events
from kvfence.spec.machines.field_maps.relations import quiesce
from kvfence.spec.machines.field_maps.scheduling import TOKENS
from kvfence.spec.machines.lemmas import scheduling as scheduling_lemmas
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

Status = Enum("Status", "new waiting deferred answered parked landed running gone")
Need = Enum("Need", "short long growing")
Copy = Enum("Copy", "none copying kept")

HOLDERS = (Status.parked, Status.landed, Status.running)
GIVEN_AWAY = "a block that somebody holds is not given away"

Request = Sort("Request", 3, __name__)
Block = Sort("Block", 2, __name__)
Host = Sort("Host", 1, __name__)


def waits(s: State, r: Elem) -> Expr:
    """Whether the request waits for its turn."""
    return IsIn(s.status[r], Status.waiting, Status.answered)


def in_flight(s: State, r: Elem) -> Expr:
    """Whether a step of the request is in flight."""
    return s.flight[0, r] | s.flight[1, r]


def fenced(s: State, r: Elem) -> Expr:
    """Whether steps in flight keep blocks of the request behind a fence."""
    return Exists(Block, lambda b: s.fence[r, b])


def copied(s: State, b: Elem) -> Expr:
    """Whether a copy to the host tier reads the block."""
    return Exists(Host, lambda h: s.mirrors[h, b] & (s.copy[h] == Copy.copying))


def held(s: State, b: Elem) -> Expr:
    """Whether a table, a fence or a copy holds the block."""
    return Exists(Request, lambda r: s.table[r, b] | s.fence[r, b]) | copied(s, b)


def lacks(s: State, r: Elem) -> Expr:
    """The running request needs its second block for the next token."""
    next_token = s.confirmed[r] + s.placeholders[r]
    return And(s.status[r] == Status.running, s.need[r] == Need.growing, Not(s.grown[r]), next_token >= 1)


def is_first(s: State, r: Elem) -> Expr:
    """Whether no request ahead of r waits."""
    return ForAll(Request, lambda q: Implies(s.ahead[q, r], Not(waits(s, q))))


def is_its_turn(s: State, r: Elem) -> None:
    """Nobody ahead of r waits, no running request lacks a block, and r's own old steps are over."""
    s.require(Not(in_flight(s, r)), is_first(s, r), ForAll(Request, lambda q: Not(lacks(s, q))))


def take(s: State, r: Elem, b: Elem) -> None:
    """Request r gets the free block b, whose old content is lost."""
    s.require(Not(held(s, b)))
    s.check("FREEZE", Not(held(s, b)), GIVEN_AWAY)


def receive(s: State, r: Elem, b: Elem, c: Elem) -> None:
    """Blocks b and c join the table, and lose what they were cached for."""
    s.table.update(lambda q, x: s.table[q, x] | And(q == r, Or(x == b, x == c)))
    s.wanted.update(lambda x: And(s.wanted[x], x != b, x != c))
    s.mirrors.update(lambda h, x: And(s.mirrors[h, x], x != b, x != c))


def give_two(s: State, r: Elem, b: Elem, c: Elem) -> None:
    """Request r gets what it needs to begin: b, and c too if it is long."""
    s.require(Not(held(s, b)), Not(held(s, c)), (s.need[r] == Need.long) == (b != c))
    s.check("FREEZE", Not(Or(held(s, b), held(s, c))), GIVEN_AWAY)
    s.check("PROGRESS", is_first(s, r), "no request is passed by one that came later")
    receive(s, r, b, c)


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("status", Request, value=Status, init=Status.new)
    m.function("need", Request, value=Need, init=Need.short)
    m.relation("ahead", Request, Request, init=False)  # the first arrived before the second
    m.function("confirmed", Request, value=Int(0, TOKENS), init=0)  # tokens of processed steps
    m.function("placeholders", Request, value=Int(0, TOKENS), init=0)  # tokens of steps in flight
    m.relation("grown", Request, init=False)  # a growing request has its second block
    m.relation("leans", Request, init=False)  # its next step is the first that reads what was loaded
    m.relation("lost", Request, init=False)  # its first token was loaded, in vain
    m.relation("table", Request, Block, init=False)
    m.relation("fence", Request, Block, init=False)
    m.relation("flight", Int(0, 1), Request, init=False)  # steps in flight, the older one first
    m.relation("reads", Request, Block, init=False)  # blocks that steps in flight read or write

    m.relation("wanted", Block, init=False)  # cached, and not in the host tier yet
    m.function("copy", Host, value=Copy, init=Copy.none)
    m.relation("mirrors", Host, Block, init=False)  # what the slot has a copy of, or is getting one of

    m.liveness_sizes(Request=3, Block=2, Host=1)
    m.header(events.header)
    m.idle(events.stalled)


def fits(need: Expr) -> Expr:
    """There are as many blocks as the request needs."""
    return Or(need == Need.short, Exists(Block, Block, lambda b, c: b != c))


def declare_admission(m: Machine) -> None:
    """Declare arrival and admission."""

    @m.action(r=Request, need=Need, event=events.submit)
    def submit(s: State, r: Elem, need: Expr) -> None:
        """The request arrives and waits behind all others. One that can never run is not taken on."""
        s.require(s.status[r] == Status.new, fits(need))
        s.check("PROGRESS", fits(need), "a request is taken on only if it fits into the pool")
        s.ahead.update(lambda q, x: s.ahead[q, x] | And(x == r, s.status[q] != Status.new))
        assign(s, r, need=need, status=Status.waiting)

    @m.action(r=Request, b=Block, c=Block, fair="weak", event=events.admit)
    def admit(s: State, r: Elem, b: Elem, c: Elem) -> None:
        """It is the request's turn, and it gets its blocks: b, and if it is long c."""
        s.require(waits(s, r))
        is_its_turn(s, r)
        give_two(s, r, b, c)
        s.status[r] = Status.running

    @m.action(r=Request, b=Block, c=Block, event=events.park)
    def park(s: State, r: Elem, b: Elem, c: Elem) -> None:
        """It is the request's turn, it gets its blocks, and a load fills them before it runs."""
        s.require(waits(s, r))
        is_its_turn(s, r)
        give_two(s, r, b, c)
        s.status[r] = Status.parked

    @m.action(r=Request, event=events.defer)
    def defer(s: State, r: Elem) -> None:
        """It is the request's turn, but the connector has to ask elsewhere what it has of it."""
        s.require(s.status[r] == Status.waiting)
        is_its_turn(s, r)
        s.status[r] = Status.deferred

    @m.action(r=Request, fair="weak", event=events.answer)
    def answer(s: State, r: Elem) -> None:
        """The connector knows what it has of the request: it is tried again, in its old place."""
        s.require(s.status[r] == Status.deferred)
        s.status[r] = Status.answered

    @m.action(r=Request, fair="weak", event=events.land)
    def land(s: State, r: Elem) -> None:
        """The parked request's load is over."""
        s.require(s.status[r] == Status.parked)
        s.status[r] = Status.landed

    @m.action(r=Request, fair="weak", event=lambda pre, post: [])
    def promote(s: State, r: Elem) -> None:
        """The parked request runs: its first token was loaded. Whoever waits does not matter."""
        s.require(s.status[r] == Status.landed)
        if m.faulty("head_blocks_holder"):
            s.require(Not(Exists(Request, lambda q: s.status[q] == Status.waiting)))
        if m.faulty("blockless_head"):
            s.require(Not(Exists(Request, lambda q: And(s.ahead[q, r], s.status[q] == Status.answered))))
        assign(s, r, status=Status.running, confirmed=1, leans=True)


def step_is_over(s: State, r: Elem) -> None:
    """The oldest step is over; after the request's last one its fence is lifted."""
    last = Not(s.flight[1, r])
    s.reads.update(lambda q, b: s.reads[q, b] & Not((q == r) & last))
    s.fence.update(lambda q, b: s.fence[q, b] & Not((q == r) & last))
    s.flight.update(lambda i, q: (i == 0) & s.flight[1, q])


def declare_steps(m: Machine) -> None:
    """Declare steps, and blocks that running requests get and give back."""

    @m.action(r=Request, fair="weak", event=events.dispatch)
    def dispatch(s: State, r: Elem) -> None:
        """A step computes the request's next token; it may be the second one in flight."""
        s.require(s.status[r] == Status.running, Not(lacks(s, r)))
        s.require(s.confirmed[r] + s.placeholders[r] < TOKENS)
        s.require(ForAll(Request, lambda q: Not(s.flight[1, q])))
        second = Exists(Request, lambda q: s.flight[0, q])
        s.flight[1, r] = second
        s.flight[0, r] = s.flight[0, r] | Not(second)
        s.reads.update(lambda q, b: s.reads[q, b] | ((q == r) & s.table[q, b]))
        s.placeholders[r] = s.placeholders[r] + 1

    @m.action(r=Request, fair="weak", event=events.process)
    def process(s: State, r: Elem) -> None:
        """The oldest step's output arrives; it counts unless its request was preempted meanwhile."""
        s.require(s.flight[0, r])
        counts = s.status[r] == Status.running
        s.lost[r] = s.lost[r] & Not(counts)
        s.confirmed[r] = If(counts, s.confirmed[r] + 1, s.confirmed[r])
        s.placeholders[r] = If(counts, s.placeholders[r] - 1, s.placeholders[r])
        s.leans[r] = False
        step_is_over(s, r)

    @m.action(r=Request, event=events.process_failed_load)
    def process_failed_load(s: State, r: Elem) -> None:
        """The oldest step's output arrives, and with it that the load it leans on has failed."""
        s.require(s.flight[0, r], s.status[r] == Status.running, s.leans[r])
        assign(s, r, lost=True, confirmed=0)
        if not m.faulty("placeholder_not_rolled_back"):
            s.placeholders[r] = s.placeholders[r] - 1
        s.leans[r] = False
        step_is_over(s, r)

    @m.action(r=Request, b=Block, fair="weak", event=events.grow)
    def grow(s: State, r: Elem, b: Elem) -> None:
        """The running request gets its second block."""
        s.require(lacks(s, r))
        take(s, r, b)
        receive(s, r, b, b)
        s.grown[r] = True

    @m.action(v=Request, event=events.preempt, fair="weak")
    def preempt(s: State, v: Elem) -> None:
        """A running request lacks a block and none comes free: v, the last in order, waits again."""
        s.require(s.status[v] == Status.running, Exists(Request, lambda r: lacks(s, r)))
        s.require(ForAll(Block, lambda b: held(s, b)))
        if not m.faulty("fenced_victim_spin"):
            s.require(ForAll(Request, lambda r: Not(fenced(s, r))))
        kept_from = (Status.running,) if m.faulty("preempt_beside_parked") else HOLDERS
        s.require(ForAll(Request, lambda q: Implies(s.ahead[v, q], Not(IsIn(s.status[q], *kept_from)))))
        if not m.faulty("free_fenced_victim"):
            s.fence.update(lambda q, b: s.fence[q, b] | And(q == v, s.table[q, b], in_flight(s, v)))
        remove(s, v, "table")
        assign(s, v, confirmed=0, placeholders=0, grown=False, leans=False, lost=False, status=Status.waiting)

    @m.action(r=Request, fair="weak", event=events.finish)
    def finish(s: State, r: Elem) -> None:
        """All tokens are there: the request is gone, and its blocks stay cached, wanted in the host tier."""
        s.require(s.status[r] == Status.running, s.confirmed[r] == TOKENS)
        s.wanted.update(lambda b: s.wanted[b] | s.table[r, b])
        remove(s, r, "table")
        assign(s, r, confirmed=0, grown=False, status=Status.gone)


def declare_host_tier(m: Machine) -> None:
    """Declare the host tier, and what must hold at rest."""

    @m.action(b=Block, h=Host, fair="weak", event=events.backup)
    def backup(s: State, b: Elem, h: Elem) -> None:
        """The cached block b is copied to host slot h, whose old copy is dropped."""
        s.require(s.wanted[b], Not(held(s, b)), s.copy[h] != Copy.copying)
        if m.faulty("mirror_pins_starve"):
            s.require(ForAll(Block, lambda c: Not(s.mirrors[h, c])))
        s.check("FREEZE", s.copy[h] != Copy.copying, "a host slot under a copy is not used again")
        s.mirrors.update(lambda g, c: If(g == h, c == b, s.mirrors[g, c]))
        s.wanted[b] = False
        s.copy[h] = Copy.copying

    @m.action(h=Host, fair="weak", event=events.acknowledge)
    def acknowledge(s: State, h: Elem) -> None:
        """The copy is over: its source may be given away, and the slot be used again."""
        s.require(s.copy[h] == Copy.copying)
        s.check("ONCE", s.copy[h] == Copy.copying, "the end of a copy is told once")
        s.copy[h] = Copy.kept

    @m.action(event=quiesce)
    def rest(s: State) -> None:
        """All requests are gone and no copy is under way: nothing may be held."""
        s.require(ForAll(Request, lambda r: s.status[r] == Status.gone))
        s.require(ForAll(Host, lambda h: s.copy[h] != Copy.copying))
        s.check("NO-LEAK", ForAll(Block, lambda b: Not(held(s, b))), "at quiescence nothing is held")


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("FREEZE")
    def a_block_under_a_step_is_held(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.reads[r, b], held(s, b)))

    @m.invariant("FREEZE")
    def a_copy_under_way_has_its_source(s: State) -> Expr:
        return ForAll(
            Host, lambda h: Implies(s.copy[h] == Copy.copying, Exists(Block, lambda b: s.mirrors[h, b]))
        )

    @m.invariant("COUNT")
    def placeholders_are_the_steps_in_flight_that_count(s: State) -> Expr:
        def steps(r: Elem) -> Expr:
            return If(s.flight[0, r], 1, 0) + If(s.flight[1, r], 1, 0)

        return ForAll(Request, lambda r: s.placeholders[r] == If(s.status[r] == Status.running, steps(r), 0))

    @m.invariant("CONSERVE")
    def a_block_has_one_holder(s: State) -> Expr:
        def has(r: Elem, b: Elem) -> Expr:
            return s.table[r, b] | s.fence[r, b]

        one_request = ForAll(Request, Request, Block, lambda q, r, b: Implies(has(q, b) & has(r, b), q == r))
        one_copy = ForAll(Request, Block, lambda r, b: Not(has(r, b) & copied(s, b)))
        return one_request & one_copy

    @m.invariant("CONSERVE")
    def a_request_has_the_blocks_that_it_needs(s: State) -> Expr:
        def two(r: Elem) -> Expr:
            return Exists(Block, Block, lambda b, c: And(b != c, s.table[r, b], s.table[r, c]))

        def right(r: Elem) -> Expr:
            return Exists(Block, lambda b: s.table[r, b]) & Iff(two(r), (s.need[r] == Need.long) | s.grown[r])

        return ForAll(Request, lambda r: Implies(IsIn(s.status[r], *HOLDERS), right(r)))

    @m.invariant("CONSERVE")
    def what_is_cached_belongs_to_nobody(s: State) -> Expr:
        def cached(b: Elem) -> Expr:
            return s.wanted[b] | Exists(Host, lambda h: s.mirrors[h, b])

        return ForAll(Request, Block, lambda r, b: Implies(cached(b), Not(s.table[r, b] | s.fence[r, b])))

    @m.invariant("UNIQUE")
    def a_host_slot_mirrors_at_most_one_block(s: State) -> Expr:
        def one(h: Elem, b: Elem, c: Elem) -> Expr:
            return Implies(s.mirrors[h, b], And(s.copy[h] != Copy.none, Implies(s.mirrors[h, c], b == c)))

        return ForAll(Host, Block, Block, one)

    @m.invariant("COUNT")
    def no_token_is_counted_without_a_block(s: State) -> Expr:
        def small(r: Elem) -> Expr:
            return And(s.need[r] == Need.growing, Not(s.grown[r]))

        return ForAll(Request, lambda r: Implies(small(r), s.confirmed[r] + s.placeholders[r] <= 1))

    @m.invariant("FAIL-CLOSED")
    def what_was_loaded_in_vain_does_not_count(s: State) -> Expr:
        def counts_none(r: Elem) -> Expr:
            return And(s.status[r] == Status.running, s.confirmed[r] == 0)

        return ForAll(Request, lambda r: Implies(s.lost[r], counts_none(r)))

    @m.invariant("FAIL-CLOSED")
    def only_a_request_that_counts_a_loaded_token_leans_on_it(s: State) -> Expr:
        def counts(r: Elem) -> Expr:
            return And(s.status[r] == Status.running, s.confirmed[r] == 1)

        return ForAll(Request, lambda r: Implies(s.leans[r], counts(r)))

    @m.invariant("NO-LEAK")
    def only_requests_with_blocks_hold_some(s: State) -> Expr:
        def holds(r: Elem, b: Elem) -> Expr:
            return And(
                Implies(s.table[r, b], IsIn(s.status[r], *HOLDERS)),
                Implies(s.grown[r], And(s.status[r] == Status.running, s.need[r] == Need.growing)),
            )

        return ForAll(Request, Block, holds)

    @m.invariant("NO-LEAK")
    def a_fence_is_lifted_after_the_last_step(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.fence[r, b], in_flight(s, r)))

    scheduling_lemmas.declare(m, Status, TOKENS)
    scheduling_accepted.declare(m)

    # Whether a run may stop where it does is what the promises judge; with too few blocks it must.
    m.terminal(lambda s: And())


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and what happens some day."""

    @m.goal
    def two_steps_are_in_flight(s: State) -> Expr:
        return Exists(Request, lambda r: s.flight[1, r])

    @m.goal
    def a_fence_outlives_a_preemption(s: State) -> Expr:
        return Exists(Request, lambda r: fenced(s, r) & (s.status[r] == Status.waiting))

    @m.goal
    def a_holder_is_parked_behind_a_head_that_does_not_fit(s: State) -> Expr:
        def does_not_fit(q: Elem) -> Expr:
            return And(waits(s, q), s.need[q] == Need.long, Exists(Block, lambda b: held(s, b)))

        return Exists(
            Request, Request, lambda q, r: And(s.ahead[q, r], does_not_fit(q), s.status[r] == Status.landed)
        )

    @m.goal
    def a_host_slot_is_used_again(s: State) -> Expr:
        return Exists(
            Block, Host, lambda b, h: And(s.wanted[b], s.copy[h] == Copy.kept, Not(s.mirrors[h, b]))
        )

    m.leads_to(
        "every_request_that_arrives_is_done",
        lambda s, r: s.status[r] == Status.waiting,
        lambda s, r: s.status[r] == Status.gone,
        doc="a request that has arrived is done some day",
        r=Request,
    )
    m.leads_to(
        "a_holder_whose_load_has_landed_runs",
        lambda s, r: s.status[r] == Status.landed,
        lambda s, r: s.status[r] == Status.running,
        doc="a parked request whose load has landed runs some day",
        r=Request,
    )
    m.leads_to(
        "a_wanted_copy_is_made_or_given_up",
        lambda s, b: s.wanted[b],
        lambda s, b: Not(s.wanted[b]),
        doc="a cached block that the host tier wants is copied there some day, unless it is used again",
        b=Block,
    )


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("scheduling", doc=__doc__, faults=faults), Request, Block, Host)
    declare_state(m)
    declare_admission(m)
    declare_steps(m)
    declare_host_tier(m)
    declare_invariants(m)
    declare_goals(m)
    return m
