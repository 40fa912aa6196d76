"""One operation on all ranks: reserved, committed or aborted, done, and reported by each of them.

The leader, the scheduler side, wants an operation done by all ranks, for instance a store of a block of which
each rank has a part.

1. It **asks** all ranks to set aside what the operation needs. A rank **reserves**, or **refuses**: it has
   room for one operation at a time.
2. When all have reserved, the leader **commits**; when one has refused, or it has waited long enough, it
   **aborts**. Ranks hear of the decision at times of their own, and only then begin or let go.
3. A rank **reports** the end of its copy, once, as a success or as a failure. Reports may be late, and a
   report may be repeated and arrive again, even during the id's next use.
4. The leader counts down the reports that are **awaited**. At zero the operation is complete: what was stored
   can be found if no rank failed, and else nothing of it is kept.

The source is held by its owner, who lets go of it when no rank copies from it any more: giving a source up
before means to wait for all ranks (a flush).

The leader's decision and a report that is sent a second time are no events of a trace: these steps are
internal. An aborted rank reports that it has not done its part.
"""

from kvfence.spec import events as ev
from kvfence.spec.language import Enum, Int, Machine, Sort, State, View
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, If, Implies, IsIn, Not, Or
from kvfence.spec.machines.accepted import ranks as ranks_accepted
from kvfence.spec.machines.lemmas import ranks as ranks_lemmas
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

Leader = Enum("Leader", "idle asking committed aborting")
Part = Enum("Part", "none reserved refused aborted copying done broken")

BEGUN = (Part.copying, Part.done, Part.broken)  # a rank that has heard of the commit
ROOM = (Part.reserved, Part.copying)  # a rank's room for one operation is taken
USES = 2
ANSWERS_ONCE = "a rank answers once"


class Names:
    """What a state is called in traces: operation o copies slot o of one pool to slot o of the other."""

    def __init__(self, view: View) -> None:
        self.view = view

    def gen(self, o: int) -> int:
        """Generation of the operation's current or last use."""
        return int(self.view.uses[o]) - 1

    def op(self, o: int) -> str:
        """Holder of the operation's destination."""
        return f"op:{o}.{self.gen(o)}"

    def owner(self, o: int) -> str:
        """Holder of the operation's source."""
        return f"owner:{o}.0"


Operation = Sort("Operation", 2, __name__)
Rank = Sort("Rank", 2, __name__)


def all_parts(s: State, o: Elem, *parts: Expr) -> Expr:
    """Whether the part of every rank in the operation is one of these."""
    return ForAll(Rank, lambda k: IsIn(s.part[o, k], *parts))


def all_reported(s: State, o: Elem) -> Expr:
    """Whether every rank has reported the operation."""
    return ForAll(Rank, lambda k: s.reported[o, k])


def clear(s: State, o: Elem) -> None:
    """The operation is over, and its id may be used again."""
    assign(s, o, leader=Leader.idle, failed=False)
    remove(s, o, "reported")


def forget_parts(s: State, o: Elem) -> None:
    """Clear what the ranks did for the operation."""
    s.part.update(lambda p, k: If(p == o, Part.none, s.part[p, k]))


def decide(s: State, o: Elem, decision: Expr) -> None:
    """Decide the operation, which must be undecided."""
    s.check("RANKS", s.leader[o] == Leader.asking, "an operation is decided once, and for all ranks")
    s.leader[o] = decision


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("leader", Operation, value=Leader, init=Leader.idle)
    m.function("uses", Operation, value=Int(0, USES), init=0)
    m.relation("owned", Operation, init=False)  # somebody holds the source
    m.relation("failed", Operation, init=False)  # a failure was reported
    m.relation("found", Operation, init=False)  # what was stored can be found
    m.function("awaited", Operation, value=Int(0, lambda sizes: sizes["Rank"]), init=0)
    m.function("part", Operation, Rank, value=Part, init=Part.none)
    m.relation("reported", Operation, Rank, init=False)
    m.function(
        "repeats", Operation, Rank, value=Int(0, USES), init=0
    )  # the use that a report on its way repeats

    m.liveness_sizes(Operation=2, Rank=2)

    if m.faulty("dropped_leader_slot"):
        m.relation("dropped", Operation, init=False)

    m.header(
        lambda sizes: ev.Header(
            producer="kvfence machine ranks",
            pools=(ev.Pool("gpu", sizes["Operation"]), ev.Pool("cpu", sizes["Operation"])),
            ranks=sizes["Rank"],
        )
    )


