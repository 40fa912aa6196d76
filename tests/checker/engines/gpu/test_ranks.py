"""Several ranks find together what one finds, and what they found outlives the loss of one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvfence.checker.engines import Native, Result
from kvfence.checker.engines.gpu.keys import Keys
from kvfence.checker.engines.gpu.ranks import Alone
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language import ground

pytest.importorskip("torch")
HERE = Path(__file__).parent
SHAPES, KVLIFE = HERE.parent / "test_agreement.py", HERE.parents[2] / "machines" / "kvlife.py"


def ranks(count: int, *arguments: object) -> tuple[dict[str, object], list[int]]:
    """What the first rank found, and the exit codes of all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    running = []
    for k in range(count):
        own = {"RANK": str(k), "LOCAL_RANK": str(k), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            str(HERE / "ranks_program.py"),
            str(SHAPES),
            str(KVLIFE),
            *map(str, arguments),
        ]
        running.append(
            subprocess.Popen(
                command,
                env={**os.environ, **shared, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    texts = [process.communicate(timeout=300)[0] for process in running]
    found: dict[str, object] = json.loads(texts[0].splitlines()[-1])
    return found, [process.returncode for process in running]


def told(shapes: object, r: Result) -> dict[str, object]:
    return {
        "states": r.states,
        "stopped": r.stopped,
        "violated": [str(p) for p in r.violated],
        "facts": repr(shapes.facts(r)),  # type: ignore[attr-defined]
    }


def test_two_ranks_find_what_one_finds(shapes: object, kvlife: object) -> None:
    faulty = kvlife(frozenset({"evict_referenced"}))  # type: ignore[operator]
    native = Native().run(faulty, {"Block": 3, "Request": 2})
    found, codes = ranks(2, "faulty")
    assert codes == [0, 0]
    assert found == told(shapes, native)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "name"), [(3, "sound"), (3, "tokens40"), (2, "tokens70")])
def test_more_ranks_and_longer_states_change_nothing(
    shapes: object, kvlife: object, count: int, name: str
) -> None:
    if name == "sound":
        native = Native().run(kvlife(), {"Block": 3, "Request": 2})  # type: ignore[operator]
    else:
        native = Native().run(shapes.tokens(int(name[6:])))  # type: ignore[attr-defined]
    found, codes = ranks(count, name)
    assert codes == [0] * count
    assert found == told(shapes, native)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_a_lost_rank_ends_the_run_with_what_was_found_and_a_later_run_goes_on(
    shapes: object, kvlife: object, tmp_path: Path, gone: int
) -> None:
    faulty = kvlife(frozenset({"evict_referenced"}))  # type: ignore[operator]
    native = Native().run(faulty, {"Block": 3, "Request": 2})
    folder = tmp_path / "checkpoint"
    if gone == 0:  # the first rank reports nothing any more
        with pytest.raises(IndexError):
            ranks(2, "faulty", folder, 12, gone)
    else:
        found, codes = ranks(2, "faulty", folder, 12, gone)
        assert codes[gone] == 9
        assert "a rank was lost" in str(found["stopped"])
        assert "run again with the same --checkpoint" in str(found["stopped"])
        assert 0 < int(str(found["states"])) < native.states
    found, codes = ranks(2, "faulty", folder)
    assert codes == [0, 0]
    assert found == told(shapes, native)


def test_every_state_belongs_to_one_rank_and_none_to_too_many(kvlife: object) -> None:
    g = ground(kvlife(), {"Block": 3, "Request": 2})  # type: ignore[operator]
    keys = Keys(g, Dense(g, {}), {})
    for count in (1, 2, 3, 7):
        owners = [keys.owner((k,), count) for k in range(7000)]
        shares = [owners.count(r) for r in range(count)]
        assert sum(shares) == 7000
        assert min(shares) > 0.8 * 7000 / count


def test_one_process_alone_asks_nobody() -> None:
    alone = Alone()
    assert (alone.total([1, 2]), alone.largest(3), alone.count) == ([1, 2], 3, 1)
