"""Several tiers below the GPU: what can be looked up in each, what is published of it, and a reset of all.

A key is kept in parts (the shares of layers or of ranks), and can be looked up in a tier when the tier's
index has all of its parts. Keys come from the GPU by a **store**, and from one tier to another by a
**promotion**; the parts land one by one, and enter the index together when the transfer is complete. Parts
may leave one by one. Any tier may lose a part, as a disk loses a file: its index learns of it when a transfer
that could not read it is over.

* **Published**: subscribers are told when a key can be looked up and when no longer, in the very step.
* A **reset** is an epoch: it begins, clears one tier after another, and is answered when all are clear.
  Nothing is looked up or moved anew in between, and what was in flight when it began ends without
  registering.
"""

from kvfence.spec.language import Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Iff, Implies, Not, Or
from kvfence.spec.machines.field_maps import tiers as events
from kvfence.spec.machines.field_maps.relations import quiesce
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

USES = 2  # how often an operation id is used

REPEATS = "What was done already is done again, and changes nothing."
BOUND = "The number of uses names holders in traces and bounds the runs."
MISS = "A read that fails for no reason costs a copy and a computation."
ACCEPTED = (
    ("store: uses*", BOUND),
    ("promote: uses*", BOUND),
    ("store: pin: *", "A pin too many keeps a slot from use until the transfer is over."),
    ("read_fails: without guard not missed[o, p]", REPEATS),
    ("read_fails: without guard some(*", MISS),
    ("read_fails: guard: without *", MISS),
    ("complete_failed: part: without missed*", "A part that is forgotten without need is a miss."),
    ("evict: without guard part[t, k, p]", REPEATS),
    ("evict: part: without i2 == p", "An eviction may take all parts of the key at once."),
    ("lose: without guard content[t, k, p]", REPEATS),
    ("begin_reset: without guard not resetting", "A reset may begin again before it is answered."),
    ("clear: without guard resetting", "A tier may be cleared at any time, as if it had evicted everything."),
    ("clear: without guard not cleared[t]", REPEATS),
    ("end_reset: without guard resetting", REPEATS),
    ("rest: without guard not resetting", "A reset that nobody has answered yet holds nothing."),
)
"""How the machine may be changed without an invariant noticing."""

Tier = Sort("Tier", 2, __name__)
Key = Sort("Key", 1, __name__)
Part = Sort("Part", 2, __name__)
Operation = Sort("Operation", 2, __name__)


def findable(s: State, t: Elem, k: Elem) -> Expr:
    """Whether tier t's index has all parts of the key."""
    return ForAll(Part, lambda p: s.part[t, k, p])


def pinned(s: State, t: Elem, k: Elem) -> Expr:
    """Whether a transfer holds the slot of the key in tier t."""
    return Exists(Operation, lambda o: s.pin[o, t, k])


def empty(s: State, t: Elem, k: Elem) -> Expr:
    """Whether tier t's index has no part of the key."""
    return ForAll(Part, lambda p: Not(s.part[t, k, p]))


def failed(s: State, o: Elem) -> Expr:
    """Whether the transfer could not read some part."""
    return Exists(Part, lambda p: s.missed[o, p])


def serves_older(s: State, t: Elem, k: Elem) -> Expr:
    """Whether tier t can look up a key that was there before the last reset."""
    return findable(s, t, k) & Exists(Part, lambda p: s.older[t, k, p])


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.relation("part", Tier, Key, Part, init=False)  # the tier's index has this part
    m.relation("listed", Tier, Key, init=False)  # what subscribers have been told
    m.relation("content", Tier, Key, Part, init=False)  # the bytes are there
    m.relation("known_lost", Tier, Key, Part, init=False)  # a read has shown that they are not
    m.relation("older", Tier, Key, Part, init=False)  # registered before the last reset began

    m.relation("moving", Operation, init=False)
    m.function("uses", Operation, value=Int(0, USES), init=0)
    m.relation("source", Operation, Tier, Key, init=False)  # of a promotion
    m.relation("target", Operation, Tier, Key, init=False)
    m.relation("pin", Operation, Tier, Key, init=False)
    m.relation("landed", Operation, Part, init=False)
    m.relation("missed", Operation, Part, init=False)  # could not be read from the source
    m.relation("old", Operation, init=False)  # in flight when a reset began

    m.relation("resetting", init=False)
    m.relation("cleared", Tier, init=False)
    m.header(events.header)


