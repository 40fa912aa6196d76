"""Numbers that 64 bits are too few for: engines that compute in words refuse, and the others decide."""

import json
import random
import re
from pathlib import Path

import pytest

from kvfence.checker.analysis.review.compare import review
from kvfence.checker.cli import app as cli
from kvfence.checker.engines import Engine, Explore, Interpret, Liveness, Native, Verdict
from kvfence.checker.engines.smt import smt_engine
from kvfence.checker.report.export.promela import promela
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Expr, ForAll, If, Implies, Int, Machine, SpecError, State

FULL = 1 << 62
WORD_ENGINES: list[Engine] = [Native(), Native(threads=2), Native(symmetry=True), Explore()]


def sums(most: int = FULL, times: int = 1) -> Machine:
    """Two slots are filled up to ``most`` each, though together they must not hold more than that."""
    m = Machine("sums", doc="Two slots.")
    block = m.sort("Block", default=2)
    m.function("w", block, value=Int(0, most), init=0)

    @m.action(b=block)
    def fill(s: State, b: Expr) -> None:
        s.require(s.w[b] == 0)
        s.w[b] = most

    @m.action(b=block)
    def empty(s: State, b: Expr) -> None:
        s.require(s.w[b] == most)
        s.w[b] = 0

    @m.invariant("CONSERVE")
    def never_too_full(s: State) -> Expr:
        """never more than one full: false"""
        return ForAll(block, block, lambda a, b: Implies(a != b, sum([s.w[a], s.w[b]] * times) <= most))

    return m


