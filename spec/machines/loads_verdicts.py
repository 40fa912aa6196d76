"""Lookups that are answered later: a request asks the tier for its key, and hears of a hit or a miss.

All requests want one key. A request asks at most once in each of its generations, and the tier looks when it
comes to it: on a hit it pins its copy for the question. The answer may arrive when the request is gone, or
lives in a newer generation; then it is dropped, with its pin. A hit is a promise that the request will load;
when a load fails, the tier's copy is no good, and every verdict that rests on it becomes a miss: those told
already and those on their way.
"""

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Implies, Not, Or
from kvfence.spec.machines.field_maps import loads_verdicts as events
from kvfence.spec.machines.field_maps.relations import quiesce
from kvfence.spec.machines.state.relations import assign, declare_sorts

Status = Enum("Status", "waiting loading running gone")
Question = Enum("Question", "unasked asked known over")
Verdict = Enum("Verdict", "unknown hit miss")

STORES = 2  # how often the key is stored
REPEATS = "What was done already is done again, and changes nothing."
STRAIGHT_ON = "Finish may follow at once: nothing is held any more."
ACCEPTED = (
    ("store: without guard not stored", REPEATS),
    ("evict: without guard stored", REPEATS),
    ("evict: stored*", "An eviction that leaves the key is no eviction."),
    ("ask: without guard status[r] == waiting", "An answer that nobody waits for is dropped."),
    ("drop: question*", "A question that stays open or is asked again is dropped again."),
    ("land: status: running -> gone", STRAIGHT_ON),
    ("fail: status: running -> gone", STRAIGHT_ON),
    ("compute: status: running -> gone", STRAIGHT_ON),
    ("fail: verdict: * i0 == r", "The request whose load has failed runs: its verdict is not read again."),
    (
        "fail: verdict: miss -> unknown",
        "The request whose load has failed runs: its verdict is not read again.",
    ),
    (
        "rest: guard: without question[r, g] == asked",
        "A question that the tier has not come to holds nothing.",
    ),
    (
        "store: *stores*",
        "Few stores are enough to look at: the number bounds them, and names them in traces.",
    ),
    ("compute: without guard status[r] == waiting", REPEATS),
    (
        "compute: status is not assigned",
        "A request that does not run is the subject of the scheduling machine.",
    ),
    (
        "finish: status is not assigned",
        "A request that does not end is the subject of the scheduling machine.",
    ),
    ("abort: without guard status[r] == waiting", REPEATS),
)
"""How the machine may be changed without an invariant noticing."""

Request = Sort("Request", 2, __name__)
Generation = Int(0, 1)


def present(s: State, r: Elem, g: Expr | int) -> Expr:
    """Whether the request still waits, in generation g, for what it asked."""
    return And(s.status[r] == Status.waiting, s.gen[r] == g, s.verdict[r] == Verdict.unknown)


def pinned(s: State) -> Expr:
    """Whether somebody pins the copy."""
    return Exists(Request, Generation, lambda r, g: s.pin[r, g])


def unpin(s: State, r: Elem) -> None:
    """The request lets go of the copy, as far as its present generation pins it."""
    s.pin.update(lambda q, g: s.pin[q, g] & Not((q == r) & (g == s.gen[r])))


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("status", Request, value=Status, init=Status.waiting)
    m.function("gen", Request, value=Generation, init=0)
    m.function("verdict", Request, value=Verdict, init=Verdict.unknown)
    m.function("question", Request, Generation, value=Question, init=Question.unasked)
    m.relation("says_hit", Request, Generation, init=False)  # the answer that is on its way
    m.relation("pin", Request, Generation, init=False)  # what was asked in that generation pins the copy
    m.relation("stored", init=False)  # the tier's index has the key
    m.relation("good", init=False)  # the tier's one slot has its content
    m.function("stores", value=Int(0, STORES), init=0)
    m.header(events.header)


