"""Stores and loads between streams and threads: which access of a slot happens before which.

The engine thread launches kernels on the compute stream and puts transfers into a queue. The copy thread
takes them out and launches the copies: stores on one stream, loads on another. Launching is not running: a
device runs the work of a stream in order, and that of two streams in any order that nothing forbids. What
forbids is

* the order of calls within a thread, and a launch, which comes before the work that it launches;
* the order within a stream;
* an event: its **record** stands for all work of a stream up to there, and a **wait** makes the later work of
  another stream come after it. A wait binds to the most recent record at the time of the call, and without
  any it does nothing;
* **synchronise** with an event, a stream or the device: the later calls of the thread come after that work;
* the queue: what its getter does later comes after what its putter did before;
* the **legacy default stream**: its work comes after all earlier and before all later work of the blocking
  streams. Compute is a blocking stream, the copy streams are not, as in PyTorch.

A copy is a read and a write. The write comes in stream order and after the read. The read does too if its
source access order is STREAM. With DURING_API_CALL it happens in the call, and with ANY at any time after the
call begins: the stream's earlier work and its waits do not order it, only the thread does.

The state is happens-before itself. For each **place** at which work goes on, be it a thread, a stream, a
recorded event or an item of the queue, it says which accesses are **unordered** with the next operation
there: they need not have happened by then. Of all accesses of a kind to a slot only the latest counts, since
each kind has one stream and so the latest ends last. A record copies such a set; a wait, a get and a
synchronise call leave what is unordered with both sides. No history is kept, so that what is proved holds for
any number of steps. Two accesses of a slot race if one of them writes and the earlier is unordered with the
later; the later one is judged when it is launched.
"""

from kvfence.spec.language import And, Elem, Exists, Expr, ForAll, If, Implies, IsIn, Machine, Not, Or, State
from kvfence.spec.machines.field_maps.stream_order import Events
from kvfence.spec.machines.lemmas import stream_order as stream_order_lemmas
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove
from kvfence.spec.machines.state.stream_order import (
    MEMORIES,
    USEFUL,
    Host,
    HostAccess,
    Op,
    Operation,
    Slot,
    Source,
    Streams,
    Use,
    in_transfer,
    launched,
)

ACCEPTED = (
    ("compute: use is not assigned", "A fresh slot that stays fresh can be used for less."),
    ("compute: without guard (use[x]*", "A kernel that writes a free slot takes it as an allocation does."),
    ("free: without guard (use[x]*", "A free slot stays free, and one that is loaded is in a transfer."),
    ("free_after_flush: without guard some*", "A flush is never too much before a slot is freed."),
    ("free_after_flush: use is not assigned", "A flush that frees nothing is a wait."),
    ("free_after_flush: use: free -> fresh", "A freed slot may be allocated again at once."),
    (
        "free_after_flush: use: as if always*",
        "With one host slot no load runs beside a store; a lemma sees two.",
    ),
    ("queue_store: state: queued -> taken", "The copy thread may take an operation at once."),
    ("launch_*: state: launched -> announced", "The engine thread may ask for the completion event at once."),
)
"""How the machine may be changed without an invariant noticing."""


