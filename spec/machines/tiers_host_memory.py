"""Host memory of several ranks: registered with the device as a whole or not at all, and by all ranks alike.

Each rank registers the pieces of its part of the CPU tier. When one rank cannot, all of them give back what
they have registered and use plain memory: a kernel that reaches into host memory would fail on that rank,
and on that rank only. Where memory is registered, a transfer's kernel reads its addresses from a descriptor
buffer on each rank; the buffer may be written again when that rank has reported the transfer's end, and no
earlier. A rank takes a buffer only after the transfer was handed to it, and waits for no other rank with it:
transfers that take their buffers rank by rank before they start can wait for each other forever.
"""

from kvfence.spec import events as ev
from kvfence.spec.language import Enum, Int, Machine, Sort, State, View
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, Implies, Not, Or
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

Vote = Enum("Vote", "none yes no")
Use = Enum("Use", "undecided pinned plain")
Stage = Enum("Stage", "idle queued issued")

USES = 2  # how often an operation id is used

REPEATS = "What was done already is done again, and changes nothing."
BOUND = "The number of uses names holders in traces and bounds the runs."
ACCEPTED = (
    ("register: without guard not registered[k, p]", REPEATS),
    ("roll_back: without guard registered[k, p]", REPEATS),
    ("agree: without guard vote[k] == none", REPEATS),
    ("fail_to_register: without guard vote[k] == none", REPEATS),
    ("use_p*: without guard use[k] == undecided", REPEATS),
    ("register: without guard vote[k] == none", "A rank that has refused registers more, and rolls it back."),
    (
        "fail_to_register: without guard use[k] == undecided",
        "A refusal after the decision for plain memory changes nothing.",
    ),
    (
        "fail_to_register: without guard not registered[k, p]",
        "A rank may refuse for any reason: what it has registered is rolled back.",
    ),
    ("use_pinned: use: as if always i0 == k", "When every vote is yes, every rank may decide at once."),
    ("queue: uses*", BOUND),
    (
        "issue: state: as if always i0 == o",
        "An idle operation that starts by itself is the subject of the transfer machine.",
    ),
    ("complete: state*", "How often a transfer runs is the subject of the transfer machine."),
)
"""How the machine may be changed without an invariant noticing."""

Rank = Sort("Rank", 2, __name__)
Piece = Sort("Piece", 2, __name__)
Buffer = Sort("Buffer", 1, __name__)
Operation = Sort("Operation", 2, __name__)


def gen(view: View, o: int) -> int:
    """Generation of the operation's current or last use."""
    return int(view.uses[o]) - 1


def whole(s: State, k: Elem) -> Expr:
    """Whether rank k has registered all of its memory."""
    return ForAll(Piece, lambda p: s.registered[k, p])


def has_some(s: State, k: Elem) -> Expr:
    """Whether rank k has registered a piece."""
    return Exists(Piece, lambda p: s.registered[k, p])


def refused(s: State) -> Expr:
    """Whether a rank could not register its memory."""
    return Exists(Rank, lambda k: s.vote[k] == Vote.no)


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.relation("registered", Rank, Piece, init=False)
    m.function("vote", Rank, value=Vote, init=Vote.none)
    m.function("use", Rank, value=Use, init=Use.undecided)
    m.function("state", Operation, value=Stage, init=Stage.idle)
    m.function("uses", Operation, value=Int(0, USES), init=0)
    m.relation("described", Operation, Rank, init=False)
    m.relation("reads", Operation, Rank, Buffer, init=False)  # the kernel may still read the buffer
    m.relation("reported", Operation, Rank, init=False)

    m.header(
        lambda sizes: ev.Header(
            producer="kvfence machine host_memory",
            pools=(ev.Pool("gpu", sizes["Operation"]), ev.Pool("cpu", sizes["Operation"])),
            ranks=sizes["Rank"],
        )
    )


