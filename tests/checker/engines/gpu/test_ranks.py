"""Several ranks find together what one finds, and what they found outlives the loss of one."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import shapes
from thread_ranks import card_or_skip, together

from kvfence.checker.engines import Gpu, Native, Result, Verdict
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.keys import Keys
from kvfence.checker.engines.gpu.device.ranks import Ranks
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language import ground

HERE = Path(__file__).parent
MACHINES = HERE.parents[2] / "machines"


def begun(count: int, *arguments: object, on: str = "host") -> list[subprocess.Popen[str]]:
    """The processes of so many ranks."""
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    shared |= {"RANKS_ON": on, "PYTHONPATH": str(MACHINES)}
    program = [sys.executable, *map(str, (HERE / "ranks_program.py", *arguments))]
    return [
        subprocess.Popen(
            program,
            env={**os.environ, **shared, "RANK": str(k), "LOCAL_RANK": str(k), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(count)
    ]


def ranks(count: int, *arguments: object, on: str = "host") -> tuple[dict[str, object], list[int]]:
    """What the first rank found, and the exit codes of all."""
    running = begun(count, *arguments, on=on)
    texts = [process.communicate(timeout=300)[0] for process in running]
    found: dict[str, object] = json.loads(texts[0].splitlines()[-1])
    return found, [process.returncode for process in running]


def facts(r: Result) -> dict[str, object]:
    return {
        "states": r.states,
        "stopped": r.stopped,
        "violated": [str(p) for p in r.violated],
        "facts": repr(shapes.facts(r)),
    }


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["faulty", "tokens33", "tokens40"])
def test_ranks_find_together_what_one_finds(count: int, name: str) -> None:
    m, sizes = shapes.named(name)
    found = together(count, lambda r: Gpu(device=HostDevice, ranks=r, limits=Limits(batch=900)).run(m, sizes))
    assert [facts(r) for r in found] == [native(name)] * count


def native(name: str) -> dict[str, object]:
    """What the native engine finds in a machine of ``shapes.named``."""
    m, sizes = shapes.named(name)
    return facts(Native().run(m, sizes))


def test_a_rank_without_memory_stops_them_all(kvlife: object) -> None:
    def run(ranks: Any) -> Result:
        room = 9_050_000 if ranks.rank else 1 << 28
        engine = Gpu(device=lambda: HostDevice(room=room), ranks=ranks, limits=Limits(batch=900))
        return engine.run(kvlife(), {"Block": 3, "Request": 3})  # type: ignore[operator]

    one, two = together(2, run)
    assert one.stopped == two.stopped
    assert str(one.stopped).startswith("ran out of memory at depth ")
    assert f"with {one.states} states" in str(one.stopped)
    assert one.verdict is two.verdict is Verdict.undetermined


@pytest.mark.parametrize(
    ("count", "name", "on"),
    [
        *(
            pytest.param(count, name, "host", marks=pytest.mark.slow)
            for count, name in ((2, "faulty"), (3, "sound"), (3, "tokens40"), (2, "tokens70"))
        ),
        *(pytest.param(2, name, "cuda", marks=pytest.mark.gpu) for name in ("faulty", "tokens40")),
    ],
)
def test_processes_find_together_what_one_finds(count: int, name: str, on: str) -> None:
    if on == "cuda":
        card_or_skip(1)
    found, codes = ranks(count, name, on=on)
    assert codes == [0] * count
    assert found == native(name)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_a_lost_rank_ends_the_run_with_what_was_found_and_a_later_run_goes_on(
    tmp_path: Path, gone: int
) -> None:
    folder = tmp_path / "checkpoint"
    if gone == 0:  # the first rank reports nothing any more: the other one does
        running = begun(2, "faulty", folder, 12, gone)
        errors = [process.communicate(timeout=300)[1] for process in running]
        assert "kvfence: a rank was lost when " in errors[1]
    else:
        found, codes = ranks(2, "faulty", folder, 12, gone)
        assert codes[gone] == 9
        assert "a rank was lost" in str(found["stopped"])
        assert "run again with the same --checkpoint" in str(found["stopped"])
        assert 0 < int(str(found["states"])) < int(str(native("faulty")["states"]))
    found, codes = ranks(2, "faulty", folder)
    assert codes == [0, 0]
    assert found == native("faulty")


@pytest.mark.gpu
@pytest.mark.parametrize("gone", [0, 1])
def test_when_one_of_two_cards_is_lost_the_other_says_what_was_found_and_a_later_run_goes_on(
    tmp_path: Path, gone: int
) -> None:
    card_or_skip(1)
    folder = tmp_path / "checkpoint"
    processes = begun(2, "faulty", folder, 12, gone, on="cuda")
    lost, left = processes[gone], processes[1 - gone]
    assert lost.wait(120) == 9
    time.sleep(2)
    left.terminate()  # as torchrun does
    assert left.wait(60) == 3
    assert left.stderr is not None
    words = [line for line in left.stderr.read().splitlines() if line.startswith("kvfence: ")]
    assert words[-1].startswith("kvfence: a rank was lost when ")
    assert "run again with the same --checkpoint to go on" in words[-1]
    found, codes = ranks(2, "faulty", folder, on="cuda")
    assert codes == [0, 0]
    assert found == native("faulty")


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_says_what_was_found_when_it_is_ended(tmp_path: Path) -> None:
    one, two = begun(2, "sound", tmp_path / "checkpoint", -12, 1)
    written = tmp_path / "checkpoint" / "rank-0-of-2" / "checkpoint.json"
    while not written.exists() or len(json.loads(written.read_bytes())["levels"]) < 12:
        assert one.poll() is None
        time.sleep(0.1)
    time.sleep(2)
    one.terminate()
    assert one.wait(60) == 3
    two.kill()
    two.wait(60)
    assert one.stderr is not None
    last = one.stderr.read().splitlines()[-1]
    assert last.startswith("kvfence: a rank was lost when ")
    assert "run again with the same --checkpoint to go on" in last


def test_every_state_belongs_to_one_rank_and_none_to_too_many(kvlife: object) -> None:
    g = ground(kvlife(), {"Block": 3, "Request": 2})  # type: ignore[operator]
    keys = Keys(g, Dense(g, {}), {})
    for count in (1, 2, 3, 7):
        owners = [keys.owner((k,), count) for k in range(7000)]
        shares = [owners.count(r) for r in range(count)]
        assert sum(shares) == 7000
        assert min(shares) > 0.8 * 7000 / count


def test_one_process_alone_asks_nobody() -> None:
    alone = Ranks()
    assert (alone.total([1, 2]), alone.largest(3), alone.count) == ([1, 2], 3, 1)