def declare_owner(m: Machine) -> None:
    """Declare the owner of the source."""

    @m.action(o=Operation, event=lambda pre, post, o: [ev.Alloc("gpu", Names(pre).owner(o), [o])])
    def own(s: State, o: Elem) -> None:
        """Somebody holds the source, and writes what will be stored."""
        s.require(Not(s.owned[o]))
        s.owned[o] = True

    @m.action(o=Operation, event=lambda pre, post, o: [ev.Free("gpu", Names(pre).owner(o), [o])])
    def let_go(s: State, o: Elem) -> None:
        """The owner lets go of the source, after a flush of all ranks: no operation uses it."""
        s.require(s.owned[o])
        if m.faulty("noop_flush_on_one_rank"):
            # one rank answers at once, whatever it is doing; the others wait for the ends of their copies
            over = Exists(
                Rank, lambda j: ForAll(Rank, lambda k: Or(k == j, IsIn(s.part[o, k], Part.done, Part.broken)))
            )
            s.require(Or(s.leader[o] == Leader.idle, And(s.leader[o] == Leader.committed, over)))
        else:
            s.require(s.leader[o] == Leader.idle)
        s.check("FREEZE", s.leader[o] == Leader.idle, "the source of an open operation is held")
        s.check(
            "RANKS",
            ForAll(Rank, lambda k: Not(IsIn(s.part[o, k], *ROOM))),
            "all ranks are past their copies when the source is let go",
        )
        s.owned[o] = False


def ask_events(pre: View, post: View, o: int) -> list[ev.Event]:
    """Queue and issue the operation."""
    now, gen = Names(post), Names(post).gen(o)
    return [
        ev.Alloc("cpu", now.op(o), [o]),
        ev.Queue(o, gen, "store", "gpu", [o], "cpu", [o], [1 + o]),
        ev.Issue(o, gen),
    ]


def abort_events(pre: View, post: View, o: int, k: int) -> list[ev.Event]:
    """Rank k hears of the abort, and reports that it did nothing."""
    gen = Names(pre).gen(o)
    return [ev.Decide(o, gen, k, "abort"), ev.Report(o, gen, k, ok=False)]


def complete_events(pre: View, post: View, o: int) -> list[ev.Event]:
    """End the operation; what is found on all ranks gets its key."""
    was, gen = Names(pre), Names(pre).gen(o)
    found = post.found[o] and not pre.found[o]
    return [
        ev.Complete(o, gen, ok=bool(found)),
        *([ev.Label("cpu", [o], [1 + o], op=o, gen=gen)] if found else []),
        ev.Free("cpu", was.op(o), [o]),
    ]


