"""Loads that fail, as a whole or in part, and the requests that share what they fill.

A prompt has two blocks' length, and needs a block in each group at each of the two places. A waiting request
gathers its blocks: fresh ones, which its load will fill, and shared ones, found in the prefix index or under
another request's load. Then it is admitted, counting what it was promised as computed, and waits until
everything under its table has landed.

* The ranks report block by block. A failure names a block of the pool: numbers that are unique in a group
  only do not say which one is meant.
* A load that is over without a failure enters the index. After a failure only what has landed does. Whoever
  has a failed block in its table, owner or sharer, counts only the places before it as computed, in all
  groups (policy *recompute*), or ends with an error (policy *fail*).
"""

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Implies, Not, Or
from kvfence.spec.machines.field_maps import loads as events
from kvfence.spec.machines.field_maps.relations import quiesce
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

Status = Enum("Status", "gathering loading running gone")

PLACES = 2  # blocks of a prompt in each group
OF_A_LOAD = ("fills", "heard", "failed")  # the fields of a request's load

REPEATS = "What was done already is done again, and changes nothing."
ENDED = "A request that is over, or starts again, holds nothing."
SUCCESS = "A load without a failure that is treated as one rolls nobody back."
FORGOTTEN = "A block that a gathering request lets go of without need is gathered again."
ACCEPTED = (
    ("abort: without guard status[r] == gathering", REPEATS),
    ("abort: status*", ENDED),
    ("finish: status*", ENDED),
    ("complete: without guard some(Block b: fills[r, b])", REPEATS),
    ("roll_back: without guard some(Block b: failed[r, b])", SUCCESS),
    ("give_up: without guard some(Block b: failed[r, b])", SUCCESS),
    ("roll_back: table: without failed[r, i1]", FORGOTTEN),
    ("give_up: table: without failed[r, i1]", FORGOTTEN),
    ("give_up: table: without status[i0] == loading (place 2)", FORGOTTEN),
    ("evict: without guard label[b]", REPEATS),
    ("evict: label*", "An eviction that leaves the key is no eviction."),
)
"""How the machine may be changed without an invariant noticing."""

Request = Sort("Request", 2, __name__)
Block = Sort("Block", 4, __name__)
Group = Sort("Group", 2, __name__)
Place = Int(0, PLACES - 1)


def held(s: State, b: Elem) -> Expr:
    """Whether a table or a load holds the block."""
    return Exists(Request, lambda r: s.table[r, b] | s.fills[r, b])


def under_load(s: State, b: Elem) -> Expr:
    """Whether a load will fill the block."""
    return Exists(Request, lambda q: s.fills[q, b])


def fresh(s: State, b: Elem) -> Expr:
    """Neither found nor under a load: somebody has to fill it."""
    return Not(s.label[b] | under_load(s, b))


def is_at(s: State, b: Elem, i: Expr | int, g: Elem) -> Expr:
    """Whether the block is for place i in group g."""
    return (s.place[b] == i) & s.in_group[b, g]


def has(s: State, r: Elem, i: Expr | int, g: Elem) -> Expr:
    """Whether the request has a block for place i in group g."""
    return Exists(Block, lambda b: s.table[r, b] & is_at(s, b, i, g))


def complete_table(s: State, r: Elem) -> Expr:
    """Whether the request has a block for each place in every group."""
    return ForAll(Group, Place, lambda g, i: has(s, r, i, g))


def waits(s: State, r: Elem) -> Expr:
    """Whether a load still fills a block of the table."""
    return Exists(Block, lambda b: s.table[r, b] & under_load(s, b))


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("status", Request, value=Status, init=Status.gathering)
    m.function("counted", Request, value=Int(0, PLACES), init=0)  # places counted as computed
    m.function("to_compute", Request, value=Int(0, PLACES), init=PLACES)
    m.relation("table", Request, Block, init=False)

    m.function("place", Block, value=Place, init=0)
    m.relation("in_group", Block, Group, init=False)
    m.relation("label", Block, init=False)  # in the prefix index
    m.relation("good", Block, init=False)  # has its content

    m.relation("fills", Request, Block, init=False)  # the request's load will fill the block
    m.relation("heard", Request, Block, init=False)  # the ranks have reported the block
    m.relation("failed", Request, Block, init=False)  # ... as failed
    m.header(events.header)


