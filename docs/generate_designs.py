"""Prints docs/designs.md from spec/designs.py.

``.venv/bin/python docs/generate_designs.py > docs/designs.md``
"""

from collections.abc import Iterator

from kvfence.spec.designs import DESIGNS, Design

INTRODUCTION = """\
# The named designs

<!-- Written by docs/generate_designs.py (make docs) from spec/designs.py; edit that instead. -->

Each design but `sound` has one fault, most of them from a public report. `kvfence verify --design NAME` shows
what it breaks, `kvfence review sound NAME` also what else it changes.
"""


def page() -> str:
    """The whole page."""
    sections = (paragraph for d in DESIGNS.values() for paragraph in _section(d))
    return "\n\n".join([INTRODUCTION.rstrip(), "\n".join(_table()), *sections])


def _table() -> Iterator[str]:
    yield "| design | machines | breaks |"
    yield "|---|---|---|"
    for d in DESIGNS.values():
        where = ", ".join(f"[{m}](machines.md#{m})" for m in d.machines)
        breaks = f"[{d.breaks}](invariants.md#{d.breaks.lower()})" if d.breaks else ""
        yield f"| [{d.name}](#{d.name}) | {where} | {breaks} |"


def _section(d: Design) -> Iterator[str]:
    yield f"## {d.name}"
    yield d.summary
    if d.sizes:
        yield f"Shows at {', '.join(f'{sort} {size}' for sort, size in d.sizes.items())}."
    if d.reports:
        yield f"Known from {', '.join(d.reports)}."


if __name__ == "__main__":
    print(page())