def declare_decision(m: Machine) -> None:
    """Declare how ranks reserve, and the leader commits or aborts."""

    @m.action(o=Operation, event=ask_events)
    def ask(s: State, o: Elem) -> None:
        """The leader asks all ranks to reserve what the operation needs."""
        s.require(s.leader[o] == Leader.idle, s.owned[o], Not(s.found[o]), s.uses[o] < USES)
        s.check("ONCE", all_parts(s, o, Part.none), "an id is used again when all ranks are done with it")
        s.leader[o] = Leader.asking
        s.uses[o] = s.uses[o] + 1
        s.awaited[o] = Count(Rank, lambda k: Not(s.reported[o, k]))

    @m.action(
        o=Operation, k=Rank, fair="weak", event=lambda pre, post, o, k: [ev.Reserve(o, Names(pre).gen(o), k)]
    )
    def reserve(s: State, o: Elem, k: Elem) -> None:
        """Rank k has room and sets it aside."""
        s.require(s.leader[o] == Leader.asking, s.part[o, k] == Part.none)
        s.require(ForAll(Operation, lambda p: Not(IsIn(s.part[p, k], *ROOM))))
        s.check("ONCE", s.part[o, k] == Part.none, ANSWERS_ONCE)
        s.part[o, k] = Part.reserved

    @m.action(
        o=Operation,
        k=Rank,
        fair="weak",
        event=lambda pre, post, o, k: [ev.Reserve(o, Names(pre).gen(o), k, ok=False)],
    )
    def refuse(s: State, o: Elem, k: Elem) -> None:
        """Rank k has no room, or some other reason."""
        s.require(s.leader[o] == Leader.asking, s.part[o, k] == Part.none)
        s.check("ONCE", s.part[o, k] == Part.none, ANSWERS_ONCE)
        s.part[o, k] = Part.refused

    @m.action(o=Operation, fair="weak", event=lambda pre, post: [])
    def commit(s: State, o: Elem) -> None:
        """All ranks have reserved: the operation will be done, and all will hear of it."""
        s.require(s.leader[o] == Leader.asking, all_parts(s, o, Part.reserved))
        decide(s, o, Leader.committed)

    @m.action(o=Operation, fair="weak", event=lambda pre, post: [])
    def abort(s: State, o: Elem) -> None:
        """A rank has refused: no rank will do it."""
        s.require(s.leader[o] == Leader.asking, Exists(Rank, lambda k: s.part[o, k] == Part.refused))
        decide(s, o, Leader.aborting)

    @m.action(o=Operation, event=lambda pre, post: [])
    def give_up(s: State, o: Elem) -> None:
        """An answer is late, or the request is gone: no rank will do it."""
        s.require(s.leader[o] == Leader.asking)
        decide(s, o, Leader.aborting)

    @m.action(o=Operation, k=Rank, fair="weak", event=abort_events)
    def hear_of_abort(s: State, o: Elem, k: Elem) -> None:
        """Rank k lets go of what it has set aside."""
        s.require(s.leader[o] == Leader.aborting, IsIn(s.part[o, k], Part.none, Part.reserved, Part.refused))
        s.part[o, k] = Part.aborted

    @m.action(o=Operation, fair="weak", event=complete_events)
    def end_abort(s: State, o: Elem) -> None:
        """All ranks have let go."""
        s.require(s.leader[o] == Leader.aborting, all_parts(s, o, Part.aborted))
        s.check("RANKS", all_parts(s, o, Part.aborted), "an abort is over when all ranks have let go")
        forget_parts(s, o)
        clear(s, o)


def begin_events(pre: View, post: View, o: int, k: int) -> list[ev.Event]:
    """Rank k hears of the commit."""
    return [ev.Decide(o, Names(pre).gen(o), k, "commit")]


def count(s: State, o: Elem, k: Elem) -> None:
    """Rank k's report is counted."""
    awaited = And(s.leader[o] != Leader.idle, Not(s.reported[o, k]))
    s.check("ONCE", awaited, "a rank reports an open operation once")
    s.reported[o, k] = True
    s.awaited[o] = s.awaited[o] - 1


def late_events(pre: View, post: View, o: int, k: int) -> list[ev.Event]:
    """A repeated report is stale, unless the design counts it."""
    counted = post.awaited[o] < pre.awaited[o]
    gen = int(pre.repeats[o, k]) - 1
    return [ev.Report(o, gen, k) if counted else ev.Stale(o, gen, k)]


