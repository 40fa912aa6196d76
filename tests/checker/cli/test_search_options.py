"""The options of the native search and of liveness: what they print, what they refuse."""

import json
from pathlib import Path

import pytest

from kvfence.checker.cli import app as cli
from kvfence.checker.core import c_build as build
from kvfence.spec.machines import MACHINES

POOL = ["verify", "--machine", "block_pool", "--size", "Block=3"]
TRANSFER = ["verify", "--machine", "transfer"]
SMALL = [f"--size={s}" for s in ("Request=1", "Block=1", "Operation=1", "Rank=1")]


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def counts(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    code, out, _ = answer([*arguments, "--format", "json"], capsys)
    assert code == 0
    machine = json.loads(out)["machines"][0]
    return {key: machine[key] for key in ("engine", "states", "transitions", "depth", "symmetry")}


def test_the_native_engine_is_the_default_and_counts_what_numpy_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    native = counts([*POOL, "--threads", "2"], capsys)
    assert native["engine"] == "native"
    assert counts([*POOL, "--engine", "explore"], capsys) == native | {"engine": "explore"}


def test_counts_reduced_by_symmetry_are_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    reduced, whole = counts([*POOL, "--symmetry"], capsys), counts(POOL, capsys)
    assert (reduced["symmetry"], whole["symmetry"]) == (["Block", "Holder", "Key"], [])
    assert int(str(reduced["states"])) < int(str(whole["states"]))
    _, text, _ = answer([*POOL, "--symmetry"], capsys)
    assert "reduced by symmetry; states that differ in names of Block, Holder, Key" in " ".join(text.split())
    _, text, _ = answer(POOL, capsys)
    assert "symmetry" not in text


def test_a_checkpoint_is_kept_for_each_machine_and_gone_on_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = counts([*POOL, "--checkpoint", str(tmp_path)], capsys)
    assert (tmp_path / "block_pool" / "checkpoint.json").exists()
    assert counts([*POOL, "--checkpoint", str(tmp_path)], capsys) == first
    code, _, err = answer([*POOL[:-1], "Block=2", "--checkpoint", str(tmp_path)], capsys)
    assert code == 2
    assert "holds a checkpoint of block_pool (Block=3, Holder=2, Key=2), not block_pool (Block=2" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", [["--symmetry"], ["--checkpoint", "somewhere"]])
def test_options_of_the_native_engine_are_refused_with_another(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = answer([*POOL, "--engine", "explore", *option], capsys)
    assert (code, err) == (2, f"kvfence: engine explore has no {option[0]}: use --engine native or gpu\n")


def test_without_a_compiler_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build._version.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    code, out, err = answer(["verify", "--machine", "block_pool", "--machine", "block_pool"], capsys)
    build._version.cache_clear()
    assert (code, "engine explore" in out) == (0, True)
    assert err == "kvfence: no C compiler was found (cc, gcc, clang): exploring in numpy\n"


def test_a_promise_that_holds_is_told_like_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = answer([*TRANSFER, "--engine", "liveness", *SMALL], capsys)
    assert code == 0
    assert "engine liveness" in text
    lines = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
    assert lines["ONCE"] == "holds"
    assert "DEADLOCK" not in lines


def test_a_broken_promise_is_told_with_what_happens_for_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfair(faults: frozenset[str]) -> object:
        m = build_transfer(faults)
        m.actions["issue"].fair = None
        return m

    build_transfer = MACHINES["transfer"]
    monkeypatch.setitem(MACHINES, "transfer", unfair)
    code, text, _ = answer([*TRANSFER, "--engine", "liveness", *SMALL], capsys)
    assert code == 1
    assert "     Nothing more happens." in text.splitlines()
    assert "some day (o=0)" in " ".join(text.split())
    code, printed, _ = answer([*TRANSFER, "--engine", "liveness", *SMALL, "--format", "json"], capsys)
    example = json.loads(printed)["counterexamples"][0]
    assert example["loop"] == len(example["steps"])


def test_a_machine_without_promises_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = answer([*POOL, "--engine", "liveness"], capsys)
    assert code == 2
    assert "machine block_pool promises nothing about whole runs" in err
