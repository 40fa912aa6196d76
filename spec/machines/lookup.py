"""The two-phase lookup: a hit is promised first, and blocks are allocated for it later.

1. ``lookup`` finds the blocks of the CPU tier that continue the request's local prefix, promises them, and
   pins them.
2. Other requests store, evict and allocate meanwhile; the request may be looked up again, aborted, or find no
   room.
3. ``admit`` accepts all of the promise, its first part, or nothing. The load takes over the accepted pins;
   the others go.

Each prompt has two blocks, the *first* and the *second*, of one token each; every request has the same
prompt. A block of the CPU tier is empty, being written by a store, or cached. A promise covers the blocks
after the local prefix, without a hole.
"""

from collections.abc import Callable

from kvfence.spec import events as ev
from kvfence.spec.language import Bool, Enum, Int, Machine, Sort, State, View
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, If, Implies, Not, Or
from kvfence.spec.machines.field_maps.relations import free
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

Phase = Enum("Phase", "new waiting loading running gone")
Slot = Enum("Slot", "empty storing cached")

PROMPT = 2  # blocks of a prompt, of one token each


class Names:
    """What a state is called in traces: the field map of the events below."""

    def __init__(self, view: View) -> None:
        self.view = view

    def req(self, r: int) -> str:
        """Holder of the request's own blocks."""
        return f"req:{r}.{self.view.gen[r]}"

    def hit(self, r: int) -> str:
        """Holder of the pins of the request's promise."""
        return f"hit:{r}.{self.view.gen[r]}"

    def op(self, r: int) -> str:
        """Holder of the load's slots: request r's load is operation 100 + r."""
        return f"op:{100 + r}.{self.view.gen[r]}"

    def blocks(self, relation: str, r: int) -> list[int]:
        """The CPU blocks b with relation(r, b), the prompt's first block in front."""
        view = self.view
        found = [b for b in range(len(view.slot)) if getattr(view, relation)[r, b]]
        return sorted(found, key=lambda b: not view.first[b])

    def gpu(self, r: int) -> list[int]:
        """The request's two slots in the GPU pool, which is large enough for all."""
        return [PROMPT * r, PROMPT * r + 1]


Request = Sort("Request", 2, __name__)
Block = Sort("Block", 3, __name__)


def cached(s: State, b: Elem) -> Expr:
    """Whether the block can be hit."""
    return s.slot[b] == Slot.cached


def hit(s: State, b: Elem, local: Expr) -> Expr:
    """Whether b continues a prefix of `local` blocks without a hole."""
    first = Exists(Block, lambda c: cached(s, c) & s.first[c])
    return And(cached(s, b), If(local == 0, Or(s.first[b], first), Not(s.first[b])))


def unheld(s: State, b: Elem) -> Expr:
    """Whether no promise and no load holds the block."""
    return ForAll(Request, lambda r: Not(s.pin[r, b] | s.loading[r, b]))


def drop_pins(s: State, r: Elem) -> None:
    """Release all pins of the request."""
    s.ref.update(lambda b: If(s.pin[r, b], s.ref[b] - 1, s.ref[b]))
    remove(s, r, "pin")


def withdraw(s: State, r: Elem) -> None:
    """The promise is given up, and its pins go."""
    drop_pins(s, r)
    remove(s, r, "promise")


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("phase", Request, value=Phase, init=Phase.new)
    m.function("gen", Request, value=Int(0, 1), init=0)
    m.function("local", Request, value=Int(0, 1), init=0)  # blocks of the prompt that the GPU has
    m.function("external", Request, value=Int(0, 2), init=0)  # blocks counted as loaded
    m.function("compute", Request, value=Int(0, 2), init=0)  # blocks left to compute
    m.relation("promise", Request, Block, init=False)
    m.relation("pin", Request, Block, init=False)
    m.relation("loading", Request, Block, init=False)  # sources of the request's load, held by it
    m.function("slot", Block, value=Slot, init=Slot.empty)
    m.relation("first", Block, init=False)  # the block has the prompt's first part, else its second
    m.function("ref", Block, value=Int(0, lambda sizes: 2 * sizes["Request"]), init=0)
    m.header(
        lambda sizes: ev.Header(
            producer="kvfence machine lookup",
            pools=(ev.Pool("cpu", sizes["Block"]), ev.Pool("gpu", PROMPT * sizes["Request"])),
        )
    )