def declare_tier(m: Machine) -> None:
    """Declare the tier, which stores and evicts one key."""

    @m.action(event=events.store)
    def store(s: State) -> None:
        """A store has landed in the tier's slot, which nobody used: the tier has the key."""
        s.require(Not(s.stored), Not(pinned(s)), s.stores < STORES)
        s.check("PIN", Not(pinned(s)), "a slot that somebody was promised is not given away")
        s.stored = True
        s.good = True
        s.stores = s.stores + 1

    @m.action(event=events.evict)
    def evict(s: State) -> None:
        """The tier gives up its copy, which nobody pins."""
        s.require(s.stored)
        if not m.faulty("unpinned_verdict"):
            s.require(Not(pinned(s)))
        s.check("PIN", Not(pinned(s)), "a copy that somebody was promised is not evicted")
        loading = Exists(Request, lambda r: s.status[r] == Status.loading)
        s.check("FREEZE", Not(loading), "a copy that a load reads is not evicted")
        s.stored = False


def declare_answers(m: Machine) -> None:
    """Declare questions and answers."""

    @m.action(r=Request, event=events.ask)
    def ask(s: State, r: Elem) -> None:
        """The request asks whether the tier has its key."""
        s.require(present(s, r, s.gen[r]), s.question[r, s.gen[r]] == Question.unasked)
        s.check("ONCE", s.question[r, s.gen[r]] == Question.unasked, "a request asks once in a generation")
        s.question[r, s.gen[r]] = Question.asked

    @m.action(r=Request, g=Generation, event=events.look)
    def look(s: State, r: Elem, g: Expr) -> None:
        """The tier looks at its index; on a hit it pins its copy. The answer is on its way."""
        s.require(s.question[r, g] == Question.asked)
        assign(s, (r, g), question=Question.known, says_hit=s.stored, pin=s.stored)

    @m.action(r=Request, g=Generation, q=Request, event=events.answer)
    def answer(s: State, r: Elem, g: Expr, q: Elem) -> None:
        """What r asked in generation g is answered: its verdict is known to request q."""
        s.require(s.question[r, g] == Question.known)
        s.require(present(s, q, s.gen[q]), s.question[q, s.gen[q]] != Question.unasked)
        if not m.faulty("answers_by_key"):
            s.require(q == r, s.gen[r] == g)
        s.check(
            "ONCE", (q == r) & (s.gen[r] == g), "an answer is for who asked, in the generation that asked"
        )
        s.check("ONCE", s.question[r, g] == Question.known, "a question is answered once, by the tier")
        s.check(
            "FAIL-CLOSED", Implies(s.says_hit[r, g], s.stored), "a hit is answered of a copy that is there"
        )
        s.question[r, g] = Question.over
        s.verdict[q] = If(s.says_hit[r, g], Verdict.hit, Verdict.miss)
        s.says_hit[r, g] = False

    @m.action(r=Request, g=Generation, event=events.drop)
    def drop(s: State, r: Elem, g: Expr) -> None:
        """The answer comes too late: nobody waits for it any more. It is dropped, with its pin."""
        s.require(s.question[r, g] == Question.known, Not(present(s, r, g)))
        s.check("ONCE", Not(present(s, r, g)), "an answer that is waited for is not dropped")
        assign(s, (r, g), question=Question.over, says_hit=False)
        if not m.faulty("dropped_answer_keeps_pin"):
            s.pin[r, g] = False


