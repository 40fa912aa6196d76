"""The exit code of ``kvfence verify`` for small machines under each engine: a table that has to stay."""

from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.core import c_build as build

pytest.importorskip("z3", reason="needs the extra smt")

FILE = Path(__file__).parents[2] / "machines" / "verdicts.py"
PROVERS = ("smt", "kinduction", "spacer")
SEARCHES = ("native", "explore", "interpret")
ALL = (*SEARCHES, *PROVERS)
HOLDS, VIOLATED, UNDETERMINED = 0, 1, 3
TABLE: dict[str, tuple[tuple[str, ...], int, str]] = {
    "shaped": (ALL, UNDETERMINED, "stated holds only because no state meets its premise: hot[b]"),
    "negated": (ALL, UNDETERMINED, "stated holds only because no state meets its premise: hot[b]"),
    "ored": (ALL, UNDETERMINED, "stated holds only because no state meets its premise: hot[b]"),
    "conj": (ALL, UNDETERMINED, "stated holds only because no state meets its premise: hot[b]"),
    "check": (ALL, UNDETERMINED, "never took: boom."),
    "idle_check": (ALL, UNDETERMINED, "look.ONCE holds only because no state meets its premise: not used[b]"),
    "idle_lemma": (ALL, UNDETERMINED, "about_hot_blocks holds only because no state meets its premise"),
    "goal": (ALL, UNDETERMINED, "never reached its goal: one_is_hot."),
    "unsat": (ALL, UNDETERMINED, "never took: boom."),
    "noinv": (ALL, UNDETERMINED, "states no invariant, check or liveness property"),
    "unknownid": (ALL, UNDETERMINED, 'm.declare("NOSUCHRULE", "What it says, in a sentence.")'),
    "one": (ALL, HOLDS, "PIN"),
    "declared": (ALL, HOLDS, "A lease stays."),
    "declared+hot": (ALL, VIOLATED, "A lease stays."),
    "dead0": ((*ALL, "bmc"), VIOLATED, "DEADLOCK is violated in machine dead0"),
    "bad0": ((*ALL, "bmc"), VIOLATED, "PIN is violated in machine bad0"),
    "stuck0": (("native", "liveness"), VIOLATED, "Nothing more happens."),
    "promised": ((*PROVERS, "bmc"), UNDETERMINED, "nothing that it states was judged here"),
    "incons": (("smt",), VIOLATED, "PIN is violated in machine incons"),
}


@pytest.fixture(autouse=True)
def _compiled_without_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))


def asked(machine: str, engine: str) -> tuple[str, ...]:
    """The command that verifies one of the small machines."""
    return "verify", "--machine", f"{FILE}:{machine}", "--engine", engine


@pytest.mark.parametrize("machine", list(TABLE))
def test_the_exit_code_is_right_under_every_engine_and_the_text_says_why(
    machine: str, kvfence: CommandLine
) -> None:
    engines, right, why = TABLE[machine]
    for engine in engines:
        ended = kvfence(*asked(machine, engine))
        assert (engine, ended.code) == (engine, right), ended.out
        assert why in ended.flat, ended.out
        if ended.code == UNDETERMINED:
            assert ": holds." not in ended.out


@pytest.mark.parametrize("engine", [*ALL, "bmc"])
def test_what_is_broken_at_once_has_its_rows_and_its_story(engine: str, kvfence: CommandLine) -> None:
    for machine, id_ in (("dead0", "DEADLOCK"), ("bad0", "PIN")):
        found = kvfence.json(VIOLATED, *asked(machine, engine))
        (facts,) = found["machines"]
        assert {c["verdict"] for c in facts["conditions"] if c["invariant"] == id_} == {"violated"}
        story = found["counterexamples"][0]
        assert (story["invariant"], story["steps"]) == (id_, [])
        assert "in the initial state" in kvfence(*asked(machine, engine)).flat


@pytest.mark.parametrize("engine", PROVERS)
def test_a_proof_says_where_the_rest_was_searched(engine: str, kvfence: CommandLine) -> None:
    text = kvfence.prints(HOLDS, *asked("declared", engine))
    where = "declared: actions, goals and premises were searched at Block 2 by engine native"
    assert where in text
    found = kvfence.json(HOLDS, *asked("declared", engine))
    assert found["machines"][0]["searched"] == {
        "engine": "native",
        "sizes": {"Block": 2},
        "states": found["machines"][0]["searched"]["states"],
        "stopped": None,
    }
    assert found["machines"][0]["declared"] == {
        "LEASE": "A lease stays.",
        "RENT": "A block that is taken was free.",
    }


def test_no_row_of_a_check_that_nothing_evaluates_holds(kvfence: CommandLine) -> None:
    for engine in ALL:
        found = kvfence.json(UNDETERMINED, *asked("check", engine))
        (facts,) = found["machines"]
        assert [c["verdict"] for c in facts["conditions"] if c["invariant"] == "ONCE"] == ["undetermined"]
        assert facts["unevaluated"] == ["boom.ONCE"]


def test_engine_liveness_claims_nothing_but_its_properties(kvfence: CommandLine) -> None:
    text = kvfence.prints(HOLDS, *asked("half", "liveness"))
    assert "only liveness properties were judged; other conditions" in text
    assert "Every liveness property of these machines holds in every fair run" in text
    assert "Every condition" not in text


def test_a_proof_that_judges_no_liveness_property_says_so(kvfence: CommandLine) -> None:
    text = kvfence.prints(HOLDS, *asked("kept", "native"))
    assert "Every condition of these machines holds" in text
    text = kvfence.prints(HOLDS, *asked("kept", "smt"))
    assert "Every condition of these machines, liveness properties excepted, is proved" in text
