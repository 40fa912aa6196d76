"""What a step does to a state, as far as it is printed alike in numpy, in C and in CUDA."""

from __future__ import annotations

from kvfence.checker.engines.base import CellBounds
from kvfence.checker.engines.explicit.pack import Packing
from kvfence.spec.language import Instance
from kvfence.spec.language.nodes import Graph, Node

ALL_BITS = (1 << 64) - 1


def limits_kept(graph: Graph, i: Instance, limits: CellBounds) -> list[tuple[int, Node]]:
    """For each unbounded cell that an instance updates, the condition that its new value is within bounds."""

    def inside(n: Node, lo: int, hi: int) -> Node:
        return graph.junction("and", (graph.at_most(graph.const(lo), n), graph.at_most(n, graph.const(hi))))

    return [(c, inside(n, *limits[c])) for c, n in i.updates.items() if c in limits]


def moved(cell: int, n: Node) -> int | None:
    """``k`` if the next value of the cell is its own plus ``k``."""
    if n.op == "add" and n.args[0].op == "cell" and n.args[0].value == cell and n.args[1].op == "const":
        return n.args[1].value
    return None


def is_computed(packing: Packing, cell: int, n: Node) -> bool:
    """Whether the next value of the cell takes more than adding a constant to its word."""
    return bool(packing.slots[cell].bits) and n.op != "const" and moved(cell, n) is None


def constant_part(packing: Packing, i: Instance) -> tuple[list[int], list[int]]:
    """For each word of a state, the bits that an instance keeps and the number that it adds."""
    keep, plus = [ALL_BITS] * packing.words, [0] * packing.words
    for cell, n in i.updates.items():
        s = packing.slots[cell]
        by = moved(cell, n)
        if by is not None:
            plus[s.word] += by << s.offset
        elif s.bits:
            keep[s.word] &= ~s.mask
            plus[s.word] += (n.value - s.lo) << s.offset if n.op == "const" else 0
    return keep, [p & ALL_BITS for p in plus]