def store_events(begin: bool) -> Callable[..., list[ev.Event]]:
    """The events of the beginning or the end of a store."""

    def events(pre: View, post: View, b: int, **_: object) -> list[ev.Event]:
        holder = f"op:{b}.0"
        if begin:
            return [ev.Alloc("cpu", holder, [b])]
        key = 1 if post.first[b] else 2
        return [ev.Label("cpu", [b], [key]), ev.Free("cpu", holder, [b])]

    return events


def declare_tier(m: Machine) -> None:
    """Declare the CPU tier, used by everybody else meanwhile."""

    @m.action(b=Block, first=Bool, event=store_events(begin=True))
    def begin_store(s: State, b: Elem, first: Expr) -> None:
        """Another request's store takes the empty block b for the first or second part of the prompt."""
        s.require(s.slot[b] == Slot.empty, s.ref[b] == 0)
        s.require(ForAll(Block, lambda c: Implies(s.slot[c] != Slot.empty, s.first[c] != first)))
        s.check("CONSERVE", s.slot[b] == Slot.empty, "a cached block is evicted before a store takes it")
        assign(s, b, slot=Slot.storing, first=first, ref=1)

    @m.action(b=Block, event=store_events(begin=False))
    def end_store(s: State, b: Elem) -> None:
        """The store into b has landed: b can be hit from here on."""
        s.require(s.slot[b] == Slot.storing)
        assign(s, b, slot=Slot.cached, ref=s.ref[b] - 1)

    @m.action(b=Block, event=lambda pre, post, b: [ev.Evict("cpu", [b])])
    def evict(s: State, b: Elem) -> None:
        """The tier needs room: the cached block b loses its content."""
        s.require(cached(s, b), ForAll(Request, lambda r: Not(s.loading[r, b])))
        if not m.faulty("evict_pinned"):
            s.require(ForAll(Request, lambda r: Not(s.pin[r, b])))
        assign(s, b, slot=Slot.empty, first=False)


def lookup_events(pre: View, post: View, r: int, local: int) -> list[ev.Event]:
    """Give up the promise before, move the pins, and promise anew."""
    was, now = Names(pre), Names(post)
    old, new = set(was.blocks("pin", r)), set(now.blocks("pin", r))
    promised = now.blocks("promise", r)
    return [
        *([ev.Withdraw(f"{r}", pre.gen[r])] if was.blocks("promise", r) else []),
        *free("cpu", was.hit(r), sorted(old - new)),
        *([ev.Touch("cpu", now.hit(r), sorted(new - old))] if new - old else []),
        ev.Lookup(f"{r}", pre.gen[r], local, len(promised), "cpu", promised),
    ]


def admit_events(pre: View, post: View, r: int, **_: object) -> list[ev.Event]:
    """Allocate, admit, and queue the load of what is accepted."""
    was, now = Names(pre), Names(post)
    local, gen = pre.local[r], pre.gen[r]
    sources, pins = now.blocks("loading", r), was.blocks("pin", r)
    gpu = was.gpu(r)
    events: list[ev.Event] = [
        ev.Alloc("gpu", was.req(r), gpu, at=0),
        ev.Admit(f"{r}", gen, local, post.external[r], post.compute[r], PROMPT),
    ]
    if sources:
        keys = [1 if pre.first[b] else 2 for b in sources]
        into = gpu[local : local + len(sources)]
        op = 100 + r
        events += [
            ev.Touch("cpu", was.op(r), sources),
            ev.Queue(op, gen, "load", "cpu", sources, "gpu", into, keys, f"{r}", gen),
        ]
    if pins:
        events.append(ev.Free("cpu", was.hit(r), pins))
    return events


