"""Why an invariant holds: a proof for any size where there is one, and never what only looks like one."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import two_tier

pytest.importorskip("z3", reason="needs the extra smt")

from kvfence.checker.analysis.review import proofs
from kvfence.checker.analysis.review.compare import review
from kvfence.checker.analysis.review.facts import Evidence, Review
from kvfence.checker.analysis.review.proofs import Proving
from kvfence.checker.engines.smt import recheck
from kvfence.checker.engines.smt.needed import Prover, Support
from kvfence.checker.report.ci.annotations import github_annotations
from kvfence.checker.report.ci.junit import review_junit
from kvfence.checker.report.ci.markdown import review_markdown
from kvfence.checker.report.ci.sarif import review_sarif
from kvfence.checker.report.html.page import review_html
from kvfence.checker.report.text.review_proofs import claim
from kvfence.checker.report.text.reviewed import review_text
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import CannotRun

SPEC = Path(two_tier.__file__)
SMALL = {"Request": 1, "Block": 2}
QUICK = {  # designs of three machines, where their faults show at once
    "unpinned_lookup": SMALL,
    "store_resurrects_key": {"Part": 1, "Operation": 1},
    "dropped_answer_keeps_pin": {"Request": 1},
}
LOCK = '''"""A lock that one client has at a time, with a lemma or without."""
from kvfence.spec.language import Exists, ForAll, Iff, Implies, Machine, Not

def build(faults=frozenset()):
    m = Machine("lock", faults=faults)
    m.declare("ONE", "One client has the lock.")
    Client = m.sort("Client", default=3)
    m.relation("has", Client)
    m.relation("free", init=True)
    lemma, wrong = {lemma}, {wrong}

    @m.action(c=Client)
    def take(s, c):
        if not m.faulty("forgetful"):
            s.require(s.free)
        s.has[c] = True
        s.free = False

    @m.action(c=Client)
    def give(s, c):
        s.require(s.has[c])
        s.has[c] = False
        s.free = True

    @m.invariant("ONE")
    def one_client_has_it(s):
        return ForAll(Client, Client, lambda c, d: Implies(s.has[c] & s.has[d], c == d))

    if lemma:
        @m.lemma
        def nobody_has_a_free_lock(s):
            "It is free when it was given back, and only then."
            return Iff(s.free, Not(Exists(Client, lambda c: s.has[c])))
    if wrong:
        @m.lemma
        def somebody_always_has_it(s):
            "Nobody has it at first."
            return Exists(Client, lambda c: s.has[c])
    return m
'''


def found_for(found: Review, invariant: str) -> tuple[Evidence, ...]:
    return next(i.evidence for m in found.machines for i in m.invariants if i.invariant == invariant)


def every_report(found: Review) -> list[str]:
    """Each report as one line of words."""
    reports = (review_html, review_markdown, review_junit, review_sarif, github_annotations)
    texts = [*(report(found) for report in reports), review_text(found, width=90)]
    return [" ".join(text.replace(r"\_", "_").split()) for text in texts]


@pytest.fixture(scope="module")
def unpinned() -> Review:
    return review("sound", "unpinned_lookup", sizes=SMALL, pairs=0)


@pytest.mark.parametrize("name", QUICK)
def test_what_a_design_breaks_is_proved_of_the_sound_one(name: str) -> None:
    found = review("sound", name, sizes=QUICK[name], pairs=0)
    assert DESIGNS[name].breaks in {i.invariant for _, i in found.of("worse")}
    for _, row in found.of("worse"):
        (evidence,) = row.evidence
        assert (evidence.side, evidence.basis) == ("base", "proved")
        assert evidence.questions > 0
        assert claim(evidence).startswith("proved for any number of ")


def test_what_a_repair_buys_is_proved_of_the_repair() -> None:
    found = review("store_resurrects_key", "sound", sizes=QUICK["store_resurrects_key"], pairs=0)
    assert {(e.side, e.basis) for _, i in found.of("better") for e in i.evidence} == {("change", "proved")}


def test_a_proof_names_the_lemmas_that_it_leans_on(unpinned: Review) -> None:
    (evidence,) = found_for(unpinned, "PIN")
    assert [lemma.name for lemma in evidence.lemmas] == ["what_is_promised_is_pinned"]
    assert evidence.lemmas[0].why == "The lookup pins exactly what it promises."
    for text in every_report(unpinned):
        assert "proved for any number of Request and Block" in text


def test_what_stays_the_same_is_not_proved(unpinned: Review) -> None:
    assert {i.effect for m in unpinned.machines for i in m.invariants if not i.evidence} == {"same"}


def written(folder: Path, *, lemma: bool = True, wrong: bool = False) -> str:
    path = folder / "lock.py"
    path.write_text(LOCK.replace("{lemma}", str(lemma)).replace("{wrong}", str(wrong)))
    return f"{path}:build"


def test_a_machine_in_a_file_is_proved_with_its_lemma(tmp_path: Path) -> None:
    spec = written(tmp_path)
    (evidence,) = found_for(review(f"{spec}+forgetful", spec, pairs=0), "ONE")
    assert (evidence.side, evidence.basis) == ("change", "proved")
    assert [lemma.name for lemma in evidence.lemmas] == ["nobody_has_a_free_lock"]


@pytest.mark.parametrize(("lemma", "wrong"), [(False, False), (False, True)])
def test_without_the_lemma_or_with_a_wrong_one_nothing_is_called_proved(
    tmp_path: Path, lemma: bool, wrong: bool
) -> None:
    spec = written(tmp_path, lemma=lemma, wrong=wrong)
    found = review(f"{spec}+forgetful", spec, pairs=0)
    (evidence,) = found_for(found, "ONE")
    assert evidence.basis == "exhausted"
    assert "one_client_has_it is not kept by take(c=" in evidence.why
    assert ("lemmas that are not kept: somebody_always_has_it" in evidence.why) is wrong
    for text in every_report(found):
        assert "proved for any" not in text
        assert "exhausted at Client 3" in text
        assert "for other sizes undetermined" in text
    assert found.verdict in ("better", "mixed")  # the verdict at these sizes stands


def test_a_revision_is_proved_with_the_lemmas_of_its_own_time(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        settings = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True)

    spec = written(tmp_path)
    git("init", "-q")
    git("add", "lock.py")
    git("commit", "-q", "-m", "with its lemma")
    written(tmp_path, lemma=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (then,) = found_for(review("HEAD:lock.py:build", "HEAD:lock.py:build+forgetful", pairs=0), "ONE")
        (now,) = found_for(review("lock.py:build", "lock.py:build+forgetful", pairs=0), "ONE")
    assert (then.basis, now.basis) == ("proved", "exhausted")
    assert spec.endswith("lock.py:build")


def test_an_invariant_that_is_stated_anew_is_proved_of_the_change(tmp_path: Path) -> None:
    plain, stronger = tmp_path / "plain.py", tmp_path / "stronger.py"
    text = SPEC.read_text()
    plain.write_text(text)
    old = "return ForAll(Reader, Block, lambda r, b: Implies(s.promised[r, b], s.pinned[r, b]))"
    assert old in text
    stronger.write_text(text.replace(old, old.replace("Implies(s.promised[r, b], s.pinned[r, b])",
                                                      "s.promised[r, b] == s.pinned[r, b]")))  # fmt: skip
    found = review(f"{plain}:build", f"{stronger}:build", pairs=0)
    (evidence,) = found_for(found, "PIN")
    assert (evidence.side, evidence.basis, found.verdict) == ("change", "proved", "different")


def test_a_promise_about_whole_runs_is_exhausted_with_its_fairness_and_never_proved() -> None:
    found = review("free_fenced_victim", "fenced_victim_spin", pairs=0)
    ((_, row),) = found.of("worse")
    (evidence,) = row.evidence
    assert (evidence.side, evidence.basis) == ("base", "exhausted")
    assert "promises about whole runs are not proved" in evidence.why
    assert evidence.fairness["admit"] == "weak"
    assert "assuming fairness weakly for " in claim(evidence)
    (kept,) = found_for(found, "FREEZE")
    assert kept.basis == "proved"


@pytest.mark.parametrize(
    ("proving", "z3", "why"),
    [
        (None, True, proofs.NO_PROOF_ASKED),
        (Proving(), False, proofs.NO_Z3),
        (Proving(seconds=0), True, "the time for proofs was over"),
    ],
    ids=["not asked for", "without z3", "no time left"],
)
def test_what_cannot_be_proved_is_exhausted_and_the_review_goes_on(
    proving: Proving | None, z3: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not z3:
        monkeypatch.setattr(proofs, "find_spec", lambda _name: None)
    found = review("sound", "unpinned_lookup", sizes=SMALL, pairs=0, proving=proving)
    (evidence,) = found_for(found, "PIN")
    assert (evidence.basis, evidence.why, found.verdict) == ("exhausted", why, "worse")


def test_ctrl_c_keeps_the_proofs_that_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    prove = Prover.prove

    def pressed(self: Prover, names: list[str]) -> Support:
        asked.append(names)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return prove(self, names)

    monkeypatch.setattr(Prover, "prove", pressed)
    found = review("sound", "unpinned_lookup", sizes=SMALL, pairs=0)
    evidence = [e for _, i in (*found.of("worse"), *found.of("open")) for e in i.evidence]
    assert found.interrupted
    assert [e.basis for e in evidence].count("proved") == 1
    assert {e.why for e in evidence if e.basis != "proved"} == {"interrupted"}
    assert len(asked) == 2


def test_the_second_solver_is_named_with_what_it_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, None, *[True] * 100])
    monkeypatch.setattr(recheck, "second_solver", lambda _name: lambda _text, _seconds: next(answers))
    found = review("sound", "unpinned_lookup", sizes=SMALL, pairs=0, proving=Proving(second="cvc5"))
    evidence = next(e for _, i in found.of("worse") for e in i.evidence)
    assert len(evidence.second_open) == 1
    assert f"{evidence.questions - 1} of them by cvc5" in claim(evidence)


def test_a_second_solver_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(CannotRun, match="there is no second solver 'yices'"):
        review("sound", "sound", proving=Proving(second="yices"))


def test_an_exploration_that_was_cut_short_may_still_be_proved() -> None:
    sizes = {"Reader": 5, "Block": 4}
    found = review(
        f"{SPEC}:build+no_pin", f"{SPEC}:build", sizes=sizes, memory=4 << 20, symmetry=False, pairs=0
    )
    evidence = found_for(found, "PIN")
    assert {(e.side, e.basis) for e in evidence} == {("change", "proved")}
    assert found.verdict == "undetermined"  # goals and promises were not looked at to the end


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DESIGNS) - {"sound"}))
def test_whatever_a_design_breaks_is_proved_of_the_sound_one(name: str) -> None:
    found = review("sound", name, threads=2, pairs=0)
    for _, row in found.of("worse"):
        assert [e.basis for e in row.evidence] == ["proved" if row.kind == "safety" else "exhausted"]
