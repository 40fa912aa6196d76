"""docs/mutation.md describes the machines as they are; writing it takes minutes, so parts are compared."""

from pathlib import Path

import pytest

from kvfence.checker.analysis.mutation.mutants import Kind, mutants
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

PAGE = (Path(__file__).parents[3] / "docs" / "mutation.md").read_text(encoding="utf-8")
AGAIN = "run: make docs"


def section(machine: str) -> str:
    return PAGE.partition(f"## {machine}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", list(MACHINES))
def test_the_page_has_every_condition_and_counts_every_mutant(name: str) -> None:
    machine, text = MACHINES[name](frozenset()), section(name)
    stated = [*machine.invariants, *(c.name for a in machine.actions.values() for c in a.checks)]
    for condition in stated:
        shown = condition if "." in condition else condition.replace("_", " ")
        assert f"| {shown} |" in text, AGAIN
    made = mutants(machine)
    designs = sum(d.breaks != "" and name in d.machines for d in DESIGNS.values())
    assert f"\n{len(made) + designs} mutants: " in text, AGAIN
    last = next(line for line in text.splitlines() if line.endswith("| any condition |"))
    tried = [cell.partition("/")[2].strip() for cell in last.split("|")[2 : 2 + len(Kind)]]
    kinds = [k for k in Kind if k is not Kind.design]
    assert tried == [*(str(sum(m.kind is k for m in made)) for k in kinds), str(designs)], AGAIN


@pytest.mark.parametrize("name", list(MACHINES))
def test_the_page_has_every_reason_that_a_machine_gives(name: str) -> None:
    for accepted in (*MACHINES[name](frozenset()).accepted, *MACHINES[name](frozenset()).accepted_idle):
        assert accepted.why in section(name), AGAIN
