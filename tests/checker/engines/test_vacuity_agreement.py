"""What is vacuous, and what is broken at once, is reported alike by every engine that explores."""

from collections.abc import Callable

import pytest
import verdicts as M  # noqa: N812

from kvfence.checker.engines import Engine, Explore, Gpu, Interpret, Native, Result, Swarm, Verdict
from kvfence.checker.engines.gpu.device.host import HostDevice

pytestmark = pytest.mark.usefixtures("compiled_without_optimisation")
EXPLORERS: dict[str, Callable[[], Engine]] = {
    "explore": Explore,
    "native": Native,
    "two threads": lambda: Native(threads=2),
    "symmetry": lambda: Native(symmetry=True),
    "gpu": lambda: Gpu(device=HostDevice),
}


@pytest.mark.parametrize("name", list(M.UNMET))
def test_a_premise_that_is_never_met_is_found_however_it_is_written(name: str) -> None:
    found = Interpret().run(M.stating(name, M.UNMET[name]))
    assert found.vacuous == ("stated",)
    assert found.findings["stated"].verdict is Verdict.undetermined
    assert found.verdict is Verdict.undetermined
    assert "hot" in found.unmet["stated"] or "cold" in found.unmet["stated"] or name == "true"


@pytest.mark.parametrize("name", list(M.MET))
def test_what_is_no_premise_need_not_vary(name: str) -> None:
    found = Interpret().run(M.stating(name, M.MET[name]))
    assert found.missing == ()
    assert found.verdict is Verdict.holds


def facts(r: Result) -> dict[str, object]:
    """What every explorer must say alike."""
    return {
        "verdict": r.verdict,
        "findings": {name: f.verdict for name, f in r.findings.items()},
        "paths": {name: None if f.path is None else len(f.path) for name, f in r.findings.items()},
        "deadlock": None if r.deadlock is None else len(r.deadlock),
        "missing": r.missing,
        "premises": r.premises,
        "unmet": r.unmet,
        "unjudged": r.unjudged,
        "taken": {name: n > 0 for name, n in r.coverage.items()},
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, object]]:
    """What the interpreter says of each machine."""
    return {name: facts(Interpret().run(make())) for name, make in _each().items()}


def _each() -> dict[str, Callable[[], object]]:
    shapes = {**M.UNMET, **{f"met_{name}": body for name, body in M.MET.items()}}
    named = (M.check, M.idle_check, M.idle_lemma, M.goal, M.unsat, M.dead0, M.bad0)
    return {"shapes": lambda: M.stating_all("shapes", shapes), **{f.__name__: f for f in named}}


@pytest.mark.parametrize("engine", list(EXPLORERS))
def test_all_explorers_tell_the_same_of_what_is_vacuous_and_of_what_is_broken_at_once(
    engine: str, expected: dict[str, dict[str, object]]
) -> None:
    for name, make in _each().items():
        assert facts(EXPLORERS[engine]().run(make())) == expected[name], name


def test_the_interpreter_tells_what_is_meant(expected: dict[str, dict[str, object]]) -> None:
    assert expected["check"]["unjudged"] == ("boom.ONCE",)
    assert expected["idle_check"]["unmet"] == {"look.ONCE": "not used[b]"}
    assert expected["idle_lemma"]["findings"]["about_hot_blocks"] is Verdict.undetermined  # type: ignore[index]
    assert expected["goal"]["missing"] == ("goal one_is_hot was never reached",)
    assert expected["unsat"]["missing"] == ("action boom was never taken",)
    assert (expected["dead0"]["verdict"], expected["dead0"]["deadlock"]) == (Verdict.violated, 0)
    assert (expected["bad0"]["verdict"], expected["bad0"]["paths"]) == (Verdict.violated, {"bad": 0})


@pytest.mark.parametrize("engine", list(EXPLORERS))
@pytest.mark.parametrize("until", ["first", "seen", "end"])
def test_what_is_broken_at_once_is_found_whenever_a_search_ends(engine: str, until: str) -> None:
    bad = EXPLORERS[engine]().run(M.bad0(), until=until)  # type: ignore[arg-type]
    dead = EXPLORERS[engine]().run(M.dead0(), until=until)  # type: ignore[arg-type]
    assert [p.id for p in bad.violated] == ["PIN"]
    assert [p.id for p in dead.violated] == ["DEADLOCK"]
    assert [len(p) for p in (*bad.violated, *dead.violated)] == [0, 0]
    assert bad.to_dict()["findings"][0]["path"] is not None  # type: ignore[index]
    assert dead.to_dict()["deadlock"] is not None


def test_walks_find_what_is_broken_at_once() -> None:
    swarm = Swarm(walks=8, steps=4, device=HostDevice)
    assert [(p.id, len(p)) for p in swarm.run(M.bad0()).violated] == [("PIN", 0)]
    assert [(p.id, len(p)) for p in swarm.run(M.dead0()).violated] == [("DEADLOCK", 0)]


@pytest.mark.parametrize("engine", [Explore, Interpret, Native])
def test_a_search_for_everything_ends_when_everything_was_seen(engine: Callable[[], Engine]) -> None:
    whole = engine().run(M.stating("met", M.MET["conclusion_always_true"]), {"Block": 6})
    short = engine().run(M.stating("met", M.MET["conclusion_always_true"]), {"Block": 6}, until="seen")
    assert short.stopped == "everything was seen"
    assert short.states < whole.states
    assert short.premises == whole.premises
    assert all(short.coverage.values())
