"""The direct judge: a machine's recipe as plain Python, explored by the simplest search there is.

It shares nothing with the engines, the language included: no grounding, no simplification, no packing. Its
findings are what the engines are compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recipes import SIGNS, Action, Field, Node, Recipe, T

State = tuple[int, ...]
Args = tuple[int, ...]
Shown = bool | int | str


class Taken(NamedTuple):
    """One step: the action, its arguments, the state after it, and the checks and ranges that fail in it."""

    action: str
    args: Args
    after: State
    failing: tuple[str, ...]
    out_of_range: bool
    out_of_bounds: bool


@dataclass
class Answer:
    """What exploring finds. Lengths are numbers of steps of a shortest run.

    ``outside``: a step leaves the bounds of an unbounded Int. ``cut``: the search was cut off.
    """

    states: int = 1
    transitions: int = 0
    depth: int = 0
    coverage: dict[str, int] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)
    goals: dict[str, int | None] = field(default_factory=dict)
    deadlock: int | None = None
    outside: bool = False
    cut: bool = False

    @property
    def all_violated(self) -> dict[str, int]:
        """What is violated, a deadlock among it."""
        return self.violated | ({} if self.deadlock is None else {"deadlock": self.deadlock})


_TEMPLATES = {
    "lit": "({data})",
    "var": "{data}",
    "index": "{0}",
    "not": "(not {0})",
    "implies": "(not {0} or {1})",
    "iff": "(bool({0}) == bool({1}))",
    "if": "({1} if {0} else {2})",
}
"""By operation, the Python text of an expression from that of its parts."""


class Direct:
    """A recipe at given sizes. ``bounded`` False: unbounded Ints take every value."""

    def __init__(self, r: Recipe, sizes: dict[str, int] | None = None, bounded: bool = True) -> None:
        self.recipe, self.sizes = r, sizes or r.sizes
        self.base: dict[str, int] = {}
        self.fields: dict[str, Field] = {f.name: f for f in r.fields}
        self.cells: list[tuple[Field, Args]] = []
        for f in r.fields:
            self.base[f.name] = len(self.cells)
            self.cells += [(f, at) for at in itertools.product(*(self.values(t) for t in f.domain))]
        self.limits = r.limits if bounded else {}
        self.instances = [
            (a, args) for a in r.actions for args in itertools.product(*(self.values(t) for _, t in a.params))
        ]
        self._compiled: dict[object, Callable[..., Any]] = {}
        self.initial: State
        self._successors = self._step_code()

    def values(self, t: T) -> range:
        """Every value of a bounded type."""
        lo, hi = t.ends(self.sizes)
        return range(lo, hi + 1)

    def starts_in_range(self) -> bool:
        """Whether types have values and the initial state is within them."""
        types = [t for f in self.recipe.fields for t in f.domain]
        types += [t for a in self.recipe.actions for _, t in a.params]
        first = [(f.value, x) for (f, _), x in zip(self.cells, self.initial, strict=True) if f.value.bounded]
        return all(self.values(t) for t in types) and all(x in self.values(t) for t, x in first)

    def function(self, e: Node, names: tuple[str, ...] = ()) -> Callable[..., Any]:
        """``e`` as a function of a state and of the variables named."""
        key = (e, names)
        if key not in self._compiled:
            text = f"lambda s{''.join(', ' + n for n in names)}: {self.text(e)}"
            self._compiled[key] = eval(text)  # our own text
        return self._compiled[key]

    def text(self, e: Node) -> str:
        """``e`` as Python over the list or tuple ``s``."""
        a = [self.text(x) for x in e.args]
        op = e.op
        if op == "read":
            return f"s[{self._cell(str(e.data), a)}]"
        if op == "get":
            f = self.fields[str(e.data)]
            inside = [
                f"{lo} <= {x} <= {hi}"
                for x, (lo, hi) in zip(a, (t.ends(self.sizes) for t in f.domain), strict=False)
            ]
            return f"(s[{self._cell(f.name, a[:-1])}] if {' and '.join(inside)} else {a[-1]})"
        if op in ("forall", "exists", "count"):
            word = {"forall": "all", "exists": "any", "count": "sum"}[op]
            assert isinstance(e.data, tuple)
            return f"{word}((1 if {a[0]} else 0) {self._loops(e.data)})"
        if op in ("and", "or"):
            return f"({f' {op} '.join(a)})"
        if op in _TEMPLATES:
            return _TEMPLATES[op].format(*a, data=e.data)
        if op == "isin":
            return f"({a[0]} in ({', '.join(a[1:])},))"
        if e.args[0].type.kind == "bool":
            a = [f"bool({x})" for x in a]
        return f"({a[0]} {SIGNS[op]} {a[1]})"

    def _loops(self, variables: Iterable[tuple[str, T]]) -> str:
        """Loops over all values of some variables, as text of a comprehension."""
        return " ".join(f"for {n} in {self.values(t)!r}" for n, t in variables)

    def _cell(self, name: str, index: list[str]) -> str:
        at = "0"
        for x, t in zip(index, self.fields[name].domain, strict=True):
            lo, hi = t.ends(self.sizes)
            at = f"({at} * {hi - lo + 1} + {x} - {lo})"
        return f"{self.base[name]} + {at}"

    def _step_code(self) -> Callable[[State], Iterator[Taken]]:
        lines = ["def initial():", "    out = []"]
        for f in self.recipe.fields:
            loops = "".join(f" for i{k} in {self.values(t)!r}" for k, t in enumerate(f.domain))
            lines.append(f"    out += [int({self.text(f.init)}) for _ in (0,){loops}]")
        lines += ["    return tuple(out)", "def successors(state):"]
        for a in self.recipe.actions:
            lines += self._action(a)
        scope: dict[str, object] = {"Taken": Taken}
        if not self.recipe.actions:
            lines.append("    yield from ()")
        exec("\n".join(lines), scope)
        start = scope["initial"]
        assert callable(start)
        self.initial = start()
        return scope["successors"]  # type: ignore[return-value]

    def _judge_values(self, a: Action, pad: str) -> Iterator[str]:
        """Whether the values that an action assigns are in their ranges and bounds."""
        written = {s.name for s in a.body if s.kind in ("set", "update")}
        for f in self.recipe.fields:
            if f.name not in written or f.value.kind != "int":
                continue
            cells = [k for k, (g, _) in enumerate(self.cells) if g is f]
            if f.value.bounded:
                lo, hi = f.value.ends(self.sizes)
            elif f.name in self.limits:
                lo, hi = self.limits[f.name]
            else:
                continue
            off = " or ".join(f"not {lo} <= s[{k}] <= {hi}" for k in cells)
            found = f"failing.append({f'range of {f.name}'!r}); wrong = True"
            yield f"{pad}if {off}: {found if f.value.bounded else 'left = True'}"

    def _action(self, a: Action) -> list[str]:
        pad = "    "
        out = []
        for loop in [f"for {n} in {self.values(t)!r}:" for n, t in a.params] or ["for _ in (0,):"]:
            out.append(pad + loop)
            pad += "    "
        out += [f"{pad}s = list(state)", f"{pad}failing = []"]
        seen: list[str] = []
        for x in a.body:
            if x.kind == "require":
                out.append(f"{pad}if not {self.text(x.expr)}: continue")
            elif x.kind == "check":
                name = f"{a.name}.{x.name}"
                same = sum(c == name or c.startswith(name + "#") for c in seen)
                name = f"{name}#{same + 1}" if same else name
                seen.append(name)
                out.append(f"{pad}if not {self.text(x.expr)}: failing.append({name!r})")
            elif x.kind == "set":
                cell = self._cell(x.name, [self.text(i) for i in x.index])
                out.append(f"{pad}s[{cell}] = int({self.text(x.expr)})")
            else:
                f = self.fields[x.name]
                loops = self._loops(zip(x.over, f.domain, strict=True))
                size = sum(g is f for g, _ in self.cells)
                at = self.base[f.name]
                out.append(f"{pad}s[{at}:{at + size}] = [int({self.text(x.expr)}) for _ in (0,) {loops}]")
        args = "(" + "".join(n + ", " for n, _ in a.params) + ")"
        out.append(f"{pad}wrong = left = False")
        out += self._judge_values(a, pad)
        out.append(f"{pad}yield Taken({a.name!r}, {args}, tuple(s), tuple(failing), wrong, left)")
        return out

    def successors(self, state: State) -> list[Taken]:
        """Every step that can be taken, whether or not it may be followed."""
        return list(self._successors(state))

    def taken(self, state: State, action: str, args: dict[str, Shown]) -> Taken | None:
        """The step of an action with these arguments, as paths show them; None where it cannot be taken."""
        every = (t for t in self.successors(state) if t.action == action)
        return next((t for t in every if self.shown_args(t) == args), None)

    def holds(self, e: Node, state: State) -> bool:
        """Whether a condition without free variables holds."""
        return bool(self.function(e)(state))

    def properties(self) -> list[tuple[str, Node]]:
        """Invariants and lemmas by name."""
        return [(p.name, p.expr) for p in (*self.recipe.invariants, *self.recipe.lemmas)]

    def explore(
        self, most: int = 10**9, depth: int = 10**9
    ) -> tuple[Answer, dict[State, int], list[list[Taken]]]:
        """The answer, the states by number, and the steps out of each.

        Cut off at more than ``most`` states, or when all of depth ``depth`` are judged and expanded.
        """
        r = self.recipe
        answer = Answer(coverage={a.name: 0 for a in r.actions}, goals={g.name: None for g in r.goals})
        number: dict[State, int] = {self.initial: 0}
        steps: list[list[Taken]] = []
        level, d = [self.initial], 0
        conditions = [(n, self.function(e)) for n, e in self.properties()]
        goals = [(g.name, self.function(g.expr)) for g in r.goals]
        terminal = self.function(r.terminal) if r.terminal is not None else lambda _: False
        while level:
            fresh: list[State] = []
            for state in level:
                for name, f in conditions:
                    if name not in answer.violated and not f(state):
                        answer.violated[name] = d
                for name, f in goals:
                    if answer.goals[name] is None and f(state):
                        answer.goals[name] = d
            for state in level:
                out = self.successors(state)
                steps.append(out)
                if not out and answer.deadlock is None and not terminal(state):
                    answer.deadlock = d
                for t in out:
                    answer.transitions += 1
                    answer.coverage[t.action] += 1
                    for name in t.failing:
                        answer.violated.setdefault(name, d + 1)
                    followed = not t.out_of_range and not t.out_of_bounds
                    answer.outside |= t.out_of_bounds and not t.out_of_range
                    if followed and t.after not in number:
                        number[t.after] = len(number)
                        fresh.append(t.after)
                        answer.depth = d + 1
            if len(number) > most or (fresh and d >= depth):
                answer.cut = True
                break
            level = fresh
            d += 1
        answer.states = len(number)
        return answer, number, steps

    def label(self, cell: int) -> str:
        """The printed name of a cell."""
        f, at = self.cells[cell]
        inside = ", ".join(str(t.shown(i)) for t, i in zip(f.domain, at, strict=True))
        return f"{f.name}[{inside}]" if f.domain else f.name

    def shown(self, state: State) -> dict[str, Shown]:
        """A state by printed names, as views show it."""
        return {self.label(k): self.cells[k][0].value.shown(x) for k, x in enumerate(state)}

    def shown_args(self, t: Taken) -> dict[str, Shown]:
        """The arguments of a step, as paths show them."""
        a = next(a for a in self.recipe.actions if a.name == t.action)
        return {n: ty.shown(x) for (n, ty), x in zip(a.params, t.args, strict=True)}


def judged(r: Recipe, most: int = 10**9) -> Answer:
    """What there is to find in a machine; one with noise is judged part by part.

    Steps of the noise and of the rest alternate in every way, so states multiply and depths add.
    """
    core, noise = r.parts()
    a, _, _ = Direct(core).explore(most)
    for part in noise:
        beside, _, _ = Direct(part).explore(most)
        assert not beside.violated
        assert beside.deadlock is None  # so there is none in the whole machine
        a.coverage = {
            **{n: k * beside.states for n, k in a.coverage.items()},
            **{n: k * a.states for n, k in beside.coverage.items()},
        }
        a.transitions = a.transitions * beside.states + beside.transitions * a.states
        a.states, a.depth, a.deadlock = a.states * beside.states, a.depth + beside.depth, None
        a.cut = a.cut or beside.cut
    return a
