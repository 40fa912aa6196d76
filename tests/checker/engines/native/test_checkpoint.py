"""A search that is killed goes on from its checkpoint to the same answer."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from shapes import counter, plain

from kvfence.checker.engines import Native, Progress, Result, Verdict, base
from kvfence.checker.engines.native import exploration as engine
from kvfence.checker.engines.native.checkpoint import LevelDigests
from kvfence.checker.engines.native.saved import Saved
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Int, Machine

Build = Callable[..., Machine]
MACHINE = Path(__file__).parents[3] / "machines" / "kvlife.py"
FAULTY = frozenset({"evict_referenced"})
SIZES = {"Block": 3, "Request": 3}

KILLED = """
    import os, runpy, signal, sys
    from kvfence.checker.engines import base
    from kvfence.checker.engines.native.native import Native
    from kvfence.checker.engines.native import exploration as engine
    build = runpy.run_path(sys.argv[1])["build"]
    engine.SLICE = 0.001
    run = Native(threads=2, checkpoint=sys.argv[2], checkpoint_every=0.0)
    def kill(now):
        if now.states > 60_000:
            os.kill(os.getpid(), signal.SIGKILL)
    base.REPORT_EVERY = 0.0
    run.run(build(frozenset({"evict_referenced"})), {"Block": 3, "Request": 3}, progress=kill)
