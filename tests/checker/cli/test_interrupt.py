"""Ctrl-C ends a command at any moment with one line and 130, keeps what was found, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import CommandLine

from kvfence.checker.cli import app as cli
from kvfence.checker.core import interrupts
from kvfence.checker.core.interrupts import INTERRUPTED
from kvfence.spec.machines import MACHINES

SAMPLE = next((Path(cli.__file__).parents[2] / "reference" / "samples").glob("*.jsonl"))
BIG = ["--size", "Block=9", "--size", "Holder=4"]
COMMANDS = {
    "verify": ["verify", *BIG],
    "smt": ["verify", "--engine", "smt"],
    "bmc": ["verify", "--engine", "bmc"],
    "kinduction": ["verify", "--engine", "kinduction"],
    "spacer": ["verify", "--engine", "spacer", "--machine", "lookup"],
    "explore": ["explore", "lookup", "--no-open"],
    "mutate": ["mutate", "--machine", "transfer"],
    "review": ["review", "sound", "free_on_abort"],
    "audit": ["audit", "reference", "--budget", "30", "--out", "audit"],
    "replay": ["replay", str(SAMPLE), "--resend-rate", "0.9", "--ranks", "4"],
    "check": ["check", "trace.jsonl"],
    "races": ["races", "order.jsonl"],
    "explain": ["explain", "trace.jsonl"],
}
STARTED = """
import os, sys
from kvfence.checker.cli.main import main
from kvfence.checker.core import interrupts
interrupts.watch()
os.write(1, b"\\n")
main()
"""
"""The command, which first prints that Python has loaded it: before that, Ctrl-C is Python's own."""


@contextmanager
def interrupting(*_: object) -> Iterator[object]:
    """Progress at which Ctrl-C is pressed, once there is something to lose."""

    def press(*done: object) -> None:
        if getattr(done[-1], "states", 1000) > 100 and not interrupts.pressed():
            signal.raise_signal(signal.SIGINT)

    yield press


def test_an_interrupted_verification_keeps_what_was_explored(
    monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine
) -> None:
    monkeypatch.setattr("kvfence.checker.cli.commands.verify.machine_progress", interrupting)
    ended = kvfence("verify", *BIG, "--format", "json")
    found = json.loads(ended.out)
    assert found["verdict"] == "undetermined"
    assert found["machines"][0]["stopped"] == "interrupted"
    assert found["machines"][0]["states"] > 100
    assert found["not_begun"] == list(MACHINES)[1:]
    report = "kvfence: interrupted: the report covers what was found until then (exit code 130)\n"
    assert (ended.code, ended.err) == (INTERRUPTED, report)


def test_an_interrupted_replay_keeps_its_figures(
    monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine
) -> None:
    monkeypatch.setattr("kvfence.checker.cli.commands.replay.count_progress", interrupting)
    found = kvfence.json(INTERRUPTED, "replay", SAMPLE)
    assert found["verdict"] == "undetermined"
    assert found["run"]["stats"]["steps"] > 0
    assert found["events"] > 0


def test_machines_that_were_explored_are_reported_though_the_next_one_was_still_being_compiled(
    monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine
) -> None:
    from kvfence.checker.engines.explicit.numpy_search import Explore

    explored = Explore.run

    def run(self: Explore, machine: object, *args: object, **options: object) -> object:
        if getattr(machine, "name", "") != "block_pool":
            signal.raise_signal(signal.SIGINT)
        return explored(self, machine, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Explore, "run", run)
    found = kvfence.json(INTERRUPTED, "verify", "--engine", "explore")
    assert [machine["verdict"] for machine in found["machines"]] == ["holds"]
    assert found["not_begun"] == list(MACHINES)[1:]
    assert found["verdict"] == "undetermined"


def swallowed() -> None:
    """Python only prints what is raised in ``__del__``, and in functions that C code calls."""

    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    Swallows()
    time.sleep(20)


def half_imported() -> None:
    """An import that fails by the interrupt, and is no missing package."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("cannot import name 'x' from partially initialized module") from None


@pytest.mark.parametrize("interrupted", [swallowed, half_imported])
def test_an_interrupt_that_becomes_something_else_ends_the_command_all_the_same(
    interrupted: Callable[[], None], monkeypatch: pytest.MonkeyPatch, kvfence: CommandLine
) -> None:
    def text(*_: object, **__: object) -> str:
        interrupted()
        return "not interrupted"

    monkeypatch.setattr("kvfence.checker.report.text.listings.designs_text", text)
    assert kvfence.fails(INTERRUPTED, "designs") == f"kvfence: {interrupts.AT_ONCE}\n"


def test_the_handler_of_a_program_that_calls_the_command_line_is_kept(kvfence: CommandLine) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert kvfence("--version")[::2] == (0, "")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def pressed_after(seconds: float, arguments: list[str], folder: Path, whole_group: bool) -> str:
    """What is wrong with the end of a command at which Ctrl-C is pressed; empty if nothing is."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    time.sleep(seconds)
    if process.poll() is not None:
        process.communicate()
        return ""  # it was done before
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "it goes on"
    wrong = []
    if process.returncode != INTERRUPTED:
        wrong.append(f"exit code {process.returncode}")
    if err.count(b"\n") != 1 or b"interrupted" not in err or b"Traceback" in out:
        wrong.append(f"it prints {err.decode()}")
    time.sleep(1.2)
    if group_lives(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        wrong.append("a process is left")
    return ", ".join(wrong)


def group_lives(group: int) -> bool:
    """Whether a process of the group is there still."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("command", "seconds"),
    [("explore", 0.0), ("verify", 0.02), ("smt", 0.1), ("mutate", 0.4), ("audit", 1.0)],
)
def test_ctrl_c_is_one_line_and_130(command: str, seconds: float, tmp_path: Path) -> None:
    assert pressed_after(seconds, COMMANDS[command], tmp_path, whole_group=True) == ""


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [True, False], ids=["as a terminal does", "to the process alone"])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_one_line_and_130_at_any_moment(command: str, whole_group: bool, tmp_path: Path) -> None:
    arguments = COMMANDS[command]
    if command in {"check", "races", "explain"}:
        files = ["--record", "trace.jsonl", "--record-order", "order.jsonl"]
        replay = [sys.executable, "-m", "kvfence.checker.cli.main", "replay", str(SAMPLE), *files]
        subprocess.run(replay, cwd=tmp_path, check=True, capture_output=True)
    moments = [0.01 * 1.6**n for n in range(13)]  # to 2.8 s
    wrong = {round(at, 3): pressed_after(at, arguments, tmp_path, whole_group) for at in moments}
    assert {at: what for at, what in wrong.items() if what} == {}
