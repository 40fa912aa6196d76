"""Why the stream order machine is free of races at any size: what its proofs need besides the checks.

Read in four parts: what is ordered by itself, what a slot's use and its transfers say of each other, what
the events of a transfer stand for, and what the engine thread comes after.
"""

from kvfence.spec.language import And, Elem, Exists, Expr, ForAll, Implies, IsIn, Machine, Not, Or, State
from kvfence.spec.machines.state.stream_order import (
    Host,
    HostAccess,
    Op,
    Operation,
    Slot,
    Streams,
    Use,
    launched,
)


def pending(s: State, o: Elem) -> Expr:
    """Whether the operation is queued or taken, and not launched yet."""
    return IsIn(s.state[o], Op.queued, Op.taken, Op.synchronised)


def stores(s: State, o: Elem, x: Elem) -> Expr:
    """Whether the operation stores the slot."""
    return s.slot[o, x] & Not(s.load[o])


def loads(s: State, o: Elem, x: Elem) -> Expr:
    """Whether the operation loads the slot."""
    return s.slot[o, x] & s.load[o]


def declare(m: Machine, at: Streams) -> None:
    """Add the lemmas to the machine; they are about the machine without faults."""
    _ordered_by_itself(m, at)
    _uses_and_transfers(m)
    _events_of_transfers(m, at)
    _seen_by_the_engine_thread(m, at)


def _ordered_by_itself(m: Machine, at: Streams) -> None:
    """Add what is ordered by itself."""
    Place, Access = at.Place, at.Access

    @m.lemma
    def each_stream_is_past_its_own_accesses(s: State) -> Expr:
        """A stream runs in order, and each kind of access has one stream."""

        def past(x: Elem) -> Expr:
            own = (
                (Place.compute, Access.written),
                (Place.compute, Access.read),
                (Place.store, Access.stored),
                (Place.load, Access.loaded),
            )
            return And(*(Not(s.unordered[p, a, x]) for p, a in own))

        def past_on_host(h: Elem) -> Expr:
            own = ((Place.store, HostAccess.kept), (Place.load, HostAccess.fetched))
            return And(*(Not(s.host_unordered[p, a, h]) for p, a in own))

        return ForAll(Slot, past) & ForAll(Host, past_on_host)

    @m.lemma
    def a_stream_comes_after_what_the_thread_has_seen_that_launches_on_it(s: State) -> Expr:
        """A launch comes before the work that it launches."""
        pairs = ((Place.engine, Place.compute), (Place.copier, Place.store), (Place.copier, Place.load))

        def after(thread: Expr, stream: Expr) -> Expr:
            device = ForAll(
                Access, Slot, lambda a, x: Implies(s.unordered[stream, a, x], s.unordered[thread, a, x])
            )
            host = ForAll(
                HostAccess,
                Host,
                lambda a, h: Implies(s.host_unordered[stream, a, h], s.host_unordered[thread, a, h]),
            )
            return device & host

        return And(*(after(thread, stream) for thread, stream in pairs))


def _uses_and_transfers(m: Machine) -> None:
    """Add what a slot's use and its transfers say of each other."""

    @m.lemma
    def an_idle_operation_is_blank(s: State) -> Expr:
        """Completion clears what an operation has."""

        def blank(o: Elem) -> Expr:
            return And(
                Not(s.load[o]),
                ForAll(Slot, lambda x: Not(s.slot[o, x])),
                ForAll(Host, lambda h: Not(s.host[o, h])),
            )

        return ForAll(Operation, lambda o: Implies(s.state[o] == Op.idle, blank(o)))

    @m.lemma
    def a_slot_has_one_transfer(s: State) -> Expr:
        """A transfer begins for a slot without any."""
        return ForAll(
            Operation, Operation, Slot, lambda o, p, x: Implies(s.slot[o, x] & s.slot[p, x], o == p)
        )

    @m.lemma
    def a_slot_that_is_loaded_has_no_owner_and_one_that_is_stored_has(s: State) -> Expr:
        """A load keeps the free slot that it took until it is complete, a store lets go when it is freed."""
        return ForAll(
            Operation,
            Slot,
            lambda o, x: And(
                Implies(loads(s, o, x), s.use[x] == Use.loading),
                Implies(stores(s, o, x), s.use[x] == Use.used),
            ),
        )

    @m.lemma
    def a_host_slot_that_is_written_has_one_transfer(s: State) -> Expr:
        """A store takes a host slot that no transfer uses, and a load none that is written."""
        return ForAll(
            Operation,
            Operation,
            Host,
            lambda o, p, h: Implies(And(s.host[o, h], s.host[p, h], Not(s.load[o])), o == p),
        )


