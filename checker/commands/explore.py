"""`kvfence explore`: a local page on which a machine is walked step by step."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from kvfence.checker.errors import unknown
from kvfence.checker.explorer.server import ExplorerServer
from kvfence.checker.explorer.walk import Explorer
from kvfence.checker.review.sides import side
from kvfence.checker.units import parse_sizes
from kvfence.checker.verify import SOUND, machines_for
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES


def explore(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine, or FILE.py:MACHINE.")],
    design: Annotated[
        str | None, typer.Option(help="The design to begin with; for a file, FILE.py:BUILDER+FAULT.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SORT=N", help="How many of a sort, e.g. Block=4; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> int:
    """Walk a machine step by step on a page of this computer, until Ctrl-C."""
    sizes = parse_sizes(size or [])
    server = ExplorerServer(explorer_of(machine, design, sizes), port)
    typer.echo(f"{server.url}\nOnly this computer can open it. Ctrl-C ends it.")
    sys.stdout.flush()
    if browser:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0


def explorer_of(machine: str, design: str | None, sizes: dict[str, int]) -> Explorer:
    """The explorer of a machine in all of its designs, ``design`` first. CannotRun for unknown names."""
    if machine in MACHINES:
        first = design or SOUND
        machines_for(first, machine, sizes)
        names = [SOUND, *(name for name, row in DESIGNS.items() if row.breaks and machine in row.machines)]
        order = dict.fromkeys([first, *names])
        needed = {**DESIGNS[first].sizes, **sizes}
        return Explorer({name: MACHINES[machine](DESIGNS[name].faults) for name in order}, needed)
    if ".py" not in machine:
        raise unknown("machine", machine, MACHINES, f"there is {', '.join(MACHINES)}; a file is FILE.py:NAME")
    own: dict[str, Machine] = {}
    for text in [design, machine] if design else [machine]:
        own[text] = next(iter(side(text).builders.values()))().machine
    machines_for(SOUND, machine, sizes)
    return Explorer(own, sizes)
