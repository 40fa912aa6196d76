"""Happens-before as a state: places, accesses, and how what is unordered changes with each operation."""

from collections.abc import Callable

from kvfence.spec.language import And, Elem, Enum, Exists, Expr, If, IsIn, Machine, Not, Or, Sort, State
from kvfence.spec.machines.field_maps.stream_order import Events
from kvfence.spec.machines.state.relations import remove

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

Slot = Sort("Slot", 2, __name__)
Host = Sort("Host", 1, __name__)
Operation = Sort("Operation", 2, __name__)


def in_transfer(s: State, x: Elem) -> Expr:
    """Whether a transfer uses the slot."""
    return Exists(Operation, lambda o: s.slot[o, x])


def launched(s: State, o: Elem) -> Expr:
    """Whether the copy of the operation is launched."""
    return IsIn(s.state[o], Op.launched, Op.announced)


class Streams:
    """The places at which work goes on in a design, its kinds of accesses, and what orders them."""

    def __init__(self, events: Events) -> None:
        self.events = events
        # The legacy default stream and compute are ordered both ways, so one place stands for both.
        apart = (" fill" if events.fill_apart else "") + (" step_begin" if events.early_record else "")
        Place = self.Place = Enum("Place", "engine copier compute store load" + apart)
        self.kernel_streams = (Place.compute, *((Place.fill,) if events.fill_apart else ()))
        # Of a slot: the write of a kernel, the read of a kernel, the read of a store, the write of a load.
        kinds = "written read stored loaded" + (" zeroed" if events.fill_apart else "")
        Access = self.Access = Enum("Access", kinds)
        self.kernel_writes = (Access.written, *((Access.zeroed,) if events.fill_apart else ()))

    def declare_state(self, m: Machine) -> None:
        """Declare the fields, and the header of a path's trace."""
        m.function("use", Slot, value=Use, init=Use.free)
        m.function("state", Operation, value=Op, init=Op.idle)
        m.relation("load", Operation)
        m.relation("slot", Operation, Slot)  # the device side of the copy
        m.relation("host", Operation, Host)  # the host side of the copy

        # Whether the latest access of a kind is unordered with the next operation of a place, with what waits
        # for an operation's barrier or its completion event, or with what follows the get of its item.
        for memory, kinds, sort in (("", self.Access, Slot), ("host_", HostAccess, Host)):
            m.relation(memory + "unordered", self.Place, kinds, sort)
            for event in USEFUL:
                m.relation(memory + event, Operation, kinds, sort)
        m.header(self.events.header)

    def follows(self, p: Expr, place: Expr) -> Expr:
        """Whether p is ``place``, or a stream on which the thread ``place`` launches."""
        if place is self.Place.engine:
            return IsIn(p, self.Place.engine, *self.kernel_streams)
        if place is self.Place.copier:
            return IsIn(p, self.Place.copier, self.Place.store, self.Place.load)
        return p == place

    def comes_after(self, s: State, place: Expr, *sources: Origin) -> None:
        """The next operation of ``place`` comes after what came before these places and events."""
        for memory in MEMORIES:
            now = getattr(s, memory + "unordered")
            for name, at in sources:
                other = getattr(s, memory + name)
                now.update(
                    lambda p, a, x, now=now, other=other, at=at: And(
                        now[p, a, x], Or(Not(self.follows(p, place)), other[at, a, x])
                    )
                )

    def record(self, s: State, event: str, which: Callable[[Elem], Expr], place: Expr) -> None:
        """These operations' event, or item, stands for all that ``place`` did so far."""
        for memory in MEMORIES:
            field, now = getattr(s, memory + event), getattr(s, memory + "unordered")
            field.update(lambda p, a, x, field=field, now=now: If(which(p), now[place, a, x], field[p, a, x]))

    def forget(self, s: State, event: str, o: Elem) -> None:
        """Clear this event of the operation: nothing waits for it any more."""
        remove(s, o, *(memory + event for memory in MEMORIES))

    def access(
        self,
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
            return And(p != place, Or(Not(self.follows(p, self.Place.copier)), Not(during), now[p, a, x]))

        now.update(lambda p, a, x: If((a == kind) & of(x), missed(p, a, x), now[p, a, x]))
        for event, states in USEFUL.items():
            field = getattr(s, memory + event)
            field.update(
                lambda p, a, x, field=field, states=states: Or(
                    field[p, a, x], And(a == kind, of(x), IsIn(s.state[p], *states))
                )
            )

    def launch_kernel(self, s: State, x: Elem, kind: Expr, stream: Expr | None = None) -> None:
        """The engine thread launches a kernel that accesses slot x, on the compute stream by default."""
        stream = self.Place.compute if stream is None else stream
        if self.events.early_record and kind is not self.Access.read:
            self.comes_after(s, self.Place.step_begin, ("unordered", self.Place.compute))
        if self.events.fill_apart:
            other = self.Place.fill if stream is self.Place.compute else self.Place.compute
            self.comes_after(s, stream, ("unordered", other))
        loading, storing = (s.unordered[stream, a, x] for a in (self.Access.loaded, self.Access.stored))
        if kind is self.Access.read:
            s.check("USE-READY", Not(loading), "a kernel reads a slot after its load has landed")
        else:
            s.check("FREEZE", Not(loading | storing), "a kernel writes a slot after its loads and stores")
        self.access(s, "", stream, kind, lambda y: y == x)

    def queue(self, s: State, o: Elem, x: Elem, h: Elem, *, load: bool) -> None:
        """Operation o, idle until now, gets its barrier and is put into the queue."""
        s.state[o] = Op.queued
        s.load[o] = load
        s.slot[o, x] = True
        s.host[o, h] = True
        if self.events.load_barrier if load else self.events.store_barrier:
            self.record(s, "barrier", lambda p: p == o, self.Place.compute)
        self.record(s, "item", lambda p: p == o, self.Place.engine)

    def begin_launch(self, s: State, o: Elem, stream: Expr, *, waits: bool) -> None:
        """The copy thread makes the stream wait for the barrier, before it launches the copy."""
        has_it = IsIn(s.state[o], Op.taken, Op.synchronised)
        s.check("ONCE", has_it, "a copy is launched once, by the thread that took its operation")
        s.state[o] = Op.launched
        if waits:
            self.comes_after(s, stream, ("barrier", o))
        self.forget(s, "barrier", o)

    def end_launch(self, s: State, o: Elem, stream: Expr) -> None:
        """The completion event is recorded behind the copy, and the engine thread is told of the launch."""
        self.record(s, "done", lambda p: p == o, stream)
        self.record(s, "item", lambda p: p == o, self.Place.copier)
        if self.events.event_reused:
            self.record(s, "barrier", lambda p: IsIn(s.state[p], Op.queued, Op.taken), stream)

    def reader(self, order: Expr, stream: Expr, unordered: Callable[[Expr], Expr]) -> Expr:
        """``unordered`` with the source read of a copy: with the stream, or with the thread alone."""
        return If(order == Source.stream, unordered(stream), unordered(self.Place.copier))
