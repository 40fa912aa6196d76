"""Exports a machine at given sizes as Promela, for Spin: one process that takes one step after another.

Each instance of an action is a ``d_step``: Spin sees the states between steps and nothing else, so it stores
as many states as kvfence reaches. Steps that take a value out of its range are left out, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvfence.checker.core.identifiers import ascii_word
from kvfence.checker.engines.word_size import TooWide, fits, roots
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Grounded, Instance, Machine, ground
from kvfence.spec.language.nodes import Node

_SIGNS = {"and": "&&", "or": "||", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
LONGEST = 4_000_000
"""Characters of a Promela text; Spin prints each of them into C several times over."""


def promela(machine: Machine, sizes: Mapping[str, int] | None = None) -> str:
    """The Promela text of a machine, its invariants asserted in every state.

    CannotRun for unbounded Ints, numbers of more than 32 bits, and sizes at which the text gets too long.
    """
    g = ground(machine, sizes)
    unbounded = [c.label for c in g.cells if c.lo is None]
    if unbounded:
        raise CannotRun(f"Promela has no unbounded integers, and {unbounded[0]} of {machine.name} is one")
    try:
        fits(g, roots(g), {}, (-(1 << 31), (1 << 31) - 1))
    except TooWide as why:
        bits = f"Promela has numbers of 32 bits, and in {machine.name} {why}: narrow its ranges"
        raise CannotRun(bits) from None
    out = _Printer(g)
    given = ", ".join(f"{ascii_word(sort)} {size}" for sort, size in g.sizes.items())
    lines = [
        f"/* Machine {ascii_word(machine.name)} of kvfence at {given or 'its only size'}.",
        "   spin -a FILE && cc -O2 -DBFS -DSAFETY -DNOREDUCE -o pan pan.c && ./pan */",
        *(f"{_kind(c.lo, c.hi)} c{c.number} = {c.init}; /* {c.label} */" for c in g.cells),
        *(f"int t{k} = 0;" for k in range(max((len(i.updates) for i in g.instances), default=0))),
    ]
    holds = [out.text(node) for _, node in g.invariants]
    lines += [f"#define GOOD ({' && '.join(holds) or '1'})", "", "active proctype machine() {", "end: do"]
    for i in g.instances:
        lines += _step(i, out)
    lines += ["  od", "}", ""]
    text = "\n".join(lines)
    if len(text) > LONGEST:
        size = f"{len(text):,} characters of Promela"
        raise CannotRun(f"{machine.name} at {given} is {size}: use smaller sizes")
    return text


def _step(i: Instance, out: _Printer) -> list[str]:
    guard = " && ".join([out.text(i.guard), *(out.text(r.holds) for r in i.ranges)])
    new = [f"t{k} = {out.text(node)};" for k, node in enumerate(i.updates.values())]
    # back to zero, so that no state differs from another in them (Spin's breadth-first search hides none)
    put = [f"c{cell} = t{k}; t{k} = 0;" for k, cell in enumerate(i.updates)]
    checks = "".join(f" assert({out.text(c.holds)});" for c in i.checks if c.holds.op != "const")
    return [f"  /* {i} */", f"  :: d_step {{ {guard} ->{checks} {' '.join([*new, *put])} assert(GOOD) }}"]


def _kind(lo: int | None, hi: int | None) -> str:
    assert lo is not None
    assert hi is not None
    if lo >= 0 and hi <= 1:
        return "bit"
    return "byte" if lo >= 0 and hi <= 255 else "short" if lo >= -32768 and hi <= 32767 else "int"


class _Printer:
    def __init__(self, g: Grounded) -> None:
        self.known: dict[int, str] = {}
        self.machine = g.machine.name

    def text(self, n: Node) -> str:
        if n.id not in self.known:
            self.known[n.id] = self._print(n)
            if len(self.known[n.id]) > LONGEST:
                raise CannotRun(f"an expression of {self.machine} is too long for Promela: use smaller sizes")
        return self.known[n.id]

    def _print(self, n: Node) -> str:
        a = [self.text(x) for x in n.args]
        forms: dict[str, Callable[[], str]] = {
            "const": lambda: str(n.value),
            "cell": lambda: f"c{n.value}",
            "not": lambda: f"!{a[0]}",
            "ite": lambda: f"({a[0]} -> {a[1]} : {a[2]})",
        }
        return forms[n.op]() if n.op in forms else f"({f' {_SIGNS[n.op]} '.join(a)})"
