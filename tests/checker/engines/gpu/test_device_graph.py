"""Promises about whole runs, judged on the graph that the GPU engine finds: the same verdicts and runs."""

from collections.abc import Callable

import numpy as np
import pytest
import shapes

from kvfence.checker.engines import Gpu, Interpreter, Liveness
from kvfence.checker.engines.gpu.device.search_device import NoGpu
from kvfence.checker.engines.liveness.state_graph import explored
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

Made = Callable[..., Gpu]
PROMISING = [
    (design, name)
    for design, row in sorted(DESIGNS.items())
    for name in row.machines
    if MACHINES[name](row.faults).liveness
]


def agree(gpu: Gpu, m: Machine, sizes: dict[str, int] | None = None) -> None:
    ours, theirs = (e.run(m, sizes) for e in (Liveness(explored=gpu.graph), Liveness()))
    assert ours.stopped == theirs.stopped
    if theirs.stopped is not None:  # too many states
        return
    for name, finding in theirs.findings.items():
        assert ours.findings[name].verdict is finding.verdict
        assert str(ours.findings[name].path) == str(finding.path)
    assert (ours.states, ours.transitions, ours.depth) == (theirs.states, theirs.transitions, theirs.depth)
    assert (ours.coverage, ours.premises) == (theirs.coverage, theirs.premises)


@pytest.mark.parametrize("name", ["kvlife", "tokens31", "tokens70"])
def test_the_graph_is_that_of_the_native_engine(gpu: Made, kvlife: Callable[..., Machine], name: str) -> None:
    m = kvlife() if name == "kvlife" else shapes.tokens(int(name[6:]))
    run = Interpreter(m, {"Block": 3, "Request": 2} if name == "kvlife" else None)
    ours, theirs = gpu().graph(run, None, 1 << 20, None), explored(run, None, 1 << 20)
    assert ours.count == theirs.count
    for what in ("source", "instance", "target", "offsets"):
        assert np.array_equal(getattr(ours, what), getattr(theirs, what))


@pytest.mark.parametrize("design", ["sound", "placeholder_not_rolled_back"])
def test_progress_of_the_scheduler_is_judged_alike(gpu: Made, design: str) -> None:
    agree(gpu(), MACHINES["scheduling"](DESIGNS[design].faults), {"Request": 2, "Block": 2, "Host": 1})


@pytest.mark.slow
@pytest.mark.parametrize(("design", "name"), PROMISING)
def test_every_promise_of_every_design_is_judged_alike(gpu: Made, design: str, name: str) -> None:
    m = MACHINES[name](DESIGNS[design].faults)
    agree(gpu(), m, dict(m.liveness_at) or None)


def test_more_states_than_fit_are_undetermined(gpu: Made) -> None:
    m = MACHINES["scheduling"](frozenset())
    r = Liveness(explored=gpu().graph).run(m, max_states=100)
    assert r.stopped == "more than 100 states"


def test_a_step_out_of_bounds_stops_the_search_for_the_graph(gpu: Made) -> None:
    m = shapes.counter()
    m.eventually("large", lambda s: s.n > 2000)
    r = Liveness(explored=gpu().graph).run(m, bounds={"n": (-2, 1000)})
    assert "n leaves its bounds -2 to 1000" in str(r.stopped)


def test_without_a_gpu_the_native_engine_finds_the_graph(kvlife: Callable[..., Machine]) -> None:
    def none() -> None:
        raise NoGpu("there is no GPU")

    run = Interpreter(kvlife(), {"Block": 2, "Request": 1})
    engine = Gpu(device=none)  # type: ignore[arg-type]
    assert engine.graph(run, None, 1000, None).count == explored(run, None, 1000).count
