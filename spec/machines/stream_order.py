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

from __future__ import annotations

from collections.abc import Callable

from kvfence.spec.language import (
    And,
    Elem,
    Enum,
    Exists,
    Expr,
    ForAll,
    If,
    Implies,
    IsIn,
    Machine,
    Not,
    Or,
    State,
)
from kvfence.spec.machines.field_maps import stream_order as stream_order_events
from kvfence.spec.machines.lemmas import stream_order as stream_order_lemmas

Use = Enum("Use", "free fresh used loading")
Op = Enum("Op", "idle queued taken synchronised launched announced")
HostAccess = Enum("HostAccess", "kept fetched")  # of a host slot: the write of a store, the read of a load
Source = Enum("Source", "stream during_api_call any")  # source access order of a copy

MEMORIES = ("", "host_")  # the slots of the device, and those of pinned host memory
USEFUL = {  # the states of an operation in which somebody may still ask for its events and its item
    "barrier": (Op.queued, Op.taken, Op.synchronised),
    "item": (Op.queued, Op.launched),
    "done": (Op.launched, Op.announced),
}

Origin = tuple[str, Expr]
"""Where a place learns from: a field of the state, and the place or the operation there."""


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = Machine("stream_order", doc=__doc__, faults=faults)
    Slot = m.sort("Slot", default=2)
    Host = m.sort("Host", default=1)
    Operation = m.sort("Operation", default=2)

    fill_apart, early_record = m.faulty("zero_fill_after_load"), m.faulty("barrier_before_compute")
    no_store_barrier, no_load_barrier = m.faulty("store_without_barrier"), m.faulty("load_without_barrier")
    wrong_stream, event_reused = m.faulty("completion_on_wrong_stream"), m.faulty("event_reused")

    # The legacy default stream and compute are ordered both ways, so one place stands for both.
    apart = (" fill" if fill_apart else "") + (" step_begin" if early_record else "")
    Place = Enum("Place", "engine copier compute store load" + apart)
    kernel_streams = (Place.compute, *((Place.fill,) if fill_apart else ()))
    # Of a slot: the write of a kernel, the read of a kernel, the read of a store, the write of a load.
    Access = Enum("Access", "written read stored loaded" + (" zeroed" if fill_apart else ""))
    kernel_writes = (Access.written, *((Access.zeroed,) if fill_apart else ()))

    m.function("use", Slot, value=Use, init=Use.free)
    m.function("state", Operation, value=Op, init=Op.idle)
    m.relation("load", Operation, init=False)
    m.relation("slot", Operation, Slot, init=False)  # the device side of the copy
    m.relation("host", Operation, Host, init=False)  # the host side of the copy

    # Whether the latest access of a kind is unordered with the next operation of a place, with what waits for
    # an operation's barrier or its completion event, or with what follows the get of its item.
    for memory, kinds, sort in (("", Access, Slot), ("host_", HostAccess, Host)):
        m.relation(memory + "unordered", Place, kinds, sort, init=False)
        for event in USEFUL:
            m.relation(memory + event, Operation, kinds, sort, init=False)

    events = stream_order_events.Events(
        fill_apart=fill_apart,
        early_record=early_record,
        store_barrier=not (no_store_barrier or early_record),
        load_barrier=not no_load_barrier,
        event_reused=event_reused,
        wrong_stream=wrong_stream,
    )
    m.header(events.header)

    def follows(p: Expr, place: Expr) -> Expr:
        """Whether p is ``place``, or a stream on which the thread ``place`` launches."""
        if place is Place.engine:
            return IsIn(p, Place.engine, *kernel_streams)
        if place is Place.copier:
            return IsIn(p, Place.copier, Place.store, Place.load)
        return p == place

    def comes_after(s: State, place: Expr, *sources: Origin) -> None:
        """The next operation of ``place`` comes after what came before these places and events."""
        for memory in MEMORIES:
            now = getattr(s, memory + "unordered")
            for name, at in sources:
                other = getattr(s, memory + name)
                now.update(
                    lambda p, a, x, now=now, other=other, at=at: And(
                        now[p, a, x], Or(Not(follows(p, place)), other[at, a, x])
                    )
                )

    def record(s: State, event: str, which: Callable[[Elem], Expr], place: Expr) -> None:
        """These operations' event, or item, stands for all that ``place`` did so far."""
        for memory in MEMORIES:
            field, now = getattr(s, memory + event), getattr(s, memory + "unordered")
            field.update(lambda p, a, x, field=field, now=now: If(which(p), now[place, a, x], field[p, a, x]))

    def forget(s: State, event: str, o: Elem) -> None:
        """Nobody will ask for this event of the operation any more."""
        for memory in MEMORIES:
            field = getattr(s, memory + event)
            field.update(lambda p, a, x, field=field: field[p, a, x] & (p != o))

    def access(
        s: State,
        memory: str,
        place: Expr,
        kind: Expr,
        of: Callable[[Elem], Expr],
        *,
        during: Expr | bool = False,
    ) -> None:
        """A new access of ``place``: ordered with what follows there, and with nothing else so far.

        ``during``: it happens in the copy thread's call. The thread is then past it, unless it is not past
        an earlier one.
        """
        now = getattr(s, memory + "unordered")

        def missed(p: Expr, a: Expr, x: Elem) -> Expr:
            return And(p != place, Or(Not(follows(p, Place.copier)), Not(during), now[p, a, x]))

        now.update(lambda p, a, x: If((a == kind) & of(x), missed(p, a, x), now[p, a, x]))
        for event, states in USEFUL.items():
            field = getattr(s, memory + event)
            field.update(
                lambda p, a, x, field=field, states=states: Or(
                    field[p, a, x], And(a == kind, of(x), IsIn(s.state[p], *states))
                )
            )

    def in_transfer(s: State, x: Elem) -> Expr:
        return Exists(Operation, lambda o: s.slot[o, x])

    def launched(s: State, o: Elem) -> Expr:
        return IsIn(s.state[o], Op.launched, Op.announced)

    # Kernels.

    def launch_kernel(s: State, x: Elem, kind: Expr, stream: Expr = Place.compute) -> None:
        """The engine thread launches a kernel that accesses slot x."""
        if early_record and kind is not Access.read:
            comes_after(s, Place.step_begin, ("unordered", Place.compute))
        if fill_apart:
            other = Place.fill if stream is Place.compute else Place.compute
            comes_after(s, stream, ("unordered", other))
        loading, storing = s.unordered[stream, Access.loaded, x], s.unordered[stream, Access.stored, x]
        if kind is Access.read:
            s.check("USE-READY", Not(loading), "a kernel reads a slot after its load has landed")
        else:
            s.check("FREEZE", Not(loading | storing), "a kernel writes a slot after its loads and stores")
        access(s, "", stream, kind, lambda y: y == x)

    @m.action(x=Slot, event=lambda pre, post: [])
    def allocate(s: State, x: Elem) -> None:
        """The free slot x is given to a request that will compute it."""
        s.require(s.use[x] == Use.free)
        s.use[x] = Use.fresh

    @m.action(x=Slot, event=events.zero_fill)
    def zero_fill(s: State, x: Elem) -> None:
        """The fresh slot x is filled with zeros, by a kernel on the legacy default stream."""
        s.require(s.use[x] == Use.fresh)
        if fill_apart:
            launch_kernel(s, x, Access.zeroed, Place.fill)
        else:
            launch_kernel(s, x, Access.written)

    @m.action(x=Slot, event=events.compute)
    def compute(s: State, x: Elem) -> None:
        """A step writes slot x."""
        s.require(IsIn(s.use[x], Use.fresh, Use.used), Not(in_transfer(s, x)))
        s.use[x] = Use.used
        launch_kernel(s, x, Access.written)

    @m.action(x=Slot, event=events.attend)
    def attend(s: State, x: Elem) -> None:
        """A step reads slot x; a store may read it meanwhile."""
        s.require(s.use[x] == Use.used)
        launch_kernel(s, x, Access.read)

    @m.action(x=Slot, event=lambda pre, post: [])
    def free(s: State, x: Elem) -> None:
        """Slot x is freed: no transfer uses it, but kernels that do may not have run yet."""
        s.require(IsIn(s.use[x], Use.fresh, Use.used), Not(in_transfer(s, x)))
        s.use[x] = Use.free

    @m.action(x=Slot, event=events.flush)
    def free_after_flush(s: State, x: Elem) -> None:
        """Slot x is freed under a store: the engine thread has waited for the store stream.

        The store must have been launched by then: to wait for a stream is to wait for what is in it.
        """
        s.require(s.use[x] == Use.used, in_transfer(s, x))
        if not m.faulty("flush_misses_queued"):
            s.require(ForAll(Operation, lambda o: Implies(s.slot[o, x], s.state[o] == Op.announced)))
        comes_after(s, Place.engine, ("unordered", Place.store))
        s.use[x] = Use.free
        s.slot.update(lambda o, y: s.slot[o, y] & Not((y == x) & launched(s, o)))

    @m.action(event=events.wait_for_steps)
    def wait_for_steps(s: State) -> None:
        """The engine thread waits for the output of all steps launched so far."""
        comes_after(s, Place.engine, ("unordered", Place.compute))

    @m.action(event=events.synchronise_device)
    def synchronise_device(s: State) -> None:
        """The engine thread waits for all work launched so far."""
        for stream in (*kernel_streams, Place.store, Place.load):
            comes_after(s, Place.engine, ("unordered", stream))

    # Transfers: decided by the engine thread, launched by the copy thread.

    def queue(s: State, o: Elem, x: Elem, h: Elem, *, load: bool) -> None:
        """Operation o, idle until now, gets its barrier and is put into the queue."""
        s.state[o] = Op.queued
        s.load[o] = load
        s.slot[o, x] = True
        s.host[o, h] = True
        if events.load_barrier if load else events.store_barrier:
            record(s, "barrier", lambda p: p == o, Place.compute)
        record(s, "item", lambda p: p == o, Place.engine)

    @m.action(x=Slot, h=Host, o=Operation, event=events.queue_store)
    def queue_store(s: State, x: Elem, h: Elem, o: Elem) -> None:
        """Slot x will be stored to host slot h, after the kernels launched so far."""
        s.require(s.state[o] == Op.idle, s.use[x] == Use.used, Not(in_transfer(s, x)))
        s.require(Not(Exists(Operation, lambda p: s.host[p, h])))
        queue(s, o, x, h, load=False)

    @m.action(x=Slot, h=Host, o=Operation, event=events.queue_load)
    def queue_load(s: State, x: Elem, h: Elem, o: Elem) -> None:
        """The free slot x will be loaded from host slot h, after the kernels of its previous owner."""
        s.require(s.state[o] == Op.idle, s.use[x] == Use.free)
        s.require(Not(Exists(Operation, lambda p: s.host[p, h] & Not(s.load[p]))))
        s.use[x] = Use.loading
        queue(s, o, x, h, load=True)

    @m.action(o=Operation, fair="weak", event=events.take)
    def take(s: State, o: Elem) -> None:
        """The copy thread takes operation o out of the queue."""
        s.require(s.state[o] == Op.queued)
        s.state[o] = Op.taken
        comes_after(s, Place.copier, ("item", o))
        forget(s, "item", o)

    @m.action(o=Operation, event=events.synchronise_with_barrier)
    def synchronise_with_barrier(s: State, o: Elem) -> None:
        """The copy thread itself waits for the barrier, which orders even a read out of stream order."""
        s.require(s.state[o] == Op.taken)
        s.require(Or(s.load[o], events.store_barrier), Or(Not(s.load[o]), events.load_barrier))
        s.state[o] = Op.synchronised
        comes_after(s, Place.copier, ("barrier", o))

    def begin_launch(s: State, o: Elem, stream: Expr, *, waits: bool) -> None:
        """The copy thread makes the stream wait for the barrier, before it launches the copy."""
        has_it = IsIn(s.state[o], Op.taken, Op.synchronised)
        s.check("ONCE", has_it, "a copy is launched once, by the thread that took its operation")
        s.state[o] = Op.launched
        if waits:
            comes_after(s, stream, ("barrier", o))
        forget(s, "barrier", o)

    def end_launch(s: State, o: Elem, stream: Expr) -> None:
        """The completion event is recorded behind the copy, and the engine thread is told of the launch."""
        record(s, "done", lambda p: p == o, stream)
        record(s, "item", lambda p: p == o, Place.copier)
        if event_reused:
            record(s, "barrier", lambda p: IsIn(s.state[p], Op.queued, Op.taken), stream)

    def reader(order: Expr, stream: Expr, unordered: Callable[[Expr], Expr]) -> Expr:
        """``unordered`` with the source read of a copy: with the stream, or with the thread alone."""
        return If(order == Source.stream, unordered(stream), unordered(Place.copier))

    @m.action(o=Operation, order=Source, fair="weak", event=events.launch_store)
    def launch_store(s: State, o: Elem, order: Expr) -> None:
        """The copy from device to host: in stream order, unless the thread itself waited for the barrier."""
        s.require(IsIn(s.state[o], Op.taken, Op.synchronised), Not(s.load[o]))
        orders = (Source.stream, Source.any) if m.faulty("barrier_with_any") else (Source.stream,)
        s.require(Or(IsIn(order, *orders), s.state[o] == Op.synchronised))
        if early_record:
            comes_after(s, Place.store, ("unordered", Place.step_begin))
        begin_launch(s, o, Place.store, waits=events.store_barrier)

        def early(x: Elem, kinds: tuple[Expr, ...]) -> Expr:
            return reader(order, Place.store, lambda p: Or(*(s.unordered[p, a, x] for a in kinds)))

        s.check(
            "STORE-READY",
            ForAll(Slot, lambda x: Not(s.slot[o, x] & early(x, kernel_writes))),
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
        access(s, "", Place.store, Access.stored, lambda x: s.slot[o, x], during=during)
        access(s, "host_", Place.store, HostAccess.kept, lambda h: s.host[o, h])
        end_launch(s, o, Place.store)

    @m.action(o=Operation, order=Source, fair="weak", event=events.launch_load)
    def launch_load(s: State, o: Elem, order: Expr) -> None:
        """The copy from host to device, in any order: its source was complete when it was queued."""
        s.require(IsIn(s.state[o], Op.taken, Op.synchronised), s.load[o])
        begin_launch(s, o, Place.load, waits=events.load_barrier)

        def unwritten(h: Elem) -> Expr:
            return reader(order, Place.load, lambda p: s.host_unordered[p, HostAccess.kept, h])

        def in_use(x: Elem, kinds: tuple[Expr, ...]) -> Expr:
            return s.slot[o, x] & Or(*(s.unordered[Place.load, a, x] for a in kinds))

        s.check(
            "USE-READY",
            ForAll(Host, lambda h: Not(s.host[o, h] & unwritten(h))),
            "a load reads a host slot after the store that wrote it",
        )
        s.check(
            "LOAD-ORDER",
            ForAll(Slot, lambda x: Not(in_use(x, (*kernel_writes, Access.read)))),
            "a load writes a slot after every earlier kernel that uses it, whoever owned it",
        )
        s.check(
            "FREEZE",
            ForAll(Slot, lambda x: Not(in_use(x, (Access.stored,)))),
            "a load writes a slot after its stores",
        )
        during = order == Source.during_api_call
        access(s, "host_", Place.load, HostAccess.fetched, lambda h: s.host[o, h], during=during)
        access(s, "", Place.load, Access.loaded, lambda x: s.slot[o, x])
        end_launch(s, o, Place.load)

    @m.action(o=Operation, fair="weak", event=events.hear_of_launch)
    def hear_of_launch(s: State, o: Elem) -> None:
        """The engine thread learns that the copy was launched, and can ask for its completion event."""
        s.require(s.state[o] == Op.launched)
        s.check("ONCE", s.state[o] == Op.launched, "a launch is heard of once")
        s.state[o] = Op.announced
        comes_after(s, Place.engine, ("item", o))
        forget(s, "item", o)

    @m.action(o=Operation, fair="weak", event=events.complete)
    def complete(s: State, o: Elem) -> None:
        """The engine thread finds the operation's completion event done: a loaded slot can be used."""
        s.require(s.state[o] == Op.announced)
        s.check("ONCE", s.state[o] == Op.announced, "a transfer is complete once, after its launch")
        comes_after(s, Place.engine, ("unordered", Place.compute) if wrong_stream else ("done", o))
        forget(s, "done", o)
        s.use.update(lambda x: If(s.slot[o, x] & s.load[o], Use.used, s.use[x]))
        s.state[o] = Op.idle
        s.load[o] = False
        s.slot.update(lambda p, x: s.slot[p, x] & (p != o))
        s.host.update(lambda p, h: s.host[p, h] & (p != o))

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

    stream_order_lemmas.declare(m, Place, Access, HostAccess, Use, Op)

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

    # How the machine may be changed without an invariant noticing, and why that is no hole.
    for mutant, why in (
        ("compute: use is not assigned", "A fresh slot that stays fresh can be used for less."),
        (
            "compute: without guard (use[x]*",
            "A kernel that writes a free slot takes it as an allocation does.",
        ),
        ("free: without guard (use[x]*", "A free slot stays free, and one that is loaded is in a transfer."),
        ("free_after_flush: without guard some*", "A flush is never too much before a slot is freed."),
        ("free_after_flush: use is not assigned", "A flush that frees nothing is a wait."),
        ("free_after_flush: use: free -> fresh", "A freed slot may be allocated again at once."),
        (
            "free_after_flush: use: as if always*",
            "With one host slot no load runs beside a store; a lemma sees two.",
        ),
        ("queue_store: state: queued -> taken", "The copy thread may take an operation at once."),
        (
            "launch_*: state: launched -> announced",
            "The engine thread may ask for the completion event at once.",
        ),
    ):
        m.accept_mutant(mutant, why)
    m.ghost(
        *(memory + field for memory in MEMORIES for field in ("unordered", *USEFUL)),
        why="What happens before what is a fact about the device; the named designs leave edges out.",
    )
    return m
