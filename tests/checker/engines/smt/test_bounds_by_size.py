"""Nothing is proved for any size from a bound that Python, and not z3, evaluated."""

from collections.abc import Callable
from typing import Any

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.smt import smt_engine
from kvfence.spec.language import Count, Expr, Int, Machine, SpecError, State
from kvfence.spec.language.expr import limit

Bound = Callable[[Any], int]
FALSE_AT_7: dict[str, Bound] = {
    "==": lambda z: 5 if z["Block"] == 7 else 3,
    "get": lambda z: 3 if z.get("Block", 0) < 7 else 5,
    "values": lambda z: 3 if sum(z.values()) < 7 else 5,
    "table": lambda z: {7: 5}.get(z["Block"], 3),
    "type": lambda z: 5 if isinstance(z["Block"], int) else 3,
    "text": lambda z: 5 if str(z["Block"]) == "7" else 3,
}


def limited(most: Bound) -> Machine:
    """At most ``most`` of the blocks are taken; the invariant says that this is never more than three."""
    m = Machine("limited")
    block = m.sort("Block", default=2)
    m.relation("used", block)
    m.function("n", value=Int(0, most), init=0)

    @m.action(b=block)
    def take(s: State, b: Expr) -> None:
        s.require(~s.used[b], s.n < limit(most))
        s.used[b] = True
        s.n = s.n + 1

    @m.action(b=block)
    def drop(s: State, b: Expr) -> None:
        s.require(s.used[b], s.n > 0)
        s.used[b] = False
        s.n = s.n - 1

    @m.invariant("COUNT")
    def counted(s: State) -> Expr:
        """x"""
        return s.n == Count(block, lambda b: s.used[b])

    @m.invariant("CONSERVE")
    def at_most_three(s: State) -> Expr:
        """x"""
        return s.n <= 3

    return m


@pytest.mark.parametrize("form", FALSE_AT_7)
def test_a_falsehood_is_not_proved_whatever_the_bound_asks(form: str) -> None:
    m = limited(FALSE_AT_7[form])
    found = smt_engine("smt").run(m)
    assert found.verdict is Verdict.undetermined
    assert found.findings["at_most_three"].verdict is Verdict.undetermined
    (why,) = {w for name, w in small.proof_of(found).open.items() if name == "at_most_three"} or {""}
    assert "bound of n of machine limited cannot be used at any size" in why
    assert "test_bounds_by_size.py:" in why
    assert Interpret().run(m, {"Block": 7}).findings["at_most_three"].verdict is Verdict.violated


def test_sums_and_products_of_sizes_are_proved_with() -> None:
    found = smt_engine("smt").run(limited(lambda z: 3 * z["Block"] * z["Block"] - z["Block"] + 1))
    assert found.findings["counted"].verdict is Verdict.holds
    assert found.findings["range of n"].verdict is Verdict.holds
    assert found.findings["at_most_three"].verdict is not Verdict.holds
    assert smt_engine("smt").run(limited(lambda z: 3)).verdict is Verdict.holds  # noqa: ARG005


def test_a_misspelt_sort_is_refused_by_every_engine() -> None:
    for engine in ("smt", "bmc"):
        with pytest.raises(SpecError, match="no size of 'Blokc'; did you mean Block"):
            smt_engine(engine).run(limited(lambda z: z["Blokc"]))
