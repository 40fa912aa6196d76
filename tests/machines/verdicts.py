"""Small machines whose exit code is known under every engine: what is vacuous, broken at once, or unknown."""

from collections.abc import Callable

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, If, Iff, Implies, Not, Or

Faults = frozenset[str]
NONE: Faults = frozenset()
Body = Callable[[State, Elem], Expr]


def slots(name: str, *, taking: bool = True) -> tuple[Machine, Sort]:
    """Blocks that are taken, if ``taking``, and given back; nothing is ever ``hot``, all is ``cold``."""
    m = Machine(name, doc="Blocks that are taken and given back.")
    block = m.sort("Block", default=2)
    m.relation("used", block, init=False)
    m.relation("hot", block)
    m.relation("cold", block, init=True)

    if taking:

        @m.action(b=block)
        def take(s: State, b: Elem) -> None:
            """A free block is taken."""
            s.require(~s.used[b])
            s.used[b] = True

    @m.action(b=block)
    def drop(s: State, b: Elem) -> None:
        """A used block is given back."""
        s.require(s.used[b])
        s.used[b] = False

    return m, block


def stating(name: str, body: Body, called: str = "stated", id_: str = "PIN") -> Machine:
    """The blocks, with ``id_``: ``body`` of every block, as an invariant of the name ``called``."""
    return stating_all(name, {called: body}, id_)


def stating_all(name: str, bodies: dict[str, Body], id_: str = "PIN", *, taking: bool = True) -> Machine:
    """The blocks, with each of ``bodies`` of every block as an invariant of that name."""
    m, block = slots(name, taking=taking)
    for each, body in bodies.items():

        def stated(s: State, body: Body = body) -> Expr:
            return ForAll(block, lambda b: body(s, b))

        stated.__name__ = each
        m.invariant(id_)(stated)
    return m


# The same said in many ways: what is hot is used; and nothing is hot.
UNMET: dict[str, Body] = {
    "shaped": lambda s, b: Implies(s.hot[b], s.used[b]),
    "negated": lambda s, b: Not(And(s.hot[b], Not(s.used[b]))),
    "turned": lambda s, b: Not(And(~s.used[b], s.hot[b])),
    "ored": lambda s, b: s.used[b] | ~s.hot[b],
    "conj": lambda s, b: Implies(s.hot[b], s.used[b]) & Implies(s.hot[b], ~s.used[b]),
    "beside": lambda s, b: Implies(s.used[b], s.used[b] | s.hot[b]) & (~s.hot[b] | s.used[b]),
    "chosen": lambda s, b: If(s.hot[b], s.used[b], True),
    "other_arm": lambda s, b: If(s.cold[b], True, s.used[b]),
    "both_arms": lambda s, b: If(s.hot[b], s.used[b], s.cold[b]),
    "none_exists": lambda s, b: Not(Exists(b.type, lambda c: s.hot[c] & ~s.used[c])),
    "none_counted": lambda s, b: Count(b.type, lambda c: s.hot[c] & ~s.used[c]) == 0,
    "less_than_one": lambda s, b: Count(b.type, lambda c: s.hot[c] & ~s.used[c]) < 1,
    "nested": lambda s, b: Implies(s.used[b], Implies(s.hot[b], s.cold[b])),
    "nested_in_and": lambda s, b: Implies(s.used[b], s.cold[b] & Implies(s.hot[b], s.cold[b])),
    "nested_none": lambda s, b: Implies(s.used[b], Not(Exists(b.type, lambda c: s.hot[c] & ~s.cold[c]))),
    "two_premises": lambda s, b: Implies(And(s.used[b], s.hot[b]), s.cold[b]),
    "negative_premise": lambda s, b: Implies(~s.cold[b], s.used[b]),
    "never_both": lambda s, b: Not(s.hot[b] & s.used[b]),
    "never_both_turned": lambda s, b: ~s.used[b] | ~s.hot[b],
    "either": lambda s, b: s.cold[b] | s.used[b],
    "as_one": lambda s, b: Iff(s.hot[b], s.used[b] & ~s.cold[b]),
    "distinct": lambda s, b: ForAll(b.type, lambda c: Implies((b != c) & s.hot[b] & s.hot[c], s.used[b])),
    "true": lambda _s, _b: And(),
}