def declare_kernels(m: Machine, at: Streams) -> None:
    """Declare what uses slots: kernels, allocation and frees."""
    Place, Access = at.Place, at.Access

    @m.action(x=Slot, event=lambda pre, post: [])
    def allocate(s: State, x: Elem) -> None:
        """The free slot x is given to a request that will compute it."""
        s.require(s.use[x] == Use.free)
        s.use[x] = Use.fresh

    @m.action(x=Slot, event=at.events.zero_fill)
    def zero_fill(s: State, x: Elem) -> None:
        """The fresh slot x is filled with zeros, by a kernel on the legacy default stream."""
        s.require(s.use[x] == Use.fresh)
        if at.events.fill_apart:
            at.launch_kernel(s, x, Access.zeroed, Place.fill)
        else:
            at.launch_kernel(s, x, Access.written)

    @m.action(x=Slot, event=at.events.compute)
    def compute(s: State, x: Elem) -> None:
        """A step writes slot x."""
        s.require(IsIn(s.use[x], Use.fresh, Use.used), Not(in_transfer(s, x)))
        s.use[x] = Use.used
        at.launch_kernel(s, x, Access.written)

    @m.action(x=Slot, event=at.events.attend)
    def attend(s: State, x: Elem) -> None:
        """A step reads slot x; a store may read it meanwhile."""
        s.require(s.use[x] == Use.used)
        at.launch_kernel(s, x, Access.read)

    @m.action(x=Slot, event=lambda pre, post: [])
    def free(s: State, x: Elem) -> None:
        """Slot x is freed: no transfer uses it, but kernels that do may not have run yet."""
        s.require(IsIn(s.use[x], Use.fresh, Use.used), Not(in_transfer(s, x)))
        s.use[x] = Use.free

    @m.action(x=Slot, event=at.events.flush)
    def free_after_flush(s: State, x: Elem) -> None:
        """Slot x is freed under a store: the engine thread has waited for the store stream.

        The store must have been launched by then: to wait for a stream is to wait for what is in it.
        """
        s.require(s.use[x] == Use.used, in_transfer(s, x))
        if not m.faulty("flush_misses_queued"):
            s.require(ForAll(Operation, lambda o: Implies(s.slot[o, x], s.state[o] == Op.announced)))
        at.comes_after(s, Place.engine, ("unordered", Place.store))
        s.use[x] = Use.free
        s.slot.update(lambda o, y: s.slot[o, y] & Not((y == x) & launched(s, o)))

    @m.action(event=at.events.wait_for_steps)
    def wait_for_steps(s: State) -> None:
        """The engine thread waits for the output of all steps launched so far."""
        at.comes_after(s, Place.engine, ("unordered", Place.compute))

    @m.action(event=at.events.synchronise_device)
    def synchronise_device(s: State) -> None:
        """The engine thread waits for all work launched so far."""
        for stream in (*at.kernel_streams, Place.store, Place.load):
            at.comes_after(s, Place.engine, ("unordered", stream))


def declare_queue(m: Machine, at: Streams) -> None:
    """Declare how the engine thread decides transfers, and the copy thread takes them."""
    Place = at.Place

    @m.action(x=Slot, h=Host, o=Operation, event=at.events.queue_store)
    def queue_store(s: State, x: Elem, h: Elem, o: Elem) -> None:
        """Slot x will be stored to host slot h, after the kernels launched so far."""
        s.require(s.state[o] == Op.idle, s.use[x] == Use.used, Not(in_transfer(s, x)))
        s.require(Not(Exists(Operation, lambda p: s.host[p, h])))
        at.queue(s, o, x, h, load=False)

    @m.action(x=Slot, h=Host, o=Operation, event=at.events.queue_load)
    def queue_load(s: State, x: Elem, h: Elem, o: Elem) -> None:
        """The free slot x will be loaded from host slot h, after the kernels of its previous owner."""
        s.require(s.state[o] == Op.idle, s.use[x] == Use.free)
        s.require(Not(Exists(Operation, lambda p: s.host[p, h] & Not(s.load[p]))))
        s.use[x] = Use.loading
        at.queue(s, o, x, h, load=True)

    @m.action(o=Operation, fair="weak", event=at.events.take)
    def take(s: State, o: Elem) -> None:
        """The copy thread takes operation o out of the queue."""
        s.require(s.state[o] == Op.queued)
        s.state[o] = Op.taken
        at.comes_after(s, Place.copier, ("item", o))
        at.forget(s, "item", o)

    @m.action(o=Operation, event=at.events.synchronise_with_barrier)
    def synchronise_with_barrier(s: State, o: Elem) -> None:
        """The copy thread itself waits for the barrier, which orders even a read out of stream order."""
        s.require(s.state[o] == Op.taken)
        s.require(Or(s.load[o], at.events.store_barrier), Or(Not(s.load[o]), at.events.load_barrier))
        s.state[o] = Op.synchronised
        at.comes_after(s, Place.copier, ("barrier", o))