def declare_copies(m: Machine) -> None:
    """Declare copies and reports."""

    @m.action(o=Operation, k=Rank, fair="weak", event=begin_events)
    def begin_copy(s: State, o: Elem, k: Elem) -> None:
        """Rank k hears of the commit and begins its copy."""
        s.require(s.leader[o] == Leader.committed, s.part[o, k] == Part.reserved)
        s.part[o, k] = Part.copying

    if m.faulty("decide_alone"):

        @m.action(o=Operation, k=Rank, event=begin_events)
        def decide_alone(s: State, o: Elem, k: Elem) -> None:
            """Rank k knows that all have reserved, and takes the unheard decision for a commit."""
            s.require(s.leader[o] == Leader.aborting, s.part[o, k] == Part.reserved)
            s.require(all_parts(s, o, Part.reserved, Part.aborted))
            s.part[o, k] = Part.copying

    @m.action(
        o=Operation, k=Rank, fair="weak", event=lambda pre, post, o, k: [ev.Report(o, Names(pre).gen(o), k)]
    )
    def report(s: State, o: Elem, k: Elem) -> None:
        """Rank k's copy is over, and its report is counted."""
        s.require(s.part[o, k] == Part.copying)
        if m.faulty("dropped_leader_slot"):
            s.require(Not(s.dropped[o]))
        s.part[o, k] = Part.done
        count(s, o, k)

    @m.action(
        o=Operation,
        k=Rank,
        event=lambda pre, post, o, k: [ev.Report(o, Names(pre).gen(o), k, ok=not post.failed[o])],
    )
    def report_failure(s: State, o: Elem, k: Elem) -> None:
        """Rank k's copy has failed, and its report is counted."""
        s.require(s.part[o, k] == Part.copying)
        s.part[o, k] = Part.broken
        if not m.faulty("failure_after_completion"):
            s.failed[o] = True
        count(s, o, k)

    if m.faulty("failure_after_completion"):

        @m.action(
            o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Failed(o, Names(pre).gen(o), k, [o])]
        )
        def hear_of_failure(s: State, o: Elem, k: Elem) -> None:
            """That rank k's copy has failed is told by a message of its own."""
            s.require(s.part[o, k] == Part.broken, Not(s.failed[o]))
            s.check(
                "FAIL-CLOSED", Not(s.reported[o, k]), "a failure is told no later than the end of the copy"
            )
            s.failed[o] = s.leader[o] == Leader.committed

    @m.action(o=Operation, k=Rank, event=lambda pre, post: [])
    def repeat(s: State, o: Elem, k: Elem) -> None:
        """Rank k's report is sent a second time; it has not arrived yet."""
        s.require(s.reported[o, k], s.repeats[o, k] == 0)
        s.repeats[o, k] = s.uses[o]

    @m.action(o=Operation, k=Rank, event=late_events)
    def repeated_report(s: State, o: Elem, k: Elem) -> None:
        """The repeated report arrives. It is not counted: the rank has reported, or the use is another."""
        s.require(s.repeats[o, k] > 0)
        if m.faulty("repeat_counts"):
            taken = And(s.leader[o] == Leader.committed, s.awaited[o] > 0, s.repeats[o, k] == s.uses[o])
            s.check("ONCE", Not(taken), "a repeated report counts for no other rank")
            s.awaited[o] = If(taken, s.awaited[o] - 1, s.awaited[o])
        s.repeats[o, k] = 0

    if m.faulty("dropped_leader_slot"):

        @m.action(o=Operation, event=lambda pre, post: [])
        def drop_record(s: State, o: Elem) -> None:
            """The request is done, and the leader drops its record of the operation with it."""
            s.require(s.leader[o] == Leader.committed)
            s.dropped[o] = True

        @m.action(o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Stale(o, Names(pre).gen(o), k)])
        def ignore_report(s: State, o: Elem, k: Elem) -> None:
            """Rank k's report finds no record."""
            s.require(s.part[o, k] == Part.copying, s.dropped[o])
            s.check("ONCE", Not(s.dropped[o]), "every report of an open operation is counted")
            s.part[o, k] = Part.done


