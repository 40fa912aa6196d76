"""The command line starts without what only some commands need."""

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "z3",
    "networkx",
    "numpy",
    "jinja2",
    "rich",
    "kvfence.spec.language",
    "kvfence.checker.analysis.verify",
}
OTHERS = {"torch", "z3", "networkx", "jinja2", "rich", "kvfence.checker.ledger"}
OF_THE_REFERENCE = {"kvfence.reference.scheduler.options", "kvfence.reference.blocks.errors"}
"""The modules of the reference from which the options of a replay are known."""
WATCHED = """
import sys
from kvfence.checker.cli.app import run
run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """The modules that a command line leaves loaded."""
    command = [sys.executable, "-c", WATCHED, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["verify", "--help"],
        ["audit", "--help"],
        ["review", "--help"],
        ["replay", "--help"],
    ],
)
def test_help_loads_no_machine_no_engine_and_no_library_of_one(arguments: list[str]) -> None:
    assert not loaded(*arguments) & HEAVY


def test_a_verification_loads_what_it_runs_and_nothing_of_other_commands() -> None:
    there = loaded("verify", "--machine", "block_pool")
    assert there >= {"kvfence.spec.machines.block_pool", "kvfence.checker.analysis.verify", "numpy"}
    assert not there & OTHERS
    modules = {name for name in there if name.startswith("kvfence.reference.")}
    assert modules <= {*OF_THE_REFERENCE, "kvfence.reference.scheduler", "kvfence.reference.blocks"}