@pytest.mark.parametrize("engine", WORD_ENGINES, ids=["native", "threads", "symmetry", "explore"])
def test_an_engine_of_words_refuses_and_names_the_expression(engine: Engine) -> None:
    r = engine.run(sums(FULL // 2, times=2))
    assert r.verdict is Verdict.undetermined
    assert re.fullmatch(rf"w\[.\] \+ w\[.\] \(invariant never_too_full\) can be 0 to {FULL}", str(r.overflow))
    assert "give --engine interpret" in str(r.stopped)
    assert not r.violated
    assert all(f.verdict is Verdict.undetermined for f in r.findings.values())


def test_a_cell_alone_can_be_too_wide() -> None:
    for most in (FULL, 1 << 64, 1 << 70):
        assert Native().run(sums(most)).overflow == f"w[0] can be 0 to {most}"
        assert Interpret().run(sums(most)).verdict is Verdict.violated
    assert Native().run(sums((FULL - 1) // 2)).verdict is Verdict.violated


@pytest.mark.parametrize("name", ["bmc", "kinduction", "spacer", "smt"])
def test_solvers_have_no_such_limit(name: str) -> None:
    assert smt_engine(name).run(sums(FULL)).verdict is Verdict.violated


def mixed(draw: random.Random) -> Machine:
    """A machine whose numbers lie about the ends of what a word can be."""
    m = Machine("mixed")
    ends = [draw.choice((1 << k, (1 << k) - 1, (1 << k) + 1)) for k in draw.sample(range(54, 64), 2)]
    los = [draw.choice((0, 0, -end, -(1 << 60))) for end in ends]
    kinds = [Int(lo, end) for lo, end in zip(los, ends, strict=True)]
    for name, kind in zip("xy", kinds, strict=True):
        m.function(name, value=kind, init=0)
    steps = [draw.choice((1, ends[0] // 2, ends[1] // 2, ends[0], los[0])) for _ in range(3)]

    @m.action()
    def up(s: State) -> None:
        s.require(s.x <= ends[0] - steps[0], s.x >= 0)
        s.x = s.x + steps[0]

    @m.action()
    def down(s: State) -> None:
        s.require(s.y - s.x >= los[1])
        s.y = If(s.x < s.y, s.y - s.x, s.x - s.y)

    @m.action()
    def jump(s: State) -> None:
        s.require(s.x != steps[1])
        s.x = steps[1]
        s.y = steps[2]

    @m.invariant("CONSERVE")
    def bounded(s: State) -> Expr:
        """x"""
        return s.x + s.y + s.x <= draw.choice((ends[0], 2 * ends[1], FULL))

    return m


def test_what_words_decide_is_what_the_interpreter_decides() -> None:
    draw = random.Random(11)
    decided = refused = 0
    for k in range(60):
        try:
            m = mixed(draw)
            known = Interpret().run(m, max_states=400)
        except SpecError:
            continue
        if known.stopped:
            continue
        for engine in (Native(), Explore())[k % 20 > 0 :]:  # compiling takes seconds
            r = engine.run(m)
            if r.overflow:
                refused += 1
                continue
            decided += 1
            assert (r.verdict, r.states, r.transitions) == (known.verdict, known.states, known.transitions)
            assert {n: f.verdict for n, f in r.findings.items()} == {
                n: f.verdict for n, f in known.findings.items()
            }
    assert decided >= 10
    assert refused >= 10


def counter() -> Machine:
    m = Machine("counter")
    m.function("n", value=Int(), init=0)

    @m.action()
    def up(s: State) -> None:
        s.n = s.n + s.n + 1

    @m.invariant("PIN")
    def grows(s: State) -> Expr:
        """x"""
        return s.n >= 0

    return m


def test_bounds_that_are_given_count_too() -> None:
    assert Native().run(counter(), bounds={"n": (0, 100)}).overflow is None
    for engine in WORD_ENGINES:
        r = engine.run(counter(), bounds={"n": (0, FULL // 2)})
        assert r.overflow is not None
        assert r.overflow.endswith(f"can be 0 to {FULL + 1}") or r.overflow.endswith(f"can be 0 to {FULL}")


def unread() -> Machine:
    """False after 12 steps; a cell that nothing reads is wider than what is read."""
    m = Machine("unread")
    m.function("z", value=Int(0, 255), init=0)
    m.function("n", value=Int(0, 14), init=0)

    @m.action()
    def up(s: State) -> None:
        s.require(s.n < 14)
        s.n = s.n + 1

    @m.action()
    def over(s: State) -> None:
        s.require(s.n == 14)
        s.n = 0

    @m.invariant("PIN")
    def not_twelve(s: State) -> Expr:
        """x"""
        return s.n != 12

    return m


def test_k_induction_has_room_for_cells_that_nothing_reads() -> None:
    assert smt_engine("kinduction").run(unread()).verdict is not Verdict.holds
    assert Interpret().run(unread()).verdict is Verdict.violated


def promising(most: int) -> Machine:
    m = Machine("promising")
    m.function("n", value=Int(0, most), init=0)

    @m.action(fair="weak")
    def up(s: State) -> None:
        s.require(s.n == 0)
        s.n = most

    @m.action(fair="weak")
    def down(s: State) -> None:
        s.require(s.n == most)
        s.n = 0

    m.leads_to("kept", lambda s: s.n == 0, lambda s: s.n + s.n + s.n + s.n > 3 * most)
    m.leads_to("broken", lambda s: s.n == 0, lambda s: s.n + s.n + s.n + s.n < 0)
    return m


@pytest.mark.parametrize("most", [FULL // 2, 1 << 64])
def test_promises_are_judged_with_numbers_of_any_length(most: int) -> None:
    found = Liveness().run(promising(most)).findings
    assert found["kept"].verdict is Verdict.holds
    assert found["broken"].verdict is Verdict.violated


FILE = """
from kvfence.spec.language import ForAll, Int, Machine

def build(faults=frozenset()):
    m = Machine("sums", doc="Two slots.")
    block = m.sort("Block", default=2)
    m.function("w", block, value=Int(0, 2**70), init=0)

    @m.action(b=block)
    def fill(s, b):
        s.require(s.w[b] == 0)
        s.w[b] = 2**70

    @m.action(b=block)
    def empty(s, b):
        s.require(s.w[b] == 2**70)
        s.w[b] = 0

    @m.invariant("CONSERVE")
    def right(s):
        return ForAll(block, lambda b: s.w[b] >= 0)

    return m
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")
    return str(tmp_path / "own.py")


def test_the_default_falls_back_and_says_so(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", "--machine", own]) == 0
    out, err = capsys.readouterr()
    assert "engine interpret." in out
    line = f"w[0] can be 0 to {1 << 70}, too much for the 64 bits of engine native: engine interpret explores"
    assert line in err
    assert line in " ".join(out.split())
    assert cli.run(["verify", "--machine", own, "--format", "json"]) == 0
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    assert machine["engine"] == "interpret"
    assert machine["note"].startswith(line)


@pytest.mark.parametrize("asked", [["--engine", "native"], ["--engine", "explore"], ["--symmetry"]])
def test_an_engine_that_is_named_refuses(
    own: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["verify", "--machine", own, *asked]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert f"w[0] can be 0 to {1 << 70}, and engine" in out
    assert "never took" not in out


def test_a_review_explores_with_numbers_of_any_length(own: str) -> None:
    other = Path(own).with_name("other.py")
    other.write_text(FILE.replace("s.w[b] >= 0", "s.w[b] < 2**70"), encoding="utf-8")
    (machine,) = review(own, str(other), proving=None).machines
    assert next((row.invariant, row.effect) for row in machine.invariants) == ("CONSERVE", "worse")
    assert machine.base is not None
    assert machine.base.engine == "interpret"


def test_promela_has_32_bits() -> None:
    with pytest.raises(CannotRun, match=r"32 bits, and in sums w\[0\] can be 0 to 4294967296"):
        promela(sums(1 << 32))
    with pytest.raises(
        CannotRun, match=r"32 bits, and in sums w\[.\] \+ w\[.\] \(invariant never_too_full\)"
    ):
        promela(sums((1 << 31) - 1))
    assert "int c0" in promela(sums(1 << 20))
