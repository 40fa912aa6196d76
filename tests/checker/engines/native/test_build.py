"""Compiled libraries: what is kept is checked before it is loaded, and a compiler can do no harm."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfence.checker.core import c_build as build

SOURCE = "int answer(void) { return %d; }"
CUT = """
import sys
from pathlib import Path
from kvfence.checker.core import c_build as build
source = "int answer(void) { return 42; }"
assert build.library(source).answer() == 42
(path,) = Path(sys.argv[1]).glob("*.so")
whole = path.read_bytes()
for k in range(20):
    path.write_bytes(whole[: len(whole) * k // 20])
    loaded = build.library(source)
    assert loaded.answer() == 42
    assert path.stat().st_size == len(whole)
    if k == 7:
        with path.open("r+b") as file:
            file.truncate(4096)
        assert loaded.answer() == 42
"""
INTERRUPTED = """
import sys
from kvfence.checker.core import c_build as build
try:
    build.library("int answer(void) { return 42; }")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of a fresh cache; compilers are looked for anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "_hung", set())
    build._version.cache_clear()
    yield tmp_path / "cache" / "kvfence" / "native"
    build._version.cache_clear()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a shell script."""

    def made(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
        return path

    return made


def answer(number: int = 42) -> int:
    """What a library says that is compiled for this number."""
    return int(build.library(SOURCE % number).answer())


def test_a_library_cut_short_is_compiled_anew_and_kills_nothing(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_library_under_its_name_is_compiled_anew(folder: Path) -> None:
    assert answer(1) == 1
    (one,) = folder.glob("*.so")
    assert answer(2) == 2
    (two,) = set(folder.glob("*.so")) - {one}
    shutil.copy(one, two)  # as it was kept, with its digest
    assert answer(2) == 2
    plain = folder / "plain.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", plain], input=b"int x;", check=True, cwd=folder
    )
    plain.replace(two)
    assert answer(2) == 2


def test_a_link_in_place_of_a_library_is_replaced_and_not_followed(folder: Path, tmp_path: Path) -> None:
    assert answer() == 42
    (path,) = folder.glob("*.so")
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert answer() == 42
    assert not path.is_symlink()


def test_nothing_is_left_beside_the_library_and_old_leavings_are_removed(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (folder / ".part-killed").mkdir()
    (folder / ".part-killed" / "made.so").write_bytes(b"half")
    (folder / ".part-now").write_bytes(b"of a run that works")
    os.utime(folder / ".part-killed", (0, 0))
    assert answer() == 42
    assert sorted(p.suffix or p.name for p in folder.iterdir()) == [".part-now", ".so"]


def test_a_disk_that_is_full_keeps_no_library_and_loads_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "keep", full)
    assert answer() == 42
    assert not list(folder.glob("*"))


@pytest.mark.parametrize("unusable", ["/dev/null/cache", "not/absolute"])
def test_a_cache_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/dev/null/home")
    monkeypatch.setenv("XDG_CACHE_HOME", unusable)
    assert answer() == 42
    assert not list(tmp_path.iterdir())


def test_a_compiler_may_be_named_with_several_words(
    folder: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = script("wrapper", f'echo "$1" >> {folder.parent.parent.parent}/called; exec "$@"')
    monkeypatch.setenv("CC", f"{wrapper} gcc")
    assert answer() == 42
    assert set((folder.parent.parent.parent / "called").read_text().split()) == {"gcc"}


@pytest.mark.parametrize("cc", ["no-such-compiler", "false", "true", "'unbalanced"])
@pytest.mark.usefixtures("folder")
def test_the_next_compiler_is_tried_when_the_first_fails(monkeypatch: pytest.MonkeyPatch, cc: str) -> None:
    monkeypatch.setenv("CC", cc)
    assert answer() == 42


@pytest.mark.parametrize("hangs", ["always", "when it compiles"])
def test_a_compiler_that_hangs_is_given_up(
    folder: Path,
    script: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: str,
) -> None:
    # the child holds the pipes after its parent is gone
    tells = '[ "$1" = --version ] && echo one && exit 0\n' if hangs == "when it compiles" else ""
    hanging = script("hanging", f"{tells}sleep 1000 & echo $! > {folder.parent.parent.parent}/child; wait")
    monkeypatch.setenv("CC", str(hanging))
    monkeypatch.setattr(build, "PATIENCE_VERSION", 0.5)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert int(build.library(SOURCE % 42, patience=0.5).answer()) == 42
        assert int(build.library(SOURCE % 43, patience=0.5).answer()) == 43  # not tried again
    assert time.monotonic() - start < 60
    (line,) = caplog.messages
    assert line == f"kvfence: {hanging} did not end within 0.5 s and is not used"
    child = int((folder.parent.parent.parent / "child").read_text())
    assert not runs(child)


def runs(process: int) -> bool:
    """Whether a process is there and has not ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_ctrl_c_ends_the_compiler_and_leaves_nothing(
    folder: Path, script: Callable[[str, str], Path]
) -> None:
    begun = folder.parent.parent.parent / "begun"
    slow = script(
        "slow", f'[ "$1" = --version ] && exit 0\necho $$ > {begun}.new; mv {begun}.new {begun}; sleep 1000'
    )
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env={**os.environ, "CC": str(slow)})
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not list(folder.glob("*"))
    assert not runs(int(begun.read_text()))