def declare_gathering(m: Machine) -> None:
    """Declare how a request gathers its blocks."""

    @m.action(r=Request, b=Block, i=Place, g=Group, event=events.take)
    def take(s: State, r: Elem, b: Elem, i: Expr, g: Elem) -> None:
        """The request gets the free block b for place i in group g."""
        s.require(s.status[r] == Status.gathering, Not(held(s, b)), Not(s.label[b]), Not(has(s, r, i, g)))
        s.check("FREEZE", Not(held(s, b)), "a block that somebody holds is not given away")
        s.table[r, b] = True
        s.place[b] = i
        s.in_group.update(lambda c, h: If(c == b, h == g, s.in_group[c, h]))
        s.good[b] = False

    @m.action(r=Request, b=Block, event=events.share)
    def share(s: State, r: Elem, b: Elem) -> None:
        """The request shares block b, which is in the prefix index or under a load."""
        s.require(s.status[r] == Status.gathering, Not(fresh(s, b)))
        s.require(ForAll(Group, lambda g: Not(s.in_group[b, g] & has(s, r, s.place[b], g))))
        s.check("FAIL-CLOSED", Not(fresh(s, b)), "what is shared has its content, or will have it")
        s.table[r, b] = True

    @m.action(r=Request, event=events.abort)
    def abort(s: State, r: Elem) -> None:
        """The client of a request that gathers goes away."""
        s.require(s.status[r] == Status.gathering)
        remove(s, r, "table")
        s.status[r] = Status.gone


def is_reported_once(s: State, r: Elem, b: Elem) -> None:
    """Check that the block of the load was not reported before."""
    s.check("ONCE", s.fills[r, b] & Not(s.heard[r, b]), "a block of a load is reported once")


def over(s: State, r: Elem) -> Expr:
    """The request has a load, and all of its blocks are reported."""
    some = Exists(Block, lambda b: s.fills[r, b])
    return And(some, ForAll(Block, lambda b: Implies(s.fills[r, b], s.heard[r, b])))


def declare_loads(m: Machine) -> None:
    """Declare admission, and the reports of the load."""

    @m.action(r=Request, event=events.admit)
    def admit(s: State, r: Elem) -> None:
        """The request has all blocks. Its load will fill the fresh ones; all places count as computed."""
        s.require(s.status[r] == Status.gathering, complete_table(s, r))
        s.fills.update(lambda q, b: s.fills[q, b] | ((q == r) & s.table[r, b] & fresh(s, b)))
        assign(s, r, counted=PLACES, to_compute=0, status=Status.loading)

    @m.action(r=Request, b=Block, event=lambda pre, post: [])
    def land(s: State, r: Elem, b: Elem) -> None:
        """Block b of the request's load has landed."""
        s.require(s.fills[r, b], Not(s.heard[r, b]))
        is_reported_once(s, r, b)
        s.heard[r, b] = True
        s.good[b] = True

    @m.action(r=Request, b=Block, c=Block, event=events.fail)
    def fail(s: State, r: Elem, b: Elem, c: Elem) -> None:
        """Block b of the request's load has failed, and is told as block c."""
        s.require(s.fills[r, b], Not(s.heard[r, b]))
        if m.faulty("block_ids_unique_only_in_group"):
            s.require(
                s.fills[r, c], Or(c == b, ForAll(Group, lambda g: Not(s.in_group[b, g] & s.in_group[c, g])))
            )
        else:
            s.require(c == b)
        is_reported_once(s, r, b)
        s.check("FAIL-CLOSED", c == b, "a failure names the block that has failed")
        s.heard[r, b] = True
        s.failed[r, c] = True


def comes_good(s: State, r: Elem, b: Elem) -> Expr:
    """Once the request's load is over: block b can be found, or is under another load."""
    landed = s.fills[r, b] & Not(s.failed[r, b])
    another = Exists(Request, lambda p: s.fills[p, b] & (p != r))
    return Or(s.label[b], landed, another)


