"""Names of a machine that are words of SMT-LIB, of z3 or of cvc5, or that are alike, change no verdict."""

import importlib.util
from pathlib import Path

import pytest

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.smt import smt_engine
from kvfence.spec.language import Enum, Expr, ForAll, Iff, Int, Machine, State

# field, sort, enum, label
NAMES = [
    ("select", "Block", "Phase", "a"),
    ("true", "Bool", "Int", "false"),
    ("distinct", "Int", "Bool", "ite"),
    ("ite", "Real", "Array", "let"),
    ("div", "String", "RegLan", "forall"),
    ("f", "X", "X", "f"),
    ("X", "X", "X", "X"),
    ("forall", "Seq", "str", "len"),
    ("assert", "RoundingMode", "seq", "unit"),
    ("used", "s", "s", "used"),
    ("store", "Set", "set", "union"),
    ("exists", "List", "re", "all"),
    ("größe", "Größe", "groß", "größe"),
    ("gr_f6_", "gr_f6_", "größ", "x_df_"),
]


def named(field: str, sort: str, enum: str, label: str, *, bad: bool = False) -> Machine:
    m = Machine("names")
    block, phase = m.sort(sort), Enum(enum, f"{label} other")
    also = Enum(enum, f"{label} other third")  # a second one of the same name
    m.relation(field, block)
    m.function("phase_", block, value=phase, init=phase.other)
    m.function("also_", block, value=also, init=also.other)
    m.function("n_", value=Int(0, 3), init=0)

    @m.action(and_=block)
    def start(s: State, and_: Expr) -> None:
        s.require(s.phase_[and_] == phase.other)
        s.phase_[and_] = getattr(phase, label)
        s.also_[and_] = getattr(also, label)
        getattr(s, field)[and_] = True

    @m.action(let=block)
    def check(s: State, let: Expr) -> None:
        s.require(s.phase_[let] == getattr(phase, label))
        s.phase_[let] = phase.other
        s.also_[let] = also.other
        getattr(s, field)[let] = bad

    @m.invariant("PIN")
    def not_(s: State) -> Expr:
        """x"""
        return ForAll(block, lambda b: Iff(getattr(s, field)[b], s.phase_[b] == getattr(phase, label)))

    @m.invariant("COUNT")
    def also_like_phase(s: State) -> Expr:
        """x"""
        first, second = getattr(phase, label), getattr(also, label)
        return ForAll(block, lambda b: Iff(s.also_[b] == second, s.phase_[b] == first))

    return m


@pytest.mark.parametrize(
    "names", NAMES, ids=lambda names: "-".join(names).encode("ascii", "replace").decode()
)
def test_names_change_no_verdict(names: tuple[str, str, str, str], tmp_path: Path) -> None:
    second = "cvc5" if importlib.util.find_spec("cvc5") else None
    engine = smt_engine("smt", export=tmp_path, second_solver=second)
    good = engine.run(named(*names))
    assert good.verdict is Verdict.holds, good.stopped
    assert good.proof is not None
    assert good.proof.rechecked == good.proof.questions
    assert good.proof.second_open == ()
    assert all(path.read_text(encoding="utf-8").isascii() for path in tmp_path.rglob("*.smt2"))
    assert smt_engine("smt").run(named(*names, bad=True)).findings["not_"].verdict is Verdict.violated


@pytest.mark.parametrize("engine", ["bmc", "kinduction", "spacer"])
def test_engines_of_given_sizes_too(engine: str) -> None:
    for names in (NAMES[1], NAMES[-1], NAMES[-2]):
        wanted = {Verdict.holds} if engine != "bmc" else {Verdict.holds, Verdict.undetermined}
        assert smt_engine(engine).run(named(*names), {names[1]: 1}).verdict in wanted
        assert smt_engine(engine).run(named(*names, bad=True)).verdict is Verdict.violated