# These say something, though some part of them is true or false in every state.
MET: dict[str, Body] = {
    "conclusion_always_true": lambda s, b: Implies(s.used[b], s.cold[b]),
    "conclusion_never_true": lambda s, b: Implies(s.used[b], ~s.hot[b]),
    "turned_conclusion": lambda s, b: s.cold[b] | ~s.used[b],
    "no_premise": lambda s, b: s.cold[b],
    "never": lambda s, b: ~s.hot[b],
    "none_at_all": lambda s, b: Not(Exists(b.type, lambda c: s.hot[c])),
    "either_of_two": lambda s, b: s.used[b] | ~s.used[b],
    "alternatives_in_a_conclusion": lambda s, b: Implies(s.used[b], s.cold[b] | s.hot[b]),
    "a_predicate_that_is_never_true": lambda s, b: Implies(s.used[b], Not(s.hot[b] & s.used[b])),
    "one_holder": lambda s, b: ForAll(b.type, lambda c: Implies(s.cold[b] & s.cold[c], (b == c) | s.cold[b])),
    "at_most": lambda s, b: Count(b.type, lambda c: s.used[c]) <= 2,
    "as_one": lambda s, b: Iff(s.used[b], s.used[b] & s.cold[b]),
    "all_of_one": lambda s, b: Implies(Exists(b.type, lambda c: s.used[c]), s.cold[b]),
}


def shaped(faults: Faults = NONE) -> Machine:  # noqa: ARG001 (a builder takes its faults)
    """PIN holds only because nothing is hot."""
    return stating("shaped", UNMET["shaped"])


negated = stating("negated", UNMET["negated"])
"""The same as ``shaped``, negated."""
ored = stating("ored", UNMET["ored"])
"""The same, the conclusion first."""
conj = stating("conj", UNMET["conj"])
"""Two implications joined."""
noinv, _ = slots("noinv")
"""Nothing is stated."""
unknownid = stating("unknownid", lambda s, b: s.cold[b], "t2", "NOSUCHRULE")
"""An id that is in no catalogue, on a condition that says something."""


