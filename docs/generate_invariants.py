"""Prints docs/invariants.md from the catalogue and the machines.

``.venv/bin/python docs/generate_invariants.py > docs/invariants.md``
"""

from collections.abc import Iterator

from kvfence.spec.catalog import INVARIANTS, Invariant
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

INTRODUCTION = """\
# The invariants

<!-- Written by docs/generate_invariants.py (make docs) from spec/catalog.py and the machines; edit those. -->

What must hold in every KV-cache offload connector, ranked by how many public reports each would have caught.
`kvfence invariants` lists them on the terminal.
"""

NOTES = """\
Machines prove what they state for any size. "Judged": it is of whole runs, and judged at some.
Asserted: the reference implementation is judged by it. Monitored: any trace is (`kvfence check`)."""


def page() -> str:
    """The whole page."""
    machines = {name: build(frozenset()) for name, build in MACHINES.items()}
    sections = (paragraph for row in INVARIANTS for paragraph in _section(row, machines))
    return "\n\n".join([INTRODUCTION.rstrip(), "\n".join(_table()), NOTES, *sections])


def _table() -> Iterator[str]:
    yield "| id | in short | machines | asserted | monitored | reports |"
    yield "|---|---|---|---|---|---|"
    for row in INVARIANTS:
        where = ", ".join(
            f"[{m}](machines.md#{m}){'' if m in row.proved else ' (judged)'}" for m in row.machines
        )
        marks = ["yes" if mark else "" for mark in (row.asserted, row.monitored)]
        link = f"[{row.id}](#{row.id.lower()})"
        yield f"| {link} | {row.title} | {where} | {marks[0]} | {marks[1]} | {len(row.reports)} |"


def _section(row: Invariant, machines: dict[str, Machine]) -> Iterator[str]:
    yield f"## {row.id}"
    yield row.statement
    if row.limits:
        yield f"So far: {row.limits}."
    stated = [line for name, machine in machines.items() for line in _conditions(row.id, name, machine)]
    if stated:
        yield "Stated as:"
        yield "\n".join(stated)
    broken = [name for name, design in DESIGNS.items() if design.breaks == row.id]
    if broken:
        yield f"Broken by: {', '.join(f'[{name}](designs.md#{name})' for name in broken)}."
    if row.reports:
        yield f"Would have caught: {', '.join(row.reports)}."


def _conditions(id_: str, name: str, machine: Machine) -> Iterator[str]:
    for p in machine.invariants.values():
        if p.id == id_:
            yield f"* {name}: {p.name.replace('_', ' ')}."
    for text in dict.fromkeys(c.text for a in machine.actions.values() for c in a.checks if c.id == id_):
        yield f"* {name}, at a step: {text}."
    for promise in machine.liveness.values():
        if promise.id == id_:
            yield f"* {name}, of whole runs: {promise.doc or promise.name.replace('_', ' ')}."


if __name__ == "__main__":
    print(page())