def declare_use_of_verdicts(m: Machine) -> None:
    """Declare what a verdict is for."""

    @m.action(r=Request, event=events.load)
    def load(s: State, r: Elem) -> None:
        """The promised copy is loaded."""
        s.require(s.status[r] == Status.waiting, s.verdict[r] == Verdict.hit)
        s.check("FAIL-CLOSED", s.stored, "a load reads a copy that the tier has")
        s.status[r] = Status.loading

    @m.action(r=Request, event=events.land)
    def land(s: State, r: Elem) -> None:
        """The load has landed: the request runs, and the promise is consumed."""
        s.require(s.status[r] == Status.loading)
        unpin(s, r)
        s.status[r] = Status.running

    @m.action(r=Request, event=events.fail)
    def fail(s: State, r: Elem) -> None:
        """The load has failed: the copy is no good. Who was told of a hit, or will be, has a miss instead."""
        s.require(s.status[r] == Status.loading)
        answer_kept, coming_kept = m.faulty("verdict_kept_after_failure"), m.faulty("answer_on_its_way_kept")

        def promised(q: Elem) -> Expr:
            return (s.status[q] == Status.waiting) & (s.verdict[q] == Verdict.hit)

        def still_pins(q: Elem, g: Expr) -> Expr:
            loads = (s.status[q] == Status.loading) & (q != r)
            present_one = (s.gen[q] == g) & (loads | promised(q) if answer_kept else loads)
            return present_one | s.says_hit[q, g] if coming_kept else present_one

        s.pin.update(lambda q, g: s.pin[q, g] & still_pins(q, g))
        if not coming_kept:
            s.says_hit.update(lambda q, g: False)
        if not answer_kept:
            s.verdict.update(lambda q: If(promised(q), Verdict.miss, s.verdict[q]))
        s.verdict[r] = Verdict.miss
        s.stored = False
        s.good = False
        s.status[r] = Status.running

    @m.action(r=Request, event=events.compute)
    def compute(s: State, r: Elem) -> None:
        """After a miss the request computes what it needs."""
        s.require(s.status[r] == Status.waiting, s.verdict[r] == Verdict.miss)
        s.status[r] = Status.running


