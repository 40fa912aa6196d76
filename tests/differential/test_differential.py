"""Every engine finds what judging machines directly finds, on a few hundred machines drawn at random."""

import itertools
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import judging
import pytest
from campaign import Tally, campaign
from comparing import Case
from direct import Direct, judged
from drawing import MANY, Drawn, draw
from judging import QUESTIONS, Wanted, differences, has_card, plan
from liveness_judge import Judge
from planting import Plant, plant
from recipes import BOOL, FALSE, TRUE, Action, Field, Node, Pledge, Prop, Recipe, Stmt, machine_text
from shrinking import weight

SEED = 15
BATCH = 50
GPU = frozenset({"gpu", "gpu-symmetry"})


@pytest.mark.parametrize("batch", range(4))
def test_engines_agree_with_the_direct_judge(batch: int, tmp_path: Path) -> None:
    cases = range(batch * BATCH, (batch + 1) * BATCH)
    tally = campaign(Wanted(SEED), cases=iter(cases), most=3, folder=tmp_path)
    assert not tally.findings, _shown(tally)
    assert tally.cases == BATCH
    # machines are worth it: not all of them are violated at once, and some are large
    assert tally.verdicts["holds"] >= BATCH // 3
    assert tally.verdicts["violated"] >= BATCH // 4
    assert tally.large >= 2


@pytest.mark.gpu
def test_a_card_agrees_with_the_direct_judge(tmp_path: Path) -> None:
    if not has_card():
        pytest.skip("there is no CUDA device")
    wanted = Wanted(SEED, only=GPU, card=True)
    tally = campaign(wanted, cases=iter(range(200)), most=3, folder=tmp_path)
    assert not tally.findings, _shown(tally)
    assert tally.asked["gpu"] > 20


def _shown(tally: Tally) -> str:
    files = [f.file.read_text(encoding="utf-8") for f in tally.findings if f.file]
    return "\n".join([tally.text(), *files])


def test_questions_are_all_asked_somewhere() -> None:
    asked = {q for case in range(400) for q in plan(replace(draw_small(case), seed=SEED))}
    assert set(QUESTIONS) - asked <= GPU


def draw_small(case: int):
    """A stand-in for the machine of a case: what is asked depends on its kind only."""
    sort, promise = ("S", 2), Pledge("p", (), None, TRUE)
    recipe = Recipe((sort,), (), (), (), liveness=(promise,))
    return Drawn(0, case, recipe, random.Random(case).choice(["tiny", "small", "large"]))


def test_a_machine_beside_noise_is_judged_as_if_explored_whole() -> None:
    d = next(d for k in itertools.count() if (d := draw(SEED, k)).kind == "large")
    assert d.recipe.noise
    whole, _, _ = Direct(d.recipe).explore()
    assert judged(d.recipe) == whole
    assert whole.states > MANY


def test_promises_are_judged_as_by_trying_every_set_of_states() -> None:
    answers = []
    for case in range(160):
        r = draw(99, case).recipe
        if not r.liveness:
            continue
        judge = Judge(Direct(r))
        for q in r.liveness:
            for args in judge.choices(q):
                owed, kept = judge.truths(q, args)
                region = judge.reach(owed - kept, set(range(len(judge.states))) - kept)
                if len(region) <= 9:
                    answers.append(judge.can_stay(region))
                    assert answers[-1] == judge.can_stay_by_trying(region), (case, q.name, args)
    assert 10 < sum(answers) < len(answers) - 10


CHECKED_EARLY = Plant(
    "deadlocks are lost",
    "checker.engines.explicit.interpret:_Search._expand",
    "if not found and",
    "if found and",
)


def test_a_difference_is_made_smaller_and_written_as_a_test_that_fails_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = Wanted(SEED, only=frozenset({"interpret"}))
    with monkeypatch.context() as patch:
        plant(CHECKED_EARLY, patch)
        tally = campaign(wanted, 60.0, folder=tmp_path, shrink_seconds=20.0)
        (found,) = tally.findings
        assert weight(found.recipe) < 60 < weight(draw(SEED, found.case).recipe)
        assert found.file is not None
        text = found.file.read_text(encoding="utf-8")
        scope: dict[str, object] = {}
        exec(text, scope)
        test = scope["test_the_engine_is_right"]
        assert callable(test)
        with pytest.raises(AssertionError):
            test()
    test()


@pytest.mark.parametrize(("how", "kind"), [("import os; os._exit(9)", "crash"), ("while True: pass", "hang")])
def test_an_engine_that_crashes_or_never_ends_is_a_difference(
    how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "HANGS", 1.0)
    place, line = (
        "checker.engines.explicit.numpy_search:Explore.explore",
        "log = base.Log(interpreter.grounded)",
    )
    plant(Plant("", place, line, f"{how}\n    {line}"), monkeypatch)
    tally = campaign(Wanted(SEED), cases=iter([0, 1]), shrink_seconds=0)
    (found,) = tally.findings
    assert (found.question[:7], found.difference.kind) == ("explore", kind)
    assert [w.kind for w in differences("explore", found.recipe)] == [kind]


def smallest() -> Recipe:
    """A machine with a deadlock and a violation."""
    off = ~Node("read", BOOL, (), "on")
    flip = Action("flip", None, (), (Stmt("require", off), Stmt("set", TRUE, "on")))
    return Recipe((), (), (Field("on", (), BOOL, FALSE),), (flip,), (Prop("PIN", "off", off),))


def test_what_the_judge_finds_in_a_machine_of_two_states() -> None:
    a = Case(smallest()).answer
    assert (a.states, a.transitions, a.depth, a.coverage) == (2, 1, 1, {"flip": 1})
    assert (a.violated, a.deadlock, a.goals) == ({"off": 1}, 1, {})


def test_the_same_case_is_the_same_machine() -> None:
    texts = [machine_text(draw(7, 3).recipe) for _ in range(2)]
    assert texts[0] == texts[1] != machine_text(draw(8, 3).recipe)


def test_the_command_says_where_to_go_on_and_ends_with_the_verdict(tmp_path: Path) -> None:
    options = ["--seed", "3", "--only", "interpret", "--folder", str(tmp_path)]
    line = [sys.executable, str(Path(__file__).parent), *options]
    done = subprocess.run([*line, "--case", "4"], capture_output=True, text=True, check=False)
    assert (done.returncode, "1 machines" in done.stdout) == (0, True)
    done = subprocess.run([*line, "--seconds", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    done = subprocess.run([*line, "--only", "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no question nothing" in done.stderr) == (2, True)
