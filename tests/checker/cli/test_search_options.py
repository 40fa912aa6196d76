"""The options of the native search and of liveness: what they print, what they refuse."""

from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.core import c_build as build
from kvfence.spec.machines import MACHINES

POOL = ["verify", "--machine", "block_pool", "--size", "Block=3"]
TRANSFER = ["verify", "--machine", "transfer"]
SMALL = [f"--size={s}" for s in ("Request=1", "Block=1", "Operation=1", "Rank=1")]


def counts(kvfence: CommandLine, *arguments: object) -> dict[str, object]:
    """The engine and the counts of a verification that holds."""
    machine = kvfence.json(0, *arguments)["machines"][0]
    return {key: machine[key] for key in ("engine", "states", "transitions", "depth", "symmetry")}


def test_the_native_engine_is_the_default_and_counts_as_numpy_does(kvfence: CommandLine) -> None:
    native = counts(kvfence, *POOL, "--threads", "2")
    assert native["engine"] == "native"
    assert counts(kvfence, *POOL, "--engine", "explore") == native | {"engine": "explore"}


def test_counts_reduced_by_symmetry_are_called_that(kvfence: CommandLine) -> None:
    reduced, whole = counts(kvfence, *POOL, "--symmetry"), counts(kvfence, *POOL)
    assert (reduced["symmetry"], whole["symmetry"]) == (["Block", "Holder", "Key"], [])
    assert int(str(reduced["states"])) < int(str(whole["states"]))
    text = kvfence.prints(0, *POOL, "--symmetry")
    assert "reduced by symmetry; states that differ in names of Block, Holder, Key" in text
    assert "symmetry" not in kvfence.prints(0, *POOL)


def test_a_checkpoint_is_kept_for_each_machine_and_gone_on_from(kvfence: CommandLine, tmp_path: Path) -> None:
    first = counts(kvfence, *POOL, "--checkpoint", str(tmp_path))
    assert (tmp_path / "block_pool" / "checkpoint.json").exists()
    assert counts(kvfence, *POOL, "--checkpoint", str(tmp_path)) == first
    assert (
        "holds a checkpoint of block_pool (Block=3, Holder=2, Key=2), not block_pool (Block=2"
        in kvfence.refuses(*POOL[:-1], "Block=2", "--checkpoint", tmp_path)
    )


@pytest.mark.parametrize("option", [["--symmetry"], ["--checkpoint", "somewhere"]])
def test_options_of_the_native_engine_need_it(option: list[str], kvfence: CommandLine) -> None:
    line = kvfence.refuses(*POOL, "--engine", "explore", *option)
    assert line == f"kvfence: engine explore has no {option[0]}: use --engine native or gpu\n"


def test_without_a_compiler_one_line_says_so(kvfence: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    build._version.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    code, out, err = kvfence("verify", "--machine", "block_pool", "--machine", "block_pool")
    build._version.cache_clear()
    assert (code, "engine explore" in out) == (0, True)
    assert err == "kvfence: no C compiler was found (cc, gcc, clang): exploring in numpy\n"


def test_a_liveness_property_that_holds_has_its_row(kvfence: CommandLine) -> None:
    code, text, _ = kvfence(*TRANSFER, "--engine", "liveness", *SMALL)
    assert code == 0
    assert "engine liveness" in text
    lines = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
    assert lines["ONCE"] == "holds"
    assert "DEADLOCK" not in lines


def test_a_violated_liveness_property_has_its_loop(
    kvfence: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfair(faults: frozenset[str]) -> object:
        m = build_transfer(faults)
        m.actions["issue"].fair = None
        return m

    build_transfer = MACHINES["transfer"]
    monkeypatch.setitem(MACHINES, "transfer", unfair)
    code, text, _ = kvfence(*TRANSFER, "--engine", "liveness", *SMALL)
    assert code == 1
    assert "     Nothing more happens." in text.splitlines()
    assert "some day (o=0)" in " ".join(text.split())
    example = kvfence.json(1, *TRANSFER, "--engine", "liveness", *SMALL)["counterexamples"][0]
    assert example["loop"] == len(example["steps"])


def test_a_machine_without_liveness_properties_is_refused(kvfence: CommandLine) -> None:
    assert "machine block_pool states no liveness property: use another engine" in kvfence.refuses(
        *POOL, "--engine", "liveness"
    )