def declare_registration(m: Machine) -> None:
    """Declare registration: every rank tries, then all ranks decide alike."""

    @m.action(k=Rank, p=Piece, event=lambda pre, post, k, p: [ev.Register("cpu", k, p)])
    def register(s: State, k: Elem, p: Elem) -> None:
        """Rank k registers piece p of its host memory."""
        s.require(s.use[k] == Use.undecided, s.vote[k] == Vote.none, Not(s.registered[k, p]))
        s.registered[k, p] = True

    @m.action(k=Rank, p=Piece, event=lambda pre, post, k, p: [ev.Register("cpu", k, p, ok=False)])
    def fail_to_register(s: State, k: Elem, p: Elem) -> None:
        """Rank k cannot register piece p: it will not use registered memory, and says so to the others."""
        s.require(s.use[k] == Use.undecided, s.vote[k] == Vote.none, Not(s.registered[k, p]))
        s.vote[k] = Vote.no

    @m.action(k=Rank, event=lambda pre, post, k: [])
    def agree(s: State, k: Elem) -> None:
        """Rank k has registered everything, and says so to the others."""
        s.require(s.use[k] == Use.undecided, s.vote[k] == Vote.none, whole(s, k))
        s.vote[k] = Vote.yes

    @m.action(k=Rank, p=Piece, event=lambda pre, post, k, p: [ev.Unregister("cpu", k, p)])
    def roll_back(s: State, k: Elem, p: Elem) -> None:
        """A rank has refused: rank k gives back piece p."""
        s.require(s.use[k] == Use.undecided, s.registered[k, p], refused(s))
        s.registered[k, p] = False

    @m.action(k=Rank, event=lambda pre, post, k: [ev.Hostmem("cpu", k, pinned=True)])
    def use_pinned(s: State, k: Elem) -> None:
        """Every rank has registered all of its memory: rank k uses it so."""
        s.require(s.use[k] == Use.undecided)
        if m.faulty("ranks_disagree_on_pinning"):
            s.require(s.vote[k] == Vote.yes, whole(s, k))
        else:
            s.require(ForAll(Rank, lambda j: s.vote[j] == Vote.yes))
        s.use[k] = Use.pinned

    @m.action(k=Rank, event=lambda pre, post, k: [ev.Hostmem("cpu", k, pinned=False)])
    def use_plain(s: State, k: Elem) -> None:
        """A rank has refused: rank k, with nothing registered any more, uses plain memory."""
        s.require(s.use[k] == Use.undecided, refused(s))
        if not m.faulty("partial_registration_kept"):
            s.require(Not(has_some(s, k)))
        s.use[k] = Use.plain


def queue_events(post: View, o: int) -> list[ev.Event]:
    """A store of one slot, which gets its content only for this."""
    op, g = f"op:{o}.{gen(post, o)}", gen(post, o)
    return [
        ev.Alloc("gpu", op, [o]),
        ev.Label("gpu", [o], [o + 1]),
        ev.Alloc("cpu", op, [o]),
        ev.Queue(o, g, "store", "gpu", [o], "cpu", [o], [o + 1]),
    ]


def free_at(s: State, k: Elem, d: Elem) -> Expr:
    """Whether no kernel of rank k may still read the buffer."""
    return Not(Exists(Operation, lambda p: s.reads[p, k, d]))


def complete_events(pre: View, o: int) -> list[ev.Event]:
    """The end of the store, which keeps nothing."""
    op = f"op:{o}.{gen(pre, o)}"
    return [
        ev.Complete(o, gen(pre, o)),
        ev.Free("gpu", op, [o]),
        ev.Evict("gpu", [o]),
        ev.Free("cpu", op, [o]),
    ]


