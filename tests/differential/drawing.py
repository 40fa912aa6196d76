"""Machines drawn at random: rich, small, and neither all violated at once nor all trivially true.

A machine is drawn freely, then judged directly, then mended towards what it is meant to show: conditions that
hold are taken from conditions that were seen to hold, and violated ones from those that fail late.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from counting import counting
from direct import Direct, State
from recipes import BOOL, FALSE, INT, TRUE, Action, Field, Node, Pledge, Prop, Recipe, Stmt, T, nodes

Env = tuple[tuple[str, T], ...]

# Words that mean something to the languages that machines are translated to, and nothing to Python.
WORDS = [
    "true",
    "false",
    "distinct",
    "ite",
    "let",
    "push",
    "pop",
    "select",
    "store",
    "Int",
    "Bool",
    "Real",
    "Array",
    "forall",
    "exists",
    "as_",
    "define",
    "long",
    "double",
    "char",
    "void",
    "static",
    "register",
    "struct",
    "union",
    "auto",
    "goto",
    "switch",
    "case",
    "default",
    "sizeof",
    "main",
    "memcpy",
    "errno",
    "u64",
    "V",
    "M",
    "K",
    "w",
    "n",
    "t",
    "NULL",
    "ALL",
    "search",
    "inline",
    "volatile",
    "signed",
    "x",
    "c0",
    "i8",
    "where",
    "look",
    "expand",
    "out",
]
LIKE_VARIABLES = [
    "long",
    "double",
    "char",
    "void",
    "true",
    "distinct",
    "ite",
    "u64",
    "V",
    "M",
    "K",
    "w",
    "c0",
    "register",
]
IDS = ("PIN", "FREEZE", "COUNT", "ONCE", "UNIQUE")


@dataclass(frozen=True)
class Features:
    """What machines may have."""

    words: bool = True  # names that are words of SMT-LIB and C
    size_functions: bool = True  # ranges that depend on the sizes of sorts
    unbounded: bool = True
    index: bool = True  # numbers of elements
    liveness: bool = True
    wide: bool = True  # values of many bits, so that states take several words


@dataclass(frozen=True)
class Drawn:
    """A case: the machine, and which kind it was drawn as (tiny, small, large or counting)."""

    seed: int
    case: int
    recipe: Recipe
    kind: str


COUNTING = 0.05  # of the machines, whose conditions count
KINDS = {
    "tiny": 0.42,
    "small": 0.88,
    "large": 1.0,
}  # up to where a number drawn means this kind
STATES = {"tiny": (3, 80), "small": (12, 900), "large": (50, 600)}  # of the machine, at least and at most
SAMPLE = 300  # states on which conditions are tried first
MANY = 100_000
EMPTY = Recipe((), (), (), ())


def draw(seed: int, case: int, features: Features | None = None) -> Drawn:
    """The machine of a case; the same for the same seed and case."""
    rng = random.Random(f"{seed}/{case}")
    if rng.random() < COUNTING and (features is None or features.size_functions):
        return Drawn(seed, case, counting(rng), "counting")
    x = rng.random()
    kind = next(name for name, up_to in KINDS.items() if x < up_to)
    best: tuple[int, Recipe] | None = None
    least, most = STATES[kind]
    for attempt in range(12):
        recipe = _Drawer(rng, features or Features(), kind).machine()
        run = Direct(recipe)
        if not run.starts_in_range():
            continue
        answer, _, _ = run.explore(most)
        if answer.cut:
            continue
        if best is None or answer.states > best[0]:
            best = answer.states, recipe
        if best[0] >= least or (attempt > 6 and best[0] > 2):
            break
    if best is None:
        return draw(seed, case + 1_000_003, features)
    return Drawn(seed, case, _Mender(rng, features or Features(), kind, best[1]).mended(), kind)


class _Drawer:
    """Draws the parts of one machine."""

    def __init__(self, rng: random.Random, features: Features, kind: str, of: Recipe = EMPTY) -> None:
        self.rng, self.features, self.kind = rng, features, kind
        self.serial = 0
        self.words = features.words and rng.random() < 0.25
        self.index = features.index and rng.random() < 0.2
        self.fields, self.enums, self.sizes = list(of.fields), list(of.enums), of.sizes
        self.sorts = [T("sort", name) for name in self.sizes]
        self.used = {f.name for f in of.fields} | {a.name for a in of.actions}

    # Names and types.

    def name(self, prefix: str) -> str:
        """A new name; sometimes a word of another language."""
        if self.words and self.rng.random() < 0.5:
            word = self.rng.choice(WORDS)
            taken = prefix == "act" and word in ("Int", "Bool")  # a machine file has functions for actions
            if word not in self.used and not taken:
                self.used.add(word)
                return word
        self.serial += 1
        self.used.add(f"{prefix}{self.serial}")
        return f"{prefix}{self.serial}"

    def variable(self) -> str:
        """A new name of a parameter or bound variable."""
        self.serial += 1
        if self.words and self.rng.random() < 0.3:
            like_one = self.rng.random() < 0.3
            return f"{self.rng.choice(LIKE_VARIABLES)}_{self.serial}" if like_one else f"c{self.serial}"
        return f"x{self.serial}"

    def number_type(self) -> T:
        """A type of integers."""
        r = self.rng
        x = r.random()
        if self.features.size_functions and self.sorts and x < 0.18:
            of = r.choice(self.sorts).name
            lo, more = r.choice([(0, 0), (0, -1), (1, 1), (-1, 0)])
            return T("int", "", lo, (of, more))
        if self.features.wide and x < 0.34:
            wide = [(-300, 40_000), (-128, 127), (0, 1 << 40), (250, 260), (-(1 << 33), 5)]
            return T("int", "", *r.choice(wide))
        lo = r.choice([0, 0, 0, -1, -2, 1, 7])
        return T("int", "", lo, lo + r.choice([0, 1, 1, 2, 2, 3, 4, 6]))

    def value_type(self) -> T:
        """A type of values."""
        x = self.rng.random()
        if x < 0.34 or (x < 0.6 and not self.enums):
            return BOOL
        if x < 0.6:
            return self.rng.choice(self.enums)
        return self.number_type()

    def index_type(self) -> T:
        """A type to index and quantify over; it has few values."""
        r, x = self.rng, self.rng.random()
        if self.sorts and x < 0.68:
            return r.choice(self.sorts)
        if self.enums and x < 0.78:
            return r.choice(self.enums)
        if x < 0.84:
            return BOOL
        if self.features.size_functions and self.sorts and x < 0.89:
            return T("int", "", 0, (r.choice(self.sorts).name, -1))
        lo = r.choice([0, 0, -1, 2])
        return T("int", "", lo, lo + r.choice([0, 1, 2, 3]))

    # The machine.

    def machine(self) -> Recipe:
        """A machine without properties."""
        r = self.rng
        many = {"tiny": [1, 1, 2, 2], "small": [1, 2, 2, 3], "large": [2, 2, 3]}[self.kind]
        for _ in range(r.choice([0, 1, 1, 1, 2, 2])):
            name = self.name("S")
            self.sizes[name] = r.choice(many)
            self.sorts.append(T("sort", name))
        for _ in range(r.choice([0, 1, 1, 2])):
            labels = tuple(self.name("l") for _ in range(r.choice([1, 2, 2, 3, 3, 4])))
            shares = self.words and self.sorts and r.random() < 0.3 and not self.enums
            self.enums.append(T("enum", self.sorts[0].name if shares else self.name("E"), labels=labels))
        bounds = [bound for _ in range(r.choice([1, 2, 2, 3, 3, 4])) if (bound := self.field()) is not None]
        if not self.fields:
            self.fields.append(Field(self.name("f"), (), BOOL, FALSE))
        actions = tuple(self.action() for _ in range(r.choice([1, 2, 2, 3, 3, 4])))
        ghosts = (r.choice(self.fields).name,) if r.random() < 0.05 else ()
        parts = (tuple(self.sizes.items()), tuple(self.enums), tuple(self.fields), actions)
        return Recipe(*parts, ghosts=ghosts, bounds=tuple(bounds))

    def field(self) -> tuple[str, int, int] | None:
        """Draw a field; the bounds of its values if they are unbounded Ints."""
        r = self.rng
        domain = tuple(self.index_type() for _ in range(r.choice([0, 0, 1, 1, 1, 2])))
        cells = 1
        for t in domain:
            lo, hi = t.ends(self.sizes)
            cells *= hi - lo + 1
        if not 0 < cells <= 9:
            domain = ()
        over = [t for t in domain if t.kind == "sort"]
        name = self.name("f")
        if over and r.random() < 0.3:
            t = r.choice(over)
            self.fields.append(Field(name, domain, t, t.var(f"i{domain.index(t)}")))
            return None
        value = self.value_type()
        if self.features.unbounded and len(domain) < 2 and r.random() < 0.06:
            start = r.randint(-2, 2)
            self.fields.append(Field(name, domain, INT, INT.lit(start)))
            return name, start - r.randint(0, 2), start + r.randint(1, 4)
        self.fields.append(Field(name, domain, value, self.init(domain, value)))
        return None

    def init(self, domain: tuple[T, ...], value: T) -> Node:
        """What a field holds at first; sometimes different things at different indices."""
        r = self.rng
        lo, hi = value.ends(self.sizes)
        if value.kind == "int" and (isinstance(value.lo, tuple) or isinstance(value.hi, tuple)):
            hi = lo  # it is within the range at every size
        one, other = (value.lit(self.near(lo, hi)) for _ in range(2))
        if not domain or r.random() < 0.7:
            return one
        k = r.randrange(len(domain))
        t, i = domain[k], domain[k].var(f"i{k}")
        if t.kind == "sort" and not self.index:
            return one
        number = Node("index", INT, (i,)) if t.kind == "sort" else i
        first = (t if t.kind in ("enum", "bool") else INT).lit(t.ends(self.sizes)[0])
        return value.ite(number.compared("eq", first), one, other)

    def near(self, lo: int, hi: int) -> int:
        """A number between two ends, often an end."""
        return self.rng.choice([lo, lo, hi, self.rng.randint(lo, hi), min(lo + 1, hi)])

    def action(self) -> Action:
        """An action that does something to one or two fields."""
        r = self.rng
        params = tuple((self.variable(), self.index_type()) for _ in range(r.choice([0, 0, 1, 1, 1, 2])))
        guards = range(r.choice([0, 1, 1, 1, 2]))
        body = [Stmt("require", self.truth(params, r.choice([0, 1, 1, 2]))) for _ in guards]
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            f = r.choice(self.fields)
            made = self.assignment(f, params)
            if made is not None:
                guard, statement = made
                if guard is not None and not any(s.kind in ("set", "update") for s in body):
                    body.append(Stmt("require", guard))
                body.append(statement)
            if r.random() < 0.12:
                body.append(Stmt("check", self.truth(params, 2), r.choice(IDS)))
        fair = r.choice([None, None, "weak", "weak", "strong", "strong"])
        return Action(self.name("act"), fair, params, tuple(body))

    def assignment(self, f: Field, env: Env) -> tuple[Node | None, Stmt] | None:
        """A statement that assigns to a field, with a guard that it may need."""
        r = self.rng
        if f.domain and r.random() < 0.25:
            return None, self.update(f, env)
        index = tuple(i for t in f.domain if (i := self.index_of(t, env, 1)) is not None)
        if len(index) < len(f.domain):
            return (None, self.update(f, env)) if f.domain else None
        now = Node("read", f.value, index, f.name)
        if f.value.kind == "int" and r.random() < 0.5:
            by = r.choice([1, 1, 1, -1, 2, 2, -2, 3]) * (self.stride(f.value))
            own = [INT.var(n) for n, ty in env if ty.kind == "int"]
            base = r.choice(own) if own and r.random() < 0.5 else now
            moved = base + by
            if not f.value.bounded:
                return None, Stmt("set", moved, f.name, index)
            edge = self.end(f.value, by > 0)
            if r.random() < 0.6:
                guard = self.guard(base, moved, edge, by > 0) if r.random() < 0.85 else None
                return guard, Stmt("set", moved, f.name, index)
            beyond = moved.compared("gt" if by > 0 else "lt", edge)
            wrapped = INT.ite(beyond, self.end(f.value, by < 0), moved)
            return None, Stmt("set", wrapped, f.name, index)
        if f.value.kind == "bool" and r.random() < 0.4:
            return None, Stmt("set", r.choice([~now, TRUE, FALSE]), f.name, index)
        if f.value.kind == "enum" and r.random() < 0.5:
            return None, Stmt("set", f.value.lit(r.randrange(len(f.value.labels))), f.name, index)
        return None, Stmt("set", self.fitting(f, env, 2), f.name, index)

    def update(self, f: Field, env: Env) -> Stmt:
        """A statement that assigns to a field everywhere."""
        over = tuple(self.variable() for _ in f.domain)
        inner = (*env, *zip(over, f.domain, strict=True))
        return Stmt("update", self.fitting(f, inner, 1), f.name, (), over)

    def guard(self, now: Node, moved: Node, edge: Node, up: bool) -> Node:
        """A condition that keeps a number in its range, or would if a step were smaller."""
        r = self.rng
        before, strictly, after = ("le", "lt", "ge") if up else ("ge", "gt", "le")
        guards = [x.compared(op, edge) for op, x in ((before, moved), (before, now), (strictly, now))]
        guards += [x.compared(op, edge) for op, x in ((strictly, now), (strictly, moved), ("ne", now))]
        return r.choice([*guards, ~now.compared(after, edge), ~edge.compared("eq", now)])

    def stride(self, t: T) -> int:
        """A step through a range that does not visit too many values."""
        if not t.bounded:
            return 1
        lo, hi = t.ends(self.sizes)
        return 1 if hi - lo < 12 else max(1, (hi - lo) // self.rng.choice([2, 3, 5]))

    def end(self, t: T, upper: bool) -> Node:
        """The largest or smallest value of an integer type, as an expression."""
        b = t.hi if upper else t.lo
        if isinstance(b, tuple):
            size = T("sort", b[0]).count(self.variable(), TRUE)
            return size + b[1] if b[1] else size
        assert b is not None
        return INT.lit(b)

    def fitting(self, f: Field, env: Env, depth: int) -> Node:
        """A value for a field, mostly within its range."""
        e = self.value(f.value, env, depth)
        if f.value.kind != "int" or not f.value.bounded or self.rng.random() < 0.15:
            return e
        lo, hi = self.end(f.value, upper=False), self.end(f.value, upper=True)
        return INT.ite(e < lo, lo, INT.ite(e > hi, hi, e))

    # Expressions.

    def index_of(self, t: T, env: Env, depth: int) -> Node | None:
        """Something to index by that is certainly inside; None where there is nothing."""
        r = self.rng
        own = [t.var(n) for n, ty in env if ty == t]
        if t.kind == "sort":
            if depth > 0 and r.random() < 0.3:
                found = self.read(lambda v: v == t, env, depth - 1)
                if found is not None:
                    return found
            return r.choice(own) if own else None
        if t.kind == "bool" and depth > 0 and r.random() < 0.2:
            return self.truth(env, depth - 1)
        if own and r.random() < 0.8:
            return r.choice(own)
        if t.kind == "int" and (isinstance(t.lo, tuple) or isinstance(t.hi, tuple)):
            return r.choice(own) if own else None
        lo, hi = t.ends(self.sizes)
        return (INT if t.kind == "int" else t).lit(r.randint(lo, hi))

    def read(self, wanted: Callable[[T], bool], env: Env, depth: int) -> Node | None:
        """A read of a field whose value is of a wanted type."""
        r = self.rng
        fields = [f for f in self.fields if wanted(f.value)]
        r.shuffle(fields)
        for f in fields:
            numbered = f.domain and all(t.kind == "int" for t in f.domain) and f.value.kind != "sort"
            if numbered and r.random() < 0.5:
                index = tuple(self.number(env, depth - 1) for _ in f.domain)
                return Node("get", f.value, (*index, self.constant(f.value)), f.name)
            index = tuple(i for t in f.domain if (i := self.index_of(t, env, depth - 1)) is not None)
            if len(index) == len(f.domain):
                return Node("read", f.value, index, f.name)
        return None

    def constant(self, t: T) -> Node:
        """A constant of a type that is no sort."""
        if t.kind == "int":
            lo, hi = t.ends(self.sizes) if t.bounded else (-2, 3)
            return INT.lit(self.near(lo, hi))
        return t.lit(self.rng.randint(*t.ends(self.sizes)))

    def value(self, t: T, env: Env, depth: int) -> Node:
        """A value of a type."""
        if t.kind == "bool":
            return self.truth(env, depth)
        if t.kind == "int":
            return self.number(env, depth, t)
        r = self.rng
        if depth > 0 and r.random() < 0.4:
            return t.ite(self.truth(env, depth - 1), *(self.value(t, env, depth - 1) for _ in range(2)))
        own = [t.var(n) for n, ty in env if ty == t]
        if own and r.random() < 0.5:
            return r.choice(own)
        found = self.read(lambda v: v == t, env, depth)
        if found is not None and (t.kind == "sort" or r.random() < 0.4):
            return found
        if t.kind == "sort":
            assert own, "an element is needed where there is none"
            return r.choice(own)
        return self.constant(t)

    def number(self, env: Env, depth: int, like: T | None = None) -> Node:
        """An integer."""
        r, x = self.rng, self.rng.random()
        if depth <= 0 or x < 0.4:
            own = [INT.var(n) for n, ty in env if ty.kind == "int"]
            if self.index:
                own += [Node("index", INT, (ty.var(n),)) for n, ty in env if ty.kind == "sort"]
            if own and r.random() < 0.4:
                return r.choice(own)
            found = self.read(lambda v: v.kind == "int", env, depth) if r.random() < 0.7 else None
            return found or self.constant(like or T("int", "", -1, 3))
        if x < 0.66:
            both = (self.number(env, depth - 1), self.number(env, depth - 1))
            return Node("add" if x < 0.55 else "sub", INT, both)
        if x < 0.85:
            over = self.over(r.choice([1, 1, 1, 2]))
            return Node("count", INT, (self.truth((*env, *over), depth - 1),), over)
        return INT.ite(self.truth(env, depth - 1), *(self.number(env, depth - 1) for _ in range(2)))

    def over(self, many: int) -> Env:
        """Variables to quantify."""
        return tuple((self.variable(), self.index_type()) for _ in range(many))

    def truth(self, env: Env, depth: int) -> Node:
        """A truth value that is not a constant, if that can be."""
        r, x = self.rng, self.rng.random()
        if depth <= 0 or x < 0.3:
            return self.atom(env, depth)
        if x < 0.35:
            return self.pair(env) or self.atom(env, depth)
        if x < 0.54:
            parts = tuple(self.truth(env, depth - 1) for _ in range(r.choice([2, 2, 3])))
            return Node("and" if x < 0.42 else "or", BOOL, parts)
        if x < 0.64:
            return Node("implies", BOOL, (self.truth(env, depth - 1), self.truth(env, depth - 1)))
        if x < 0.70:
            return ~self.truth(env, depth - 1)
        if x < 0.74:
            other = self.truth(env, depth - 1) if r.random() < 0.8 else r.choice([TRUE, FALSE])
            return Node(r.choice(["iff", "eq", "ne"]), BOOL, (self.truth(env, depth - 1), other))
        if x < 0.78:
            arms = [r.choice([self.truth(env, depth - 1), TRUE, FALSE]) for _ in range(2)]
            return BOOL.ite(self.truth(env, depth - 1), *arms)
        over = self.over(r.choice([1, 1, 1, 2]))
        return Node(r.choice(["forall", "exists"]), BOOL, (self.truth((*env, *over), depth - 1),), over)

    def pair(self, env: Env) -> Node | None:
        """Two comparisons of one value with constants."""
        r = self.rng
        found = self.read(lambda v: v.kind in ("enum", "int"), env, 1)
        if found is None:
            return None
        t = found.type
        like = T("int", "", *t.ends(self.sizes)) if t.kind == "int" and t.bounded else t
        signs = ["eq", "ne"] if t.kind == "enum" else ["eq", "ne", "lt", "le", "gt", "ge"]
        join = r.choice(["and", "or"])
        if r.random() < 0.4:
            signs = ["eq" if join == "and" else "ne"]
        both = tuple(Node(r.choice(signs), BOOL, (found, self.constant(like))) for _ in range(2))
        return Node(join, BOOL, both)

    def atom(self, env: Env, depth: int) -> Node:
        """A comparison, or a field that is true or false."""
        r, x = self.rng, self.rng.random()
        if x < 0.4:
            found = self.read(lambda v: v.kind == "bool", env, depth)
            if found is not None:
                return found if r.random() < 0.6 else ~found
        if x < 0.6:
            found = self.read(lambda v: v.kind in ("enum", "sort"), env, depth)
            enum = found is not None and found.type.kind == "enum"
            if enum and r.random() < 0.3:
                return Node("isin", BOOL, (found, *(self.constant(found.type) for _ in range(2))))
            if found is not None and (enum or any(ty == found.type for _, ty in env)):
                return Node(r.choice(["eq", "ne"]), BOOL, (found, self.value(found.type, env, 0)))
        if x < 0.72:
            pairs = [(a, b) for k, a in enumerate(env) for b in env[k + 1 :] if a[1] == b[1]]
            if pairs:
                (m, t), (n, _) = r.choice(pairs)
                return Node(r.choice(["eq", "ne"]), BOOL, (t.var(m), t.var(n)))
            own = [(n, t) for n, t in env if t.kind in ("bool", "enum")]
            if own:
                n, t = r.choice(own)
                return t.var(n) if t.kind == "bool" else Node("eq", BOOL, (t.var(n), self.constant(t)))
        left = self.read(lambda v: v.kind == "int", env, depth)
        if left is None:
            found = self.read(lambda v: v.kind == "bool", env, 0)
            if found is not None:
                return found
            found = self.read(lambda v: v.kind == "enum", env, 0)
            if found is not None:
                return Node("eq", BOOL, (found, self.constant(found.type)))
            if depth < -3:
                return self.rng.choice([TRUE, FALSE])
            over = self.over(1)
            return Node(r.choice(["forall", "exists"]), BOOL, (self.atom((*env, *over), depth - 2),), over)
        op = r.choice(["lt", "le", "gt", "ge", "eq", "ne"])
        return Node(op, BOOL, (left, self.number(env, depth - 1, left.type)))


class _Mender:
    """Gives a machine properties that say something about it, and takes away what hides everything else."""

    def __init__(self, rng: random.Random, features: Features, kind: str, recipe: Recipe) -> None:
        self.rng, self.features, self.kind, self.recipe = rng, features, kind, recipe
        self.drawer = _Drawer(rng, features, kind, recipe)
        self.drawer.serial = 900
        self.holds = rng.random() < 0.5

    def mended(self) -> Recipe:
        """The machine as it is to be judged."""
        r = self.recipe
        if self.holds or self.rng.random() < 0.3:
            for _ in range(6):
                changed = self._without_faults(r)
                if changed == r:
                    break
                r = changed
        run = Direct(r)
        answer, number, steps = run.explore(4 * STATES[self.kind][1])
        states = list(number)
        if self.holds or self.rng.random() < 0.5:
            r = replace(r, actions=tuple(a for a in r.actions if answer.coverage[a.name]) or r.actions)
            stuck = [s for s, out in zip(states, steps, strict=False) if not out]
            r = replace(r, terminal=self._terminal(run, stuck))
        elif self.rng.random() < 0.4:
            r = replace(r, terminal=self.rng.choice([TRUE, self.drawer.truth((), 2)]))
        r = self._with_properties(r, run, states)
        if self.features.liveness and self.kind == "tiny" and len(states) < 400 and not r.bounds:
            r = replace(r, liveness=tuple(self._promise(k) for k in range(self.rng.choice([0, 1, 1, 2]))))
        return self._with_noise(r, len(states)) if self.kind == "large" else r

    def _without_faults(self, r: Recipe) -> Recipe:
        """The machine without the checks that fail, and with the values that leave their range held back."""
        run = Direct(r)
        answer, _, _ = run.explore(4 * STATES[self.kind][1])
        wrong = set(answer.violated)
        actions = []
        for a in r.actions:
            body = []
            for statement in a.body:
                s = statement
                if s.kind == "check" and any(name.startswith(f"{a.name}.") for name in wrong):
                    continue
                f = run.fields.get(s.name) if s.kind in ("set", "update") else None
                if f is not None and f"range of {f.name}" in wrong:
                    lo, hi = self.drawer.end(f.value, upper=False), self.drawer.end(f.value, upper=True)
                    e = INT.ite(s.expr > hi, hi, s.expr)
                    s = replace(s, expr=INT.ite(s.expr < lo, lo, e))
                body.append(s)
            actions.append(replace(a, body=tuple(body)))
        return replace(r, actions=tuple(actions))

    def _terminal(self, run: Direct, stuck: list[State]) -> Node | None:
        if not stuck:
            return self.rng.choice([None, TRUE, self.drawer.truth((), 2)])
        for _ in range(6):
            e = self.drawer.truth((), 2)
            if all(run.holds(e, s) for s in stuck):
                return e
        return TRUE

    def _with_properties(self, r: Recipe, run: Direct, states: list[State]) -> Recipe:
        """Conditions of all fates, as far as they can be found."""
        always: list[Node] = []
        late: list[tuple[int, Node]] = []
        some: list[tuple[Node, list[bool]]] = []
        first, rest = states[:SAMPLE], states[SAMPLE:]
        for _ in range(12):
            e = self.drawer.truth((), 3)
            if not any(n.op in ("read", "get") for n in nodes(e)):
                continue
            f = run.function(e)
            truths = [bool(f(s)) for s in first]
            if not all(truths):
                if any(truths):
                    some.append((e, truths))
                    late.append((truths.index(False), e))
            elif all(map(f, rest)):
                always.append(e)
            else:
                late.append((len(states), e))
        for (a, where), (b, there) in itertools.permutations(some, 2):
            e = Node("implies", BOOL, (a, b))
            if all(y or not x for x, y in zip(where, there, strict=True)) and all(map(run.function(e), rest)):
                always.insert(0, e)
                break
        late.sort(key=lambda x: -x[0])
        rng = self.rng
        chosen = always[: rng.choice([1, 2, 2, 3])]
        goals = [e for e, _ in some][: rng.choice([0, 1, 1, 2])]
        if not self.holds:
            chosen += [e for _, e in late[: rng.choice([1, 1, 2])]]
            if rng.random() < 0.3:
                chosen.append(self.drawer.truth((), 3))
            if rng.random() < 0.1:
                goals.append(~always[0] if always else FALSE)
        rng.shuffle(chosen)
        lemmas = chosen[2:3] if rng.random() < 0.3 else []
        kept = [e for e in chosen if e not in lemmas] or [TRUE]
        return replace(
            r,
            invariants=tuple(Prop(rng.choice(IDS), f"inv{k}", e) for k, e in enumerate(kept)),
            lemmas=tuple(Prop("LEMMA", f"lemma{k}", e) for k, e in enumerate(lemmas)),
            goals=tuple(Prop("GOAL", f"goal{k}", e) for k, e in enumerate(goals)),
        )

    def _promise(self, k: int) -> Pledge:
        params = self.drawer.over(1) if self.rng.random() < 0.4 else ()
        when = None if self.rng.random() < 0.25 else self.drawer.truth(params, 1)
        return Pledge(f"promise{k}", params, when, self.drawer.truth(params, 1))

    def _with_noise(self, r: Recipe, states: int) -> Recipe:
        """The machine beside counters that turn on their own: as many states as are wanted."""
        rng = self.rng
        factor = -(-(MANY + 1) // states) * rng.choice([1, 1, 1.3])
        rings = rng.choice([2, 3]) if factor < 3000 else 3
        fields, actions = [], []
        for k in range(rings):
            size = max(2, round(factor ** (1 / (rings - k)) + 0.5))
            factor /= size
            lo = rng.choice([0, 0, -3, 100])
            step = rng.choice([1, 1, 5, 9001]) if self.features.wide else 1
            hi = lo + (size - 1) * step
            f = Field(f"ring{k}", (), T("int", "", lo, hi), INT.lit(lo))
            now = Node("read", f.value, (), f.name)
            on = INT.ite(now >= hi, INT.lit(lo), now + step)
            back = INT.ite(now <= lo, INT.lit(hi), now - step)
            fields.append(f)
            for name, after in [("turn", on), *([("back", back)] if rng.random() < 0.4 else [])]:
                actions.append(Action(f"{name}{k}", None, (), (Stmt("set", after, f.name),)))
        names = {f.name for f in fields} | {a.name for a in actions}
        at = rng.randint(0, len(r.fields))
        return replace(
            r,
            fields=(*r.fields[:at], *fields, *r.fields[at:]),
            actions=(*actions, *r.actions) if rng.random() < 0.5 else (*r.actions, *actions),
            noise=frozenset(names),
        )