def valid(s: State, r: Elem, q: Elem, i: int) -> Expr:
    """Place i of request q can be used in every group once the load of request r is over."""
    return ForAll(Block, lambda b: Implies(s.table[q, b] & (s.place[b] == i), comes_good(s, r, b)))


def leave_what_failed(s: State, r: Elem) -> None:
    """Requests that still gather blocks let go of those whose load has failed."""

    def leaves(q: Elem, b: Elem) -> Expr:
        return (s.status[q] == Status.gathering) & s.failed[r, b]

    s.table.update(lambda q, b: s.table[q, b] & Not(leaves(q, b)))


def declare_ends_of_loads(m: Machine) -> None:
    """Declare the end of a load, for all that have its blocks."""

    @m.action(r=Request, event=events.complete)
    def complete(s: State, r: Elem) -> None:
        """All blocks of the request's load have landed: they enter the prefix index."""
        s.require(over(s, r))
        none_failed = ForAll(Block, lambda b: Not(s.failed[r, b]))
        if m.faulty("partial_load_counted_whole"):
            s.require(Exists(Block, lambda b: s.heard[r, b] & Not(s.failed[r, b])))
        else:
            s.require(none_failed)
        s.check("FAIL-CLOSED", none_failed, "a load of which a block has failed has failed")
        s.label.update(lambda b: s.label[b] | s.fills[r, b])
        remove(s, r, *OF_A_LOAD)

    def counts_as(s: State, r: Elem, q: Elem) -> Expr:
        """How many places request q counts as computed once the load of request r is over."""

        def usable(i: int) -> Expr:
            if m.faulty("invalid_in_one_group_only"):
                return Exists(Block, lambda b: s.table[q, b] & (s.place[b] == i) & comes_good(s, r, b))
            return valid(s, r, q, i)

        most = If(usable(0), If(usable(1), 2, 1), 0)
        return If(most < s.counted[q], most, s.counted[q])

    def touched(s: State, r: Elem, q: Elem) -> Expr:
        """Request q waits, with a failed block of r's load in its table."""
        mine = Exists(Block, lambda b: s.table[q, b] & s.failed[r, b])
        if m.faulty("sharer_not_rolled_back"):
            mine = mine & (q == r)
        return (s.status[q] == Status.loading) & mine

    @m.action(r=Request, event=events.roll_back)
    def roll_back(s: State, r: Elem) -> None:
        """Blocks have failed: only what has landed is found, and who has them computes from there."""
        s.require(over(s, r), Exists(Block, lambda b: s.failed[r, b]))

        def no_more_than_valid(q: Elem) -> Expr:
            first, second = valid(s, r, q, 0), valid(s, r, q, 1)
            counted = counts_as(s, r, q)
            return Implies(touched(s, r, q), And(Or(counted < 1, first), Or(counted < 2, second)))

        s.check(
            "FAIL-CLOSED",
            ForAll(Request, no_more_than_valid),
            "a place counts as computed when it is valid in every group",
        )
        if not m.faulty("count_not_rolled_back"):
            s.to_compute.update(lambda q: If(touched(s, r, q), PLACES - counts_as(s, r, q), s.to_compute[q]))
        s.counted.update(lambda q: If(touched(s, r, q), counts_as(s, r, q), s.counted[q]))
        leave_what_failed(s, r)
        s.label.update(lambda b: s.label[b] | (s.fills[r, b] & Not(s.failed[r, b])))
        remove(s, r, *OF_A_LOAD)

    @m.action(r=Request, event=events.give_up)
    def give_up(s: State, r: Elem) -> None:
        """Blocks have failed: only what has landed is found, and who has them ends with an error."""
        s.require(over(s, r), Exists(Block, lambda b: s.failed[r, b]))
        s.status.update(lambda q: If(touched(s, r, q), Status.gone, s.status[q]))
        leave_what_failed(s, r)
        s.table.update(lambda q, b: s.table[q, b] & (s.status[q] != Status.gone))
        s.label.update(lambda b: s.label[b] | (s.fills[r, b] & Not(s.failed[r, b])))
        remove(s, r, *OF_A_LOAD)


