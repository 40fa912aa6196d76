"""What a proof assumes about counts is true of finite sets: each fact, at every size tried, in any state."""

import random
from collections.abc import Sequence

import pytest
import smt_machines as small

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt import conditions
from kvfence.checker.engines.smt.conditions import Question
from kvfence.checker.engines.smt.counters import Counter, counts_in, everywhere, facts, flips
from kvfence.checker.engines.smt.houdini import with_lemmas
from kvfence.spec.language import LEMMA, Count, Elem, Expr, ForAll, Machine, Property, State
from kvfence.spec.language.expr import substitute, variable
from kvfence.spec.machines import MACHINES

STATES = 300


def _closed(e: Expr, fixed: Sequence[Expr]) -> Expr:
    """``e`` for all values of the constants of a question."""
    bound = [variable("bound", v.type, str(v.value)) for v in fixed]
    return everywhere(tuple(bound), substitute(e, {v.uid: b for v, b in zip(fixed, bound, strict=True)}))


def _questions(m: Machine) -> list[Question]:
    given = conditions.of_machine(m)
    steps = [conditions.step_question(c, a, given) for c in given for a in m.actions.values()]
    return [q for q in steps if q is not None]


def _false_somewhere(m: Machine, claims: Sequence[Expr], sizes: dict[str, int], seed: int) -> set[str]:
    """The claims that fail in some of many random states, reachable or not."""
    lemmas = [Property(LEMMA, f"fact {k}", "", e, (), where="test") for k, e in enumerate(claims)]
    run = Interpreter(with_lemmas(m, lemmas), sizes)
    draw, wrong = random.Random(seed), set[str]()
    for _ in range(STATES):
        ends = [(c.lo, c.hi) if c.lo is not None else (-3, 3) for c in run.grounded.cells]
        state = tuple(draw.randint(lo, hi) for lo, hi in ends if lo is not None and hi is not None)
        wrong |= {p.name for p in run.violated(state) if p.name.startswith("fact ")}
    return wrong


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["block_pool", "lookup", "seats"])
def test_every_fact_about_counts_holds_in_every_state(name: str, size: int) -> None:
    m = small.counted() if name == "seats" else MACHINES[name](frozenset())
    claims = {e.uid: e for q in _questions(m) for e in (_closed(f, q.fixed) for f in facts(q))}
    assert len(claims) > 5
    assert _false_somewhere(m, list(claims.values()), dict.fromkeys(m.sorts, size), seed=size) == set()


def test_a_fact_that_leaves_out_an_element_is_noticed() -> None:
    m = small.counted()
    question = next(q for q in _questions(m) if q.counts and q.case == "take_two")
    (before, after), *_ = question.counts
    right = flips(before, after, question.fixed)
    _premise, conclusion = right.args
    assert right.op == "or"
    assert _false_somewhere(m, [_closed(right, question.fixed)], {"Seat": 3}, seed=1) == set()
    only_first = flips(before, after, question.fixed[:1]).args[1]
    assert only_first is not conclusion
    assert _false_somewhere(m, [_closed(only_first, question.fixed)], {"Seat": 3}, seed=1)


def test_counts_that_differ_in_names_only_are_one() -> None:
    m = small.counted()
    seat = m.sorts["Seat"]

    @m.lemma
    def twice(s: State) -> Expr:
        """Two ways to write the same."""
        return Count(seat, lambda x: s.taken[x]) == Count(seat, lambda y: s.taken[y])

    found: list[Expr] = counts_in([m.lemmas["twice"].expr])
    assert len({c.uid for c in found}) == 2
    first, second = (Counter(c) for c in found)
    assert first.term is second.term


def test_counts_of_different_sets_stay_apart() -> None:
    m = MACHINES["lookup"](frozenset())
    request = m.sorts["Request"]

    @m.lemma
    def apart(s: State) -> Expr:
        """Not the same at all."""

        def same(b: Elem) -> Expr:
            return Count(request, lambda r: s.pin[r, b]) == Count(request, lambda r: s.loading[r, b])

        return ForAll(m.sorts["Block"], same)

    found = counts_in([m.lemmas["apart"].expr])
    first, second = (Counter(c) for c in found)
    assert first.term is not second.term
    assert first.formals == second.formals