def declare_completion(m: Machine) -> None:
    """Declare the end of an operation, and of what it stored."""

    def is_complete(s: State, o: Elem) -> None:
        s.require(s.leader[o] == Leader.committed)
        if m.faulty("one_rank_enough"):
            s.require(Exists(Rank, lambda k: s.reported[o, k]))
        else:
            s.require(s.awaited[o] == 0)
        s.check("RANKS", all_reported(s, o), "an operation is complete when every rank has reported")

    @m.action(o=Operation, fair="weak", event=complete_events)
    def complete(s: State, o: Elem) -> None:
        """All ranks have reported success: what was stored can be found."""
        is_complete(s, o)
        s.require(Not(s.failed[o]))
        broken = Exists(Rank, lambda k: s.part[o, k] == Part.broken)
        s.check("FAIL-CLOSED", Not(broken), "a failure is known no later than the completion")
        s.found[o] = True
        clear(s, o)

    @m.action(o=Operation, fair="weak", event=complete_events)
    def complete_failed(s: State, o: Elem) -> None:
        """All ranks have reported, some of them a failure: nothing of it is kept."""
        is_complete(s, o)
        s.require(s.failed[o])
        forget_parts(s, o)
        clear(s, o)

    @m.action(o=Operation, event=lambda pre, post, o: [ev.Evict("cpu", [o])])
    def evict(s: State, o: Elem) -> None:
        """What was stored is dropped, on all ranks."""
        s.require(s.found[o])
        s.found[o] = False
        forget_parts(s, o)


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("RANKS")
    def no_rank_begins_what_another_has_not_reserved_or_aborts(s: State) -> Expr:
        def both(o: Elem, j: Elem, k: Elem) -> Expr:
            return Implies(IsIn(s.part[o, j], *BEGUN), IsIn(s.part[o, k], Part.reserved, *BEGUN))

        return ForAll(Operation, Rank, Rank, both)

    @m.invariant("RANKS")
    def as_many_reports_are_awaited_as_ranks_have_not_reported(s: State) -> Expr:
        def right(o: Elem) -> Expr:
            return s.awaited[o] == Count(Rank, lambda k: Not(s.reported[o, k]))

        return ForAll(Operation, lambda o: Implies(s.leader[o] != Leader.idle, right(o)))

    @m.invariant("RANKS")
    def what_can_be_found_is_on_all_ranks(s: State) -> Expr:
        return ForAll(Operation, Rank, lambda o, k: Implies(s.found[o], s.part[o, k] == Part.done))

    @m.invariant("ONCE")
    def only_an_open_operation_is_reported(s: State) -> Expr:
        return ForAll(Operation, Rank, lambda o, k: Implies(s.reported[o, k], s.leader[o] != Leader.idle))

    @m.invariant("ONCE")
    def a_rank_has_reported_when_its_copy_is_over(s: State) -> Expr:
        def over(o: Elem, k: Elem) -> Expr:
            return And(s.leader[o] == Leader.committed, IsIn(s.part[o, k], Part.done, Part.broken))

        return ForAll(Operation, Rank, lambda o, k: Implies(over(o, k), s.reported[o, k]))

    @m.invariant("FREEZE")
    def a_source_is_held_until_all_ranks_are_done(s: State) -> Expr:
        return ForAll(Operation, lambda o: Implies(s.leader[o] != Leader.idle, s.owned[o]))

    @m.invariant("CONSERVE")
    def a_rank_has_room_for_one_operation(s: State) -> Expr:
        def takes_room(o: Elem, k: Elem) -> Expr:
            return IsIn(s.part[o, k], *ROOM)

        return ForAll(
            Operation, Operation, Rank, lambda o, p, k: Implies(takes_room(o, k) & takes_room(p, k), o == p)
        )

    @m.invariant("NO-LEAK")
    def a_rank_keeps_nothing_of_an_operation_that_is_over(s: State) -> Expr:
        def over(o: Elem) -> Expr:
            return And(s.leader[o] == Leader.idle, Not(s.found[o]))

        return ForAll(Operation, Rank, lambda o, k: Implies(over(o), s.part[o, k] == Part.none))

    ranks_lemmas.declare(m, Leader, Part)
    ranks_accepted.declare(m)


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and that every operation ends."""

    @m.goal
    def a_rank_reports_while_another_has_not_begun(s: State) -> Expr:
        return Exists(
            Operation, Rank, Rank, lambda o, j, k: And(s.reported[o, j], s.part[o, k] == Part.reserved)
        )

    @m.goal
    def a_rank_has_let_go_while_another_holds_on(s: State) -> Expr:
        return Exists(
            Operation,
            Rank,
            Rank,
            lambda o, j, k: And(s.part[o, j] == Part.aborted, s.part[o, k] == Part.reserved),
        )

    @m.goal
    def two_operations_have_reserved_on_some_ranks_each(s: State) -> Expr:
        def on_some(o: Elem) -> Expr:
            return Exists(Rank, lambda k: s.part[o, k] == Part.reserved)

        return Exists(Operation, Operation, lambda o, p: And(o != p, on_some(o), on_some(p)))

    @m.goal
    def what_was_stored_outlives_its_source(s: State) -> Expr:
        return Exists(Operation, lambda o: s.found[o] & Not(s.owned[o]))

    @m.goal
    def a_repeated_report_meets_the_next_use(s: State) -> Expr:
        return Exists(
            Operation,
            Rank,
            lambda o, k: And(
                s.repeats[o, k] == 1,
                s.uses[o] == USES,
                s.leader[o] == Leader.committed,
                Not(s.reported[o, k]),
            ),
        )

    m.leads_to(
        "every_operation_ends",
        lambda s, o: s.leader[o] != Leader.idle,
        lambda s, o: s.leader[o] == Leader.idle,
        doc="an operation that was begun is over some day, done or aborted",
        o=Operation,
    )


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("ranks", doc=__doc__, faults=faults), Operation, Rank)
    declare_state(m)
    declare_owner(m)
    declare_decision(m)
    declare_copies(m)
    declare_completion(m)
    declare_invariants(m)
    declare_goals(m)
    return m
