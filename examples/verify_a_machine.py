"""A tier with two blocks: a block that is promised to a request must not be evicted."""

from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.language import Bool, Elem, Expr, ForAll, Implies, Machine, Not, State


def tier(pins: bool) -> Machine:
    """The machine; without ``pins`` a promise does not keep its block."""
    m = Machine("tier")
    block = m.sort("Block", default=2)
    m.function("cached", block, value=Bool, init=False)
    m.function("promised", block, value=Bool, init=False)

    @m.action(b=block)
    def store(s: State, b: Elem) -> None:
        """The block is stored."""
        s.require(Not(s.cached[b]))
        s.cached[b] = True

    @m.action(b=block)
    def promise(s: State, b: Elem) -> None:
        """A request is promised the block."""
        s.require(s.cached[b])
        s.promised[b] = True

    @m.action(b=block)
    def load(s: State, b: Elem) -> None:
        """The request has loaded what it was promised."""
        s.require(s.promised[b])
        s.promised[b] = False

    @m.action(b=block)
    def evict(s: State, b: Elem) -> None:
        """The tier needs room."""
        s.require(s.cached[b], *([Not(s.promised[b])] if pins else []))
        s.cached[b] = False

    @m.invariant("PIN")
    def promised_blocks_stay(s: State) -> Expr:
        """What was promised is still there."""
        return ForAll(block, lambda b: Implies(s.promised[b], s.cached[b]))

    return m


if __name__ == "__main__":
    assert Interpret().run(tier(pins=True)).verdict == "holds"
    found = Interpret().run(tier(pins=False))
    assert found.verdict == "violated"
    print(found.violated[0])