def landed_events(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of the request's load."""
    names, op, gen = Names(pre), 100 + r, pre.gen[r]
    return [
        ev.Issue(op, gen),
        ev.Report(op, gen, 0),
        ev.Complete(op, gen),
        ev.Free("cpu", names.op(r), names.blocks("loading", r)),
    ]


def declare_lookup(m: Machine) -> None:
    """Declare arrival, lookup and admission of one request."""

    @m.action(r=Request, event=lambda pre, post, r: [ev.Submit(f"{r}", 0, PROMPT)])
    def submit(s: State, r: Elem) -> None:
        """The request arrives."""
        s.require(s.phase[r] == Phase.new)
        s.phase[r] = Phase.waiting

    @m.action(r=Request, local=Int(0, 1), event=lookup_events)
    def lookup(s: State, r: Elem, local: Expr) -> None:
        """The first phase, repeatable: the hit after `local` blocks is promised and pinned."""
        s.require(s.phase[r] == Phase.waiting)
        s.local[r] = local
        if m.faulty("unpinned_lookup"):
            s.promise.update(lambda q, b: If(q == r, hit(s, b, local), s.promise[q, b]))
        elif m.faulty("pins_added_not_replaced"):
            s.ref.update(lambda b: If(hit(s, b, local) & Not(s.pin[r, b]), s.ref[b] + 1, s.ref[b]))
            s.pin.update(lambda q, b: If(q == r, s.pin[q, b] | hit(s, b, local), s.pin[q, b]))
            s.promise.update(lambda q, b: If(q == r, hit(s, b, local), s.promise[q, b]))
        else:
            drop_pins(s, r)
            s.ref.update(lambda b: If(hit(s, b, local), s.ref[b] + 1, s.ref[b]))
            s.pin.update(lambda q, b: If(q == r, hit(s, b, local), s.pin[q, b]))
            s.promise.update(lambda q, b: If(q == r, s.pin[q, b], s.promise[q, b]))

    @m.action(r=Request, accept=Int(0, 2), event=admit_events)
    def admit(s: State, r: Elem, accept: Expr) -> None:
        """The second phase: blocks are allocated, `accept` promised ones are loaded, the other pins go."""
        promised = Count(Block, lambda b: s.promise[r, b])
        s.require(s.phase[r] == Phase.waiting, accept <= promised)

        def accepted(b: Elem) -> Expr:
            return And(s.promise[r, b], Or(accept == promised, And(accept > 0, s.first[b])))

        s.compute[r] = PROMPT - s.local[r] - accept
        s.external[r] = promised if m.faulty("count_promised") else accept
        s.ref.update(lambda b: s.ref[b] + If(accepted(b), 1, 0) - If(s.pin[r, b], 1, 0))
        s.loading.update(lambda q, b: If(q == r, accepted(b), s.loading[q, b]))
        remove(s, r, "pin", "promise")
        s.phase[r] = If(accept == 0, Phase.running, Phase.loading)

    @m.action(
        r=Request,
        event=lambda pre, post, r: [ev.Deny("gpu", Names(pre).req(r), asked=PROMPT * len(pre.phase) + 1)],
    )
    def find_no_room(s: State, r: Elem) -> None:
        """The allocation fails: the request waits on, its promise and its pins stay."""
        s.require(s.phase[r] == Phase.waiting)

    @m.action(r=Request, fair="weak", event=landed_events)
    def load_lands(s: State, r: Elem) -> None:
        """The load is over and lets go of its sources; the request runs."""
        s.require(s.phase[r] == Phase.loading)
        s.ref.update(lambda b: If(s.loading[r, b], s.ref[b] - 1, s.ref[b]))
        remove(s, r, "loading")
        s.phase[r] = Phase.running


def abort_events(pre: View, post: View, r: int) -> list[ev.Event]:
    """Give up the promise, and end the request."""
    was, now = Names(pre), Names(post)
    released = sorted(set(was.blocks("pin", r)) - set(now.blocks("pin", r)))
    return [
        *([ev.Withdraw(f"{r}", pre.gen[r])] if was.blocks("promise", r) else []),
        *free("cpu", was.hit(r), released),
        ev.Finish(f"{r}", pre.gen[r], "abort", 0),
        ev.Retire(f"{r}", pre.gen[r]),
    ]


def declare_ends(m: Machine) -> None:
    """Declare how a request leaves the GPU: preempted, finished or aborted."""

    @m.action(
        r=Request,
        event=lambda pre, post, r: [
            ev.Preempt(f"{r}", pre.gen[r]),
            ev.Free("gpu", Names(pre).req(r), Names(pre).gpu(r)),
            ev.Retire(f"{r}", pre.gen[r]),
            ev.Submit(f"{r}", post.gen[r], PROMPT),
        ],
    )
    def preempt(s: State, r: Elem) -> None:
        """The request loses its blocks and waits to be looked up again, in a new generation."""
        s.require(s.phase[r] == Phase.running, s.gen[r] == 0)
        assign(s, r, phase=Phase.waiting, gen=1, external=0, compute=0, local=0)

    @m.action(
        r=Request,
        event=lambda pre, post, r: [
            ev.Finish(f"{r}", pre.gen[r], "stop", pre.local[r] + pre.external[r]),
            ev.Free("gpu", Names(pre).req(r), Names(pre).gpu(r)),
            ev.Retire(f"{r}", pre.gen[r]),
        ],
    )
    def finish(s: State, r: Elem) -> None:
        """The request is done and gone."""
        s.require(s.phase[r] == Phase.running)
        s.phase[r] = Phase.gone

    @m.action(r=Request, event=abort_events)
    def abort(s: State, r: Elem) -> None:
        """The client goes away between lookup and allocation: promise and pins go too."""
        s.require(s.phase[r] == Phase.waiting)
        if m.faulty("pin_leak_on_abort"):
            remove(s, r, "promise")
        else:
            withdraw(s, r)
        s.phase[r] = Phase.gone


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("PIN")
    def promised_blocks_have_a_holder(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.promise[r, b], Not(unheld(s, b))))

    @m.invariant("PIN")
    def promised_and_loading_blocks_stay_cached(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.promise[r, b] | s.loading[r, b], cached(s, b)))

    @m.invariant("PURE")
    def a_waiting_request_pins_what_it_was_promised(s: State) -> Expr:
        return ForAll(
            Request, Block, lambda r, b: Implies((s.phase[r] == Phase.waiting) & s.pin[r, b], s.promise[r, b])
        )

    @m.invariant("NO-LEAK")
    def a_request_that_is_gone_holds_nothing(s: State) -> Expr:
        return ForAll(
            Request, Block, lambda r, b: Implies(s.phase[r] == Phase.gone, Not(s.pin[r, b] | s.loading[r, b]))
        )

    @m.invariant("COUNT")
    def local_external_and_computed_blocks_make_the_prompt(s: State) -> Expr:
        def admitted(r: Elem) -> Expr:
            return Or(s.phase[r] == Phase.loading, s.phase[r] == Phase.running)

        return ForAll(
            Request, lambda r: Implies(admitted(r), s.local[r] + s.external[r] + s.compute[r] == PROMPT)
        )

    @m.invariant("COUNT")
    def a_request_counts_nothing_before_it_is_admitted(s: State) -> Expr:
        def before(r: Elem) -> Expr:
            return Or(s.phase[r] == Phase.new, s.phase[r] == Phase.waiting)

        return ForAll(Request, lambda r: Implies(before(r), And(s.external[r] == 0, s.compute[r] == 0)))

    @m.invariant("COUNT")
    def a_new_request_has_no_local_block(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.phase[r] == Phase.new, s.local[r] == 0))

    @m.invariant("COUNT")
    def a_promise_continues_the_local_prefix(s: State) -> Expr:
        """What is promised after a local block is no first part; what is promised without one has a first."""

        def continues(r: Elem, b: Elem) -> Expr:
            starts = Exists(Block, lambda c: s.promise[r, c] & s.first[c])
            return If(s.local[r] == 0, starts, Not(s.first[b]))

        return ForAll(Request, Block, lambda r, b: Implies(s.promise[r, b], continues(r, b)))

    @m.invariant("CONSERVE")
    def ref_count_is_the_number_of_holders(s: State) -> Expr:
        return ForAll(
            Block,
            lambda b: (
                s.ref[b]
                == Count(Request, lambda r: s.pin[r, b])
                + Count(Request, lambda r: s.loading[r, b])
                + If(s.slot[b] == Slot.storing, 1, 0)
            ),
        )


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def promises_and_pins_belong_to_waiting_requests(s: State) -> Expr:
        """A lookup makes both for a waiting request, and whatever ends the wait ends both."""
        return ForAll(
            Request, Block, lambda r, b: Implies(s.promise[r, b] | s.pin[r, b], s.phase[r] == Phase.waiting)
        )

    @m.lemma
    def only_a_loading_request_loads(s: State) -> Expr:
        """The load takes over the accepted pins when the request leaves the wait, and ends before it runs."""
        return ForAll(Request, Block, lambda r, b: Implies(s.loading[r, b], s.phase[r] == Phase.loading))

    @m.lemma
    def what_is_promised_is_pinned(s: State) -> Expr:
        """The lookup pins exactly what it promises."""
        return ForAll(Request, Block, lambda r, b: Implies(s.promise[r, b], s.pin[r, b]))

    @m.lemma
    def the_tier_has_each_part_once(s: State) -> Expr:
        """A store begins only for a part of the prompt that the tier has not and that no store is writing."""

        def same(b: Elem, c: Elem) -> Expr:
            used = And(s.slot[b] != Slot.empty, s.slot[c] != Slot.empty)
            return And(used, Or(s.first[b] & s.first[c], Not(s.first[b] | s.first[c])))

        return ForAll(Block, Block, lambda b, c: Implies(same(b, c), b == c))

    @m.lemma
    def a_promise_starts_after_the_local_prefix(s: State) -> Expr:
        """A lookup after one local block hits no first part."""
        return ForAll(Request, Block, lambda r, b: Implies(s.promise[r, b] & s.first[b], s.local[r] == 0))


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def two_requests_pin_one_block(s: State) -> Expr:
        return Exists(Block, lambda b: Count(Request, lambda r: s.pin[r, b]) >= 2)

    @m.goal
    def part_of_a_promise_is_loaded(s: State) -> Expr:
        return Exists(Request, lambda r: And(s.phase[r] == Phase.loading, s.compute[r] > 0, s.local[r] == 0))

    @m.goal
    def a_preempted_request_loads_again(s: State) -> Expr:
        return Exists(Request, lambda r: And(s.phase[r] == Phase.loading, s.gen[r] == 1))

    @m.goal
    def a_full_prompt_is_loaded_and_finished(s: State) -> Expr:
        return Exists(Request, lambda r: And(s.phase[r] == Phase.gone, s.external[r] == PROMPT))

    # How the machine may be changed without an invariant noticing, and why that is no hole.
    for mutant, why in (
        ("find_no_room: without guard*", "Finding no room changes nothing."),
        ("evict: first*", "The part of an empty block is not read; a store writes it."),
        (
            "submit: phase: as if always i0 == r",
            "Requests that arrive together are some that arrive in turn.",
        ),
        ("admit: phase: as if never accept == 0", "A load of no block lands and lets go of none."),
        ("admit: phase: running -> gone", "A request that runs may finish at once."),
        ("load_lands: phase: running -> gone", "A request that runs may finish at once."),
        (
            "preempt: without guard gen[r] == 0",
            "The generation only bounds how often a request is preempted.",
        ),
        (
            "preempt: gen: as if always i0 == r",
            "The generation names holders in traces and bounds the preemptions.",
        ),
        ("preempt: local*", "A local prefix of one block is what the next lookup may find as well."),
        (
            "abort: phase is not assigned",
            "An abort that the request outlives withdraws its promise, no more.",
        ),
    ):
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("lookup", doc=__doc__, faults=faults), Request, Block)
    declare_state(m)
    declare_tier(m)
    declare_lookup(m)
    declare_ends(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