def declare_ends(m: Machine) -> None:
    """Declare ends of requests, and what must hold at rest."""

    @m.action(r=Request, event=events.abort)
    def abort(s: State, r: Elem) -> None:
        """The client of a waiting request goes away; what it asked is answered to nobody."""
        s.require(s.status[r] == Status.waiting)
        answered = s.verdict[r] != Verdict.unknown
        s.pin.update(lambda q, g: s.pin[q, g] & Not((q == r) & (g == s.gen[r]) & answered))
        s.status[r] = Status.gone

    @m.action(r=Request, event=events.finish)
    def finish(s: State, r: Elem) -> None:
        """The request has what it came for."""
        s.require(s.status[r] == Status.running)
        s.status[r] = Status.gone

    @m.action(r=Request, event=lambda pre, post: [])
    def come_again(s: State, r: Elem) -> None:
        """A request with the same id comes, in the next generation."""
        s.require(s.status[r] == Status.gone, s.gen[r] == 0)
        assign(s, r, gen=1, verdict=Verdict.unknown, status=Status.waiting)

    @m.action(event=quiesce)
    def rest(s: State) -> None:
        """All requests are gone and nothing is asked any more: nothing may be pinned."""

        def open_(r: Elem, g: Expr) -> Expr:
            return Or(s.question[r, g] == Question.asked, s.question[r, g] == Question.known)

        s.require(ForAll(Request, lambda r: s.status[r] == Status.gone))
        s.require(Not(Exists(Request, Generation, open_)))
        s.check("NO-LEAK", Not(pinned(s)), "at quiescence nothing is pinned")


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("FAIL-CLOSED")
    def what_can_be_found_has_its_content(s: State) -> Expr:
        return Implies(s.stored, s.good)

    @m.invariant("PIN")
    def a_load_pins_the_copy(s: State) -> Expr:
        def pins(r: Elem) -> Expr:
            return Exists(Generation, lambda g: s.pin[r, g] & (s.gen[r] == g))

        return ForAll(Request, lambda r: Implies(s.status[r] == Status.loading, pins(r)))

    @m.invariant("PIN")
    def a_promise_pins_the_copy(s: State) -> Expr:
        def promised(r: Elem) -> Expr:
            return And(s.status[r] == Status.waiting, s.verdict[r] == Verdict.hit)

        def pinned_now(r: Elem) -> Expr:
            return Exists(Generation, lambda g: s.pin[r, g] & (s.gen[r] == g))

        return ForAll(Request, lambda r: Implies(promised(r), pinned_now(r)))

    @m.invariant("PIN")
    def an_answer_of_a_hit_pins_the_copy(s: State) -> Expr:
        return ForAll(Request, Generation, lambda r, g: Implies(s.says_hit[r, g], s.pin[r, g]))

    @m.invariant("ONCE")
    def a_verdict_is_the_answer_to_a_question_that_is_over(s: State) -> Expr:
        def answered(r: Elem, g: Expr) -> Expr:
            return And(s.verdict[r] != Verdict.unknown, s.gen[r] == g)

        return ForAll(
            Request, Generation, lambda r, g: Implies(answered(r, g), s.question[r, g] == Question.over)
        )

    @m.invariant("ONCE")
    def a_question_that_is_over_has_told_its_verdict(s: State) -> Expr:
        def over(r: Elem, g: Expr) -> Expr:
            return And(s.status[r] == Status.waiting, s.gen[r] == g, s.question[r, g] == Question.over)

        return ForAll(Request, Generation, lambda r, g: Implies(over(r, g), s.verdict[r] != Verdict.unknown))


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def a_pin_is_for_an_answer_or_a_promise(s: State) -> Expr:
        """An answer hands its pin on or drops it; a promise ends with its pin."""

        def promised(r: Elem, g: Expr) -> Expr:
            waits = (s.status[r] == Status.waiting) & (s.verdict[r] == Verdict.hit)
            return And(s.gen[r] == g, Or(waits, s.status[r] == Status.loading))

        def wanted(r: Elem, g: Expr) -> Expr:
            return Or(promised(r, g), (s.question[r, g] == Question.known) & s.says_hit[r, g])

        return ForAll(Request, Generation, lambda r, g: Implies(s.pin[r, g], wanted(r, g)))

    @m.lemma
    def a_promise_is_of_a_copy_that_is_there(s: State) -> Expr:
        """It pins the copy against eviction, and a failed load withdraws it."""

        def promised(r: Elem) -> Expr:
            return And(s.status[r] == Status.waiting, s.verdict[r] == Verdict.hit)

        return ForAll(Request, lambda r: Implies(promised(r), s.stored))

    @m.lemma
    def an_answer_on_its_way_is_of_a_copy_that_is_there(s: State) -> Expr:
        """The tier has pinned the copy, and a failed load turns the answer into a miss."""
        return ForAll(Request, Generation, lambda r, g: Implies(s.says_hit[r, g], s.stored))

    @m.lemma
    def an_answer_is_on_its_way_until_the_question_is_over(s: State) -> Expr:
        """The tier decides it when it looks, and it is taken back when it is applied or dropped."""
        return ForAll(
            Request, Generation, lambda r, g: Implies(s.says_hit[r, g], s.question[r, g] == Question.known)
        )

    @m.lemma
    def a_generation_asks_when_it_has_come(s: State) -> Expr:
        """A request asks in its present generation, and generations only grow."""
        return ForAll(Request, lambda r: Or(s.gen[r] == 1, s.question[r, 1] == Question.unasked))

    @m.lemma
    def a_load_follows_a_hit(s: State) -> Expr:
        """A request loads what it was promised, and verdicts of those that load are kept."""
        return ForAll(Request, lambda r: Implies(s.status[r] == Status.loading, s.verdict[r] == Verdict.hit))


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def an_answer_is_late_for_a_newer_generation(s: State) -> Expr:
        def late(r: Elem) -> Expr:
            return And(s.gen[r] == 1, s.question[r, 0] == Question.known, s.question[r, 1] == Question.asked)

        return Exists(Request, late)

    @m.goal
    def two_requests_are_promised_the_copy(s: State) -> Expr:
        return Exists(
            Request,
            Request,
            lambda q, r: (q != r) & (s.verdict[q] == Verdict.hit) & (s.verdict[r] == Verdict.hit) & s.stored,
        )

    @m.goal
    def a_load_may_fail_under_another_promise(s: State) -> Expr:
        def both(q: Elem, r: Elem) -> Expr:
            promised = (s.status[q] == Status.waiting) & (s.verdict[q] == Verdict.hit)
            return And(promised, s.status[r] == Status.loading, s.stored)

        return Exists(Request, Request, both)

    m.ghost("good", why="What the slot contains is a fact: it is no good once a load from it has failed.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("verdicts", doc=__doc__, faults=faults), Request)
    declare_state(m)
    declare_tier(m)
    declare_answers(m)
    declare_use_of_verdicts(m)
    declare_ends(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
