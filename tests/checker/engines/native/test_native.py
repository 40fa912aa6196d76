"""The native engine: threads, memory, tables and lanes change how fast it answers, not what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shapes import plain

from kvfence.checker.core import c_build as build
from kvfence.checker.engines import Explore, Native, Verdict
from kvfence.checker.engines.native import exploration as engine
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Exists, Expr, ForAll, Int, Machine, State, ground

Build = Callable[..., Machine]


def wide(bits: int, cells: int = 3, top: int = 5) -> Machine:
    """A few counters of any width, so that states have as many words as wanted."""
    m = Machine("wide")
    each = m.sort("Each", default=cells)
    m.function("n", each, value=Int(0, (1 << bits) - 1), init=0)

    @m.action(c=each)
    def up(s: State, c: Expr) -> None:
        s.require(s.n[c] < top)
        s.n[c] = s.n[c] + 1

    @m.action(c=each)
    def leap(s: State, c: Expr) -> None:
        s.require(s.n[c] == 0)
        s.n[c] = (1 << bits) - 1

    @m.invariant("COUNT")
    def one_is_small(s: State) -> Expr:
        return Exists(each, lambda c: s.n[c] < 3)

    m.terminal(lambda s: ForAll(each, lambda c: s.n[c] >= top))
    return m


@pytest.mark.parametrize("threads", [2, 3])
def test_the_answer_does_not_depend_on_the_number_of_threads(kvlife: Build, threads: int) -> None:
    m, sizes = kvlife(frozenset({"evict_referenced"})), {"Block": 3, "Request": 3}
    assert plain(Native(threads=threads).run(m, sizes)) == plain(Native().run(m, sizes))


@pytest.mark.parametrize("cells", [1, 2, 3, 4])
def test_threads_that_meet_at_the_same_states_enter_them_once(cells: int) -> None:
    m = wide(60 if cells > 1 else 40, cells, top=40 if cells < 4 else 12)
    one = Native().run(m)
    for _ in range(5):
        many = Native(threads=4).run(m)
        assert (many.states, many.transitions) == (one.states, one.transitions)


@pytest.mark.parametrize("cells", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_states_of_many_words_are_told_apart_in_every_word(cells: int, threads: int) -> None:
    m = wide(40, cells)
    assert Dense(ground(m), {}).words == cells
    r = Native(threads=threads).run(m)
    assert r.states == 7**cells
    assert {p.name: len(p) for p in r.violated} == {"one_is_small": cells}


@pytest.mark.parametrize("bits", [20, 21, 22, 31, 32, 61])
def test_cells_fill_words_to_the_last_bit(bits: int) -> None:
    assert Native().run(wide(bits)).states == 7**3


@pytest.mark.parametrize("symmetry", [False, True])
def test_one_lane_finds_what_eight_lanes_find(
    kvlife: Build, symmetry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [(kvlife(frozenset({"evict_referenced"})), {"Block": 2, "Request": 2}), (wide(40), {})]
    eight = [plain(Native(symmetry=symmetry).run(m, sizes)) for m, sizes in machines]
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DONE_LANE"))
    one = [plain(Native(threads=2, symmetry=symmetry).run(m, sizes)) for m, sizes in machines]
    assert one == eight


def test_levels_go_to_a_file_when_memory_is_short(kvlife: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    spilled: list[int] = []
    spill = engine.Exploration._spill

    def watched(self: engine.Exploration, keep: int) -> None:
        spilled.append(keep)
        spill(self, keep)

    monkeypatch.setattr(engine.Exploration, "_spill", watched)
    monkeypatch.setattr(engine, "SMALLEST_BLOCKS", 1 << 18)
    m, sizes = kvlife(), {"Block": 3, "Request": 3}
    little = plain(Native(threads=2).run(m, sizes, memory=2_700_000))
    assert spilled
    assert little == plain(Native().run(m, sizes))


def test_a_table_that_may_not_grow_is_filled_and_then_the_answer_is_undetermined(kvlife: Build) -> None:
    small, large = (
        Native().run(kvlife(), {"Block": 4, "Request": 3}, memory=n) for n in (8_000_000, 12_000_000)
    )
    assert (small.verdict, "memory limit of 8000000" in str(small.stopped)) == (Verdict.undetermined, True)
    assert 100_000 < small.states < large.states < 3_250_176


def test_no_disk_to_take_levels_is_undetermined(kvlife: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SMALLEST_BLOCKS", 1 << 18)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvfence.checker.engines.native.library.Search.spill", full)
    r = Native().run(kvlife(), {"Block": 3, "Request": 3}, memory=2_700_000)
    assert "No space left on device" in str(r.stopped)
    assert r.verdict is Verdict.undetermined


@pytest.fixture
def fresh_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, and a compiler looked for anew."""
    build._version.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    build._version.cache_clear()


def test_without_a_compiler_numpy_explores_and_one_line_says_so(
    fresh_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(fresh_compiler))
    said: list[str] = []
    r = Native(note=said.append).run(wide(20))
    assert said == ["no C compiler was found (cc, gcc, clang): exploring in numpy"]
    assert plain(r) == plain(Explore().run(wide(20)))


def test_a_compiler_that_fails_is_named_with_its_reason(
    fresh_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fresh_compiler / "broken-cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.c:1: error: no room" >&2; exit 1\n')
    broken.chmod(0o700)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("PATH", str(fresh_compiler))  # no other one
    said: list[str] = []
    r = Native(note=said.append).run(wide(20))
    assert r.engine == "explore"
    assert said == [f"{broken} does not compile the machine: x.c:1: error: no room: exploring in numpy"]
    with pytest.raises(CannotRun, match="a checkpoint needs the native engine"):
        Native(checkpoint=fresh_compiler / "save").run(wide(20))


def test_a_machine_is_compiled_once_into_a_private_folder(
    fresh_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Native().run(wide(20))
    folder = fresh_compiler / "cache" / "kvfence" / "native"
    (made,) = folder.iterdir()
    assert (made.suffix, folder.stat().st_mode & 0o077) == (".so", 0)
    monkeypatch.setattr(build, "compiled", lambda *_, **__: pytest.fail("compiled again"))
    assert Native().run(wide(20)).states == 7**3


def test_a_cache_folder_that_others_may_write_to_is_not_used(fresh_compiler: Path) -> None:
    folder = fresh_compiler / "cache" / "kvfence" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert Native().run(wide(20)).engine == "native"
    assert not list(folder.iterdir())


def test_no_threads_is_refused() -> None:
    with pytest.raises(CannotRun, match="0 threads"):
        Native(threads=0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_a_search_leaves_no_file_open(kvlife: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "SMALLEST_BLOCKS", 1 << 18)

    def run() -> int:
        Native(checkpoint=tmp_path / "save").run(kvlife(), {"Block": 2, "Request": 2})
        Native().run(kvlife(), {"Block": 3, "Request": 3}, memory=2_700_000)
        return len(list(Path("/proc/self/fd").iterdir()))

    assert run() == run()


@pytest.mark.slow
def test_the_larger_benchmark_machine_has_the_known_number_of_states(kvlife: Build) -> None:
    for threads in (1, 2):
        r = Native(threads=threads).run(kvlife(), {"Block": 4, "Request": 3})
        assert (r.states, r.transitions, r.depth, r.verdict) == (3_250_176, 25_802_664, 27, Verdict.holds)