def reads_what_is_there(s: State, r: Elem) -> None:
    """The step reads all places that count as computed."""

    def read(b: Elem) -> Expr:
        return s.table[r, b] & (s.place[b] < s.counted[r])

    s.check(
        "USE-READY",
        ForAll(Block, lambda b: Implies(read(b), Not(under_load(s, b)))),
        "no step reads a block before the load that fills it has landed",
    )
    s.check(
        "FAIL-CLOSED",
        ForAll(Block, lambda b: Implies(read(b), s.good[b] | under_load(s, b))),
        "no step reads a block whose load has failed",
    )


def declare_running(m: Machine) -> None:
    """Declare steps, ends and evictions."""

    @m.action(r=Request, event=lambda pre, post, r: [])
    def resume(s: State, r: Elem) -> None:
        """Everything under the request's table has landed or failed: it runs."""
        s.require(s.status[r] == Status.loading)
        if not m.faulty("shared_before_landing"):
            s.require(Not(waits(s, r)))
        s.status[r] = Status.running

    @m.action(r=Request, event=events.compute)
    def compute(s: State, r: Elem) -> None:
        """A step computes the next place, in every group."""
        s.require(s.status[r] == Status.running, s.to_compute[r] > 0, s.counted[r] < PLACES)
        reads_what_is_there(s, r)

        def written(b: Elem) -> Expr:
            return s.table[r, b] & (s.place[b] == s.counted[r])

        s.check(
            "FREEZE",
            ForAll(Block, lambda b: Implies(written(b), Not(under_load(s, b)))),
            "no step writes a block that a load fills",
        )
        s.label.update(lambda b: s.label[b] | written(b))
        s.good.update(lambda b: s.good[b] | written(b))
        assign(s, r, counted=s.counted[r] + 1, to_compute=s.to_compute[r] - 1)

    @m.action(r=Request, event=events.finish)
    def finish(s: State, r: Elem) -> None:
        """The last step reads the whole prompt; the request ends."""
        s.require(s.status[r] == Status.running, s.to_compute[r] == 0)
        reads_what_is_there(s, r)
        s.check("COUNT", s.counted[r] == PLACES, "a request ends with all of its places computed")
        remove(s, r, "table")
        s.status[r] = Status.gone

    @m.action(b=Block, event=events.evict)
    def evict(s: State, b: Elem) -> None:
        """The free cached block b leaves the prefix index."""
        s.require(s.label[b], Not(held(s, b)))
        s.check("FREEZE", Not(held(s, b)), "a block that somebody holds is not evicted")
        s.label[b] = False

    @m.action(event=quiesce)
    def rest(s: State) -> None:
        """All requests are gone and no load is in flight: nothing may be held."""
        s.require(ForAll(Request, lambda r: s.status[r] == Status.gone))
        s.require(ForAll(Block, lambda b: Not(under_load(s, b))))
        s.check("NO-LEAK", ForAll(Block, lambda b: Not(held(s, b))), "at quiescence nothing is held")


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("COUNT")
    def each_place_is_counted_or_computed(s: State) -> Expr:
        return ForAll(Request, lambda r: s.counted[r] + s.to_compute[r] == PLACES)

    @m.invariant("FAIL-CLOSED")
    def a_block_that_can_be_found_has_its_content(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], s.good[b]))

    @m.invariant("USE-READY")
    def a_block_is_not_found_before_its_load_has_landed(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], Not(under_load(s, b))))

    @m.invariant("GEOMETRY")
    def an_admitted_request_has_every_place_in_every_group(s: State) -> Expr:
        def admitted(r: Elem) -> Expr:
            return Or(s.status[r] == Status.loading, s.status[r] == Status.running)

        return ForAll(Request, lambda r: Implies(admitted(r), complete_table(s, r)))

    @m.invariant("UNIQUE")
    def one_load_fills_a_block(s: State) -> Expr:
        return ForAll(Request, Request, Block, lambda q, r, b: Implies(s.fills[q, b] & s.fills[r, b], q == r))

    @m.invariant("UNIQUE")
    def a_table_has_one_block_at_a_place_of_a_group(s: State) -> Expr:
        def both(r: Elem, b: Elem, c: Elem, g: Elem) -> Expr:
            same = (s.place[b] == s.place[c]) & s.in_group[b, g] & s.in_group[c, g]
            return And(s.table[r, b], s.table[r, c], same)

        return ForAll(Request, Block, Block, Group, lambda r, b, c, g: Implies(both(r, b, c, g), b == c))


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def a_report_is_about_a_block_of_the_load(s: State) -> Expr:
        """Blocks are reported while the load is open, and its end takes the reports with it."""
        return ForAll(
            Request,
            Block,
            lambda r, b: And(Implies(s.heard[r, b], s.fills[r, b]), Implies(s.failed[r, b], s.heard[r, b])),
        )

    @m.lemma
    def what_has_landed_is_good(s: State) -> Expr:
        """Landing makes it so, and a block under a load is not given away."""
        return ForAll(Request, Block, lambda r, b: Implies(s.heard[r, b] & Not(s.failed[r, b]), s.good[b]))

    @m.lemma
    def a_running_request_waits_for_nothing(s: State) -> Expr:
        """It resumes when nothing is under way, and only blocks that nobody else has come under a load."""
        return ForAll(
            Request,
            Block,
            lambda r, b: Implies((s.status[r] == Status.running) & s.table[r, b], Not(under_load(s, b))),
        )

    @m.lemma
    def a_fresh_block_belongs_to_who_took_it(s: State) -> Expr:
        """Only what is not fresh is shared, and who gathers lets go of what has failed."""

        def gathers_fresh(q: Elem, b: Elem) -> Expr:
            return And(s.status[q] == Status.gathering, s.table[q, b], fresh(s, b))

        return ForAll(
            Request, Request, Block, lambda q, r, b: Implies(gathers_fresh(q, b) & s.table[r, b], q == r)
        )

    @m.lemma
    def what_is_counted_is_found_or_under_a_load(s: State) -> Expr:
        """Admission fills what is fresh, and a failure takes the count back to what is valid."""

        def counted(r: Elem, b: Elem) -> Expr:
            admitted = Or(s.status[r] == Status.loading, s.status[r] == Status.running)
            return And(admitted, s.table[r, b], s.place[b] < s.counted[r])

        return ForAll(Request, Block, lambda r, b: Implies(counted(r, b), Not(fresh(s, b))))

    @m.lemma
    def a_request_that_is_gone_has_no_table(s: State) -> Expr:
        """Each way to end clears it."""
        return ForAll(Request, Block, lambda r, b: Implies(s.status[r] == Status.gone, Not(s.table[r, b])))

    @m.lemma
    def a_request_that_gathers_has_no_load(s: State) -> Expr:
        """Its load begins when it is admitted."""
        return ForAll(
            Request, Block, lambda r, b: Implies(s.status[r] == Status.gathering, Not(s.fills[r, b]))
        )


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def a_sharer_waits_for_a_load(s: State) -> Expr:
        def shares(q: Elem, r: Elem, b: Elem) -> Expr:
            return And(q != r, s.fills[q, b], s.table[r, b], s.status[r] == Status.loading)

        return Exists(Request, Request, Block, shares)

    @m.goal
    def a_load_fails_in_part(s: State) -> Expr:
        return Exists(
            Request,
            Block,
            Block,
            lambda r, b, c: And(over(s, r), s.failed[r, b], s.heard[r, c], Not(s.failed[r, c])),
        )

    @m.goal
    def a_request_computes_behind_what_has_landed(s: State) -> Expr:
        return Exists(
            Request, lambda r: And(s.status[r] == Status.running, s.counted[r] == 1, s.to_compute[r] == 1)
        )

    @m.goal
    def a_sharer_computes_a_block_that_failed(s: State) -> Expr:
        def both_run(q: Elem, r: Elem, b: Elem) -> Expr:
            run = And(s.status[q] == Status.running, s.status[r] == Status.running)
            return And(q != r, s.table[q, b], s.table[r, b], Not(s.good[b]), run)

        return Exists(Request, Request, Block, both_run)

    m.ghost("good", why="What a block contains is a fact.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("loads", doc=__doc__, faults=faults), Request, Block, Group)
    declare_state(m)
    declare_gathering(m)
    declare_loads(m)
    declare_ends_of_loads(m)
    declare_running(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
