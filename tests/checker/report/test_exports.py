"""Exports agree with kvfence: Spin and TLC reach as many states, and find the same invariants broken."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.analysis.verify import verify
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.report.export.mermaid import labelled, moves, sequence_diagram, state_diagram
from kvfence.checker.report.export.promela import promela
from kvfence.checker.report.export.tla import camel, tla
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Int, Machine
from kvfence.spec.machines import MACHINES

TLC = os.environ.get("KVFENCE_TLC", "")
"""Class path of TLC (tla2tools.jar), where it is to be asked."""
SIZES = {
    "block_pool": {"Block": 3, "Holder": 2, "Key": 1},
    "lookup": {"Block": 2, "Request": 1},
    "scheduling": {"Request": 1, "Block": 2, "Host": 1},
}
QUICK = ("lookup", "transfer")


def sizes_of(name: str, machine: Machine) -> dict[str, int]:
    return SIZES.get(name, dict.fromkeys(machine.sorts, 1))


def spin(machine: Machine, sizes: dict[str, int], folder: Path, *flags: str) -> str:
    (folder / "m.pml").write_text(promela(machine, sizes), encoding="utf-8")

    def done(*command: str, check: bool = True) -> str:
        return subprocess.run(command, cwd=folder, check=check, capture_output=True, text=True).stdout

    done("spin", "-a", "m.pml")
    done("cc", "-w", "-DBFS", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c")
    return done("./pan", "-m100000", *flags, check=False)


needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("cc")), reason="spin or a C compiler is not installed"
)


@needs_spin
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MACHINES]
)
def test_spin_reaches_as_many_states_by_as_many_steps(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name](frozenset())
    sizes = sizes_of(name, machine)
    known = Explore().run(machine, sizes)
    assert not known.violated
    said = spin(MACHINES[name](frozenset()), sizes, tmp_path)
    states, steps = (int(re.search(rf"(\d+) {what}", said)[1]) for what in ("states, stored", "transitions"))  # type: ignore[index]
    assert "errors: 0" in said
    assert states == known.states
    assert steps == known.transitions + 1  # Spin counts arriving in the initial state


@needs_spin
def test_spin_finds_a_named_fault(tmp_path: Path) -> None:
    said = spin(MACHINES["lookup"](frozenset({"unpinned_lookup"})), SIZES["lookup"], tmp_path)
    assert "assertion violated" in said


@pytest.mark.skipif(not TLC, reason="KVFENCE_TLC does not give the class path of TLC")
@pytest.mark.parametrize("name", MACHINES)
def test_tlc_reaches_as_many_states_and_agrees_on_promises(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name](frozenset())
    sizes = sizes_of(name, machine)
    known = Explore().run(machine, sizes)
    module, configuration = tla(MACHINES[name](frozenset()), sizes)
    (tmp_path / f"{name}.tla").write_text(module, encoding="utf-8")
    (tmp_path / f"{name}.cfg").write_text(configuration, encoding="utf-8")
    command = ["java", "-cp", TLC, "tlc2.TLC", "-workers", "1", "-cleanup", name]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    counts = re.findall(r"([\d,]+) distinct states found", said)  # progress first, the result last
    assert counts, said[-2000:]
    assert int(counts[-1].replace(",", "")) == known.states
    assert "No error has been found" in said


@pytest.mark.parametrize("name", MACHINES)
def test_a_tla_module_defines_every_part_once(name: str) -> None:
    machine = MACHINES[name](frozenset())
    module, configuration = tla(machine)
    defined = re.findall(r"^(\w+)(?:\([^)]*\))? ==", module, re.MULTILINE)
    assert len(defined) == len(set(defined))
    parts = {camel(n) for n in (*machine.actions, *machine.invariants, *machine.goals, *machine.liveness)}
    assert parts <= set(defined)
    assert module.count("(") == module.count(")")
    for invariant in machine.invariants:
        assert f"INVARIANT {camel(invariant)}\n" in configuration
    # each action says of every variable what becomes of it
    for action in machine.actions.values():
        text = module.split(f"\n{camel(action.name)}")[1].split("\n\n")[0]
        for field in machine.functions:
            assert f"{field}' =" in text or re.search(rf"UNCHANGED <<.*\b{field}\b", text), (action, field)


def test_what_promela_cannot_say_is_named() -> None:
    m = Machine("counter")
    m.function("n", value=Int(), init=0)

    @m.action()
    def count(s):  # type: ignore[no-untyped-def]
        s.n = s.n + 1

    with pytest.raises(CannotRun, match="no unbounded integers, and n of counter is one"):
        promela(m)


def test_a_state_diagram_shows_each_way_from_label_to_label() -> None:
    machine = MACHINES["lookup"](frozenset())
    (phase,) = (f for f in labelled(machine) if f.name == "phase")
    text = state_diagram(phase, moves(machine)["phase"])
    assert text.startswith("stateDiagram-v2\n    [*] --> new\n")
    assert "    waiting --> gone: abort\n" in text
    assert "    running --> waiting: preempt\n" in text
    assert "gone -->" not in text


@pytest.mark.parametrize("name", ["unpinned_lookup", "flush_misses_queued", "fenced_victim_spin"])
def test_a_sequence_diagram_in_mermaid_tells_every_step(name: str) -> None:
    (example, *_) = verify(name, machine=DESIGNS[name].machines[0]).counterexamples
    lines = sequence_diagram(example).splitlines()
    assert lines[0] == "sequenceDiagram"
    for step in example.steps:
        assert any(f"{step.number}. {step.action}(" in line for line in lines)
    assert f"{example.invariant} is broken" in lines[-1]
    known = {line.split()[1] for line in lines if line.startswith("    participant ")}
    used = {part for line in lines if ">>" in line for part in re.findall(r"L\d+", line.partition(":")[0])}
    assert used <= known


@pytest.mark.parametrize(("language", "files"), [("tla", 2), ("promela", 1), ("mermaid", 2)])
def test_export_writes_files(language: str, files: int, tmp_path: Path, kvfence: CommandLine) -> None:
    folder = tmp_path / "out"
    text = kvfence.prints(0, "export", "lookup", folder, "--as", language, "--size", "Request=1")
    written = sorted(path.name for path in folder.iterdir())
    assert len(written) == files
    assert all(name in text for name in written[:1])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["export", "lokup", "x"], "did you mean lookup"),
        (["export", "lookup", "x", "--design", "unpind"], "no design 'unpind'"),
        (["export", "lookup", "x", "--size", "Blok=2"], "did you mean Block"),
    ],
)
def test_bad_input_to_export_is_one_line(arguments: list[str], part: str, kvfence: CommandLine) -> None:
    assert part in kvfence.refuses(*arguments)
