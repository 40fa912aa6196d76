"""C source for a grounded machine: all successors of a few states at a time, and the properties of states.

The C is written over lanes (``lanes.h``): one statement for each node, computed for all lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import resources

from kvfence.checker.engines.base import CellBounds
from kvfence.checker.engines.explicit.columns import below
from kvfence.checker.engines.explicit.symmetry import Exchange, Symmetry
from kvfence.checker.engines.explicit.updates import ALL_BITS, constant_part, is_computed, limits_kept
from kvfence.checker.engines.native.c_nodes import Scope
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language import GroundCheck, Grounded, Instance

_LONG = 300  # statements of one C function: compilers take more than linear time
_BATCH = 2048  # successors entered at a time
SEARCH = ("table.c", "levels.c", "search.c", "session.c", "graph.c")  # in the order they build on each other


class NativeSource:
    """A machine as C. ``checks`` are the names of step checks and ranges, in the order of their numbers."""

    def __init__(
        self, g: Grounded, packing: Dense, limits: CellBounds, symmetry: Symmetry | None = None
    ) -> None:
        self.grounded, self.packing, self.symmetry = g, packing, symmetry
        self.limits = {i.index: limits_kept(g.graph, i, limits) for i in g.instances}
        names = (c.name for i in g.instances for c in (*i.checks, *i.ranges))
        self.checks = {name: k for k, name in enumerate(dict.fromkeys(names))}

    def text(self) -> str:
        """The whole translation unit."""
        constants, functions = self.parts()
        parts = [*constants, _packaged("lanes.h"), *functions, *map(_packaged, SEARCH)]
        return "\n".join(parts)

    def machine_text(self) -> str:
        """The part that is about this machine."""
        constants, functions = self.parts()
        return "\n".join([*constants, *functions])

    def parts(self) -> tuple[list[str], list[str]]:
        """Definitions of sizes, and the functions of this machine."""
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
                    f"FUNCTION u64 expand_{functions}(Worker *t, const V *w, M valid, u64 n, M *alive) {{"
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
            "FUNCTION M expand(Worker *t, const V *w, M valid) {",
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
            key = tuple(
                (cell, n.id) for cell, n in sorted(i.updates.items()) if is_computed(self.packing, cell, n)
            )
            found.setdefault(key or ("alone", i.index), []).append(i)
        return list(found.values())

    def _cluster(self, cluster: list[Instance], guards: list[str], outer: Scope) -> list[str]:
        """The steps of instances with the same computed values, which are computed once."""
        if len(cluster) == 1:
            inner = Scope(self.packing, 2, outer)
            return self._guarded(cluster[0], guards[0], inner, self._computed_words(cluster[0], inner))
        shared = Scope(self.packing, 2, outer)
        words = self._computed_words(cluster[0], shared)
        out = []
        for i, guard in zip(cluster, guards, strict=True):
            out += self._guarded(i, guard, Scope(self.packing, 3, shared), words)
        return [f"  if (ANY(({' | '.join(guards)}) & valid)) {{", *shared.lines, *out, "  }"]

    def _guarded(self, i: Instance, guard: str, scope: Scope, computed: Mapping[int, str]) -> list[str]:
        """The block of an instance, entered where its guard holds in some lane."""
        pad = "  " * (scope.indent - 1)
        head = [f"{pad}{line}" for line in ("{", f"M m = {guard} & valid;", "if (ANY(m)) {")]
        tail = [f"{pad}{line}" for line in ("}", "ROOM(t, n);", "}")]
        return [*head, *self._instance(i, scope, computed), *tail]

    def _computed_words(self, i: Instance, scope: Scope) -> dict[int, str]:
        """For each word, the name of the bits of its computed cells."""
        parts: dict[int, list[str]] = {}
        for cell, n in i.updates.items():
            if is_computed(self.packing, cell, n):
                s = self.packing.slots[cell]
                value = scope.number(n)
                if s.lo:
                    value = f"({value} - K({s.lo}))"
                parts.setdefault(s.word, []).append(f"({value} << {s.offset})" if s.offset else value)
        return {word: scope.fresh("V", " | ".join(texts)) for word, texts in parts.items()}

    def _instance(self, i: Instance, scope: Scope, computed: Mapping[int, str]) -> list[str]:
        tail = [f"*alive |= m; TAKEN(t, {i.index}, m);"]
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
        tail.append(f"EMIT(t, {i.index}, m, n);")
        masks, plus = constant_part(self.packing, i)
        for k in range(self.packing.words):
            text = f"w[{k}]"
            if masks[k] != ALL_BITS:
                text = f"({text} & K({_signed(masks[k])}))"
            if plus[k]:
                text = f"({text} + K({_signed(plus[k])}))"
            if k in computed:
                text = f"({text} | {computed[k]})"
            tail.append(f"PUT(t, {k}, m, n, {text});")
        tail.append(f"NOTE(t, {i.index}, w, m, n);")
        tail.append("n += COUNT(m);")
        pad = "  " * scope.indent
        return [*scope.lines, *(pad + line for line in tail)]

    def _check(self, i: Instance, check: GroundCheck, scope: Scope) -> list[str]:
        if check.holds.op == "const" and check.holds.value:
            return []
        bad = f"m & NOT({scope.name(check.holds)})"
        return [f"if ({bad}) step_failed(t, {self.checks[check.name]}, {i.index}, w, {bad});"]

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
            "FUNCTION void look(Worker *t, const V *w, M valid) {",
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
            "FUNCTION M terminal(const V *w) {",
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
            out += [f"FUNCTION inline void exchange_{k}(V *w) {{", *exchange_lines(e, self.packing), "}"]
        cases = [f"    case {k}: exchange_{k}(w); break;" for k in range(len(self.symmetry.exchanges))]
        lower = f"BELOW(w[{words - 1}], best[{words - 1}])"
        for k in range(words - 2, -1, -1):
            lower = f"(BELOW(w[{k}], best[{k}]) | (EQ(w[{k}], best[{k}]) & {lower}))"
        walk = ", ".join(map(str, self.symmetry.walk))
        return [
            *out,
            f"CONSTANT unsigned char WALK[] = {{{walk}}};",
            "/* Replaces each lane by the smallest state that it is a renaming of. */",
            "FUNCTION void canonical(V *w) {",
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
    return f"(({text} >> {distance}) & K({_signed(ALL_BITS >> distance)}))"


def _signed(value: int) -> str:
    """A 64-bit pattern as a C constant."""
    return f"(i64){value & ALL_BITS}ull"


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