def start(s: State, o: Elem, t: Elem, k: Elem) -> None:
    """Operation o begins to move key k to tier t, which has no part of it."""
    s.require(Not(s.moving[o]), s.uses[o] < USES, empty(s, t, k), Not(pinned(s, t, k)))
    s.require(Not(Exists(Tier, Key, lambda u, j: s.pin[o, u, j])))


def gone(s: State, o: Elem, p: Elem) -> Expr:
    """Whether the source of a promotion has lost the part."""
    return Exists(Tier, Key, lambda t, k: s.source[o, t, k] & Not(s.content[t, k, p]))


def end(s: State, o: Elem) -> None:
    """The transfer is over: it lets go of what it holds."""
    assign(s, o, moving=False, old=False)
    remove(s, o, "source", "target", "pin", "landed", "missed")


def declare_transfers(m: Machine) -> None:
    """Declare stores and promotions."""

    def begin(s: State, o: Elem, t: Elem, k: Elem) -> None:
        s.check("FREEZE", Not(pinned(s, t, k)), "a slot that a transfer holds is not given away")
        s.check("UNIQUE", empty(s, t, k), "a tier has a key once")
        assign(s, o, moving=True, uses=s.uses[o] + 1)
        assign(s, (o, t, k), target=True, pin=True)
        if m.faulty("events_before_landing"):
            s.listed[t, k] = True

    @m.action(o=Operation, t=Tier, k=Key, event=events.store)
    def store(s: State, o: Elem, t: Elem, k: Elem) -> None:
        """A store of key k from the GPU to tier t is queued."""
        start(s, o, t, k)
        s.require(Not(s.resetting))
        begin(s, o, t, k)

    @m.action(o=Operation, a=Tier, t=Tier, k=Key, event=events.promote)
    def promote(s: State, o: Elem, a: Elem, t: Elem, k: Elem) -> None:
        """Tier a's copy of key k will be copied to tier t."""
        start(s, o, t, k)
        s.require(findable(s, a, k))
        if not m.faulty("promotion_during_reset"):
            s.require(Not(s.resetting))
        s.check("FAIL-CLOSED", findable(s, a, k), "what is copied from a tier can be looked up there")
        s.check("RESET", Not(serves_older(s, a, k)), "no tier serves a key that is older than the last reset")
        begin(s, o, t, k)
        assign(s, (o, a, k), source=True, pin=True)

    @m.action(o=Operation, p=Part, event=lambda pre, post: [])
    def land(s: State, o: Elem, p: Elem) -> None:
        """Part p has landed in the target."""
        s.require(s.moving[o], Not(s.landed[o, p]), Not(s.missed[o, p]), Not(gone(s, o, p)))
        s.check("ONCE", Not(s.landed[o, p] | s.missed[o, p]), "a part lands or fails, once")
        s.check("FAIL-CLOSED", Not(gone(s, o, p)), "what lands was read from a copy that is there")
        s.landed[o, p] = True

    @m.action(o=Operation, p=Part, event=lambda pre, post: [])
    def read_fails(s: State, o: Elem, p: Elem) -> None:
        """The source's part p turns out to be lost: the transfer will fail."""
        s.require(s.moving[o], Not(s.landed[o, p]), Not(s.missed[o, p]), gone(s, o, p))
        s.missed[o, p] = True

    @m.action(o=Operation, event=events.complete)
    def complete(s: State, o: Elem) -> None:
        """All parts have landed: the key enters the target's index, unless a reset has begun since."""
        s.require(s.moving[o], ForAll(Part, lambda p: s.landed[o, p]))
        s.check("FAIL-CLOSED", ForAll(Part, lambda p: s.landed[o, p]), "what is registered has landed")
        fresh = Not(s.old[o])
        if m.faulty("store_resurrects_key"):
            fresh = Or(fresh, Not(s.resetting))

        def here(t: Elem, k: Elem) -> Expr:
            return s.target[o, t, k] & fresh

        s.older.update(lambda t, k, p: If(here(t, k), s.old[o], s.older[t, k, p]))
        s.known_lost.update(lambda t, k, p: s.known_lost[t, k, p] & Not(here(t, k)))
        s.content.update(lambda t, k, p: s.content[t, k, p] | here(t, k))
        s.part.update(lambda t, k, p: s.part[t, k, p] | here(t, k))
        s.listed.update(lambda t, k: s.listed[t, k] | here(t, k))
        end(s, o)

    @m.action(o=Operation, event=events.complete_failed)
    def complete_failed(s: State, o: Elem) -> None:
        """A part could not be read: nothing is registered, and the source's index forgets what is lost."""
        s.require(s.moving[o], failed(s, o))

        def lost(t: Elem, k: Elem, p: Elem) -> Expr:
            return s.source[o, t, k] & s.missed[o, p]

        s.known_lost.update(lambda t, k, p: s.known_lost[t, k, p] | lost(t, k, p))
        if not m.faulty("lost_file_still_found"):
            if not m.faulty("lost_file_still_listed"):
                s.listed.update(lambda t, k: s.listed[t, k] & Not(s.source[o, t, k]))
            s.part.update(lambda t, k, p: s.part[t, k, p] & Not(lost(t, k, p)))
        end(s, o)


