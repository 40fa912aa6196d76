"""A damaged or edited checkpoint gives the right counts or is refused: never other counts, never a crash."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import shapes

from kvfence.checker.engines import Engine, Gpu, Native, Progress, Result, base
from kvfence.checker.engines.explicit import word_engine
from kvfence.checker.engines.gpu import gpu
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.native import exploration, native
from kvfence.checker.engines.native.checkpoint import INDEX, Checkpoint
from kvfence.checker.engines.native.saved import Saved
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine

Build = Callable[..., Machine]
SIZES = {"Block": 3, "Request": 2}
FAULTY = frozenset({"evict_referenced"})


def plain(r: Result) -> dict[str, object]:
    """Everything in a result that does not depend on the clock or on the engine."""
    return {**shapes.plain(r), "engine": ""}


class Case:
    """One engine, a checkpoint of a search that was stopped half way, one of a search that was finished."""

    def __init__(self, engine: str, machine: Machine, folder: Path) -> None:
        self.engine, self.machine, self.folder = engine, machine, folder
        self.right = plain(Native().run(machine, SIZES))
        self.notes: list[str] = []
        self.kept = {kind: folder / kind for kind in ("half", "finished")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "REPORT_EVERY", 0.0)
            patch.setattr(exploration, "SLICE", 0.0)
            expand = Search.expand_level

            def stop(now: Progress) -> None:
                if now.states > 2000:
                    raise KeyboardInterrupt

            def stopped(search: Search) -> None:
                if search.levels.depth == 9:
                    raise KeyboardInterrupt
                expand(search)

            patch.setattr(Search, "expand_level", stopped)
            half = self._engine(self.kept["half"], every=0.0).run(machine, SIZES, progress=stop)
        assert half.stopped == "interrupted"
        assert plain(self._engine(self.kept["finished"], every=0.0).run(machine, SIZES)) == self.right

    def _engine(self, folder: Path, every: float = 1000.0) -> Engine:
        if self.engine == "native":
            return Native(checkpoint=folder, checkpoint_every=every, note=self.notes.append)
        return Gpu(device=HostDevice, checkpoint=folder, checkpoint_every=every, note=self.notes.append)

    def fresh(self, kind: str) -> Path:
        """A copy of a checkpoint, to be damaged."""
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.kept[kind], folder)
        return folder

    def resumed(self, folder: Path) -> Result | None:
        """What a run finds that goes on; None where it refuses to, in one line."""
        self.notes.clear()
        try:
            return self._engine(folder).run(self.machine, SIZES)
        except CannotRun as refused:
            text = str(refused)
        assert "\n" not in text
        assert str(folder) in text
        return None

    def is_right(self, folder: Path) -> bool:
        """Whether the right counts are found; false where the run is refused. Other counts are a failure."""
        found = self.resumed(folder)
        assert found is None or plain(found) == self.right
        return found is not None


def once(make: Callable[..., object]) -> Callable[..., object]:
    """Makes one thing, and gives it whenever one is asked for."""
    made: list[object] = []

    def the_one(*arguments: object) -> object:
        if not made:
            made.append(make(*arguments))
        return made[0]

    return the_one


@pytest.fixture(scope="module", params=["native", "gpu"])
def case(
    request: pytest.FixtureRequest, kvlife: Build, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    """Both engines. For hundreds of runs, the machine is printed once, and no disk is waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        for module, name in ((word_engine, "Interpreter"), (native, "Model"), (gpu, "GpuModel")):
            patch.setattr(module, name, once(getattr(module, name)))
        yield Case(request.param, kvlife(FAULTY), tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("kind", ["half", "finished"])
def test_an_undamaged_checkpoint_is_gone_on_from(case: Case, kind: str) -> None:
    assert case.is_right(case.fresh(kind))
    assert case.notes == []


def flips(case: Case, count: int) -> None:
    chance, right = random.Random(15), 0
    for _ in range(count):
        folder = case.fresh(chance.choice(["half", "finished"]))
        path = chance.choice(sorted(folder.iterdir()))
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        right += case.is_right(folder)
    assert right > count // 2  # most levels can be done without, and so can one of two indexes


def test_one_flipped_bit_gives_the_right_counts_or_is_refused(case: Case) -> None:
    flips(case, 60 if case.engine == "native" else 20)


@pytest.mark.slow
def test_one_flipped_bit_of_200_gives_the_right_counts_or_is_refused(case: Case) -> None:
    flips(case, 1000)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key of a JSON document."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def edit(document: dict[str, Any], chance: random.Random) -> None:
    """Change one thing."""
    kind = chance.randrange(5)
    if kind == 0:
        document.update(chance.choice([{"finished": True}, {"format": 1}, {"levels": []}, {"bytes": 0}]))
        return
    if kind == 1:
        lists = [at[key] for at, key in places(document) if isinstance(at[key], list)]
        chance.choice(lists).extend(
            [chance.choice([0, 1, 7, None, "x"])] * chance.choice([1, 2, 500, 100_000])
        )
        return
    top = chance.choice(list(document))
    at, key = chance.choice([(document, top), *(p for p in places(document[top]))])
    if kind == 2:
        del at[key]
    elif kind == 3:
        odd = [float("nan"), 1e9, -1, 2**63, 2**200, None, True, "x", [], {}, [[]], "\ud800"]
        at[key] = chance.choice(odd)
    elif isinstance(at[key], int):
        at[key] += chance.choice([-1, 1, 64, 1 << 40])
    else:
        at[key] = [at[key]]


def edits(case: Case, count: int, *, sealed: bool) -> int:
    """How many runs went on with an index that was edited so often, its digest made right or not."""
    chance, right = random.Random(16), 0
    for _ in range(count):
        folder = case.fresh(chance.choice(["half", "finished"]))
        path = folder / INDEX
        document = json.loads(path.read_bytes())
        edit(document, chance)
        path.write_text(json.dumps(document))
        if not sealed:
            right += case.is_right(folder)
            continue
        try:
            path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes(), type=Saved).sealed()))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        case.resumed(folder)
    return right


