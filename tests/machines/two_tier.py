"""A small specification to review: a tier of blocks that are pinned before they are read."""

from kvfence.spec.language import And, Elem, Exists, Expr, ForAll, Implies, Machine, Not, State


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """With ``no_pin`` a lookup does not pin, with ``no_evict`` nothing is ever evicted."""
    m = Machine("two_tier", faults=faults)
    Reader = m.sort("Reader", default=2)
    Block = m.sort("Block", default=2)
    m.relation("cached", Block)
    m.relation("pinned", Reader, Block)
    m.relation("promised", Reader, Block)
    no_evict = m.faulty("no_evict")

    @m.action(b=Block)
    def store(s: State, b: Elem) -> None:
        """Block b is filled."""
        s.require(Not(s.cached[b]))
        s.cached[b] = True

    @m.action(r=Reader, b=Block)
    def lookup(s: State, r: Elem, b: Elem) -> None:
        """Reader r is promised block b."""
        s.require(s.cached[b], Not(s.promised[r, b]))
        s.promised[r, b] = True
        if not m.faulty("no_pin"):
            s.pinned[r, b] = True

    @m.action(r=Reader, b=Block, fair="weak")
    def read(s: State, r: Elem, b: Elem) -> None:
        """Reader r has read block b."""
        s.require(s.promised[r, b])
        s.promised[r, b] = False
        s.pinned[r, b] = False

    @m.action(b=Block)
    def evict(s: State, b: Elem) -> None:
        """Block b is given up."""
        s.require(s.cached[b], ForAll(Reader, lambda r: Not(s.pinned[r, b])))
        if no_evict:
            s.require(False)
        s.cached[b] = False

    @m.invariant("PIN")
    def a_promised_block_is_pinned(s: State) -> Expr:
        return ForAll(Reader, Block, lambda r, b: Implies(s.promised[r, b], s.pinned[r, b]))

    @m.invariant("USE-READY")
    def a_promised_block_is_there(s: State) -> Expr:
        return ForAll(Reader, Block, lambda r, b: Implies(s.promised[r, b], s.cached[b]))

    @m.goal
    def two_readers_pin_one_block(s: State) -> Expr:
        return Exists(Reader, Reader, Block, lambda q, r, b: And(q != r, s.pinned[q, b], s.pinned[r, b]))

    m.leads_to(
        "a_promise_is_kept",
        lambda s, r, b: s.promised[r, b],
        lambda s, r, b: Not(s.promised[r, b]),
        doc="a reader that was promised a block reads it in the end",
        r=Reader,
        b=Block,
    )
    return m


MACHINE = build()