def declare_losses(m: Machine) -> None:
    """Declare what tiers lose, by decision and by accident, and what is looked up in them."""

    @m.action(t=Tier, k=Key, p=Part, event=events.evict)
    def evict(s: State, t: Elem, k: Elem, p: Elem) -> None:
        """Tier t gives up part p of key k, which can then not be looked up any more."""
        s.require(s.part[t, k, p], Not(pinned(s, t, k)))
        s.check("FREEZE", Not(pinned(s, t, k)), "what a transfer holds is not evicted")
        s.part[t, k, p] = False
        if not m.faulty("removed_not_published"):
            s.listed[t, k] = False

    @m.action(t=Tier, k=Key, p=Part, event=lambda pre, post, t, k, p: [])
    def lose(s: State, t: Elem, k: Elem, p: Elem) -> None:
        """The bytes of part p are gone, as when a file is deleted or cannot be read; nobody knows yet."""
        s.require(s.content[t, k, p])
        s.content[t, k, p] = False

    @m.action(t=Tier, k=Key, event=events.look_up)
    def look_up(s: State, t: Elem, k: Elem) -> None:
        """A lookup finds key k in tier t, and withdraws its promise at once."""
        s.require(findable(s, t, k), Not(s.resetting))
        s.check(
            "FAIL-CLOSED",
            Not(Exists(Part, lambda p: s.known_lost[t, k, p])),
            "what is known to be lost is not promised",
        )
        s.check("RESET", Not(serves_older(s, t, k)), "no tier serves a key that is older than the last reset")


