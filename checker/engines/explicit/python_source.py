"""Python source for grounded expressions: state tuples in, successor tuples out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvfence.spec.language import Grounded, Instance
from kvfence.spec.language.nodes import Node

_SIGNS = {"eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
_DEEP = 30  # Python's parser refuses deeply nested parentheses
_INDENT = "    "


class Block:
    """Statements of one indented block, with names for values used more than once."""

    def __init__(self, indent: int, outer: Block | None = None) -> None:
        self.lines: list[str] = []
        self._indent = _INDENT * indent
        self._names: dict[int, str] = dict(outer._names) if outer else {}

    def line(self, text: str, deeper: int = 0) -> None:
        """Add a statement."""
        self.lines.append(self._indent + _INDENT * deeper + text)

    def share(self, roots: Iterable[Node]) -> None:
        """Name the values that occur more than once under ``roots``."""
        uses: dict[int, int] = {}
        order: list[Node] = []

        def visit(n: Node) -> None:
            uses[n.id] = uses.get(n.id, 0) + 1
            if uses[n.id] == 1 and n.id not in self._names and n.args:
                for a in n.args:
                    visit(a)
                order.append(n)

        for r in roots:
            visit(r)
        for n in order:
            if uses[n.id] > 1 and n.op != "not":
                self._name(n)

    def _name(self, n: Node) -> str:
        text = self.text(n)
        name = self._names[n.id] = f"t{n.id}"
        self.line(f"{name} = {text}")
        return name

    def text(self, n: Node) -> str:
        """The expression as Python; may add statements before it."""
        return self._text(n)[0]

    def _text(self, n: Node) -> tuple[str, int]:
        if n.id in self._names:
            return self._names[n.id], 0
        if n.op == "const":
            return (f"({n.value})" if n.value < 0 else str(n.value)), 0
        if n.op == "cell":
            return f"c{n.value}", 0
        parts = [self._text(a) for a in n.args]
        a = [p for p, _ in parts]
        if n.op == "not":
            out = f"(not {a[0]})"
        elif n.op in ("and", "or"):
            out = "(" + f" {n.op} ".join(a) + ")"
        elif n.op == "ite":
            out = f"({a[1]} if {a[0]} else {a[2]})"
        else:
            out = f"({a[0]} {_SIGNS[n.op]} {a[1]})"
        depth = 1 + max(d for _, d in parts)
        if depth < _DEEP:
            return out, depth
        name = self._names[n.id] = f"t{n.id}"
        self.line(f"{name} = {out}")
        return name, 0


def _unpacked(g: Grounded) -> str:
    return "".join(f"c{c.number}, " for c in g.cells) + "= s" if g.cells else "pass"


def _next(g: Grounded, block: Block, i: Instance) -> str:
    parts = [f"+{block.text(i.updates[k])}" if k in i.updates else f"c{k}" for k in range(len(g.cells))]
    return "(" + "".join(p + ", " for p in parts) + ")"


def _failing(block: Block, i: Instance) -> str:
    tests = [(k, c.holds) for k, c in enumerate((*i.checks, *i.ranges))]
    wrong = [f"*(() if {block.text(node)} else ({k},))" for k, node in tests]
    return "(" + "".join(w + ", " for w in wrong) + ")"


def _listing(g: Grounded, name: str, roots: Iterable[Node]) -> Block:
    """The beginning of a function of a state whose list ``out`` is filled by what follows."""
    b = Block(1)
    b.lines.append(f"def {name}(s):")
    b.line(_unpacked(g))
    b.line("out = []")
    b.share(roots)
    return b


def _listed(b: Block) -> str:
    b.line("return out")
    return "\n".join(b.lines)


def enabled_source(g: Grounded) -> str:
    """``enabled(s) -> [instance index, …]``."""
    b = _listing(g, "enabled", (i.guard for i in g.instances))
    for i in g.instances:
        b.line(f"if {b.text(i.guard)}: out.append({i.index})")
    return _listed(b)


def step_source(g: Grounded, i: Instance) -> str:
    """``step(s) -> (next state, indices of failing checks)``; ranges are numbered after the checks."""
    b = Block(1)
    b.line(_unpacked(g))
    b.share((*i.updates.values(), *(c.holds for c in (*i.checks, *i.ranges))))
    after, failing = _next(g, b, i), _failing(b, i)
    b.line(f"return {after}, {failing}")
    return "\n".join(["def step(s):", *b.lines])


def successors_source(g: Grounded) -> str:
    """``successors(s) -> [(instance index, next state, indices of failing checks), …]``."""
    outer = _listing(g, "successors", (i.guard for i in g.instances))
    for i in g.instances:
        outer.line(f"if {outer.text(i.guard)}:")
        inner = Block(2, outer)
        inner.share((*i.updates.values(), *(c.holds for c in (*i.checks, *i.ranges))))
        after, failing = _next(g, inner, i), _failing(inner, i)
        inner.line(f"out.append(({i.index}, {after}, {failing}))")
        outer.lines += inner.lines
    return _listed(outer)


def false_source(g: Grounded, name: str, nodes: Sequence[Node]) -> str:
    """``name(s) -> [position of each node that is false, …]``."""
    b = _listing(g, name, nodes)
    for k, n in enumerate(nodes):
        b.line(f"if not {b.text(n)}: out.append({k})")
    return _listed(b)