def _events_of_transfers(m: Machine, at: Streams) -> None:
    """Add what the events of a transfer stand for."""
    Place, Access = at.Place, at.Access

    @m.lemma
    def a_pending_store_has_the_writes_of_its_slot_behind_its_barrier(s: State) -> Expr:
        """The barrier is recorded when the slot has been written, and the owner waits with more."""

        def ordered(o: Elem, x: Elem, a: Expr) -> Expr:
            thread = Implies(s.state[o] == Op.synchronised, Not(s.unordered[Place.copier, a, x]))
            return Not(s.barrier[o, a, x]) & thread

        return ForAll(
            Operation,
            Slot,
            lambda o, x: Implies(
                stores(s, o, x) & pending(s, o), ordered(o, x, Access.written) & ordered(o, x, Access.loaded)
            ),
        )

    @m.lemma
    def a_pending_load_has_every_access_of_its_slot_behind_its_barrier(s: State) -> Expr:
        """The slot is free when the barrier is recorded, its stores complete or flushed, and stays unused."""
        kinds = (Access.written, Access.read, Access.stored)
        return ForAll(
            Operation,
            Slot,
            lambda o, x: Implies(
                loads(s, o, x) & pending(s, o), Not(Or(*(s.barrier[o, a, x] for a in kinds)))
            ),
        )

    @m.lemma
    def completion_stands_for_the_copy(s: State) -> Expr:
        """It is recorded behind the copy, on its stream."""

        def copied(o: Elem, x: Elem) -> Expr:
            return And(
                Implies(stores(s, o, x), Not(s.done[o, Access.stored, x])),
                Implies(loads(s, o, x), Not(s.done[o, Access.loaded, x])),
            )

        def kept(o: Elem, h: Elem) -> Expr:
            return Implies(s.host[o, h] & Not(s.load[o]), Not(s.host_done[o, HostAccess.kept, h]))

        return And(
            ForAll(Operation, Slot, lambda o, x: Implies(launched(s, o), copied(o, x))),
            ForAll(Operation, Host, lambda o, h: Implies(launched(s, o), kept(o, h))),
        )


def _seen_by_the_engine_thread(m: Machine, at: Streams) -> None:
    """Add what the engine thread, and the getter of an item, come after."""
    Place, Access = at.Place, at.Access

    @m.lemma
    def the_engine_thread_has_seen_the_loads_of_what_it_uses(s: State) -> Expr:
        """A slot is used when its load is found complete."""
        return ForAll(
            Slot, lambda x: Implies(s.unordered[Place.engine, Access.loaded, x], s.use[x] == Use.loading)
        )

    @m.lemma
    def the_engine_thread_has_seen_all_stores_but_those_in_flight(s: State) -> Expr:
        """It frees a slot when its store is complete, or flushed."""

        def in_flight(x: Elem) -> Expr:
            return Exists(Operation, lambda o: stores(s, o, x) & launched(s, o))

        return ForAll(Slot, lambda x: Implies(s.unordered[Place.engine, Access.stored, x], in_flight(x)))

    @m.lemma
    def the_engine_thread_has_seen_host_slots_written_but_by_stores_in_flight(s: State) -> Expr:
        """A store holds its host slot until it is complete."""

        def in_flight(h: Elem) -> Expr:
            return Exists(Operation, lambda o: And(s.host[o, h], Not(s.load[o]), launched(s, o)))

        return ForAll(
            Host, lambda h: Implies(s.host_unordered[Place.engine, HostAccess.kept, h], in_flight(h))
        )

    @m.lemma
    def the_engine_thread_has_seen_host_slots_read_but_by_loads_in_flight(s: State) -> Expr:
        """Of the loads from a slot, the one that was launched last stands for all."""

        def in_flight(h: Elem) -> Expr:
            return Exists(
                Operation,
                lambda o: And(
                    s.host[o, h], s.load[o], launched(s, o), Not(s.host_done[o, HostAccess.fetched, h])
                ),
            )

        return ForAll(
            Host, lambda h: Implies(s.host_unordered[Place.engine, HostAccess.fetched, h], in_flight(h))
        )

    @m.lemma
    def a_pending_load_comes_after_the_store_of_its_host_slot(s: State) -> Expr:
        """The engine thread has seen the store complete, and so has the getter of the item."""

        def seen(o: Elem, h: Elem) -> Expr:
            taken = IsIn(s.state[o], Op.taken, Op.synchronised)
            return And(
                Implies(s.state[o] == Op.queued, Not(s.host_item[o, HostAccess.kept, h])),
                Implies(taken, Not(s.host_unordered[Place.copier, HostAccess.kept, h])),
            )

        return ForAll(Operation, Host, lambda o, h: Implies(s.host[o, h] & s.load[o], seen(o, h)))

    @m.lemma
    def a_pending_store_has_the_loads_from_its_host_slot_behind_its_barrier(s: State) -> Expr:
        """It is queued when they are complete, and none is added."""
        return ForAll(
            Operation,
            Host,
            lambda o, h: Implies(
                And(s.host[o, h], Not(s.load[o]), pending(s, o)),
                Not(s.host_barrier[o, HostAccess.fetched, h]),
            ),
        )