def declare_resets(m: Machine) -> None:
    """Declare resets, and what must hold at rest."""

    @m.action(event=lambda pre, post: [])
    def begin_reset(s: State) -> None:
        """A reset begins: nothing is looked up or moved anew, and what is in flight becomes old."""
        s.require(Not(s.resetting))
        s.resetting = True
        s.cleared.update(lambda t: False)
        s.older.update(lambda t, k, p: s.part[t, k, p])
        s.old.update(lambda o: s.moving[o])
        if m.faulty("reset_forgets_transfers"):
            s.moving.update(lambda o: False)
            s.target.update(lambda o, t, k: False)
            s.source.update(lambda o, t, k: False)
            s.landed.update(lambda o, p: False)
            s.missed.update(lambda o, p: False)
            s.old.update(lambda o: False)

    @m.action(t=Tier, event=events.clear)
    def clear(s: State, t: Elem) -> None:
        """Tier t forgets every key, and says so."""
        s.require(s.resetting, Not(s.cleared[t]))
        remove(s, t, "part")
        if not m.faulty("reset_not_published"):
            remove(s, t, "listed")
        s.cleared[t] = True

    @m.action(event=events.end_reset)
    def end_reset(s: State) -> None:
        """All tiers are clear: the reset is answered."""
        s.require(s.resetting)
        if m.faulty("reset_skips_a_tier"):
            s.require(Exists(Tier, lambda t: s.cleared[t]))
        else:
            s.require(ForAll(Tier, lambda t: s.cleared[t]))
        s.check(
            "RESET",
            Not(Exists(Tier, Key, lambda t, k: serves_older(s, t, k))),
            "a reset that is answered leaves no tier with an older key",
        )
        s.resetting = False

    @m.action(event=quiesce)
    def rest(s: State) -> None:
        """Nothing is in flight: nothing may be held."""
        s.require(Not(s.resetting), ForAll(Operation, lambda o: Not(s.moving[o])))
        s.check(
            "NO-LEAK",
            Not(Exists(Operation, Tier, Key, lambda o, t, k: s.pin[o, t, k])),
            "at quiescence nothing is held",
        )


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("EVENTS")
    def what_is_published_is_what_can_be_looked_up(s: State) -> Expr:
        return ForAll(Tier, Key, lambda t, k: Iff(s.listed[t, k], findable(s, t, k)))

    @m.invariant("RESET")
    def after_a_reset_no_tier_has_an_older_key(s: State) -> Expr:
        return Or(s.resetting, ForAll(Tier, Key, lambda t, k: Not(serves_older(s, t, k))))

    @m.invariant("FREEZE")
    def what_is_moved_is_pinned(s: State) -> Expr:
        return ForAll(
            Operation,
            Tier,
            Key,
            lambda o, t, k: Implies(s.source[o, t, k] | s.target[o, t, k], s.pin[o, t, k]),
        )

    @m.invariant("UNIQUE")
    def a_tier_is_the_target_of_one_transfer_of_a_key(s: State) -> Expr:
        return ForAll(
            Operation,
            Operation,
            Tier,
            Key,
            lambda o, q, t, k: Implies(s.target[o, t, k] & s.target[q, t, k], o == q),
        )

    @m.invariant("ONCE")
    def what_moves_has_a_target(s: State) -> Expr:
        def has_one(o: Elem) -> Expr:
            return Exists(Tier, Key, lambda t, k: s.target[o, t, k])

        return ForAll(Operation, lambda o: Implies(s.moving[o], has_one(o)))


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def after_a_reset_no_part_is_older(s: State) -> Expr:
        """A reset is answered when all tiers are clear, and from its beginning nothing old is registered."""

        def left(t: Elem, k: Elem, p: Elem) -> Expr:
            return And(s.part[t, k, p], s.older[t, k, p], Or(Not(s.resetting), s.cleared[t]))

        return ForAll(Tier, Key, Part, lambda t, k, p: Not(left(t, k, p)))

    @m.lemma
    def an_idle_operation_is_blank(s: State) -> Expr:
        """Its end clears all that it has, and only a moving one is given anything."""

        def blank(o: Elem) -> Expr:
            return And(
                Not(s.old[o]),
                ForAll(Tier, Key, lambda t, k: Not(s.source[o, t, k] | s.target[o, t, k] | s.pin[o, t, k])),
                ForAll(Part, lambda p: Not(s.landed[o, p] | s.missed[o, p])),
            )

        return ForAll(Operation, lambda o: Or(s.moving[o], blank(o)))

    @m.lemma
    def nothing_is_in_the_index_of_a_target(s: State) -> Expr:
        """A transfer begins where there is no part of the key, and only its own completion registers one."""
        return ForAll(Operation, Tier, Key, Part, lambda o, t, k, p: Not(s.target[o, t, k] & s.part[t, k, p]))

    @m.lemma
    def during_a_reset_what_moves_is_old(s: State) -> Expr:
        """What was in flight when it began is, and nothing begins before it is answered."""
        return ForAll(Operation, lambda o: Implies(s.resetting & s.moving[o], s.old[o]))

    @m.lemma
    def what_is_known_to_be_lost_is_not_in_the_index(s: State) -> Expr:
        """The index forgets it in the step that makes it known; a new copy makes it good."""
        return ForAll(Tier, Key, Part, lambda t, k, p: Not(s.known_lost[t, k, p] & s.part[t, k, p]))

    @m.lemma
    def a_part_lands_or_is_missed(s: State) -> Expr:
        """Each is the end of the part's copy, and needs that there was none before."""
        return ForAll(Operation, Part, lambda o, p: Not(s.landed[o, p] & s.missed[o, p]))


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def a_promotion_fails_halfway(s: State) -> Expr:
        return Exists(Operation, Part, lambda o, p: failed(s, o) & s.landed[o, p])

    @m.goal
    def a_transfer_lands_after_a_reset(s: State) -> Expr:
        return Exists(Operation, Part, lambda o, p: And(s.old[o], s.landed[o, p], Not(s.resetting)))

    @m.goal
    def two_tiers_have_a_key(s: State) -> Expr:
        return Exists(Tier, Tier, Key, lambda t, u, k: (t != u) & findable(s, t, k) & findable(s, u, k))

    @m.goal
    def a_lost_part_is_still_listed_because_nobody_knows(s: State) -> Expr:
        return Exists(Tier, Key, Part, lambda t, k, p: s.listed[t, k] & Not(s.content[t, k, p]))

    m.ghost("content", "known_lost", "older", why="What has happened to the bytes, and when, is a fact.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("tiers", doc=__doc__, faults=faults), Tier, Key, Part, Operation)
    declare_state(m)
    declare_transfers(m)
    declare_losses(m)
    declare_resets(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
