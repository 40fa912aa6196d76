"""A tier with two blocks: a block that is promised to a request must not be evicted."""

import kvfence
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
        """The request has loaded the block."""
        s.require(s.promised[b])
        s.promised[b] = False

    @m.action(b=block)
    def evict(s: State, b: Elem) -> None:
        """The tier needs room, and gives the block up."""
        s.require(s.cached[b], *([Not(s.promised[b])] if pins else []))
        s.cached[b] = False

    @m.invariant("PIN")
    def promised_blocks_stay(s: State) -> Expr:
        """A promised block is still cached."""
        return ForAll(block, lambda b: Implies(s.promised[b], s.cached[b]))

    return m


if __name__ == "__main__":
    assert kvfence.verify(machine=tier(pins=True)).verdict == "holds"
    found = kvfence.verify(machine=tier(pins=False))
    assert found.verdict == "violated"
    for step in found.counterexamples[0].steps:
        print(f"{step.number}. {step.action}({step.arguments}): {step.doc}")
