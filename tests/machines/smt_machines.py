"""Small machines for the tests of engines that ask z3, and the proofs of their results."""

from kvfence.checker.engines.base import Proof, Result
from kvfence.spec.language import Int, Machine, State
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, If, Iff, Implies, Not


def proof_of(result: Result) -> Proof:
    """The proof of a result, which has one."""
    assert result.proof is not None
    return result.proof


def lock(*, forgetful: bool = False) -> Machine:
    """A lock that one client has at a time; the forgetful one gives it away while it is taken."""
    m = Machine("lock")
    Client = m.sort("Client", default=3)  # noqa: N806
    m.relation("has", Client, init=False)
    m.relation("free", init=True)

    @m.action(c=Client)
    def take(s: State, c: Elem) -> None:
        if not forgetful:
            s.require(s.free)
        s.has[c] = True
        s.free = False

    @m.action(c=Client)
    def give(s: State, c: Elem) -> None:
        s.require(s.has[c])
        s.has[c] = False
        s.free = True

    @m.invariant("ONE")
    def one_client_has_it(s: State) -> Expr:
        return ForAll(Client, Client, lambda c, d: Implies(s.has[c] & s.has[d], c == d))

    return m


def with_the_lemma(m: Machine) -> Machine:
    """The lock with what its proof needs."""
    client = m.sorts["Client"]

    @m.lemma
    def nobody_has_a_free_lock(s: State) -> Expr:
        """It is free when it was given back, and only then."""
        return Iff(s.free, Not(Exists(client, lambda c: s.has[c])))

    return m


def with_a_wrong_lemma(m: Machine) -> Machine:
    """The lock with a lemma that does not hold."""

    @m.lemma
    def it_is_always_free(s: State) -> Expr:
        """It is not."""
        return s.free == True  # noqa: E712

    return m


def counted(*, wrong_by: int = 0) -> Machine:
    """Seats that are taken and left, and a counter of those taken."""
    m = Machine("seats")
    Seat = m.sort("Seat", default=3)  # noqa: N806
    m.relation("taken", Seat, init=False)
    m.function("count", value=Int(), init=0)

    @m.action(a=Seat, b=Seat)
    def take_two(s: State, a: Elem, b: Elem) -> None:
        s.require(Not(s.taken[a]), Not(s.taken[b]))
        s.count = s.count + If(a == b, 1 + wrong_by, 2)
        s.taken[a] = True
        s.taken[b] = True

    @m.action(a=Seat)
    def leave(s: State, a: Elem) -> None:
        s.require(s.taken[a])
        s.taken[a] = False
        s.count = s.count - 1

    @m.invariant("COUNT")
    def the_counter_counts(s: State) -> Expr:
        return s.count == Count(Seat, lambda x: s.taken[x])

    return m


def dead_end() -> Machine:
    """Two steps, and then none; the invariant fails at the end."""
    m = Machine("dead_end")
    m.function("n", value=Int(0, 3), init=0)

    @m.action()
    def go(s: State) -> None:
        s.require(s.n < 2)
        s.n = s.n + 1

    @m.invariant("SMALL")
    def never_two(s: State) -> Expr:
        return s.n != 2

    return m


def stuck() -> Machine:
    """A walker that went twice cannot go on; nothing else is wrong."""
    m = Machine("stuck")
    Walker = m.sort("Walker", default=2)  # noqa: N806
    m.function("steps", Walker, value=Int(0, 2), init=0)

    @m.action(w=Walker)
    def go(s: State, w: Elem) -> None:
        s.require(s.steps[w] < 2)
        s.steps[w] = s.steps[w] + 1

    @m.invariant("SMALL")
    def not_negative(s: State) -> Expr:
        return ForAll(Walker, lambda w: And(s.steps[w] >= 0, s.steps[w] <= 2))

    return m
