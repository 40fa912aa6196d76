"""The GPU engine finds exactly what the native engine finds: counts, verdicts and counterexamples."""

from collections.abc import Callable

import pytest
import shapes

from kvfence.checker.cli.shared.progress_line import room_left
from kvfence.checker.engines import Gpu, Native, Progress, Result, Verdict, base
from kvfence.checker.engines.gpu import expansion
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.search_device import NoGpu
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine, ground
from kvfence.spec.machines import MACHINES

Made = Callable[..., Gpu]
Kvlife = Callable[..., Machine]


def agree(gpu: Gpu, m: Machine, sizes: dict[str, int] | None = None, **options: object) -> Result:
    found = gpu.run(m, sizes, **options)  # type: ignore[arg-type]
    native = Native(symmetry=gpu.symmetry).run(m, sizes, **options)  # type: ignore[arg-type]
    assert found.engine == "gpu"
    assert shapes.facts(found) == shapes.facts(native)
    assert [str(p) for p in found.violated] == [str(p) for p in native.violated]
    return found


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_benchmark_machine_has_its_known_states(
    gpu: Made, kvlife: Kvlife, narrow: bool, threads: int
) -> None:
    engine = gpu(threads=threads, limits=Limits(narrow=narrow))
    r = agree(engine, kvlife(), {"Block": 3, "Request": 3})
    assert (r.states, r.transitions, r.depth) == (110_400, 740_994, 21)


def test_progress_tells_how_full_the_table_is_and_how_many_states_still_fit(
    gpu: Made, kvlife: Kvlife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "REPORT_EVERY", 0.0)
    seen: list[Progress] = []
    gpu().run(kvlife(), {"Block": 3, "Request": 2}, memory=64 << 20, progress=seen.append)
    assert len(seen) > 3
    assert all(0 < state.load <= 1 for state in seen if state.load is not None)
    rooms = [state.room for state in seen if state.room is not None]
    assert len(rooms) == len(seen)
    assert rooms == sorted(rooms, reverse=True)
    line = room_left(seen[-1])
    assert f"room for {rooms[-1]:,} more" in line
    assert room_left(Progress(1, 1, 1, 1.0)) == ""


@pytest.mark.parametrize("until", ["first", "end"])
def test_a_fault_is_found_with_the_same_shortest_counterexample(
    gpu: Made, kvlife: Kvlife, until: str
) -> None:
    faulty = kvlife(frozenset({"evict_referenced"}))
    r = agree(gpu(), faulty, {"Block": 3, "Request": 2}, until=until)
    assert r.verdict is Verdict.violated


@pytest.mark.parametrize(
    ("places", "words"), [(31, 1), (40, 2), (70, 3), pytest.param(140, 5, marks=pytest.mark.slow)]
)
def test_states_of_one_word_and_of_several_are_searched_alike(gpu: Made, places: int, words: int) -> None:
    m = shapes.tokens(places)
    assert Dense(ground(m), {}).words == words
    r = agree(gpu(threads=2), m)
    assert r.states == 2 * places * places


def test_integers_of_every_width_and_sign_are_searched(gpu: Made) -> None:
    assert agree(gpu(), shapes.numbers()).states > 100


@pytest.mark.parametrize("seed", [1, 4, 7, 12, 16, 20])
def test_random_machines_are_searched_alike(gpu: Made, seed: int) -> None:
    m = shapes.drawn(seed)
    native = Native().run(m, max_states=30_000)
    found = gpu().run(m, max_states=30_000)
    if native.stopped is None:
        assert shapes.facts(found) == shapes.facts(native)
    else:
        assert found.stopped is not None


SMALL = {"transfer": {"Request": 1, "Block": 1, "Rank": 1}, "stream_order": {"Slot": 1, "Operation": 1}}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_machines_of_the_specification_are_searched_alike(gpu: Made, name: str) -> None:
    r = agree(gpu(), MACHINES[name](frozenset()), SMALL.get(name))
    assert r.states > 100


@pytest.mark.slow
@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_every_design_is_judged_alike(gpu: Made, design: str) -> None:
    row = DESIGNS[design]
    for name in row.machines:
        m = MACHINES[name](row.faults)
        sizes = {k: v for k, v in {**row.sizes, **SMALL.get(name, {})}.items() if k in m.sorts}
        agree(gpu(), m, sizes, until="first")


def test_symmetry_reduces_alike(gpu: Made, kvlife: Kvlife) -> None:
    engine = gpu(symmetry=True)
    r = agree(engine, kvlife(frozenset({"evict_referenced"})), {"Block": 2, "Request": 3})
    assert r.symmetry == ("Request",)
    assert r.violated


def test_a_step_out_of_given_bounds_leaves_the_answer_undetermined(gpu: Made) -> None:
    r = gpu().run(shapes.counter(), bounds={"n": (-2, 1000)})
    assert (r.states, r.verdict) == (1001, Verdict.undetermined)
    assert "n leaves its bounds -2 to 1000" in str(r.stopped)


def test_a_small_queue_changes_nothing(gpu: Made, kvlife: Kvlife) -> None:
    agree(gpu(queue=64), kvlife(), {"Block": 3, "Request": 2})


def test_small_batches_change_nothing(gpu: Made, kvlife: Kvlife) -> None:
    agree(gpu(limits=Limits(batch=100)), kvlife(), {"Block": 3, "Request": 2})


def test_without_memory_the_answer_is_undetermined_and_what_was_found_is_kept(kvlife: Kvlife) -> None:
    engine = Gpu(device=lambda: HostDevice(room=1 << 20))
    r = engine.run(kvlife(frozenset({"evict_referenced"})), {"Block": 4, "Request": 3})
    assert r.stopped is not None
    assert r.stopped.startswith("ran out of memory at depth ")
    assert f"with {r.states} states" in r.stopped
    assert r.states > 10_000
    assert r.violated
    sound = engine.run(kvlife(), {"Block": 4, "Request": 3})
    assert sound.verdict is Verdict.undetermined


def test_with_too_little_memory_to_begin_the_answer_is_undetermined(kvlife: Kvlife) -> None:
    r = Gpu(device=lambda: HostDevice(room=4096)).run(kvlife(), {"Block": 2, "Request": 2})
    assert (r.states, r.verdict) == (0, Verdict.undetermined)
    assert "ran out of memory" in str(r.stopped)


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_old_levels_leave_the_device_and_counterexamples_are_still_the_shortest(
    kvlife: Kvlife, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[int] = []
    search_again = Search._again

    def counted(self: Search, depth: int) -> None:
        again.append(depth)
        search_again(self, depth)

    monkeypatch.setattr(Search, "_again", counted)
    monkeypatch.setattr(expansion, "SMALLEST_SEGMENT", 2048)
    engine = Gpu(
        device=lambda: HostDevice(room=1_120_000), limits=Limits(host_memory=kept, batch=200), queue=64
    )
    agree(engine, kvlife(frozenset({"evict_referenced"})), {"Block": 3, "Request": 2})
    assert bool(again) == (kept == 0)


def test_without_a_gpu_one_line_says_so_and_the_native_engine_searches(kvlife: Kvlife) -> None:
    lines: list[str] = []

    def none() -> HostDevice:
        raise NoGpu("there is no GPU")

    r = Gpu(device=none, note=lines.append).run(kvlife(), {"Block": 2, "Request": 2})
    assert lines == ["there is no GPU: the native engine searches instead"]
    assert (r.engine, r.verdict) == ("native", Verdict.holds)
