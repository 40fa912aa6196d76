"""Proofs are decided again: by a fresh z3, by another solver, and from files that other solvers can read."""

from pathlib import Path

import pytest
import smt_machines as small

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.smt import recheck
from kvfence.checker.engines.smt.unbounded import Unbounded
from kvfence.spec.errors import CannotRun
from kvfence.spec.machines import MACHINES

WRONG = "(declare-sort S 0)(declare-fun p (S) Bool)(declare-fun a () S)(assert (not (p a)))(check-sat)"
RIGHT = "(declare-fun x () Int)(assert (and (< x 0) (> x 0)))(check-sat)"


def test_a_fresh_z3_tells_right_from_wrong() -> None:
    assert [recheck.by_z3(text) for text in (RIGHT, WRONG, "(assert")] == [True, False, None]


def test_cvc5_tells_right_from_wrong() -> None:
    pytest.importorskip("cvc5")
    assert [recheck.by_cvc5(text) for text in (RIGHT, WRONG)] == [True, False]


def test_the_files_of_a_proof_are_unsatisfiable_for_any_reader(tmp_path: Path) -> None:
    proof = small.proof_of(Unbounded(folder=tmp_path).run(MACHINES["block_pool"](frozenset())))
    files = sorted((tmp_path / "block_pool").iterdir())
    assert len(files) == proof.questions
    for path in files[::7]:
        text = path.read_text()
        assert "(set-logic ALL)" in text
        assert "(set-info :status unsat)" in text
        assert recheck.by_z3(text) is True


def test_cvc5_decides_the_proof_of_the_pool_again() -> None:
    pytest.importorskip("cvc5")
    result = Unbounded(second="cvc5").run(MACHINES["block_pool"](frozenset()))
    assert result.verdict is Verdict.holds
    proof = small.proof_of(result)
    assert len(proof.second_open) < proof.questions // 4


@pytest.mark.parametrize("answer", [None, False])
def test_a_second_solver_that_objects_leaves_nothing_proved_and_one_that_gives_up_is_reported(
    answer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recheck, "second_solver", lambda _name: lambda _text, _seconds: answer)
    result = Unbounded(second="cvc5", search_seconds=1).run(small.with_the_lemma(small.lock()))
    assert result.verdict is (Verdict.holds if answer is None else Verdict.undetermined)
    assert result.proof is not None
    if answer is None:
        assert len(result.proof.second_open) == result.proof.questions


def test_an_unknown_second_solver_is_named() -> None:
    with pytest.raises(CannotRun, match="there is no second solver 'yices': there is cvc5"):
        Unbounded(second="yices")


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path,
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(CannotRun, match="give another folder"):
        Unbounded(folder=taken).run(small.with_the_lemma(small.lock()))
