"""Random walks find faults, repeat exactly, and prove nothing."""

from collections.abc import Callable

import pytest
import shapes
from thread_ranks import card_or_skip

from kvfence.checker.engines import Interpreter, Result, Verdict
from kvfence.checker.engines.gpu import Swarm
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.search_device import Device, NoGpu
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine

Kvlife = Callable[..., Machine]
SIZES = {"Block": 3, "Request": 2}


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def swarm(request: pytest.FixtureRequest) -> Callable[..., Swarm]:
    if request.param == "cuda":
        card_or_skip()

    def made(threads: int = 1, **options: int) -> Swarm:
        device: Callable[[], Device] | None = None if request.param == "cuda" else lambda: HostDevice(threads)
        return Swarm(device=device, **options)

    return made


def facts(r: Result) -> object:
    return r.states, r.coverage, r.goals, [str(p) for p in r.violated]


def test_walks_find_a_fault_and_shorten_the_way_there(swarm: Callable[..., Swarm], kvlife: Kvlife) -> None:
    r = swarm(walks=500, steps=60).run(kvlife(frozenset({"evict_referenced"})), SIZES)
    assert r.verdict is Verdict.violated
    shortest = {p.name: len(p) for p in r.violated}
    assert shortest["free_blocks_are_untouched"] == 4
    run = Interpreter(kvlife(frozenset({"evict_referenced"})), SIZES)
    for p in r.violated:
        assert run.path([run.find(s.action, **s.args) for s in p.steps]).steps == p.steps


def test_walks_that_see_no_violation_prove_nothing(swarm: Callable[..., Swarm], kvlife: Kvlife) -> None:
    r = swarm(walks=300, steps=80).run(kvlife(), SIZES)
    assert r.verdict is Verdict.undetermined
    assert {f.verdict for f in r.findings.values()} == {Verdict.undetermined}
    assert "300 random walks of up to 80 steps are no proof" in str(r.stopped)
    assert r.states == 300 * 81
    assert all(n > 0 for n in r.coverage.values())
    assert r.goals["two_requests_share_a_block"] is not None


def test_the_same_seed_walks_the_same_ways(swarm: Callable[..., Swarm], kvlife: Kvlife) -> None:
    faulty = kvlife(frozenset({"evict_referenced"}))
    one, two = (facts(swarm(threads, walks=200, steps=40, seed=7).run(faulty, SIZES)) for threads in (1, 2))
    assert one == two
    assert one != facts(swarm(walks=200, steps=40, seed=8).run(faulty, SIZES))


def test_walks_see_failing_checks_and_states_of_several_words(swarm: Callable[..., Swarm]) -> None:
    r = swarm(walks=200, steps=100).run(shapes.tokens(40))
    assert {p.name: len(p) for p in r.violated} == {"nobody_reaches_place_five": 5}
    checked = swarm(walks=50, steps=30).run(shapes.numbers())
    assert checked.coverage["grow"] > 0


def test_walks_of_a_gpu_are_those_of_the_processor(kvlife: Kvlife) -> None:
    lines: list[str] = []

    def none() -> HostDevice:
        raise NoGpu("there is no GPU")

    instead = Swarm(walks=50, steps=30, device=none, note=lines.append).run(kvlife(), SIZES)
    assert lines == ["there is no GPU: the walks run on the processor, slowly"]
    assert facts(instead) == facts(Swarm(walks=50, steps=30, device=HostDevice).run(kvlife(), SIZES))


def test_no_walks_are_refused() -> None:
    with pytest.raises(CannotRun, match="0 walks of 1000 steps"):
        Swarm(walks=0)