def declare_launches(m: Machine, at: Streams) -> None:
    """Declare how the copy thread launches copies, and the engine thread finds them complete."""
    Place, Access = at.Place, at.Access

    @m.action(o=Operation, order=Source, fair="weak", event=at.events.launch_store)
    def launch_store(s: State, o: Elem, order: Expr) -> None:
        """The copy from device to host: in stream order, unless the thread itself waited for the barrier."""
        s.require(IsIn(s.state[o], Op.taken, Op.synchronised), Not(s.load[o]))
        orders = (Source.stream, Source.any) if m.faulty("barrier_with_any") else (Source.stream,)
        s.require(Or(IsIn(order, *orders), s.state[o] == Op.synchronised))
        if at.events.early_record:
            at.comes_after(s, Place.store, ("unordered", Place.step_begin))
        at.begin_launch(s, o, Place.store, waits=at.events.store_barrier)

        def early(x: Elem, kinds: tuple[Expr, ...]) -> Expr:
            return at.reader(order, Place.store, lambda p: Or(*(s.unordered[p, a, x] for a in kinds)))

        s.check(
            "STORE-READY",
            ForAll(Slot, lambda x: Not(s.slot[o, x] & early(x, at.kernel_writes))),
            "a store reads a slot after the last write of it",
        )
        s.check(
            "USE-READY",
            ForAll(Slot, lambda x: Not(s.slot[o, x] & early(x, (Access.loaded,)))),
            "a store reads a slot after its load has landed",
        )
        s.check(
            "FREEZE",
            ForAll(Host, lambda h: Not(s.host[o, h] & s.host_unordered[Place.store, HostAccess.fetched, h])),
            "a store writes a host slot after the last load from it",
        )
        during = order == Source.during_api_call
        at.access(s, "", Place.store, Access.stored, lambda x: s.slot[o, x], during=during)
        at.access(s, "host_", Place.store, HostAccess.kept, lambda h: s.host[o, h])
        at.end_launch(s, o, Place.store)

    @m.action(o=Operation, order=Source, fair="weak", event=at.events.launch_load)
    def launch_load(s: State, o: Elem, order: Expr) -> None:
        """The copy from host to device, in any order: its source was complete when it was queued."""
        s.require(IsIn(s.state[o], Op.taken, Op.synchronised), s.load[o])
        at.begin_launch(s, o, Place.load, waits=at.events.load_barrier)

        def unwritten(h: Elem) -> Expr:
            return at.reader(order, Place.load, lambda p: s.host_unordered[p, HostAccess.kept, h])

        def in_use(x: Elem, kinds: tuple[Expr, ...]) -> Expr:
            return s.slot[o, x] & Or(*(s.unordered[Place.load, a, x] for a in kinds))

        s.check(
            "USE-READY",
            ForAll(Host, lambda h: Not(s.host[o, h] & unwritten(h))),
            "a load reads a host slot after the store that wrote it",
        )
        s.check(
            "LOAD-ORDER",
            ForAll(Slot, lambda x: Not(in_use(x, (*at.kernel_writes, Access.read)))),
            "a load writes a slot after every earlier kernel that uses it, whoever owned it",
        )
        s.check(
            "FREEZE",
            ForAll(Slot, lambda x: Not(in_use(x, (Access.stored,)))),
            "a load writes a slot after its stores",
        )
        during = order == Source.during_api_call
        at.access(s, "host_", Place.load, HostAccess.fetched, lambda h: s.host[o, h], during=during)
        at.access(s, "", Place.load, Access.loaded, lambda x: s.slot[o, x])
        at.end_launch(s, o, Place.load)

    @m.action(o=Operation, fair="weak", event=at.events.hear_of_launch)
    def hear_of_launch(s: State, o: Elem) -> None:
        """The engine thread learns that the copy was launched, and can ask for its completion event."""
        s.require(s.state[o] == Op.launched)
        s.check("ONCE", s.state[o] == Op.launched, "a launch is heard of once")
        s.state[o] = Op.announced
        at.comes_after(s, Place.engine, ("item", o))
        at.forget(s, "item", o)

    @m.action(o=Operation, fair="weak", event=at.events.complete)
    def complete(s: State, o: Elem) -> None:
        """The engine thread finds the operation's completion event done: a loaded slot can be used."""
        s.require(s.state[o] == Op.announced)
        s.check("ONCE", s.state[o] == Op.announced, "a transfer is complete once, after its launch")
        at.comes_after(
            s, Place.engine, ("unordered", Place.compute) if at.events.wrong_stream else ("done", o)
        )
        at.forget(s, "done", o)
        s.use.update(lambda x: If(s.slot[o, x] & s.load[o], Use.used, s.use[x]))
        assign(s, o, state=Op.idle, load=False)
        remove(s, o, "slot", "host")


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies; races are checked in the steps."""

    @m.invariant("ONCE")
    def an_operation_has_a_host_slot_until_it_is_complete(s: State) -> Expr:
        def has_one(o: Elem) -> Expr:
            return Exists(Host, lambda h: s.host[o, h])

        return ForAll(Operation, lambda o: Implies(s.state[o] != Op.idle, has_one(o)))

    @m.invariant("USE-READY")
    def a_slot_is_loading_only_under_a_load(s: State) -> Expr:
        def under_load(x: Elem) -> Expr:
            return Exists(Operation, lambda o: s.load[o] & s.slot[o, x])

        return ForAll(Slot, lambda x: Implies(s.use[x] == Use.loading, under_load(x)))


def declare_goals(m: Machine, at: Streams) -> None:
    """Declare states that some run must reach."""
    Place, Access = at.Place, at.Access

    @m.goal
    def a_store_and_a_kernel_read_a_slot_at_the_same_time(s: State) -> Expr:
        """Reads need no order: neither stream has heard of the other's read."""
        return Exists(
            Slot,
            lambda x: s.unordered[Place.compute, Access.stored, x] & s.unordered[Place.store, Access.read, x],
        )

    @m.goal
    def a_load_may_find_the_previous_owners_kernel_still_running(s: State) -> Expr:
        """Only the barrier orders it: the engine thread has not waited for the kernel."""
        return Exists(
            Operation,
            Slot,
            lambda o, x: And(
                launched(s, o), s.load[o], s.slot[o, x], s.unordered[Place.engine, Access.written, x]
            ),
        )

    @m.goal
    def a_slot_has_a_new_owner_before_its_store_is_complete(s: State) -> Expr:
        """A flush has freed the slot, and the next owner has written it."""
        return Exists(
            Operation,
            lambda o: And(
                launched(s, o),
                Not(s.load[o]),
                ForAll(Slot, lambda x: Not(s.slot[o, x])),
                Exists(Slot, lambda x: s.unordered[Place.store, Access.written, x]),
            ),
        )

    @m.goal
    def a_store_reads_in_the_call_once_the_copy_thread_has_waited(s: State) -> Expr:
        """The copy thread is past the read, and the engine thread has not heard of it."""
        return Exists(
            Operation,
            Slot,
            lambda o, x: And(
                launched(s, o),
                Not(s.load[o]),
                s.slot[o, x],
                Not(s.unordered[Place.copier, Access.stored, x]),
                s.unordered[Place.engine, Access.stored, x],
            ),
        )


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("stream_order", doc=__doc__, faults=faults), Slot, Host, Operation)
    early_record = m.faulty("barrier_before_compute")
    no_store_barrier = m.faulty("store_without_barrier")
    at = Streams(
        Events(
            fill_apart=m.faulty("zero_fill_after_load"),
            early_record=early_record,
            store_barrier=not (no_store_barrier or early_record),
            load_barrier=not m.faulty("load_without_barrier"),
            event_reused=m.faulty("event_reused"),
            wrong_stream=m.faulty("completion_on_wrong_stream"),
        )
    )
    at.declare_state(m)
    declare_kernels(m, at)
    declare_queue(m, at)
    declare_launches(m, at)
    declare_invariants(m)
    stream_order_lemmas.declare(m, at)
    declare_goals(m, at)
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)
    m.ghost(
        *(memory + field for memory in MEMORIES for field in ("unordered", *USEFUL)),
        why="What happens before what is a fact about the device; the named designs leave edges out.",
    )
    return m