def check(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """A check of an action that is never taken, and that nothing could meet."""
    m, block = slots("check")

    @m.action(b=block)
    def boom(s: State, b: Elem) -> None:
        """Nothing is hot."""
        s.require(s.hot[b])
        s.check("ONCE", Or(), "never")
        s.hot[b] = False

    return m


def idle_check(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """A check of an action that is taken, but never where the premise of the check is met."""
    m, block = slots("idle_check")

    @m.action(b=block)
    def look(s: State, b: Elem) -> None:
        """A used block is looked at."""
        s.require(s.used[b])
        s.check("ONCE", Implies(~s.used[b], s.cold[b]), "of free blocks, which are never looked at")
        s.cold[b] = True

    return m


def idle_lemma(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """A lemma whose premise is never met, beside an invariant that says something."""
    m = stating("idle_lemma", MET["no_premise"])
    block = m.sorts["Block"]

    @m.lemma
    def about_hot_blocks(s: State) -> Expr:
        """Nothing is hot."""
        return ForAll(block, lambda b: Implies(s.hot[b], s.used[b]))

    return m


def goal(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """A goal out of reach."""
    m = stating("goal", MET["no_premise"])
    block = m.sorts["Block"]

    @m.goal
    def one_is_hot(s: State) -> Expr:
        """Nothing is hot."""
        return Exists(block, lambda b: s.hot[b])

    return m


def unsat(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """An action whose guard contradicts itself."""
    m = stating("unsat", MET["no_premise"])
    block = m.sorts["Block"]

    @m.action(b=block)
    def boom(s: State, b: Elem) -> None:
        """Never."""
        s.require(s.used[b] & ~s.used[b])
        s.hot[b] = True

    return m


def one(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """Values of one element only; what is said of them says something all the same."""
    m = Machine("one", doc="Values of one element.")
    only = Enum("Only", "a")
    block = m.sort("Block", default=1)
    m.function("p", block, value=only, init=only.a)
    m.function("q", value=Int(3, 3), init=3)
    m.function("w", value=Int(-5, 5), init=-5)

    @m.action(b=block)
    def go(s: State, b: Elem) -> None:
        """One more."""
        s.require(s.p[b] == only.a, s.w < 5)
        s.p[b] = only.a
        s.w = s.w + 1

    @m.action()
    def back(s: State) -> None:
        """From the start."""
        s.require(s.w == 5)
        s.w = -5

    @m.invariant("PIN")
    def ok(s: State) -> Expr:
        """True by type."""
        return (s.q == 3) & ForAll(block, lambda b: s.p[b] == only.a)

    return m


def dead0(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """The initial state is a deadlock."""
    return stating_all("dead0", {"ok": lambda s, b: ~s.used[b]}, taking=False)


def bad0(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """PIN is false in the initial state: it says that everything is used."""
    return stating("bad0", lambda s, b: s.used[b], "bad")


def stuck0(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """A promise that the initial state breaks by staying as it is: a lasso of no steps."""
    m = stating("stuck0", MET["no_premise"])
    block = m.sorts["Block"]
    m.eventually("one_is_used", lambda s: Exists(block, lambda b: s.used[b]), doc="A block is used.")
    return m


def incons(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """Lemmas that contradict each other."""
    m = stating("incons", lambda s, b: ~s.used[b], "bad")
    block = m.sorts["Block"]

    @m.lemma
    def contra(s: State) -> Expr:
        """Because."""
        return Exists(block, lambda b: s.used[b]) & ForAll(block, lambda b: ~s.used[b])

    return m


def declared(faults: Faults = NONE) -> Machine:
    """Ids of one's own: one declared, one by its docstring, one of a check. ``hot`` breaks LEASE."""
    m, block = slots("declared")
    m.faults = faults
    m.declare("RENT", "A block that is taken was free.")

    @m.invariant("LEASE")
    def leased(s: State) -> Expr:
        """A lease stays."""
        return ForAll(block, lambda b: ~s.used[b] if m.faulty("hot") else s.cold[b])

    @m.action(b=block)
    def again(s: State, b: Elem) -> None:
        """A used block is taken once more."""
        s.require(s.used[b])
        s.check("RENT", s.used[b], "it is taken by its holder")
        s.cold[b] = True

    return m


def promised(faults: Faults = NONE) -> Machine:  # noqa: ARG001
    """States nothing but a promise about whole runs."""
    m = Machine("promised", doc="A light that goes on at some time, and off again.")
    m.relation("on")

    @m.action(fair="weak")
    def light(s: State) -> None:
        """On."""
        s.require(Not(s.on))
        s.on = True

    @m.action()
    def dim(s: State) -> None:
        """Off."""
        s.require(s.on)
        s.on = False

    m.eventually("it_is_light", lambda s: s.on)
    return m


def half(faults: Faults = NONE) -> Machine:
    """Keeps its promise, and breaks its invariant under the same id."""
    m = promised(faults)
    m.name = "half"

    @m.invariant("PROGRESS")
    def dark(s: State) -> Expr:
        """It stays dark."""
        return Not(s.on)

    return m


def kept(faults: Faults = NONE) -> Machine:
    """Keeps its promise and its invariant."""
    m = promised(faults)
    m.name = "kept"

    @m.invariant("PIN")
    def one_or_the_other(s: State) -> Expr:
        """On or off."""
        return s.on | Not(s.on)

    return m