def test_an_edited_index_gives_the_right_counts_or_is_refused(case: Case) -> None:
    assert edits(case, 50 if case.engine == "native" else 20, sealed=False) > 0


def test_an_edited_index_whose_digest_was_made_right_crashes_nothing(case: Case) -> None:
    edits(case, 50 if case.engine == "native" else 20, sealed=True)


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True])
def test_an_index_edited_in_many_ways(case: Case, sealed: bool) -> None:
    edits(case, 1000, sealed=sealed)


@pytest.mark.parametrize("kind", ["half", "finished"])
def test_damage_in_the_last_level_loses_that_level_only(case: Case, kind: str) -> None:
    folder = case.fresh(kind)
    saved = msgspec.json.decode((folder / INDEX).read_bytes(), type=Saved)
    last = max(k for k, n in enumerate(saved.levels) if n)
    data = bytearray((folder / "states").read_bytes())
    data[saved.bytes - 1] ^= 1
    (folder / "states").write_bytes(data)
    assert case.is_right(folder)
    (note,) = case.notes
    assert f"damaged from level {last} of" in note
    assert f"goes on from the end of level {last - 1}" in note


def test_a_file_of_states_that_is_too_short_loses_what_it_lacks(case: Case) -> None:
    folder = case.fresh("half")
    with (folder / "states").open("r+b") as states:
        states.truncate((folder / "states").stat().st_size // 2)
    assert case.is_right(folder)
    assert "shorter than its checkpoint says" in case.notes[0]


def test_damage_at_the_very_beginning_is_refused(case: Case) -> None:
    folder = case.fresh("half")
    data = bytearray((folder / "states").read_bytes())
    data[0] ^= 1
    (folder / "states").write_bytes(data)
    with pytest.raises(CannotRun, match="nothing before it can be used"):
        case._engine(folder).run(case.machine, SIZES)


def test_an_index_that_is_damaged_is_replaced_by_the_one_before(case: Case) -> None:
    folder = case.fresh("half")
    (folder / INDEX).write_text("{")
    assert case.is_right(folder)
    assert "goes on from the checkpoint before" in case.notes[0]
    (folder / f"{INDEX}.before").unlink()
    (folder / INDEX).write_text("{")
    with pytest.raises(CannotRun, match="is not a checkpoint"):
        case._engine(folder).run(case.machine, SIZES)


def test_a_checkpoint_of_the_format_before_is_refused(case: Case) -> None:
    folder = case.fresh("half")
    (folder / INDEX).write_text('{"format":1,"levels":[1,7],"finished":false}')
    with pytest.raises(CannotRun, match="holds a checkpoint of format 1, and this version writes format 2"):
        case._engine(folder).run(case.machine, SIZES)


def test_a_file_of_somebody_elses_is_not_emptied(case: Case, tmp_path: Path) -> None:
    (tmp_path / "states").write_text("Alabama, Alaska, Arizona\n")
    with pytest.raises(CannotRun, match=r"is there without a checkpoint\.json"):
        case._engine(tmp_path).run(case.machine, SIZES)
    assert (tmp_path / "states").read_text() == "Alabama, Alaska, Arizona\n"


@pytest.mark.parametrize("call", ["fsync", "replace", "pwrite"])
def test_a_disk_that_fails_loses_the_checkpoint_and_not_the_search(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    whole = Checkpoint.load

    def load(self: Checkpoint, *form: Any) -> Saved | None:
        found = whole(self, *form)
        if call == "pwrite":
            monkeypatch.setattr("kvfence.checker.engines.native.library.Search.save", full)
            monkeypatch.setattr("kvfence.checker.engines.gpu.saving.os.pwrite", full)
        elif call == "replace":
            monkeypatch.setattr(Path, "replace", full)
        else:
            monkeypatch.setattr("kvfence.checker.engines.native.checkpoint.os.fsync", full)
        return found

    monkeypatch.setattr(Checkpoint, "load", load)
    case.notes.clear()
    assert plain(case._engine(tmp_path / "full", every=0.0).run(case.machine, SIZES)) == case.right
    (note,) = case.notes
    assert note.endswith("goes on, and the last checkpoint that was written stays")
    assert "(No space left on device)" in note
    monkeypatch.undo()
    assert case.is_right(tmp_path / "full")
