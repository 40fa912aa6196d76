"""The life of KV blocks: matched, allocated, loaded, released, stored and evicted in LRU order.

The benchmark machine: small enough to state in other tools, with a known number of states.
"""

from kvfence.spec.language import Bool, Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Count, Elem, Expr, ForAll, If, Implies, Index, IsIn, Not, Or

Stage = Enum("Stage", "free allocated cached evicting")
Phase = Enum("Phase", "idle matched allocated loading finished")


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine; the fault ``evict_referenced`` evicts blocks that requests still hold."""
    m = Machine("kvlife", doc=__doc__, faults=faults)
    Block = m.sort("Block", default=3)  # noqa: N806
    Request = m.sort("Request", default=2)  # noqa: N806
    rank = Int(0, lambda sizes: sizes["Block"] - 1)

    m.function("stage", Block, value=Stage, init=Stage.free)
    m.function("ref", Block, value=Int(0, 2), init=0)
    m.function("storing", Block, value=Bool, init=False)
    m.function("pos", Block, value=rank, init=Index)
    m.function("phase", Request, value=Phase, init=Phase.idle)
    # the number of the block a request holds; the number of blocks for none
    none = Count(Block, lambda _: True)
    m.function("held", Request, value=Int(0, lambda sizes: sizes["Block"]), init=none)

    def touch(s: State, b: Elem) -> None:
        p = s.pos[b]
        last = none - 1
        s.pos.update(lambda c: If(c == b, last, If(s.pos[c] > p, s.pos[c] - 1, s.pos[c])))

    def evictable(s: State, b: Elem) -> Expr:
        idle = And(s.stage[b] == Stage.cached, Not(s.storing[b]))
        return idle if m.faulty("evict_referenced") else idle & (s.ref[b] == 0)

    def holds(s: State, r: Elem, b: Elem) -> Expr:
        return s.held[r] == Index(b)

    @m.action(r=Request, b=Block)
    def match(s: State, r: Elem, b: Elem) -> None:
        """A lookup finds block b cached and takes a reference."""
        s.require(s.phase[r] == Phase.idle, s.stage[b] == Stage.cached, s.ref[b] < 2)
        touch(s, b)
        s.phase[r] = Phase.matched
        s.held[r] = Index(b)
        s.ref[b] = s.ref[b] + 1

    @m.action(r=Request, b=Block)
    def allocate(s: State, r: Elem, b: Elem) -> None:
        """Request r takes the free block b."""
        s.require(s.phase[r] == Phase.idle, s.stage[b] == Stage.free)
        touch(s, b)
        s.phase[r] = Phase.allocated
        s.held[r] = Index(b)
        s.stage[b] = Stage.allocated
        s.ref[b] = 1

    @m.action(r=Request, b=Block)
    def start_load(s: State, r: Elem, b: Elem) -> None:
        """The load of r's block begins."""
        s.require(holds(s, r, b), IsIn(s.phase[r], Phase.matched, Phase.allocated), Not(s.storing[b]))
        s.phase[r] = Phase.loading

    @m.action(r=Request, b=Block)
    def finish(s: State, r: Elem, b: Elem) -> None:
        """The load lands; the block is cached."""
        s.require(holds(s, r, b), s.phase[r] == Phase.loading)
        s.phase[r] = Phase.finished
        s.stage[b] = If(s.stage[b] == Stage.allocated, Stage.cached, s.stage[b])

    @m.action(r=Request, b=Block)
    def release(s: State, r: Elem, b: Elem) -> None:
        """A finished request drops its reference."""
        s.require(holds(s, r, b), s.phase[r] == Phase.finished)
        s.phase[r] = Phase.idle
        s.held[r] = none
        s.ref[b] = s.ref[b] - 1

    @m.action(r=Request, b=Block)
    def cancel(s: State, r: Elem, b: Elem) -> None:
        """A request gives up before its load."""
        s.require(holds(s, r, b), IsIn(s.phase[r], Phase.matched, Phase.allocated))
        s.phase[r] = Phase.idle
        s.held[r] = none
        s.ref[b] = s.ref[b] - 1
        s.stage[b] = If(s.stage[b] == Stage.allocated, Stage.free, s.stage[b])

    @m.action(b=Block)
    def store_begin(s: State, b: Elem) -> None:
        """A store of b begins."""
        s.require(s.stage[b] == Stage.cached, Not(s.storing[b]))
        s.storing[b] = True

    @m.action(b=Block)
    def store_done(s: State, b: Elem) -> None:
        """The store of b is done."""
        s.require(s.storing[b])
        s.storing[b] = False

    @m.action(b=Block)
    def evict_begin(s: State, b: Elem) -> None:
        """The least recently used evictable block is chosen."""
        older = ForAll(Block, lambda c: (c == b) | Implies(evictable(s, c), s.pos[c] > s.pos[b]))
        s.require(evictable(s, b), older)
        s.stage[b] = Stage.evicting

    @m.action(b=Block)
    def evict_done(s: State, b: Elem) -> None:
        """The evicted block is free."""
        s.require(s.stage[b] == Stage.evicting)
        s.stage[b] = Stage.free

    _properties(m, Block, Request, none)
    return m


def _properties(m: Machine, Block: Sort, Request: Sort, none: Expr) -> None:  # noqa: N803
    @m.invariant("CONSERVE")
    def a_reference_count_is_the_number_of_holders(s: State) -> Expr:
        """ref = number of requests that hold the block"""
        return ForAll(Block, lambda b: s.ref[b] == Count(Request, lambda r: s.held[r] == Index(b)))

    @m.invariant("FREEZE")
    def free_blocks_are_untouched(s: State) -> Expr:
        """a free or evicted block has no reference and no store"""
        gone = [Stage.free, Stage.evicting]
        return ForAll(Block, lambda b: Implies(IsIn(s.stage[b], *gone), (s.ref[b] == 0) & ~s.storing[b]))

    @m.invariant("NO-LEAK")
    def idle_requests_hold_nothing(s: State) -> Expr:
        """a request holds a block exactly when it is not idle"""
        return ForAll(Request, lambda r: (s.phase[r] == Phase.idle) == (s.held[r] == none))

    @m.invariant("CONSERVE")
    def lru_positions_differ(s: State) -> Expr:
        """no two blocks share a position"""
        return ForAll(Block, Block, lambda b, c: Or(b == c, s.pos[b] != s.pos[c]))

    @m.invariant("CONSERVE")
    def an_allocated_block_has_one_holder(s: State) -> Expr:
        """a block that is being filled has one reference"""
        return ForAll(Block, lambda b: Implies(s.stage[b] == Stage.allocated, s.ref[b] == 1))

    @m.goal
    def two_requests_share_a_block(s: State) -> Expr:
        """some block has two holders"""
        return Count(Block, lambda b: s.ref[b] == 2) >= 1