def declare_transfers(m: Machine) -> None:
    """Declare transfers, and the descriptor buffers that their kernels read."""

    @m.action(o=Operation, event=lambda pre, post, o: queue_events(post, o))
    def queue(s: State, o: Elem) -> None:
        """A transfer between the tiers is decided, once all ranks know what memory they use."""
        s.require(s.state[o] == Stage.idle, s.uses[o] < USES)
        s.require(ForAll(Rank, lambda k: s.use[k] != Use.undecided))
        assign(s, o, state=Stage.queued, uses=s.uses[o] + 1)

    @m.action(o=Operation, event=lambda pre, post, o: [ev.Issue(o, gen(pre, o))])
    def issue(s: State, o: Elem) -> None:
        """The transfer is handed to the workers: each rank starts it when it has a buffer for it."""
        s.require(s.state[o] == Stage.queued)
        s.state[o] = Stage.issued

    @m.action(
        o=Operation, k=Rank, d=Buffer, event=lambda pre, post, o, k, d: [ev.Describe(o, gen(pre, o), d, k)]
    )
    def describe(s: State, o: Elem, k: Elem, d: Elem) -> None:
        """Rank k writes the transfer's addresses into its descriptor buffer d, for a kernel to read."""
        s.require(s.state[o] == Stage.issued, s.use[k] == Use.pinned, Not(s.described[o, k]))
        if not m.faulty("descriptor_reused_early"):
            s.require(free_at(s, k, d))
        s.check("HOSTMEM", free_at(s, k, d), "a descriptor buffer is written when no kernel may read it")
        s.check("HOSTMEM", whole(s, k), "a kernel reaches into memory that is registered")
        s.described[o, k] = True
        s.reads[o, k, d] = True

    @m.action(o=Operation, k=Rank, event=lambda pre, post, o, k: [ev.Report(o, gen(pre, o), k)])
    def report(s: State, o: Elem, k: Elem) -> None:
        """Rank k's copy is over, and so are its kernel's reads of the buffer."""
        s.require(
            s.state[o] == Stage.issued, s.described[o, k] | (s.use[k] == Use.plain), Not(s.reported[o, k])
        )
        s.check("ONCE", Not(s.reported[o, k]), "a rank reports a transfer once")
        s.reported[o, k] = True
        s.reads.update(lambda p, j, d: s.reads[p, j, d] & Not((p == o) & (j == k)))

    @m.action(o=Operation, event=lambda pre, post, o: complete_events(pre, o))
    def complete(s: State, o: Elem) -> None:
        """Every rank has reported: the transfer is over."""
        s.require(s.state[o] == Stage.issued, ForAll(Rank, lambda k: s.reported[o, k]))
        s.check(
            "HOSTMEM",
            ForAll(Rank, Buffer, lambda k, d: Not(s.reads[o, k, d])),
            "a transfer that is over reads no descriptor buffer",
        )
        s.state[o] = Stage.idle
        remove(s, o, "described", "reported")

    @m.terminal
    def all_uses_are_over(s: State) -> Expr:
        used_up = ForAll(Operation, lambda o: (s.state[o] == Stage.idle) & (s.uses[o] == USES))
        return And(ForAll(Rank, lambda k: s.use[k] != Use.undecided), used_up)


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("HOSTMEM")
    def ranks_agree_on_pinning(s: State) -> Expr:
        return ForAll(Rank, Rank, lambda j, k: Not((s.use[j] == Use.pinned) & (s.use[k] == Use.plain)))

    @m.invariant("HOSTMEM")
    def pinned_memory_is_registered_as_a_whole(s: State) -> Expr:
        return ForAll(Rank, Piece, lambda k, p: Implies(s.use[k] == Use.pinned, s.registered[k, p]))

    @m.invariant("HOSTMEM")
    def plain_memory_has_no_piece_registered(s: State) -> Expr:
        return ForAll(Rank, Piece, lambda k, p: Implies(s.use[k] == Use.plain, Not(s.registered[k, p])))

    @m.invariant("HOSTMEM")
    def a_descriptor_buffer_has_one_reader(s: State) -> Expr:
        def one(o: Elem, p: Elem, k: Elem, d: Elem) -> Expr:
            return Implies(s.reads[o, k, d] & s.reads[p, k, d], o == p)

        return ForAll(Operation, Operation, Rank, Buffer, one)

    @m.invariant("HOSTMEM")
    def only_a_transfer_that_is_not_over_reads_descriptors(s: State) -> Expr:
        def awaited(o: Elem, k: Elem) -> Expr:
            return And(s.state[o] != Stage.idle, s.described[o, k], Not(s.reported[o, k]))

        return ForAll(Operation, Rank, Buffer, lambda o, k, d: Implies(s.reads[o, k, d], awaited(o, k)))


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def a_rank_that_agrees_has_registered_everything(s: State) -> Expr:
        """It agrees with everything registered, and gives back nothing unless a rank has refused."""

        def kept(k: Elem) -> Expr:
            return Or(Not(s.vote[k] == Vote.yes), whole(s, k), refused(s))

        return ForAll(Rank, kept)

    @m.lemma
    def a_decision_follows_the_votes(s: State) -> Expr:
        """Votes do not change, and each use waits for its votes."""

        def reported_whole(k: Elem) -> Expr:
            agreed = ForAll(Rank, lambda j: s.vote[j] == Vote.yes)
            return And(Implies(s.use[k] == Use.pinned, agreed), Implies(s.use[k] == Use.plain, refused(s)))

        return ForAll(Rank, reported_whole)

    @m.lemma
    def transfers_wait_for_every_decision(s: State) -> Expr:
        """One is queued when all ranks have decided, and no decision is taken back."""
        return ForAll(Operation, Rank, lambda o, k: Or(s.state[o] == Stage.idle, s.use[k] != Use.undecided))

    @m.lemma
    def a_transfer_is_marked_when_it_has_started(s: State) -> Expr:
        """Ranks describe and report what was handed to them."""
        return ForAll(
            Operation,
            Rank,
            lambda o, k: Implies(s.described[o, k] | s.reported[o, k], s.state[o] == Stage.issued),
        )

    @m.lemma
    def only_registered_memory_is_described(s: State) -> Expr:
        """A rank describes a transfer when it uses registered memory, which it does from then on."""
        return ForAll(Operation, Rank, lambda o, k: Implies(s.described[o, k], s.use[k] == Use.pinned))

    @m.lemma
    def a_rank_reports_what_it_has_started(s: State) -> Expr:
        """With registered memory it has described the transfer, and plain memory needs no description."""
        return ForAll(
            Operation,
            Rank,
            lambda o, k: Implies(s.reported[o, k], s.described[o, k] | (s.use[k] == Use.plain)),
        )

    @m.lemma
    def a_described_transfer_is_read_until_it_is_reported(s: State) -> Expr:
        """The buffer is read from the description on, and let go by the report."""

        def read(o: Elem, k: Elem) -> Expr:
            return Exists(Buffer, lambda d: s.reads[o, k, d])

        return ForAll(
            Operation, Rank, lambda o, k: Implies(s.described[o, k] & Not(s.reported[o, k]), read(o, k))
        )


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def all_ranks_use_registered_memory(s: State) -> Expr:
        return ForAll(Rank, lambda k: s.use[k] == Use.pinned)

    @m.goal
    def a_failure_comes_when_another_rank_has_agreed(s: State) -> Expr:
        return And(refused(s), Exists(Rank, lambda k: (s.vote[k] == Vote.yes) & Not(whole(s, k))))

    @m.goal
    def a_buffer_is_free_on_one_rank_and_read_on_another(s: State) -> Expr:
        def apart(o: Elem, j: Elem, k: Elem, d: Elem) -> Expr:
            return And(s.reported[o, j], s.reads[o, k, d])

        return Exists(Operation, Rank, Rank, Buffer, apart)

    @m.goal
    def transfers_run_on_plain_memory(s: State) -> Expr:
        return Exists(Operation, Rank, lambda o, k: s.reported[o, k] & (s.use[k] == Use.plain))

    m.ghost("registered", why="What memory is registered is a fact of the driver.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("host_memory", doc=__doc__, faults=faults), Rank, Piece, Buffer, Operation)
    declare_state(m)
    declare_registration(m)
    declare_transfers(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