"""


def test_a_run_killed_at_once_goes_on_to_the_same_answer(kvlife: Build, tmp_path: Path) -> None:
    folder = tmp_path / "save"
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(MACHINE), str(folder)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    saved = msgspec.json.decode((folder / "checkpoint.json").read_bytes())
    assert sum(saved["levels"]) > 1
    assert not saved["finished"]
    whole = Native().run(kvlife(FAULTY), SIZES)
    assert sum(saved["levels"]) < whole.states
    resumed = Native(threads=2, checkpoint=folder).run(kvlife(FAULTY), SIZES)
    assert plain(resumed) == plain(whole)


def test_a_run_killed_at_any_moment_again_and_again_comes_to_the_same_answer(
    kvlife: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children that write a checkpoint whenever they can are killed after a few milliseconds each."""
    machine, chance = kvlife(FAULTY), random.Random(15)
    whole = plain(Native().run(machine, SIZES))
    monkeypatch.setattr(engine, "SLICE", 0.0)
    notes: list[str] = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                Native(checkpoint=tmp_path, checkpoint_every=0.0, note=notes.append).run(machine, SIZES)
            os._exit(0)
        time.sleep(chance.uniform(0.05, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    monkeypatch.undo()
    assert plain(Native(checkpoint=tmp_path, note=notes.append).run(machine, SIZES)) == whole
    assert notes == []


def interrupted(kvlife: Build, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> Result:
    """A run stopped by Ctrl-C once it has found so many states, in the middle of a level if slices allow."""
    with monkeypatch.context() as patch:
        patch.setattr(base, "REPORT_EVERY", 0.0)
        patch.setattr(engine, "SLICE", 0.0)

        def stop(now: Progress) -> None:
            if now.states > at:
                raise KeyboardInterrupt

        return Native(checkpoint=folder).run(kvlife(FAULTY), SIZES, progress=stop)


@pytest.mark.parametrize("at", [1, 500, 20_000, 100_000])
def test_an_interrupted_run_goes_on_to_the_same_answer(
    kvlife: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    r = interrupted(kvlife, tmp_path, monkeypatch, at)
    assert (r.stopped, r.states > at) == ("interrupted", True)
    again = Native(threads=2, checkpoint=tmp_path).run(kvlife(FAULTY), SIZES)
    assert plain(again) == plain(Native().run(kvlife(FAULTY), SIZES))


def test_a_run_stopped_by_its_memory_limit_goes_on_with_more(kvlife: Build, tmp_path: Path) -> None:
    short = Native(checkpoint=tmp_path).run(kvlife(), SIZES, memory=1_000_000)
    assert short.stopped is not None
    more = Native(checkpoint=tmp_path).run(kvlife(), SIZES)
    assert (more.states, more.verdict) == (110_400, Verdict.holds)


def test_a_finished_run_answers_again_without_searching(
    kvlife: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Native(checkpoint=tmp_path).run(kvlife(FAULTY), SIZES)
    monkeypatch.setattr(engine.Exploration, "_expand_level", lambda _: pytest.fail("searched again"))
    assert plain(Native(checkpoint=tmp_path).run(kvlife(FAULTY), SIZES)) == plain(first)


def test_a_deadlock_that_was_seen_is_reported_again_and_not_taken_for_damage(tmp_path: Path) -> None:
    m = counter("ends", value=Int(0, 3), top=3)
    said: list[str] = []
    first = Native(checkpoint=tmp_path / "save", note=said.append).run(m)
    assert first.deadlock is not None
    assert plain(Native(checkpoint=tmp_path / "save", note=said.append).run(m)) == plain(first)
    assert not said


def test_a_run_under_symmetry_goes_on_under_symmetry_only(kvlife: Build, tmp_path: Path) -> None:
    first = Native(checkpoint=tmp_path, symmetry=True).run(kvlife(), SIZES)
    assert first.symmetry == ("Request",)
    assert plain(Native(checkpoint=tmp_path, symmetry=True).run(kvlife(), SIZES)) == plain(first)
    with pytest.raises(CannotRun, match="reduced by Request"):
        Native(checkpoint=tmp_path).run(kvlife(), SIZES)


def test_a_checkpoint_of_something_else_is_refused_in_one_line(kvlife: Build, tmp_path: Path) -> None:
    Native(checkpoint=tmp_path).run(kvlife(), {"Block": 2, "Request": 2})
    for m, sizes in ((kvlife(), {"Block": 2, "Request": 1}), (kvlife(FAULTY), {"Block": 2, "Request": 2})):
        with pytest.raises(CannotRun) as error:
            Native(checkpoint=tmp_path).run(m, sizes)
        text = str(error.value)
        assert "holds a checkpoint of kvlife (Block=2, Request=2), not kvlife" in text
        assert "give another folder" in text
        assert "\n" not in text


def test_a_checkpoint_of_another_version_is_refused(kvlife: Build, tmp_path: Path) -> None:
    sizes = {"Block": 2, "Request": 2}
    Native(checkpoint=tmp_path).run(kvlife(), sizes)
    path = tmp_path / "checkpoint.json"
    good = path.read_text()
    path.write_text(good.replace('"format":2', '"format":99'))
    with pytest.raises(CannotRun, match="format 99"):
        Native(checkpoint=tmp_path).run(kvlife(), sizes)
    other = msgspec.json.decode(good.replace('"code":"', '"code":"0'), type=Saved)
    path.write_bytes(msgspec.json.encode(other.sealed()))
    with pytest.raises(CannotRun, match="an earlier version of kvlife"):
        Native(checkpoint=tmp_path).run(kvlife(), sizes)


def test_a_state_that_is_there_twice_is_refused_although_the_digests_are_right(
    kvlife: Build, tmp_path: Path
) -> None:
    sizes = {"Block": 2, "Request": 2}
    Native(checkpoint=tmp_path).run(kvlife(), sizes)
    states = (tmp_path / "states").read_bytes()
    (tmp_path / "states").write_bytes(states[:-8] + states[:8])
    path = tmp_path / "checkpoint.json"
    saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    with (tmp_path / "states").open("rb") as file:
        digests = LevelDigests(file.fileno(), 8).extend(saved.levels)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(saved, digests=digests).sealed()))
    with pytest.raises(CannotRun, match="is there twice"):
        Native(checkpoint=tmp_path).run(kvlife(), sizes)


def test_states_written_after_the_last_checkpoint_are_forgotten(kvlife: Build, tmp_path: Path) -> None:
    sizes = {"Block": 2, "Request": 2}
    first = Native(checkpoint=tmp_path).run(kvlife(), sizes)
    with (tmp_path / "states").open("ab") as file:
        file.write(b"half a state")
    assert plain(Native(checkpoint=tmp_path).run(kvlife(), sizes)) == plain(first)


def test_a_folder_in_use_is_refused(kvlife: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REPORT_EVERY", 0.0)
    refused: list[str] = []

    def second(_: Progress) -> None:
        if not refused:
            with pytest.raises(CannotRun) as error:
                Native(checkpoint=tmp_path).run(kvlife(), SIZES)
            refused.append(str(error.value))

    Native(checkpoint=tmp_path).run(kvlife(), SIZES, progress=second)
    assert "in use by another run" in refused[0]


def test_a_folder_that_cannot_be_made_is_refused(kvlife: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRun, match="cannot take a checkpoint"):
        Native(checkpoint=tmp_path / "file").run(kvlife(), SIZES)


@pytest.mark.slow
def test_a_large_run_killed_half_way_goes_on_to_the_known_counts(kvlife: Build, tmp_path: Path) -> None:
    code = textwrap.dedent(KILLED).replace('frozenset({"evict_referenced"})', "")
    code = code.replace('"Block": 3', '"Block": 5').replace("60_000", "60_000_000").replace("SLICE", "_SLICE")
    code = code.replace("checkpoint_every=0.0", "checkpoint_every=2.0")
    command = [sys.executable, "-c", code, str(MACHINE), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    saved = msgspec.json.decode((tmp_path / "checkpoint.json").read_bytes())
    assert 10_000_000 < sum(saved["levels"]) < 103_526_400
    r = Native(threads=len(os.sched_getaffinity(0)), checkpoint=tmp_path).run(
        kvlife(), {"Block": 5, "Request": 3}
    )
    assert (r.states, r.transitions, r.depth) == (103_526_400, 943_108_680, 33)


@pytest.mark.slow
def test_a_bundled_machine_killed_half_way_and_damaged_comes_to_the_known_counts(tmp_path: Path) -> None:
    """The transfer machine, a run of many checkpoints that was killed: one bit of its states is flipped."""
    kvfence = str(Path(sys.executable).with_name("kvfence"))
    command = [kvfence, "verify", "--machine", "transfer", "--format", "json"]
    kept, chance = tmp_path / "kept", random.Random(15)
    states = kept / "transfer" / "states"
    running = subprocess.Popen([*command, "--checkpoint", str(kept)], stdout=subprocess.DEVNULL)
    while not states.exists() or states.stat().st_size < 200_000_000:
        assert running.poll() is None
        time.sleep(0.1)
    running.kill()
    running.wait()
    for attempt in range(3):
        folder = tmp_path / f"damaged-{attempt}"
        shutil.copytree(kept, folder)
        with (folder / "transfer" / "states").open("r+b") as file:
            at = chance.randrange(states.stat().st_size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        again = [*command, "--checkpoint", str(folder)]
        done = subprocess.run(again, capture_output=True, text=True, check=False)
        shutil.rmtree(folder)
        if done.returncode != 2:
            assert done.returncode == 0
            assert '"states": 24221770' in done.stdout
            assert '"transitions": 183619689' in done.stdout
