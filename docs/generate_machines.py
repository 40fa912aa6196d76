"""Prints docs/machines.md from spec/machines/.

``.venv/bin/python docs/generate_machines.py > docs/machines.md``
"""

import textwrap
from collections.abc import Iterator

from kvfence.checker.report.export.mermaid import labelled, moves, state_diagram
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Action, Function, Machine
from kvfence.spec.machines import MACHINES

INTRODUCTION = """\
# The machines

<!-- Written by docs/generate_machines.py (make docs) from spec/machines/; edit those files instead. -->

Explicit state machines of the block lifecycle. `kvfence verify --machine NAME` explores one, `kvfence export
NAME DIR` writes it for TLC, for Spin, or as the state diagrams below. The diagrams show what the first few
thousand states show; each arrow names the actions that change the label so.
"""


def page() -> str:
    """The whole page."""
    sections = (paragraph for build in MACHINES.values() for paragraph in _section(build(frozenset())))
    return "\n\n".join([INTRODUCTION.rstrip(), *sections])


def _section(m: Machine) -> Iterator[str]:
    yield f"## {m.name}"
    yield _plain(m.doc)
    sorts = ", ".join(f"{s.name} ({s.default})" for s in m.sorts.values())
    yield f"Sorts, with the size that is explored by default: {sorts}."
    yield "\n".join(["| field | of | values |", "|---|---|---|", *map(_field, m.functions.values())])
    found = moves(m)
    for f in labelled(m):
        if found[f.name]:
            yield f"How `{f.name}` of {f.domain[0].name} changes:"
            yield f"```mermaid\n{state_diagram(f, found[f.name])}\n```"
    yield "\n".join(["| action | what it does |", "|---|---|", *map(_action, m.actions.values())])
    stated = [f"* {p.id}: {p.name.replace('_', ' ')}" for p in m.invariants.values()]
    stated += [f"* {p.id}, of whole runs: {p.doc or p.name.replace('_', ' ')}" for p in m.liveness.values()]
    yield from ("Invariants:", "\n".join(stated))
    if m.goals:
        yield from ("Must be reachable:", "\n".join(f"* {g.replace('_', ' ')}" for g in m.goals))
    broken = [d.name for d in DESIGNS.values() if m.name in d.machines and d.breaks]
    yield f"Designs with a fault here: {', '.join(f'[{name}](designs.md#{name})' for name in broken)}."


def _field(f: Function) -> str:
    values = ", ".join(getattr(f.value, "labels", (f.value.name,)))
    return f"| `{f.name}` | {', '.join(t.name for t in f.domain)} | {values} |"


def _action(a: Action) -> str:
    parameters = ", ".join(f"{p.value}: {p.type.name}" for p in a.params)
    fair = {"weak": " (fair)", "strong": " (strongly fair)"}.get(a.fair or "", "")
    return f"| `{a.name}({parameters})`{fair} | {' '.join(a.doc.split())} |"


def _plain(doc: str) -> str:
    """A docstring as Markdown: its double quotes of code as single ones, indented examples as code."""
    return textwrap.dedent(doc).replace("``", "`")


if __name__ == "__main__":
    print(page())
