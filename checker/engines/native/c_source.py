"""C source for a grounded machine: all successors of a few states at a time, and the properties of states.

The C is written over lanes (``lanes.h``): one statement for each node, computed for all lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources

from kvfence.checker.engines.columns import below
from kvfence.checker.engines.native.layout import Dense
from kvfence.checker.engines.pack import Slot
from kvfence.checker.engines.symmetry import Exchange, Symmetry
from kvfence.spec.language import GroundCheck, Grounded, Instance
from kvfence.spec.language.nodes import Graph, Node

_ALL = (1 << 64) - 1
_LONG = 300  # statements of one C function: compilers take more than linear time
_BATCH = 2048  # successors entered at a time

Literal = tuple[int, int, int]  # word, mask, value of the bits under it


class NativeSource:
    """A machine as C. ``checks`` are the names of step checks and ranges, in the order of their numbers."""

    def __init__(
        self,
        g: Grounded,
        packing: Dense,
        limits: Mapping[int, tuple[int, int]],
        symmetry: Symmetry | None = None,
    ) -> None:
        self.grounded, self.packing, self.symmetry = g, packing, symmetry
        self.limits = {i.index: _limits(g.graph, i, limits) for i in g.instances}
        names = (c.name for i in g.instances for c in (*i.checks, *i.ranges))
        self.checks = {name: k for k, name in enumerate(dict.fromkeys(names))}

    def text(self) -> str:
        """The whole translation unit."""
        constants, functions = self._machine()
        parts = [*constants, _packaged("lanes.h"), *functions, _packaged("search.c")]
        return "\n".join(parts)

    def machine_text(self) -> str:
        """The part that is about this machine."""
        constants, functions = self._machine()
        return "\n".join([*constants, *functions])

    def _machine(self) -> tuple[list[str], list[str]]:
        g = self.grounded
        sizes = {
            "WORDS": self.packing.words,
            "INSTANCES": max(1, len(g.instances)),
            "PROPERTIES": max(1, len(g.invariants) + len(g.goals)),
            "CHECKS": max(1, len(self.checks)),
            "CELLS": max(1, len(g.cells)),
            "BATCH": _BATCH,
            "SYMMETRIC": int(self.symmetry is not None and bool(self.symmetry.walk)),
        }
        constants = [f"#define {name} {value}" for name, value in sizes.items()]
        return constants, [*self._expand(), *self._look(), *self._terminal(), *self._canonical()]

    def _expand(self) -> list[str]:
        out: list[str] = []
        functions = 0
        body: list[str] = []
        scope = Scope(self.packing, 1)

        def close() -> None:
            nonlocal functions, body, scope
            if body or scope.lines:
                out.append(
                    f"static u64 expand_{functions}(Worker *t, const V *w, M valid, u64 n, M *alive) {{"
                )
                out.extend([*scope.lines, *body, "  return n;", "}"])
                functions += 1
            body, scope = [], Scope(self.packing, 1)

        for cluster in self._clusters():
            before = len(scope.lines)
            guards = [scope.name(i.guard) for i in cluster]
            body += scope.lines[before:]
            del scope.lines[before:]
            body += self._cluster(cluster, guards, scope)
            if len(body) > _LONG:
                close()
        close()
        calls = [f"  n = expand_{k}(t, w, valid, n, &alive);" for k in range(functions)]
        return [
            *out,
            "/* All successors of the valid lanes; which lanes have one. */",
            "static M expand(Worker *t, const V *w, M valid) {",
            "  M alive = 0;",
            "  u64 n = t->n;",
            *calls,
            "  t->n = n;",
            "  return alive;",
            "}",
        ]

    def _clusters(self) -> list[list[Instance]]:
        """Instances with the same computed next values, together."""
        found: dict[tuple[object, ...], list[Instance]] = {}
        for i in self.grounded.instances:
            key = tuple((cell, n.id) for cell, n in sorted(i.updates.items()) if self._computed(cell, n))
            found.setdefault(key or ("alone", i.index), []).append(i)
        return list(found.values())

    def _cluster(self, cluster: list[Instance], guards: list[str], outer: Scope) -> list[str]:
        if len(cluster) == 1:
            inner = Scope(self.packing, 2, outer)
            lines = self._instance(cluster[0], inner, self._computed_words(cluster[0], inner))
            return ["  {", f"  M m = {guards[0]} & valid;", "  if (m) {", *lines, "  }", "  }"]
        shared = Scope(self.packing, 2, outer)
        words = self._computed_words(cluster[0], shared)
        out = []
        for i, guard in zip(cluster, guards, strict=True):
            inner = Scope(self.packing, 3, shared)
            lines = self._instance(i, inner, words)
            out += ["    {", f"    M m = {guard} & valid;", "    if (m) {", *lines, "    }", "    }"]
        return [f"  if (({' | '.join(guards)}) & valid) {{", *shared.lines, *out, "  }"]

    def _computed(self, cell: int, n: Node) -> bool:
        s = self.packing.slots[cell]
        return bool(s.bits) and n.op != "const" and _moved(cell, n) is None

    def _computed_words(self, i: Instance, scope: Scope) -> dict[int, str]:
        """For each word, the name of the bits of its computed cells."""
        parts: dict[int, list[str]] = {}
        for cell, n in i.updates.items():
            if self._computed(cell, n):
                s = self.packing.slots[cell]
                value = scope.number(n)
                if s.lo:
                    value = f"({value} - K({s.lo}))"
                parts.setdefault(s.word, []).append(f"({value} << {s.offset})" if s.offset else value)
        return {word: scope.fresh("V", " | ".join(texts)) for word, texts in parts.items()}

    def _instance(self, i: Instance, scope: Scope, computed: Mapping[int, str]) -> list[str]:
        tail = [f"*alive |= m; t->taken[{i.index}] += COUNT(m);"]
        for check in i.checks:
            tail += self._check(i, check, scope)
        keep: list[str] = []
        for check in i.ranges:
            tail += self._check(i, check, scope)
            keep.append(scope.name(check.holds))
        tail += [f"m &= {name};" for name in keep]
        for cell, n in self.limits[i.index]:
            ok = scope.name(n)
            tail += [f"if (m & NOT({ok})) step_outside(t, {cell});", f"m &= {ok};"]
        masks, plus = self._constant_part(i)
        for k in range(self.packing.words):
            text = f"w[{k}]"
            if masks[k] != _ALL:
                text = f"({text} & K({_signed(masks[k])}))"
            if plus[k]:
                text = f"({text} + K({_signed(plus[k])}))"
            if k in computed:
                text = f"({text} | {computed[k]})"
            tail.append(f"PUT(t->out[{k}] + n, m, {text});")
        tail.append(f"if (t->traced) note(t, {i.index}, m, n);")
        tail.append("n += COUNT(m);")
        pad = "  " * scope.indent
        return [*scope.lines, *(pad + line for line in tail)]

    def _check(self, i: Instance, check: GroundCheck, scope: Scope) -> list[str]:
        if check.holds.op == "const" and check.holds.value:
            return []
        bad = f"m & NOT({scope.name(check.holds)})"
        return [f"if ({bad}) step_failed(t, {self.checks[check.name]}, {i.index}, w, {bad});"]

    def _constant_part(self, i: Instance) -> tuple[list[int], list[int]]:
        """For each word, the bits kept and the number added."""
        keep, plus = [_ALL] * self.packing.words, [0] * self.packing.words
        for cell, n in i.updates.items():
            s = self.packing.slots[cell]
            moved = _moved(cell, n)
            if moved is not None:
                plus[s.word] += moved << s.offset
            elif s.bits:
                keep[s.word] &= ~s.mask
                plus[s.word] += (n.value - s.lo) << s.offset if n.op == "const" else 0
        return keep, [p & _ALL for p in plus]

    def _look(self) -> list[str]:
        g = self.grounded
        nodes = [(n, False) for _, n in g.invariants] + [(n, True) for _, n in g.goals]
        uses: Counter[int] = Counter()
        for n, _ in nodes:
            uses.update(x.id for x in below([n]))
        common = {k for k, times in uses.items() if times > 1}
        outer = Scope(self.packing, 1)
        for x in below([n for n, _ in nodes]):
            if x.id in common and x.op not in ("const", "cell") and not outer.is_literal(x):
                outer.name(x)
        lines = []
        for k, (n, wanted) in enumerate(nodes):
            inner = Scope(self.packing, 2, outer)
            name = inner.name(n)
            hit = f"valid & {name}" if wanted else f"valid & NOT({name})"
            lines += [
                f"  if (is_open(t, {k})) {{",
                *inner.lines,
                f"    const M hit = {hit};",
                f"    if (hit) look_hit(t, {k}, w, hit);",
                "  }",
            ]
        return [
            "/* Reports the invariants that fail and the goals that hold in the valid lanes. */",
            "static void look(Worker *t, const V *w, M valid) {",
            *outer.lines,
            *lines,
            "  (void)t, (void)w, (void)valid;",
            "}",
        ]

    def _terminal(self) -> list[str]:
        scope = Scope(self.packing, 1)
        name = scope.name(self.grounded.terminal)
        return [
            "/* The lanes that may have no successor. */",
            "static M terminal(const V *w) {",
            "  (void)w;",
            *scope.lines,
            f"  return {name};",
            "}",
        ]

    def _canonical(self) -> list[str]:
        if self.symmetry is None or not self.symmetry.walk:
            return []
        words = self.packing.words
        out = []
        for k, e in enumerate(self.symmetry.exchanges):
            out += [f"static inline void exchange_{k}(V *w) {{", *exchange_lines(e, self.packing), "}"]
        cases = [f"    case {k}: exchange_{k}(w); break;" for k in range(len(self.symmetry.exchanges))]
        lower = f"BELOW(w[{words - 1}], best[{words - 1}])"
        for k in range(words - 2, -1, -1):
            lower = f"(BELOW(w[{k}], best[{k}]) | (EQ(w[{k}], best[{k}]) & {lower}))"
        walk = ", ".join(map(str, self.symmetry.walk))
        return [
            *out,
            f"static const unsigned char WALK[] = {{{walk}}};",
            "/* Replaces each lane by the smallest state that it is a renaming of. */",
            "static void canonical(V *w) {",
            "  V best[WORDS];",
            "  memcpy(best, w, sizeof best);",
            "  for (unsigned i = 0; i < sizeof WALK; i++) {",
            "    switch (WALK[i]) {",
            *cases,
            "    }",
            f"    const M lower = {lower};",
            "    for (int k = 0; k < WORDS; k++) best[k] = SELECT(lower, w[k], best[k]);",
            "  }",
            "  memcpy(w, best, sizeof best);",
            "}",
        ]


class Scope:
    """Statements of one C block. A node is computed before its first use: once, for blocks inside too."""

    def __init__(self, packing: Dense, indent: int, outer: Scope | None = None) -> None:
        self.packing, self.indent = packing, indent
        self.lines: list[str] = []
        self._names: dict[int, str] = dict(outer._names) if outer else {}

    def fresh(self, kind: str, text: str) -> str:
        """A new name for a text."""
        name = f"x{len(self._names)}_{self.indent}_{len(self.lines)}"
        self.lines.append(f"{'  ' * self.indent}const {kind} {name} = {text};")
        return name

    def name(self, n: Node) -> str:
        """C for a node: a mask if it is a truth value, else a number for each lane."""
        todo = [n]
        while todo:
            x = todo[-1]
            if x.id in self._names or x.op == "const":
                todo.pop()
                continue
            missing = [a for a in self._parts(x) if a.op != "const" and a.id not in self._names]
            if missing:
                todo += missing
                continue
            todo.pop()
            kind = "M" if x.boolean else "V"
            name = self._names[x.id] = f"n{x.id}"
            self.lines.append(f"{'  ' * self.indent}const {kind} {name} = {self._formula(x)};")
        return self._ref(n)

    def number(self, n: Node) -> str:
        """C for a node as a number for each lane, truth values as 0 and 1."""
        text = self.name(n)
        return f"NUMBER({text})" if n.boolean and n.op != "const" else self._as_number(n, text)

    def is_literal(self, n: Node) -> bool:
        """Whether the node compares bits of one word with a constant."""
        return self._literal(n) is not None

    def _as_number(self, n: Node, text: str) -> str:
        return f"K({n.value})" if n.op == "const" else text

    def _ref(self, n: Node) -> str:
        if n.op != "const":
            return self._names[n.id]
        if n.boolean:
            return "ALL" if n.value else "0u"
        return f"K({n.value})"

    def _num(self, n: Node) -> str:
        if n.op == "const":
            return f"K({n.value})"
        return f"NUMBER({self._ref(n)})" if n.boolean else self._ref(n)

    def _literal(self, n: Node) -> Literal | None:
        if n.op == "not":
            inner = n.args[0]
            if inner.op == "cell" and inner.boolean:
                s = self.packing.slots[inner.value]
                return s.word, s.mask, 0
            return None
        if n.op == "cell" and n.boolean:
            s = self.packing.slots[n.value]
            return s.word, s.mask, s.mask
        if n.op == "eq":
            cell, value = n.args
            if cell.op == "cell" and value.op == "const" and not cell.boolean:
                s = self.packing.slots[cell.value]
                if not 0 <= value.value - s.lo < 1 << s.bits:
                    return None
                return s.word, s.mask, (value.value - s.lo) << s.offset
        return None

    def _merged(self, n: Node) -> tuple[list[Literal], list[Node]]:
        """Arguments of a junction that compare bits with constants, by word, and the others.

        For ``or``, the comparisons are those of the negated arguments.
        """
        merged: dict[int, Literal] = {}
        others = []
        for a in n.args:
            found = self._literal(a if n.op == "and" else _negated(a))
            if found is None:
                others.append(a)
                continue
            word, mask, value = found
            known = merged.get(word, (word, 0, 0))
            if known[1] & mask:
                others.append(a)
            else:
                merged[word] = (word, known[1] | mask, known[2] | value)
        return list(merged.values()), others

    def _parts(self, n: Node) -> Sequence[Node]:
        if n.op == "cell" or self._literal(n) is not None:
            return ()
        if n.op in ("and", "or"):
            return self._merged(n)[1]
        if n.op == "not" and self._literal(n.args[0]) is not None:
            return ()
        return n.args

    def _formula(self, n: Node) -> str:
        literal = self._literal(n)
        if literal is not None:
            return _match(literal)
        if n.op == "cell":
            return self._cell(self.packing.slots[n.value])
        if n.op == "not":
            inner = self._literal(n.args[0])
            return f"NOT({_match(inner) if inner is not None else self._ref(n.args[0])})"
        if n.op in ("and", "or"):
            literals, others = self._merged(n)
            tests = [_match(x) for x in literals]
            if n.op == "or":
                tests = [f"NOT({x})" for x in tests]
            return (" & " if n.op == "and" else " | ").join([*tests, *(self._ref(a) for a in others)])
        if n.op == "ite":
            c, a, b = n.args
            if n.boolean:
                return f"CHOOSE({self._ref(c)}, {self._ref(a)}, {self._ref(b)})"
            return f"SELECT({self._ref(c)}, {self._num(a)}, {self._num(b)})"
        a, b = n.args
        if n.op == "eq" and a.boolean and b.boolean:
            return f"NOT({self._ref(a)} ^ {self._ref(b)})"
        if n.op in ("eq", "lt", "le"):
            return f"{n.op.upper()}({self._num(a)}, {self._num(b)})"
        return f"{self._num(a)} {'+' if n.op == 'add' else '-'} {self._num(b)}"

    def _cell(self, s: Slot) -> str:
        if not s.bits:
            return f"K({s.lo})"
        text = f"CELL(w[{s.word}], {s.offset}, {s.mask >> s.offset}ull)"
        return f"{text} + K({s.lo})" if s.lo else text


def exchange_lines(e: Exchange, packing: Dense) -> list[str]:
    """Statements that exchange two elements in the state ``w``: bits that lie equally far apart at once."""
    moves: dict[tuple[int, int, int], int] = {}  # (word, other word, distance): bits of the lower cells
    for a, b in e.pairs:
        x, y = packing.slots[a], packing.slots[b]
        if not x.bits:
            continue
        if (x.word, x.offset) > (y.word, y.offset):
            x, y = y, x
        key = (x.word, y.word, y.offset - x.offset)
        moves[key] = moves.get(key, 0) | x.mask
    out = []
    for (low, high, distance), mask in moves.items():
        to_low, to_high = (">>", "<<") if distance >= 0 else ("<<", ">>")
        d = abs(distance)
        bits = _logical(f"w[{high}]", to_low, d)
        back = _logical("x", to_high, d)
        out.append(f"  {{ const V x = ({bits} ^ w[{low}]) & K({_signed(mask)});")
        out.append(f"    w[{low}] ^= x; w[{high}] ^= {back}; }}")
    for cell in e.values:
        s = packing.slots[cell]
        if s.bits:
            either = f"MATCH(w[{s.word}], {s.mask}ull, {e.i << s.offset}ull)"
            either += f" | MATCH(w[{s.word}], {s.mask}ull, {(e.i + 1) << s.offset}ull)"
            flip = _signed((e.i ^ (e.i + 1)) << s.offset)
            out.append(f"  w[{s.word}] ^= SELECT({either}, K({flip}), K(0));")
    return out


def _logical(text: str, operator: str, distance: int) -> str:
    """A shift; to the right without the sign."""
    if distance == 0:
        return text
    if operator == "<<":
        return f"({text} << {distance})"
    return f"(({text} >> {distance}) & K({_signed(_ALL >> distance)}))"


def _match(literal: Literal) -> str:
    word, mask, value = literal
    if mask == value and mask & (mask - 1) == 0 and mask:
        return f"TEST(w[{word}], {mask}ull)"
    return f"MATCH(w[{word}], {mask}ull, {value}ull)"


def _negated(n: Node) -> Node:
    """A stand-in for the negation of a truth value that is a cell or a negated cell."""
    if n.op == "not":
        return n.args[0]
    return Node(-1, "not", (n,), 0, True, ends=(0, 1))


def _limits(graph: Graph, i: Instance, limits: Mapping[int, tuple[int, int]]) -> list[tuple[int, Node]]:
    def inside(n: Node, lo: int, hi: int) -> Node:
        return graph.junction("and", (graph.at_most(graph.const(lo), n), graph.at_most(n, graph.const(hi))))

    return [(c, inside(n, *limits[c])) for c, n in i.updates.items() if c in limits]


def _moved(cell: int, n: Node) -> int | None:
    """``k`` if the next value of the cell is its own plus ``k``."""
    if n.op == "add" and n.args[0].op == "cell" and n.args[0].value == cell and n.args[1].op == "const":
        return n.args[1].value
    return None


def _signed(value: int) -> str:
    """A 64-bit pattern as a C constant."""
    return f"(i64){value & _ALL}ull"


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
