"""Lemmas that are found: enough for a proof where the vocabulary suffices, and never believed without one."""

import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.smt.houdini import candidates, infer, with_lemmas
from kvfence.checker.engines.smt.unbounded import Unbounded
from kvfence.spec.machines import MACHINES


def test_the_pool_is_proved_by_lemmas_that_are_found() -> None:
    bare = with_lemmas(MACHINES["block_pool"](frozenset()), [])
    assert Unbounded(search_seconds=1).run(bare).verdict is Verdict.undetermined
    result = Unbounded(infer=True).run(bare)
    assert result.verdict is Verdict.holds
    assert any(f.kind == "lemma" for f in result.findings.values())


def test_most_of_the_lookup_is_proved_by_lemmas_that_are_found() -> None:
    """That a prompt has two parts takes more than two facts in a clause; the lemma of the machine says it."""
    bare = with_lemmas(MACHINES["lookup"](frozenset()), [])
    found = with_lemmas(bare, infer(bare))
    result = Unbounded(search_seconds=1).run(found)
    open_ = {f.name for f in result.findings.values() if f.verdict is not Verdict.holds}
    assert open_ == {"range of compute"}


def test_what_is_found_holds_in_every_state_that_exploring_reaches() -> None:
    m = MACHINES["lookup"](frozenset())
    found = infer(m)
    assert found
    result = Explore().run(with_lemmas(m, found))
    assert {f.verdict for f in result.findings.values()} == {Verdict.holds}


def test_most_candidates_are_false_and_none_of_these_is_proposed() -> None:
    m = small.lock()
    tried = {p.name for p in candidates(m)}
    found = {p.name for p in infer(m)}
    assert found < tried
    assert len(found) < len(tried) / 2


def test_a_violation_is_not_explained_away() -> None:
    assert Unbounded(infer=True).run(small.lock(forgetful=True)).verdict is Verdict.violated
